"""What came of a compilation, as one object: texts, resources, instructions, occupancy."""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from dataclasses import dataclass, field
from html import escape

from flashlib import hardware
from flashlib.generations import MOST_REGISTERS
from flashlib.lens import assembly
from flashlib.lens import lines as _lines
from flashlib.lens.targets import ARCHS, Arch, arch_of
from flashlib.machine.thread_block import THREADS_PER_WARP
from flashlib.models.occupancy import TENSOR_MEMORY_COLUMNS, Occupancy, occupancy


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """A kernel compiled for one generation of GPU.

    Attributes:
        label: what was asked for.  arch: the generation.  triton: the compiler's version.
        ttir, ttgir, ptx: text; `sass` is disassembled when first asked for.  cubin: the binary. A Gluon
            kernel starts as TTGIR: its `ttir` is that, before any pass.
        registers: per thread.  spill_store_bytes, spill_load_bytes: per thread, as ptxas counts them.
        shared_bytes: of one program.  num_warps, num_stages: as launched; `warps` counts specialized
            ones, too.
        tensor_memory_columns: of 512 (sm_100).  warnings: ptxas' own, such as C7512 (serialized wgmma).
        sources: text of the Python files that the debug info names, by path.
    """

    label: str
    arch: Arch
    triton: str
    num_warps: int
    num_stages: int
    shared_bytes: int
    tensor_memory_columns: int
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    warnings: tuple[str, ...]
    ttir: str
    ttgir: str
    ptx: str
    cubin: bytes
    sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_worker(cls, result: dict, label: str) -> Compiled:
        """Build a report from what the compiling process answers."""
        usage = assembly.read_ptxas(result["log"])
        kept = ("triton", "num_warps", "num_stages", "shared_bytes", "tensor_memory_columns", "ttir",
                "ttgir", "ptx", "sources")
        return cls(label=label, arch=ARCHS[f"sm_{result['arch']}"],
                   cubin=base64.b64decode(result["cubin"]), **usage._asdict(),
                   **{name: result[name] for name in kept})

    @functools.cached_property
    def _disassembly(self) -> str:
        return assembly.disassemble(self.cubin)

    @functools.cached_property
    def _instructions(self) -> list[assembly.Instruction]:
        return assembly.instructions(self._disassembly)

    @property
    def sass(self) -> str:
        """The machine code as text, with a remark wherever the source line changes."""
        return assembly.tidy(self._disassembly)

    @property
    def instructions(self) -> Counter:
        """How often each SASS instruction stands in the binary (not how often it runs)."""
        return Counter(i.opcode for i in self._instructions)

    @property
    def matrix_instructions(self) -> Counter:
        """Matrix instructions by shape: of PTX (mma.sync, wgmma, tcgen05) and SASS (HMMA, HGMMA, …)."""
        return assembly.matrix_in_ptx(self.ptx) + assembly.matrix_in_sass(self._instructions)

    @property
    def matrix_family(self) -> str | None:
        """Return "mma", "wgmma" or "tcgen05": the newest kind in the PTX, None without any."""
        used = " ".join(assembly.matrix_in_ptx(self.ptx))
        return next((name for name in ("tcgen05", "wgmma", "mma") if f"{name}." in used), None)

    @property
    def loads_by_width(self) -> Counter:
        """Loads by instruction and bits per thread; UTMALDG (bulk copy) by dimensions of its tile."""
        return assembly.by_width(self._instructions, assembly.LOADS)

    @property
    def stores_by_width(self) -> Counter:
        """Stores by instruction and bits per thread."""
        return assembly.by_width(self._instructions, assembly.STORES)

    @property
    def spills(self) -> bool:
        """Tell whether registers did not suffice: a thread then keeps values in local memory."""
        return bool(self.spill_store_bytes or self.spill_load_bytes)

    @property
    def shared_limit_bytes(self) -> int:
        """The most shared memory that one program may ask for on this generation."""
        return self.arch.sm.shared_per_block_bytes

    @property
    def fits(self) -> bool:
        """Tell whether the GPU can launch it: shared memory within the limit."""
        return self.shared_bytes <= self.shared_limit_bytes

    @property
    def warps(self) -> int:
        """Warps of one program, those of specialized partitions included."""
        total = re.search(r'"ttg\.total-num-warps" = (\d+)', self.ttgir)
        return int(total[1]) if total else self.num_warps

    def occupancy(self, gpu=None) -> Occupancy:
        """Return how many programs share an SM of `gpu` (of this generation), and what limits them."""
        sm = self.arch.sm if gpu is None else hardware.get(gpu).sm
        if gpu is not None and arch_of(gpu) != self.arch:
            raise ValueError(f"gpu: expected a GPU of generation {self.arch.name}"
                             f" ({', '.join(self.arch.gpus) or 'none is on the sheets'}), got"
                             f" {hardware.get(gpu).name!r}; compile for its own generation")
        return occupancy(sm, threads=self.warps * THREADS_PER_WARP, registers=self.registers,
                         shared_bytes=self.shared_bytes,
                         tensor_memory_columns=self.tensor_memory_columns)

    def side_by_side(self, lines=None, *, file: str | None = None, limit: int = 6) -> _lines.SideBySide:
        """Return source lines beside their TTIR, TTGIR, PTX and SASS, as far as debug info tells.

        Matrix instructions come first, then memory, then the rest; of TTIR and TTGIR so many are shown,
        in their own order. The optimizer moves instructions between lines: in SASS, a line is a hint.

        Args:
            lines: None for the whole kernel, a line, (first, last), or text that the line contains.
            file: another source file of the kernel by name, such as "tiles.py".
            limit: operations of a stage to print; the rows hold all of them.
        """
        stages = {"ttir": self.ttir, "ttgir": self.ttgir, "ptx": self.ptx}
        return _lines.side_by_side(stages, self._instructions, self.sources, lines, file=file,
                                   limit=limit)

    def table(self) -> list[tuple[str, str]]:
        """Return the report as rows of (what, value)."""
        room = f"{self.shared_bytes:,} of {self.shared_limit_bytes:,} B"
        over = "" if self.fits else f": {self.shared_bytes - self.shared_limit_bytes:,} B too many"
        spilled = (f"{self.spill_store_bytes} B stored, {self.spill_load_bytes} B loaded"
                   if self.spills else "none")
        rows = [("registers per thread", f"{self.registers} of {MOST_REGISTERS}"),
                ("spills per thread", spilled),
                ("shared memory", room + over), ("warps, stages", f"{self.warps}, {self.num_stages}")]
        if self.tensor_memory_columns:
            rows.append(("tensor memory",
                         f"{self.tensor_memory_columns} of {TENSOR_MEMORY_COLUMNS} columns"))
        for what, counts in (("matrix instructions", self.matrix_instructions),
                             ("loads, bits a thread", self.loads_by_width),
                             ("stores, bits a thread", self.stores_by_width)):
            rows.append((what, ", ".join(f"{n} × {k}" for k, n in sorted(counts.items())) or "none"))
        shared = self.occupancy()
        rows.append(("programs per SM", f"{shared.programs}, limited by {shared.limited_by}"))
        rows += [("warning", text) for text in self.warnings]
        return rows

    def __str__(self) -> str:
        rows = [f"  {what:<22}{value}" for what, value in self.table()]
        return "\n".join([f"{self.label} (Triton {self.triton})", *rows])

    def __repr__(self) -> str:
        return f"<Compiled {self.label}: {self.registers} registers, {self.shared_bytes:,} B shared>"

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(f"<tr><td {left}>{escape(what)}</td><td {left}>{escape(value)}</td></tr>"
                       for what, value in self.table())
        return f"<table><caption>{escape(self.label)} (Triton {self.triton})</caption>{rows}</table>"
