"""From a source line to what became of it: TTIR, TTGIR, PTX and SASS, by debug info."""

import ast
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from flashlib.lens.assembly import Instruction

STAGES = ("ttir", "ttgir", "ptx", "sass")
_DEFINED = re.compile(r"^(#loc\w*) = loc\((.*)\)$", re.M)
_TRAILING = re.compile(r"\s*loc\((#loc\w*)\)\s*$")
_PLACE = re.compile(r'"(.*)":(\d+):\d+$')
_PTX_PLACE = re.compile(r"([^\s:/]+):(\d+):\d+")

_MATRIX = re.compile(r"^w?g?mma\.|^tcgen05\.mma|[A-Z]MMA|tt\.dot |warp_group_dot |tc_gen5_mma ")
_MEMORY = re.compile(r"^(?:ld|st|cp|red|atom)\.|LD[GSLT]|ST[GSLT]|UTMA|MUFU|ex2|math\.exp|tmem|async_|"
                     r"tt\.(?:load|store|descriptor)|local_(?:load|store|alloc)|warp_group_dot_wait")
_PTX_SHAPE = re.compile(r"^wgmma\.mma_async.*\.m(\d+)n(\d+)k(\d+)\.")

Chain = tuple[tuple[str, int], ...]                         # (file name, line), innermost first


@dataclass
class Row:
    """One source line and the operations that carry it in their debug info.

    `elsewhere` lists SASS of a helper's line that several source lines share, so that it belongs to
    none alone: (helper's line, source lines, instructions).
    """

    line: int
    source: str
    ttir: list[str] = field(default_factory=list)
    ttgir: list[str] = field(default_factory=list)
    ptx: list[str] = field(default_factory=list)
    sass: list[str] = field(default_factory=list)
    elsewhere: list[tuple[str, tuple[int, ...], list[str]]] = field(default_factory=list)


@dataclass
class SideBySide:
    """Source lines beside their operations; prints as blocks, and as a table in a notebook."""

    file: str
    rows: list[Row]
    limit: int = 6

    def __str__(self) -> str:
        blocks = []
        for row in self.rows:
            lines = [f"{self.file}:{row.line}  {row.source.strip()}"]
            for stage in STAGES:
                for i, text in enumerate(self._short(row, stage)):
                    lines.append(f"  {stage.upper() if i == 0 else '':<6}{_cut(text)}")
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = "style='text-align:left;vertical-align:top'"
        pre = "<pre style='background:transparent;margin:0'>"
        lines = []
        for row in self.rows:
            lines.append(f"<tr><th {left}>line {row.line}</th>"
                         f"<td {left}>{pre}{escape(_cut(row.source.strip()))}</pre></td></tr>")
            for stage in STAGES:
                text = escape("\n".join(map(_cut, self._short(row, stage)))) or "–"
                lines.append(f"<tr><td {left}>{stage.upper()}</td>"
                             f"<td {left}>{pre}{text}</pre></td></tr>")
        caption = f"<caption style='text-align:left'>{escape(self.file)}</caption>"
        return f"<table>{caption}<tbody>{''.join(lines)}</tbody></table>"

    def _short(self, row: Row, stage: str) -> list[str]:
        """Return a stage's operations, repetitions counted: matrix first, then memory, then rest."""
        dialect = stage in ("ttir", "ttgir")                # else registers differ, the rest repeats
        alike = Counter(text if dialect else _opcode(text) for text in getattr(row, stage))
        ranked = sorted(alike, key=_rank)
        if dialect:                                         # as many, in their own order
            ranked[:self.limit] = sorted(ranked[:self.limit], key=list(alike).index)
        shown = [f"{text}  ×{alike[text]}" if alike[text] > 1 else text for text in ranked]
        if stage == "sass":
            for where, lines, found in row.elsewhere:
                some = ", ".join(list(Counter(_opcode(t) for t in found))[:4])
                shown.append(f"[{where}, for lines {', '.join(map(str, lines))}: {some}]")
        if len(shown) > self.limit:
            shown = [*shown[:self.limit], f"… and {len(shown) - self.limit} more"]
        return shown


