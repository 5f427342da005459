"""The generations of GPU that the lens compiles for, and what one of their SMs can hold."""

from __future__ import annotations

from typing import NamedTuple

from flashlib import hardware


class Arch(NamedTuple):
    """A compute capability: what one SM holds at a time, and what one program may ask for.

    Numbers: NVIDIA CUDA Programming Guide, Compute Capabilities, tables of technical specifications
    and of memory information. Every SM has 65,536 registers, handed out to a warp in units of 256, and
    a thread can have 255. The system keeps `reserved_bytes` of shared memory with every program.
    `matrix` is the family of matrix instructions that Triton emits for 16-bit dots; it has none for
    sm_75, though the chip does.
    """

    name: str
    gpus: tuple[str, ...]
    matrix: str | None
    max_warps: int
    max_programs: int
    shared_per_sm_bytes: int
    shared_per_program_bytes: int
    reserved_bytes: int = 1024

    @property
    def capability(self) -> tuple[int, int]:
        """Return (major, minor)."""
        return divmod(self.number, 10)

    @property
    def number(self) -> int:
        return int(self.name.removeprefix("sm_"))


REGISTERS_PER_SM = 65_536
REGISTER_UNIT = 256                # registers that a warp is given at a time
SHARED_UNIT = 128                  # bytes of shared memory that a program is given at a time
TENSOR_MEMORY_COLUMNS = 512        # per SM, where there is tensor memory (sm_100)

ARCHS = {arch.name: arch for arch in (
    Arch("sm_75", ("T4",), None, 32, 16, 64 << 10, 64 << 10, 0),
    Arch("sm_80", ("A100",), "mma", 64, 32, 164 << 10, 163 << 10),
    Arch("sm_86", (), "mma", 48, 16, 100 << 10, 99 << 10),
    Arch("sm_89", ("RTX 4090",), "mma", 48, 24, 100 << 10, 99 << 10),
    Arch("sm_90", ("H100", "H200"), "wgmma", 64, 32, 228 << 10, 227 << 10),
    Arch("sm_100", ("B200",), "tcgen05", 64, 32, 228 << 10, 227 << 10),
    Arch("sm_120", (), "mma", 48, 24, 100 << 10, 99 << 10),
)}


def arch_of(name) -> Arch:
    """Return the generation named "sm_90", or that of a GPU such as "H100"."""
    if isinstance(name, Arch):
        return name
    if isinstance(name, str) and name.removesuffix("a") in ARCHS:
        return ARCHS[name.removesuffix("a")]
    gpus = ", ".join(gpu for arch in ARCHS.values() for gpu in arch.gpus)
    known = f"{', '.join(ARCHS)}, 'this machine' with its GPU, or one of the GPUs {gpus}"
    try:
        gpu = hardware.get(name)
    except (TypeError, ValueError):
        raise ValueError(f"arch: expected {known}, got {name!r}") from None
    for arch in ARCHS.values():
        if gpu.name in arch.gpus:
            return arch
    if gpu.name.startswith("this machine") and gpu.sms is not None:
        import torch

        number = "sm_{}{}".format(*torch.cuda.get_device_capability())
        if number in ARCHS:
            return ARCHS[number]
    raise ValueError(f"arch: expected {known}, got {name!r}, whose generation the lens does not know")
