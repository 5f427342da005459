"""The glossary: what a word means in this course, and the chapter in which it is explained."""

from typing import NamedTuple


class Term(NamedTuple):
    """A word, the spellings by which prose is searched (a word boundary stands on both sides)."""

    name: str
    pattern: str
    text: str
    chapter: str

    @property
    def key(self) -> str:
        return "term-" + "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")


_TABLE = (
    ("accumulator", "accumulators?",
     "A sum that grows in place, tile by tile, in a wider format than its terms; the paper machine "
     "counts four bytes for each of its elements.", "00"),
    ("Amdahl's law", "Amdahl['’]s law",
     "If a share s of the time gets f times as fast, the whole takes 1 − s + s / f of its time.", "17"),
    ("arithmetic intensity", "arithmetic intensity",
     "How many FLOPs an algorithm does for each byte that it moves.", "01"),
    ("atomics", "atomics?|atomic adds?",
     "Additions to memory that several programs may make at the same address without losing one. "
     "Their order is not fixed, so sums of floats differ from run to run.", "07"),
    ("bandwidth", "bandwidth", "How many bytes a second a memory or a link carries at most.", "01"),
    ("bank conflict", "bank conflicts?",
     "Several threads of a warp want different words of one bank of shared memory; they are served "
     "one after the other.", "02"),
    ("barrier", "barriers?",
     "A counter in shared memory at which one part of a program waits until another has arrived: a "
     "tile has landed, or a slot is free again.", "12"),
    ("causality", "causality",
     "That no token of a model depends on a later one. A mask sees to it, in attention.", "17"),
    ("causal mask", "causal masks?",
     "Hides the future: query i sees key j only if j ≤ i, aligned at the last token.", "06"),
    ("closed form", "closed forms?",
     "A formula for a count, here for bytes and FLOPs, that equals what the paper machine counts "
     "when the algorithm runs.", "00"),
    ("coalescing", "coalescing|coalesced",
     "Threads of a warp that read neighbouring addresses are served together, in a few wide "
     "transactions instead of one each.", "02"),
    ("delta", "delta",
     "In the backward pass, the sum over a row of dO times O. It stands for the sum over all keys "
     "that softmax's derivative asks for.", "07"),
    ("DRAM", "DRAM",
     "The chips of HBM. Bytes at DRAM are those that really went to them and came from them; what "
     "L2 answers is not among them.", "00"),
    ("e4m3", "e4m3",
     "An 8-bit float with four bits of exponent and three of mantissa; its largest number is "
     "448.", "13"),
    ("FLOP", "FLOPs?", "One arithmetic operation. A multiply–add counts two. FLOP/s is a rate.", "00"),
    ("FP8", "FP8",
     "Floats of 8 bits: half the bytes of 16-bit ones, and twice as many products a second on the "
     "GPUs that have them.", "13"),
    ("Gluon", "Gluon",
     "A language for kernels that comes with Triton and shows what Triton hides: layouts, "
     "barriers, asynchronous copies.", "12"),
    ("grouped queries", "grouped quer(?:y|ies)|GQA",
     "Several query heads share one head of keys and values.", "10"),
    ("GPT", "GPTs?",
     "A model of layers of causal attention and matrices, which writes one token after another.", "17"),
    ("Hadamard rotation", "Hadamard(?: matrix| rotation)?",
     "Multiplying Q and K by one orthogonal matrix of ±1/√d. QKᵀ does not change; an outlier is "
     "spread over its whole row.", "13"),
    ("HBM", "HBM",
     "A GPU's large memory, off the chip that computes: tens of gigabytes, a few terabytes a "
     "second. Everything lives there.", "00"),
    ("head", "attention heads?|heads?",
     "One independent attention, with a Q, K and V of its own. A layer has many.", "00"),
    ("IO-aware", "IO-aware(?:ness)?",
     "Designed with its memory traffic in mind, not with its FLOPs alone.", "01"),
    ("kernel", "kernels?",
     "A program that runs on the GPU, started many times at once, once for each tile of the "
     "result.", "00"),
    ("L2", "L2",
     "The cache between HBM and the SMs, shared by all of them. What is read a second time may "
     "come from here.", "00"),
    ("log-sum-exp", "log-sum-exps?|lse",
     "The logarithm of a row's sum of exponentials, m + ln ℓ: one number a row, enough to compute "
     "any weight again.", "07"),
    ("logit", "logits?", "An entry of S, before softmax: a query times a key, scaled by 1/√d.", "00"),
    ("occupancy", "occupancy",
     "How many programs, or warps, share an SM at once; registers and shared memory decide.", "09"),
    ("online softmax", "online softmax",
     "Softmax that knows a row's maximum only so far: when it rises, what was summed is rescaled "
     "by one factor.", "04"),
    ("outlier", "outliers?",
     "An entry far larger than its neighbours, which takes the number format's range for "
     "itself.", "13"),
    ("persistent kernel", "persistent(?: kernels?)?|persistence",
     "One program an SM that takes tile after tile, in place of one program a tile.", "12"),
    ("ping-pong scheduling", "ping-pong",
     "Two groups of warps take turns: one computes exponentials while the other has the tensor "
     "cores.", "12"),
    ("producer", "producers?",
     "The warps of a kernel that only copy; its consumers only compute. The papers call this "
     "division of labour warp specialization.", "12"),
    ("PTX", "PTX",
     "NVIDIA's assembly language for a GPU that need not exist; ptxas makes SASS of it.", "09"),
    ("recomputation", "recomput(?:ation|ing)",
     "Computing the logits again in the backward pass instead of keeping them: more FLOPs, fewer "
     "bytes.", "07"),
    ("register", "registers?",
     "The fastest and smallest memory: a few numbers for each thread, right at the arithmetic.", "01"),
    ("rescaling", "rescal(?:e|es|ing)",
     "Multiplying a sum by e^(old maximum − new maximum), so that it is in units of the new "
     "maximum.", "04"),
    ("ring attention", "[Rr]ing [Aa]ttention",
     "Attention over several GPUs: queries stay, keys and values go from neighbor to neighbor.", "16"),
    ("roofline", "rooflines?",
     "A picture of two limits: the rate of memory times intensity, up to the rate of "
     "arithmetic.", "01"),
    ("SASS", "SASS", "The machine code that a GPU really runs.", "09"),
    ("shared memory", "shared memory",
     "The SRAM of an SM that its program manages itself, from 64 to 228 KiB.", "01"),
    ("SM", "SMs?",
     "Streaming multiprocessor: one of a GPU's processors, with its own arithmetic, registers and "
     "SRAM. An A100 has 108, an H200 132.", "00"),
    ("spill", "spills?|spilled", "A value that finds no register and goes to memory and back.", "09"),
    ("split-KV", "split-KV",
     "The keys of one query are dealt out to several programs; their (m, ℓ, O) are merged.", "08"),
    ("SRAM", "SRAM",
     "The small memory beside an SM's arithmetic: a few hundred kilobytes, about ten times as fast "
     "as HBM when all are added up.", "00"),
    ("swizzle", "swizzl(?:e|es|ed|ing)",
     "A permutation of addresses in shared memory that keeps the threads of a warp off each "
     "other's banks.", "12"),
    ("tensor cores", "tensor cores?",
     "The units that multiply small matrices. Nearly all of a GPU's FLOP/s are theirs.", "01"),
    ("tile", "tiles?", "A rectangular piece of a matrix, small enough for SRAM.", "00"),
    ("TMA", "TMA",
     "Hopper's copy engine: one thread asks for a whole tile, and a barrier says when it has "
     "landed.", "12"),
    ("traffic", "traffic", "The bytes that cross between two memories, in either direction.", "00"),
    ("Triton", "Triton",
     "A language in Python for kernels, in which one writes what happens to a tile and the "
     "compiler deals it out to threads.", "09"),
    ("ulp", "ulps?", "A unit in the last place: the step from a float to the next one.", "03"),
    ("warp", "warps?", "32 threads that run together, an instruction at a time.", "02"),
    ("wave", "waves?",
     "As many programs as fit on all SMs at once. The last wave is rarely full.", "08"),
    ("window", "windows?", "A mask that also hides keys too far back.", "10"),
    ("zigzag", "zigzag",
     "Each GPU has one chunk of a text from the front and one from the back, so that a causal "
     "mask leaves all of them equally much to do.", "16"),
)
TERMS = tuple(Term(*row) for row in _TABLE)
