"""GPU spec sheets: every number has a unit and a source, and what we measured is marked so.

`get("H100")` returns one of `ALL`; `this_machine()` describes the computer that runs this;
`GPU.custom(...)` and `gpu.with_(...)` make sheets of your own. Rates are dense (without sparsity)
peaks at the boost clock, which no kernel reaches for long; an FMA counts as two FLOPs. On-chip
sizes print in KiB and MiB (1,024s), memory and rates in GB and TB/s (1,000s), as the vendor does.
Taught in notebook 01.
"""

from __future__ import annotations

import math
import numbers
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from html import escape
from types import MappingProxyType

from flashlib.generations import GENERATIONS, SM

EXPS_PER_CLOCK_PER_SM = 16

# Documents that give a number for more than one GPU.
_GUIDE = ("NVIDIA CUDA Programming Guide, Compute Capabilities, table of memory information, "
          "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/"
          "compute-capabilities.html")
_VOLTA = ("NVIDIA Tesla V100 GPU Architecture whitepaper, table comparing Tesla GPUs, "
          "https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf")
_VOLTA_TUNING = ("NVIDIA Volta Tuning Guide, Unified Shared Memory/L1/Texture Cache, "
                 "https://docs.nvidia.com/cuda/archive/11.0_GA/pdf/Volta_Tuning_Guide.pdf")
_V100 = ("NVIDIA V100 datasheet, V100 SXM2 column, https://images.nvidia.com/content/technologies/"
         "volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf")
_TURING = ("NVIDIA Turing GPU Architecture whitepaper, TU104 and Tesla T4, https://images.nvidia.com/"
           "aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/"
           "NVIDIA-Turing-Architecture-Whitepaper.pdf")
_T4_BRIEF = ("NVIDIA T4 product brief PB-09256-001, product specifications, https://www.nvidia.com/"
             "content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-product-brief.pdf")
_T4 = ("NVIDIA T4 datasheet, specifications, https://www.nvidia.com/content/dam/en-zz/Solutions/"
       "Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf")
_AMPERE = ("NVIDIA Ampere Architecture In-Depth, table comparing data center GPUs, "
           "https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/")
_A100 = ("NVIDIA A100 datasheet, A100 80GB SXM column, https://www.nvidia.com/content/dam/en-zz/"
         "Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf")
