"""A field for each number that a chapter asks for, where the next output holds the answer."""

import html
import itertools
import json
import re

_RULE = re.compile(r"^─+(  ─+)+$")
_MOST = 6                                                   # fields of one prediction


def tables(text):
    """Yield each table that `show.table` printed: its header and its rows, as lists of cells."""
    lines = text.splitlines()
    for n, line in enumerate(lines):
        if n and _RULE.match(line):
            edges = [found.span() for found in re.finditer("─+", line)]
            cut = [start for start, _ in edges] + [None]
            rows = []
            for row in [lines[n - 1], *lines[n + 1:]]:
                if not row.strip():
                    break
                rows.append([row[a:b].strip() for a, b in itertools.pairwise(cut)])
            yield rows[0], rows[1:]


def number(cell):
    """Return the number in a cell, or None if it holds anything else."""
    try:
        return float(cell.replace(",", "").replace("−", "-"))
    except ValueError:
        return None


def fields(text):
    """Return (label, answer) for what was predicted and then counted or measured in a printed table."""
    for header, rows in tables(text):
        first = next((n for n, name in enumerate(header) if name.startswith("predicted")), None)
        wanted = [n for n, name in enumerate(header) if re.match("counted|measured", name)]
        if not first or not wanted:
            continue
        kinds = [n for n in wanted if header[n].split()[0] == header[wanted[0]].split()[0]]
        found = []
        for row in rows:
            name = " · ".join(f"{title} {cell}" if number(cell) is not None else cell
                              for title, cell in zip(header[:first], row[:first], strict=True))
            for n in kinds:
                what = header[n].split(" ", 1)[1] if " " in header[n] and len(kinds) > 1 else ""
                if number(row[n]):
                    found.append((f"{name}, {what}" if what else name, number(row[n])))
        if 0 < len(found) <= _MOST:
            return found
    return []


def form(key, found, say):
    """Return the HTML of the fields; course.js keeps what is written into them."""
    rows = "".join(
        f'<label><span>{html.escape(label)}</span> <input type="text" inputmode="decimal" size="12"'
        f' autocomplete="off" data-answer="{answer:.12g}"> <output></output></label>'
        for label, answer in found)
    head = say("Commit first: your number") if len(found) == 1 else say("Commit first: your numbers")
    return (f'<form class="guess" data-guess="{html.escape(json.dumps(key)[1:-1])}" novalidate>'
            f'<p class="guess-head">{head}</p>{rows}'
            f'<button type="submit">{say("Compare")}</button></form>')
