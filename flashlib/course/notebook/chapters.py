"""The table of chapters: what the map, the README and `doctor` all read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One notebook; `needs` names the packages without which it does not run."""

    number: str
    slug: str
    title: str
    question: str
    part: str
    minutes: int = 0
    needs: tuple[str, ...] = ("numpy",)
    shows: str = ""
    ready: bool = False

    @property
    def file(self) -> str:
        return f"notebooks/{self.number}_{self.slug}.ipynb"


PARTS = ("Why attention waits", "From softmax to FlashAttention", "Backward and v2",
         "Real kernels", "The frontier", "Beyond one kernel")

CHAPTERS = (
    Chapter("00", "start_here", "Start here",
            "Why would an exact algorithm that does more arithmetic be several times faster?",
            PARTS[0], 30, shows="map, doctor, the surprise: more FLOPs, less traffic, less time",
            ready=True),
    Chapter("01", "climb_the_memory_wall", "Climb the memory wall",
            "Why does attention wait for memory?", PARTS[0], 40,
            shows="GPU anatomy, the ten steps counted, a Transformer layer on the roofline",
            ready=True),
    Chapter("02", "tile_a_matmul", "Tile a matmul",
            "How does a tile turn 2·N·M·K loads into far fewer?", PARTS[0], 40,
            shows="tile visits of a matmul, coalescing and banks, tile lab", ready=True),
    Chapter("03", "keep_softmax_safe", "Keep softmax safe",
            "Why does the textbook softmax overflow, and what do three passes cost?", PARTS[1], 40,
            shows="overflow map by dtype, passes counted", ready=True),
    Chapter("04", "run_softmax_online", "Run softmax online",
            "How can one pass know a maximum that it has not seen yet?", PARTS[1], 35,
            shows="running m and ℓ on a real row, step slider", ready=True),
    Chapter("05", "fuse_attention_into_one_pass", "Fuse attention into one pass",
            "There is no one-pass safe softmax; why is there one-pass attention?", PARTS[1], 30,
            shows="the accumulator before and after a rescale", ready=True),
    Chapter("06", "tile_flashattention_v1", "Tile FlashAttention v1",
            "What must fit in SRAM, and what does HBM traffic become?", PARTS[1], 60,
            shows="tile visits with a byte counter, block-size lab", ready=True),
    Chapter("07", "recompute_the_backward", "Recompute the backward",
            "Where do the N×N gradients go if nothing N×N is kept?", PARTS[2], 50,
            shows="activation memory, gradients checked, two loop orders counted", ready=True),
    Chapter("08", "reorder_the_loops_v2", "Reorder the loops: v2",
            "What did v2 change to double the speed?", PARTS[2], 60,
            shows="loop orders side by side, idle SMs, warps that share or do not", ready=True),
    Chapter("09", "write_kernels_in_triton", "Write kernels in Triton",
            "What does a kernel look like, and what does the compiler make of it?", PARTS[3], 45,
            shows="softmax kernels at the copy speed, a compiler lens that needs no GPU",
            ready=True),
    Chapter("10", "write_flashattention_in_triton", "Write FlashAttention in Triton",
            "From the NumPy page to a GPU kernel, line for line: what changes?", PARTS[3], 60,
            shows="forward and backward kernels, accuracy by dtype, the race against the libraries",
            ready=True),
    Chapter("11", "choose_block_sizes", "Choose block sizes",
            "Which tile is best on this GPU, and could you have known?", PARTS[3], 45,
            shows="predicted and measured heatmaps, hardware counters beside the count", ready=True),
    Chapter("12", "overlap_everything_v3", "Overlap everything: v3",
            "How do copy, matmul and softmax run at the same time?", PARTS[4], 50,
            shows="Gantt charts of one SM, barriers that break, each step predicted and measured",
            ready=True),
    Chapter("13", "squeeze_into_fp8_v3", "Squeeze into FP8: v3",
            "How can 8-bit attention survive outliers?", PARTS[4], 50, ("numpy", "ml_dtypes"),
            shows="an outlier before and after a rotation, the paper's error table, FP8 lab",
            ready=True),
    Chapter("14", "outrun_the_exponential_v4", "Outrun the exponential: v4",
            "What limits attention when matmuls are no longer the bottleneck?", PARTS[4], 50,
            ("numpy", "ml_dtypes"),
            shows="software exponentials, rescales skipped, mass lost in FP8, five roles simulated",
            ready=True),
    Chapter("15", "decode_with_split_kv", "Decode with split-KV",
            "One query, a long cache: who fills the GPU?", PARTS[5]),
    Chapter("16", "go_around_the_ring", "Go around the ring",
            "What when the sequence does not fit one GPU?", PARTS[5]),
    Chapter("17", "race_the_best", "Race the best",
            "How far from the best kernels in the world are we?", PARTS[5]),
)
