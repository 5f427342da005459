"""Read what the tools say: PTX, SASS from nvdisasm, and ptxas' report."""

import functools
import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

_PTX_MATRIX = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)((?:\.[\w:]+)*)(?=\s)")
_SASS_MATRIX = re.compile(r"(?:[HIDBQO]|[HIQ]G|UTC\w*?)MMA$")
_SASS_LINE = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?((?:@!?U?P\w+\s+)?)([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
_FILE_MARK = re.compile(r'//## File "(?P<path>[^"]*)", line (?P<line>\d+)')
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
LOADS = ("LDG", "LD", "LDGSTS", "UTMALDG", "UBLKCP", "LDS", "LDSM", "LDTM", "LDL")
STORES = ("STG", "ST", "UTMASTG", "STS", "STSM", "STTM", "STL", "RED", "ATOM", "ATOMG", "UTMAREDG")


class Usage(NamedTuple):
    """What ptxas reports of a kernel."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    warnings: tuple[str, ...]


def read_ptxas(log: str) -> Usage:
    """Read registers, spills and warnings from `ptxas -v`; codes such as C7512 are warnings, too."""
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise ValueError(f"log: expected the report of `ptxas -v`, got {log[:300]!r}")
    told = [re.sub(r"^.*?:\s+(?=\(C|\S)", "", line.strip(), count=1) for line in log.splitlines()
            if re.search(r"\bwarning\b|\(C\d{4}\)", line)]
    return Usage(int(registers[1]), int(spills[1]), int(spills[2]), tuple(dict.fromkeys(told)))


@functools.cache
def tool(name: str) -> str:
    """Return the path of a program that Triton's wheel carries, such as nvdisasm."""
    spec = importlib.util.find_spec("triton")
    homes = spec and spec.submodule_search_locations
    path = Path(homes[0], "backends", "nvidia", "bin", name) if homes else None
    if path is None or not path.is_file():
        raise NotImplementedError(f"{name}: comes inside Triton's wheel for Linux, and is not here")
    return str(path)


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a binary, with a remark `// file.py:line` wherever the source line changes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool("nvdisasm"), "-g", "-c", file.name], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed: {done.stderr.strip()[:300]}")
    kept = [line for line in done.stdout.splitlines()
            if _SASS_LINE.search(line) or _FILE_MARK.search(line) or line.startswith((".L_", "."))]
    return "\n".join(line.rstrip() for line in kept if not line.startswith((".text", ".section")))


def tidy(sass: str) -> str:
    """Return SASS for people: file names without folders."""
    return _FILE_MARK.sub(lambda m: f"// {Path(m['path']).name}:{m['line']}", sass)


class Instruction(NamedTuple):
    """One SASS instruction and the source line that the debug info gives it."""

    path: str
    line: int
    opcode: str
    modifiers: tuple[str, ...]
    text: str


def instructions(sass: str) -> list[Instruction]:
    """Return the instructions of a disassembly in order, without the padding behind the last one."""
    found, path, number = [], "", 0
    for line in sass.splitlines():
        if mark := _FILE_MARK.search(line):
            path, number = mark["path"], int(mark["line"])
        elif (m := _SASS_LINE.search(line)) and m[2] != "NOP":
            text = line.split("*/", 1)[1].strip().rstrip(";").strip()
            found.append(Instruction(path, number, m[2], tuple(m[3].split(".")[1:]), text))
    return found


def matrix_in_ptx(ptx: str) -> Counter:
    """Count matrix instructions in PTX by shape and dtypes; tcgen05 keeps its shape in a descriptor."""
    found = Counter()
    for name, rest in _PTX_MATRIX.findall(ptx):
        parts = [p for p in rest.split(".") if p and p not in ("sync", "aligned", "row", "col")]
        shape = [p for p in parts if re.fullmatch(r"m\d+n\d+k\d+", p)]
        kinds = [p for p in parts if p not in shape]
        found[" ".join(filter(None, [name, *shape, ".".join(kinds)]))] += 1
    return found


def matrix_in_sass(found: list[Instruction]) -> Counter:
    """Count the matrix instructions that the chip executes: HMMA, HGMMA, UTCHMMA, …."""
    return Counter(".".join((i.opcode, *i.modifiers)) for i in found
                   if _SASS_MATRIX.fullmatch(i.opcode))


def by_width(found: list[Instruction], opcodes: tuple[str, ...]) -> Counter:
    """Count loads or stores by instruction and bits per thread, bulk copies by their dimensions."""
    return Counter(f"{i.opcode} {_width(i)}" for i in found if i.opcode in opcodes)


def _width(i: Instruction) -> str:
    if i.opcode.startswith(("UTMA", "UBLK")):
        return next((m for m in i.modifiers if re.fullmatch(r"\dD", m)), "bulk")
    if i.opcode in ("LDTM", "STTM"):                        # registers per thread
        return next((str(32 * int(m[1:])) for m in i.modifiers if re.fullmatch(r"x\d+", m)), "32")
    if i.opcode in ("LDSM", "STSM"):                        # 8×8 matrices of 16 bits, 32 bits a thread
        return str(32 * next((int(m) for m in i.modifiers if m in ("2", "4")), 1))
    return str(next((_WIDTHS[m] for m in i.modifiers if m in _WIDTHS), 32))
