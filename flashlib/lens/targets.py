"""The generations of GPU that the lens compiles for; `flashlib.generations` has what an SM holds."""

from typing import NamedTuple

from flashlib import hardware
from flashlib.generations import GENERATIONS, SM


class Arch(NamedTuple):
    """A compute capability as a target: `sm_90` is what its machine code is called.

    `matrix` is the family of matrix instructions that Triton emits for 16-bit dots; it has none for
    sm_75, though the chip does.
    """

    name: str
    matrix: str | None

    @property
    def capability(self) -> tuple[int, int]:
        """Return (major, minor)."""
        return divmod(self.number, 10)

    @property
    def number(self) -> int:
        return int(self.name.removeprefix("sm_"))

    @property
    def sm(self) -> SM:
        """Return what one of its SMs holds."""
        return GENERATIONS[self.name]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the names of the GPUs on the sheets that are of this generation."""
        return tuple(gpu.name for gpu in hardware.ALL if gpu.generation == self.name)


ARCHS = {arch.name: arch for arch in (
    Arch("sm_75", None), Arch("sm_80", "mma"), Arch("sm_86", "mma"), Arch("sm_89", "mma"),
    Arch("sm_90", "wgmma"), Arch("sm_100", "tcgen05"), Arch("sm_120", "mma"))}


def arch_of(name) -> Arch:
    """Return the generation named "sm_90", or that of a GPU such as "H100"."""
    if isinstance(name, Arch):
        return name
    if isinstance(name, str) and name.removesuffix("a") in ARCHS:
        return ARCHS[name.removesuffix("a")]
    gpus = ", ".join(gpu for arch in ARCHS.values() for gpu in arch.gpus)
    known = f"{', '.join(ARCHS)}, 'this machine' with its GPU, or one of the GPUs {gpus}"
    try:
        return ARCHS[hardware.get(name).generation]
    except (TypeError, ValueError):
        raise ValueError(f"arch: expected {known}, got {name!r}") from None
    except KeyError:
        raise ValueError(f"arch: expected {known}, got {name!r}, whose generation the lens does not"
                         " know") from None