def side_by_side(stages: dict[str, str], sass: list[Instruction], sources: dict[str, str], lines=None,
                 *, file: str | None = None, limit: int = 6) -> SideBySide:
    """Return the rows of `lines`: None for all, a line, a (first, last) pair, or text in the line."""
    path, name = _choose(stages["ttir"], sources, file)
    text, first_line = sources.get(path, "").splitlines(), _statements(sources.get(path, ""))
    wanted = _wanted(lines, text)
    found: dict[int, Row] = defaultdict(lambda: Row(0, ""))

    def place(chain: Chain) -> int | None:
        """Return the innermost statement of the file on the way from an operation to the kernel."""
        return next((first_line.get(line, line) for file, line in chain if file == name), None)

    for stage in ("ttir", "ttgir"):
        for chain, operation in _operations(stages[stage]):
            if (line := place(chain)) is not None:
                getattr(found[line], stage).append(operation)
    users = defaultdict(set)                                # a helper's line → the lines that use it
    shapes = defaultdict(set)                               # a wgmma's shape → the lines with it
    for chain, operation in _ptx(stages["ptx"]):
        if (line := place(chain)) is not None:
            found[line].ptx.append(operation)
            if shape := _PTX_SHAPE.match(operation):
                shapes["x".join(shape.groups())].add(line)
            if chain[0][0] != name:
                users[chain[0]].add(line)
    shared = defaultdict(list)
    for i in sass:
        leaf = (Path(i.path).name, i.line)
        statement, asked = place((leaf,)), next((shapes[m] for m in i.modifiers if m in shapes), ())
        if len(asked) == 1:                                 # ptxas gives HGMMA its neighbor's line
            found[min(asked)].sass.append(i.text)
        elif statement is not None:
            found[statement].sass.append(i.text)
        elif len(users[leaf]) == 1:
            found[next(iter(users[leaf]))].sass.append(i.text)
        elif users[leaf]:
            shared[leaf].append(i.text)
    for leaf, texts in shared.items():
        for line in users[leaf]:
            found[line].elsewhere.append((f"{leaf[0]}:{leaf[1]}", tuple(sorted(users[leaf])), texts))
    if wanted is not None:
        wanted = {first_line.get(line, line) for line in wanted}
    rows = []
    for line in sorted(found):
        if wanted is None or line in wanted:
            row = found[line]
            row.line, row.source = line, text[line - 1] if 0 < line <= len(text) else ""
            rows.append(row)
    return SideBySide(name, rows, limit)


def _choose(ttir: str, sources: dict[str, str], file: str | None) -> tuple[str, str]:
    """Return path and name of the file to show: the kernel's own unless another is named."""
    if file is not None:
        paths = [p for p in sources if Path(p).name == file]
        if not paths:
            raise ValueError(f"file: expected one of {', '.join(Path(p).name for p in sources)},"
                             f" got {file!r}")
        return paths[0], file
    first = re.search(r'^#loc = loc\("(.*)":\d+:\d+\)$', ttir, re.M)
    path = first[1] if first else next(iter(sources), "")
    return path, Path(path).name


def _wanted(lines, text: list[str]) -> set[int] | None:
    if lines is None:
        return None
    if isinstance(lines, str):
        found = {n for n, line in enumerate(text, 1) if lines in line}
        if not found:
            raise ValueError(f"lines: expected text that a source line contains, got {lines!r}")
        return found
    if type(lines) is int:
        return {lines}
    try:
        first, last = lines
        return set(range(first, last + 1))
    except (TypeError, ValueError):
        raise TypeError("lines: expected None, a line, (first, last), or text in the line, got"
                        f" {lines!r}") from None


def _cut(text: str, width: int = 96) -> str:
    return text if len(text) <= width else text[:width - 1] + "…"


def _rank(text: str) -> int:
    return 0 if _MATRIX.search(text) else 1 if _MEMORY.search(text) else 2


def _statements(text: str) -> dict[int, int]:
    """Return, for statements of several lines, line → first line."""
    first = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            first |= dict.fromkeys(range(node.lineno + 1, (node.end_lineno or 0) + 1), node.lineno)
    return first


def _operations(text: str) -> list[tuple[Chain, str]]:
    """Return the operations of an MLIR dump with their places; calls are followed outwards."""
    defined = dict(_DEFINED.findall(text))
    known: dict[str, Chain] = {}

    def chain(body: str) -> Chain:
        if body in known:
            return known[body]
        known[body] = ()                                    # against a loop in a broken dump
        if place := _PLACE.match(body):
            result = ((Path(place[1]).name, int(place[2])),)
        elif call := re.match(r"callsite\((.*) at (.*)\)$", body):
            result = chain(call[1]) + chain(call[2])
        elif body.startswith("#"):
            result = chain(defined.get(body, "unknown"))
        else:                                               # a name, or a fusion: its first place
            inner = re.search(r"#loc\w*", body)
            result = chain(inner[0]) if inner else ()
        known[body] = result
        return result

    operations = []
    for line in text.splitlines():
        mark = _TRAILING.search(line)
        if mark and not line.startswith("#"):
            operation = line[:mark.start()].strip()
            if operation not in ("}", "{") and not operation.startswith("%arg"):
                operations.append((chain(mark[1]), operation))
    return operations


def _ptx(text: str) -> list[tuple[Chain, str]]:
    """Return the instructions of PTX with their places."""
    operations, chain = [], ()
    for line in text.splitlines():
        code, _, remark = line.strip().partition("//")
        code = code.strip()
        if code.startswith(".loc"):
            chain = tuple((file, int(number)) for file, number in _PTX_PLACE.findall(remark))
        elif code.startswith(".section"):
            break
        elif re.match(r"(@!?%p\d+\s+)?[a-z]", code) and code.endswith(";"):
            operations.append((chain, code))
    return operations


def _opcode(text: str) -> str:
    """Return an instruction without its operands and its predicate."""
    words = text.lstrip("{ ").split()
    if words and words[0].startswith("@"):
        words = words[1:]
    return words[0].rstrip(";") if words else text
