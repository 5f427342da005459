"""The table of chapters: what the map, the README and `doctor` all read."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One notebook; `needs` names the packages without which it does not run."""

    number: str
    title: str
    question: str
    part: str
    minutes: int = 0
    shows: str = ""
    needs: tuple[str, ...] = ("numpy",)

    @property
    def slug(self) -> str:
        return re.sub("[^a-z0-9]+", "_", self.title.lower())

    @property
    def file(self) -> str:
        return f"notebooks/{self.number}_{self.slug}.ipynb"

    @property
    def ready(self) -> bool:
        """Whether it is written: only then is it known how long it takes."""
        return self.minutes > 0


# Stands beside the chapter before it, and has its number with a letter.
_BESIDE = {"Fuse the backward": "b"}
# By part: title, question, minutes and what it shows; what needs more than NumPy says so.
_TABLE = {
    "Why attention waits": (
        ("Start here",
         "Why would an exact algorithm that does more arithmetic be several times faster?", 30,
         "map, doctor, the surprise: more FLOPs, less traffic, less time"),
        ("Climb the memory wall", "Why does attention wait for memory?", 40,
         "GPU anatomy, the ten steps counted, a Transformer layer on the roofline"),
        ("Tile a matmul", "How does a tile turn 2·N·M·K loads into far fewer?", 40,
         "tile visits of a matmul, coalescing and banks, tile lab")),
    "From softmax to FlashAttention": (
        ("Keep softmax safe",
         "Why does the textbook softmax overflow, and what do three passes cost?", 40,
         "overflow map by dtype, passes counted"),
        ("Run softmax online", "How can one pass know a maximum that it has not seen yet?", 35,
         "running m and ℓ on a real row, step slider"),
        ("Fuse attention into one pass",
         "There is no one-pass safe softmax; why is there one-pass attention?", 30,
         "the accumulator before and after a rescale"),
        ("Tile FlashAttention v1", "What must fit in SRAM, and what does HBM traffic become?", 60,
         "tile visits with a byte counter, block-size lab")),
    "Backward and v2": (
        ("Recompute the backward", "Where do the N×N gradients go if nothing N×N is kept?", 50,
         "activation memory, gradients checked, two loop orders counted"),
        ("Reorder the loops: v2", "What did v2 change to double the speed?", 50,
         "loop orders side by side, v1 to v2 step by step on an H200, idle SMs, warps")),
    "Real kernels": (
        ("Write kernels in Triton",
         "What does a kernel look like, and what does the compiler make of it?", 45,
         "softmax kernels at the copy speed, a compiler lens that needs no GPU"),
        ("Write FlashAttention in Triton",
         "From the NumPy page to a GPU kernel, line for line: what changes?", 60,
         "forward and backward kernels, accuracy by dtype, the race against the libraries"),
        ("Choose block sizes", "Which tile is best on this GPU, and could you have known?", 45,
         "predicted and measured heatmaps, hardware counters beside the count")),
    "The frontier": (
        ("Overlap everything: v3", "How do copy, matmul and softmax run at the same time?", 50,
         "Gantt charts of one SM, a Hopper kernel that runs and breaks on a laptop, each step predicted"
         " and measured"),
        ("Fuse the backward",
         "Where does the backward's time go, and can its sums come in one order?", 45,
         "five products on one SM, atomics against a fixed order, who waits for whom, a kernel whose"
         " locks break on a laptop"),
        ("Squeeze into FP8: v3", "How can 8-bit attention survive outliers?", 50,
         "an outlier before and after a rotation, the paper's error table, FP8 lab",
         ("numpy", "ml_dtypes")),
        ("Outrun the exponential: v4",
         "What limits attention when matmuls are no longer the bottleneck?", 50,
         "software exponentials, rescales skipped, mass lost in FP8, five roles simulated",
         ("numpy", "ml_dtypes"))),
    "Beyond one kernel": (
        ("Decode with split-KV", "One query, a long cache: who fills the GPU?", 45,
         "time against the number of parts, idle SMs, pages, whose bits a neighbor changes"),
        ("Go around the ring",
         "What when one GPU takes too long for a text: what travels, and who waits?", 45,
         "timelines of four GPUs, triangles shared out, when a link hides, four H200s measured"),
        ("Race the best, in a real model",
         "How far from the best kernels are we, and what does a faster attention buy a model?", 45,
         "the race with its losing shapes, Amdahl's law, a GPT on one page, a trained model that"
         " answers, causality lost and found")),
}
PARTS = tuple(_TABLE)


def _numbered():
    number = -1
    for part, chapters in _TABLE.items():
        for title, question, *more in chapters:
            number += title not in _BESIDE
            yield Chapter(f"{number:02d}{_BESIDE.get(title, '')}", title, question, part, *more)


CHAPTERS = tuple(_numbered())