_ADA = ("NVIDIA Ada GPU Architecture whitepaper, Appendix A, RTX 4090, FP32 accumulate, "
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf")
_HOPPER = ("NVIDIA Hopper Architecture In-Depth, H100 SXM5, "
           "https://developer.nvidia.com/blog/nvidia-hopper-architecture-in-depth/")
_HOPPER_WP = ("NVIDIA H100 Tensor Core GPU Architecture whitepaper, H100 SXM5 column, "
              "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper")
_HOPPER_TUNING = ("NVIDIA Hopper Tuning Guide, Memory System, "
                  "https://docs.nvidia.com/cuda/hopper-tuning-guide")
_H100 = "NVIDIA H100 product page, H100 SXM, https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "NVIDIA H200 product page, H200 SXM, https://www.nvidia.com/en-us/data-center/h200/"
_H200_QUERY = ("reported by the driver of one NVIDIA H200 through torch 2.11.0+cu130, 2026-11-21, "
               "torch.cuda.get_device_properties(0).L2_cache_size")
_HGX = ("NVIDIA HGX page, HGX B200: 8 GPUs with sparsity, divided by 16 (float32: by 8), "
        "https://www.nvidia.com/en-us/data-center/hgx/")
_DGX = "NVIDIA DGX B200 page, 8 GPUs, divided by 8, https://www.nvidia.com/en-us/data-center/dgx-b200/"
_BLACKWELL_TUNING = ("NVIDIA Blackwell Tuning Guide, Memory System, "
                     "https://docs.nvidia.com/cuda/blackwell-tuning-guide/")
_B200_QUERY = ("driver's answer on a B200, quoted in a PyTorch pull request, "
               "https://github.com/pytorch/ao/pull/4002")
_B200_CLOCK = ("derived, as NVIDIA states no clock: dense 16-bit rate / (148 SMs × 8,192 FLOPs per "
               "clock and SM, FlashAttention-4, arXiv:2603.05451)")
_EXPS = (f"derived: {EXPS_PER_CLOCK_PER_SM} per clock and SM × SMs × clock (NVIDIA CUDA C++ Best "
         "Practices Guide, Throughput of Native Arithmetic Instructions, https://docs.nvidia.com/"
         "cuda/cuda-c-best-practices-guide/index.html)")
_RUN = "2026-11-20, one NVIDIA H200, torch 2.11.0+cu130, Triton 3.6.0: "
_RUN_MATMUL = _RUN + "matmul 8192³ through cuBLAS, the ends of the range over runs"
_RUN_COPY = _RUN + "device copy, bytes read + bytes written"

# field: (label, unit, prints in powers of 1,024)
_FIELDS = {
    "sms": ("streaming multiprocessors", "SMs", False),
    "clock_hz": ("boost clock", "Hz", False),
    "registers_per_sm_bytes": ("registers per SM", "B", True),
    "shared_memory_per_sm_bytes": ("shared memory per SM", "B", True),
    "shared_memory_per_block_bytes": ("shared memory per block", "B", True),
    "l2_bytes": ("L2 cache", "B", True),
    "hbm_bytes": ("memory", "B", False),
    "hbm_bytes_per_s": ("memory bandwidth", "B/s", False),
    "vector_flops_per_s": ("vector, float32", "FLOP/s", False),
    "exps_per_s": ("exponentials", "exp/s", False),
}


def human(value, unit: str, *, binary: bool = False) -> str:
    """Format a quantity for people: `human(3.35e12, "B/s")` is '3.35 TB/s'.

    With `binary` bytes come in KiB and MiB: `human(232448, "B", binary=True)` is '227 KiB'.
    """
    value = float(value)
    steps = ([(2**20, "Mi"), (2**10, "Ki")] if binary else
             [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] if unit != "SMs" else [])
    size, prefix = next(((s, p) for s, p in steps if abs(value) >= s), (1, ""))
    scaled = value / size
    return f"{f'{scaled:,.0f}' if abs(scaled) >= 99.95 else f'{scaled:.3g}'} {prefix}{unit}"


@dataclass(frozen=True)
class Fact:
    """A number with its unit and its source; `measured` marks what we measured ourselves.

    `float(fact)` and `int(fact)` give the number, `str(fact)` prints it for people.
    """

    value: float
    unit: str
    source: str
    measured: bool = False
    binary: bool = False

    def __post_init__(self):
        if not (self.unit and self.source):
            raise ValueError(f"unit, source: expected both, got {self.unit!r} and {self.source!r}")

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __str__(self) -> str:
        text = human(self.value, self.unit, binary=self.binary)
        return f"{text} (measured)" if self.measured else text


@dataclass(frozen=True, repr=False)
class GPU:
    """The spec sheet of one GPU; what is not known, or not there, is None or absent.

    `shared_memory_per_block_bytes` is the most that one block may ask for (opt-in), which is what
    the paper machine calls SRAM: see `sram_bytes`. `matmul_flops_per_s` is keyed by dtype; its
    'float32' is the FMA rate of the CUDA cores and equals `vector_flops_per_s`, which a lone add or
    maximum reaches by half. `hbm` is the large memory, also where it is GDDR (`memory` says which).
    `measured` holds what we measured, keyed by name; `generation` is one of `GENERATIONS`.
    """

    name: str
    sms: Fact | None = None
    clock_hz: Fact | None = None
    registers_per_sm_bytes: Fact | None = None
    shared_memory_per_sm_bytes: Fact | None = None
    shared_memory_per_block_bytes: Fact | None = None
    l2_bytes: Fact | None = None
    hbm_bytes: Fact | None = None
    hbm_bytes_per_s: Fact | None = None
    matmul_flops_per_s: Mapping[str, Fact] = field(default_factory=dict, hash=False)
    vector_flops_per_s: Fact | None = None
    exps_per_s: Fact | None = None
    measured: Mapping[str, Fact] = field(default_factory=dict, hash=False)
    memory: str = ""
    note: str = ""
    generation: str = ""

    def __post_init__(self):
        for name in ("matmul_flops_per_s", "measured"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self):
        values = (getattr(self, f.name) for f in fields(self))
        return GPU, tuple(dict(v) if isinstance(v, Mapping) else v for v in values)

    @classmethod
    def custom(cls, name, *, sram_bytes, hbm_bytes_per_s, matmul_flops_per_s,
               source="given by the reader", **more) -> GPU:
        """Make a sheet of your own from numbers.

        `GPU.custom("mine", sram_bytes=100 * 1024, hbm_bytes_per_s=1e12, matmul_flops_per_s=1e14)`.
        A single matmul rate stands for float16 and bfloat16; `more` takes any other field.
        """
        return cls(name).with_(source=source, sram_bytes=sram_bytes, hbm_bytes_per_s=hbm_bytes_per_s,
                               matmul_flops_per_s=matmul_flops_per_s, **more)

    def with_(self, *, source="given by the reader", **changes) -> GPU:
        """Return a copy with some numbers changed: `get("A100").with_(hbm_bytes_per_s=4e12)`.

        `sram_bytes` means `shared_memory_per_block_bytes`; matmul rates are merged by dtype. A rate
        does not follow a changed clock or number of SMs: change it as well.
        """
        new = {}
        for key, value in changes.items():
            key = "shared_memory_per_block_bytes" if key == "sram_bytes" else key
            if key == "matmul_flops_per_s":
                rates = value if isinstance(value, Mapping) else {"float16": value, "bfloat16": value}
                new[key] = {**self.matmul_flops_per_s, **{
                    d: _fact(f"{key}[{d!r}]", v, "FLOP/s", source) for d, v in rates.items()}}
            elif key in _FIELDS:
                _, unit, binary = _FIELDS[key]
                new[key] = None if value is None else _fact(key, value, unit, source, binary)
            elif key in ("name", "memory", "note", "generation"):
                new[key] = str(value)
            else:
                known = ", ".join(["sram_bytes", "matmul_flops_per_s", *_FIELDS])
                raise TypeError(f"{key}: expected a field of a spec sheet ({known}), got {key!r}")
        return replace(self, **new)

    @property
    def sram_bytes(self) -> int | None:
        """Shared memory that one block can use: the capacity to give to a `Machine`."""
        room = self.shared_memory_per_block_bytes
        return None if room is None else int(room)

    @property
    def sm(self) -> SM:
        """One SM by this sheet, with the warps and blocks of sm_90 if the generation is unknown."""
        like = GENERATIONS.get(self.generation, GENERATIONS["sm_90"])
        shared, block, registers = (int(self.fact(name)) for name in (
            "shared_memory_per_sm_bytes", "shared_memory_per_block_bytes", "registers_per_sm_bytes"))
        return SM(like.warps, like.blocks, shared, block, registers // 4)

    def fact(self, name: str) -> Fact:
        """Return a fact by the name of its field, such as "sms"; ValueError if the sheet lacks it."""
        if (fact := getattr(self, name)) is None:
            raise ValueError(f"gpu: expected a sheet with {name}, got {self.name!r} without it; add it"
                             f" with .with_({name}=...)")
        return fact

    def facts(self) -> dict[str, Fact]:
        """Return all known facts by label, in the order of the sheet."""
        rows = {}
        for name, (label, _, _) in _FIELDS.items():
            if name == "hbm_bytes" and self.memory:
                label = f"memory ({self.memory})"
            elif name == "vector_flops_per_s":
                rows |= {f"matmul, {dtype}": f for dtype, f in self.matmul_flops_per_s.items()}
            rows[label] = getattr(self, name)
        rows |= {name.replace("_", " "): fact for name, fact in self.measured.items()}
        return {label: fact for label, fact in rows.items() if fact is not None}

    def table(self) -> list[tuple[str, str, str]]:
        """Return the sheet as rows of (field, value with unit, source)."""
        return [(label, str(fact), fact.source) for label, fact in self.facts().items()]

    def __repr__(self) -> str:
        return f"GPU({self.name!r})"

    def __str__(self) -> str:
        rows = [f"  {label:<26}{value}" for label, value, _ in self.table()]
        return "\n".join([self.name, *rows, *([f"  {self.note}"] if self.note else [])])

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(f"<tr><td {left}>{escape(label)}</td><td>{escape(value)}</td>"
                       f"<td {left}><small>{escape(source)}</small></td></tr>"
                       for label, value, source in self.table())
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return (f"<table><caption>{escape(self.name)}</caption>"
                f"<thead><tr><th></th><th>value</th><th {left}>source</th></tr></thead>"
                f"<tbody>{rows}</tbody></table>{note}")


def _fact(name, value, unit, source, binary=False) -> Fact:
    """Return a Fact made of a positive number, or the Fact itself."""
    if isinstance(value, Fact):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number or a Fact, got {value!r}")
    number = value if isinstance(value, int) else float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name}: expected a positive, finite number, got {value}")
    return Fact(number, unit, source, binary=binary)


def _sheet(name, memory, sms, clock_mhz, generation, l2_kib, gb, gb_per_s, tflops, sources,
           measured=None, note="") -> GPU:
    """Build a sheet; `sources` are those of SMs, clock, shared memory, L2, GB, GB/s and FLOP/s."""
    chip, clock, shared, l2, size, speed, rates = sources
    sm = GENERATIONS[generation]
    registers, per_sm, per_block = (Fact(size, "B", shared, binary=True) for size in (
        4 * sm.registers, sm.shared_bytes, sm.shared_per_block_bytes))
    matmul = {dtype: Fact(round(t * 1e12), "FLOP/s", rates) for dtype, t in tflops.items()}
    return GPU(
        name, Fact(sms, "SMs", chip), Fact(round(clock_mhz * 1e6), "Hz", clock), registers, per_sm,
        per_block, Fact(l2_kib * 1024, "B", l2, binary=True), Fact(gb * 10**9, "B", size),
        Fact(gb_per_s * 10**9, "B/s", speed), matmul, matmul["float32"],
        Fact(round(EXPS_PER_CLOCK_PER_SM * sms * clock_mhz * 1e6), "exp/s", _EXPS),
        measured or {}, memory, note, generation)


V100 = _sheet(
    "V100", "HBM2", 80, 1530, "sm_70", 6144, 32, 900, {"float16": 125, "float32": 15.7},
    (_VOLTA, _VOLTA, _VOLTA_TUNING, _VOLTA, _V100, _V100, _V100),
    note="SXM2, 32 GB. Its tensor cores know no bfloat16, TF32 or FP8.")
T4 = _sheet(
    "T4", "GDDR6", 40, 1590, "sm_75", 4096, 16, 320, {"float16": 65, "float32": 8.1},
    (_TURING, _T4_BRIEF, _GUIDE, _TURING, _T4, _T4_BRIEF, _T4),
    note="Its tensor cores know no bfloat16, TF32 or FP8.")
A100 = _sheet(
    "A100", "HBM2e", 108, 1410, "sm_80", 40960, 80, 2039,
    {"float16": 312, "bfloat16": 312, "tf32": 156, "float32": 19.5},
    (_AMPERE, _AMPERE, _GUIDE, _AMPERE, _A100, _A100, _A100),
    note="SXM4, 80 GB. Its tensor cores know no FP8.")
RTX_4090 = _sheet(
    "RTX 4090", "GDDR6X", 128, 2520, "sm_89", 73728, 24, 1008,
    {"float16": 165.2, "bfloat16": 165.2, "tf32": 82.6, "float8": 330.3, "float32": 82.6},
    (_ADA, _ADA, _GUIDE, _ADA, _ADA, _ADA, _ADA),
    note="16-bit and 8-bit rates accumulate in float32; in float16 they are twice as high.")
_HOPPER_TFLOPS = {"float16": 989.4, "bfloat16": 989.4, "tf32": 494.7, "float8": 1978.9, "float32": 66.9}
H100 = _sheet(
    "H100", "HBM3", 132, 1830, "sm_90", 51200, 80, 3350, _HOPPER_TFLOPS,
    (_HOPPER, _HOPPER_WP, _GUIDE, _HOPPER_TUNING, _H100, _H100, _HOPPER_WP),
    note="SXM5. The clock is that of the tensor core rates; float32 is rated at 1.98 GHz.")
H200 = _sheet(
    "H200", "HBM3e", 132, 1830, "sm_90", 61440, 141, 4800, _HOPPER_TFLOPS,
    (_HOPPER, _HOPPER_WP, _GUIDE, _H200_QUERY, _H200, _H200, _HOPPER_WP),
    measured={"bfloat16_matmul_slowest": Fact(690 * 10**12, "FLOP/s", _RUN_MATMUL, measured=True),
              "bfloat16_matmul_fastest": Fact(790 * 10**12, "FLOP/s", _RUN_MATMUL, measured=True),
              "copy": Fact(4250 * 10**9, "B/s", _RUN_COPY, measured=True)},
    note="SXM. The chip of the H100 with more L2, and more and faster memory.")
B200 = _sheet(
    "B200", "HBM3e", 148, 2250e6 / (148 * 8192), "sm_100", 126 * 1024, 180, 8000,
    {"float16": 2250, "bfloat16": 2250, "tf32": 1125, "float8": 4500, "float32": 75},
    (_B200_QUERY, _B200_CLOCK, _GUIDE, _BLACKWELL_TUNING, _DGX, _DGX, _HGX),
    note="One GPU of an HGX or DGX B200. A GB200 rates the same chip about 11 % higher.")
ALL = (V100, T4, A100, RTX_4090, H100, H200, B200)

# Exact names that the driver gives to the boards above; other boards of the same chip are slower.
_BOARDS = {"Tesla V100-SXM2-32GB": V100, "Tesla T4": T4, "NVIDIA A100-SXM4-80GB": A100,
           "NVIDIA GeForce RTX 4090": RTX_4090, "NVIDIA H100 80GB HBM3": H100, "NVIDIA H200": H200,
           "NVIDIA B200": B200}


def get(name: str | GPU) -> GPU:
    """Return the GPU of that name; spaces, hyphens and case do not matter."""
    if isinstance(name, GPU):
        return name
    if not isinstance(name, str):
        raise TypeError(f"name: expected the name of a GPU, got {name!r}")

    def plain(text):
        return "".join(c for c in text.lower() if c.isalnum())

    if plain(name) == "thismachine":
        return this_machine()
    for gpu in ALL:
        if plain(name) in (plain(gpu.name), plain(gpu.name).removeprefix("rtx")):
            return gpu
    raise ValueError(f"name: expected one of {', '.join(gpu.name for gpu in ALL)} or 'this machine',"
                     f" got {name!r}; GPU.custom(...) makes a sheet of your own")


def this_machine() -> GPU:
    """Describe the computer that runs this: its first CUDA GPU, or why there are no numbers.

    Sizes are what the driver reports. Rates come from the sheet of the board where `ALL` has it;
    else they are derived from the clocks that the driver reports, or left out. It never raises.
    """
    host = f"this machine ({platform.system()} {platform.machine()}, no GPU)"
    advice = "Everything on paper runs here; choose a GPU to model, such as get('A100')."
    try:
        import torch
    except ImportError:
        return GPU(host, note=f"torch is not installed, so no GPU can be seen. {advice}")
    except Exception as error:
        return GPU(host, note=f"torch does not load ({type(error).__name__}: {error}). {advice}")
    try:
        if not torch.cuda.is_available():
            return GPU(host, note=f"torch sees no CUDA GPU. {advice}")
        return _from_driver(torch)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return GPU(host, note=f"the GPU does not answer ({reason}). {advice}")


def _from_driver(torch) -> GPU:
    """Read the properties of the first GPU through torch."""
    props = torch.cuda.get_device_properties(0)
    source = f"reported by the driver through torch {torch.__version__}"
    known = _BOARDS.get(props.name)
    if known is not None:
        sheet = replace(known, name=f"this machine ({props.name})")
    else:
        generation = "sm_{}{}".format(getattr(props, "major", ""), getattr(props, "minor", ""))
        sheet = GPU(f"this machine ({props.name})", generation=generation if torch.version.cuda else "",
                    note="No sheet here has this board: rates are derived from clocks, or missing; add"
                         " yours with .with_(...).")

    def read(attribute, scale=1):
        value = getattr(props, attribute, None)
        return value * scale if isinstance(value, int) and value > 0 else None
    sizes = {"sms": read("multi_processor_count"),
             "registers_per_sm_bytes": read("regs_per_multiprocessor", 4),
             "shared_memory_per_sm_bytes": read("shared_memory_per_multiprocessor"),
             "shared_memory_per_block_bytes": read("shared_memory_per_block_optin"),
             "l2_bytes": read("L2_cache_size"), "hbm_bytes": read("total_memory")}
    sheet = sheet.with_(source=source, **{k: v for k, v in sizes.items() if v is not None})
    clock, sms = read("clock_rate", 1000), read("multi_processor_count")
    if known is not None or not torch.version.cuda or clock is None or sms is None:
        return sheet
    cores = 64 if (props.major, props.minor) in ((7, 0), (7, 5), (8, 0)) else 128
    vector = 2 * cores * sms * clock
    bus, memory_clock = read("memory_bus_width"), read("memory_clock_rate", 1000)
    derived = {"clock_hz": clock, "exps_per_s": EXPS_PER_CLOCK_PER_SM * sms * clock,
               "vector_flops_per_s": vector, "matmul_flops_per_s": {"float32": vector}}
    if bus and memory_clock:
        derived["hbm_bytes_per_s"] = 2 * memory_clock * bus // 8
    return sheet.with_(source=f"derived from clocks {source}", **derived)
