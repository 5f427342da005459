"""A field for each prediction: for its numbers, where the page holds the answer, or else for words.

The answers are those of a table that the next cell prints, or stand in predictions.json: by chapter
and by the prediction's place in it, each a label, which i18n/ translates, and the number as the page
has it.
"""

import html
import itertools
import json
import re
from pathlib import Path

from markup import powers

WRITTEN = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
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


def written(chapter, place):
    """Return (label, answer) of the numbers that a chapter's prediction asks for; it may be of none."""
    return [(label, number(answer)) for label, answer in WRITTEN.get(chapter, {}).get(str(place), ())]


def form(key, found, say):
    """Return the HTML of the fields; course.js keeps what is written into them."""
    head = (say("Commit first: your guess") if not found else say("Commit first: your number")
            if len(found) == 1 else say("Commit first: your numbers"))
    rows = "".join(
        f'<label><span>{powers(html.escape(say(label)))}</span> <input type="text" inputmode="decimal"'
        f' size="12"{unnamed(label, head)} autocomplete="off" data-answer="{answer:.12g}">'
        " <output></output></label>" for label, answer in found)
    rows = rows or f'<input type="text" autocomplete="off"{unnamed("", head)}>'
    button = say("Compare") if found else say("Keep it, and look")
    place, kind = html.escape(json.dumps(key)[1:-1]), "" if found else " words"
    return (f'<form class="guess{kind}" data-guess="{place}" novalidate>'
            f'<p class="guess-head">{head}</p>{rows} <button type="submit">{button}</button></form>')


def unnamed(label, head):
    """Return the attribute that names a field without a label to who does not see its place."""
    return "" if label else f' aria-label="{html.escape(head)}"'
