"""The strip of chapter 12: a loop's machine code as ticks, in the source's order and in its own."""

import re
from collections import Counter
from collections.abc import Sequence

from flashlib.course.plots import theme
from flashlib.course.plots.gantt import face
from flashlib.course.plots.parts import bare, boxes, heading
from flashlib.course.plots.theme import INK, SMALL, TINY, Figure, styled

_LABEL = re.compile(r"^(\.L_x_\d+):", re.M)
_BRANCH = re.compile(r"BRA.*`\((\.L_x_\d+)\)")
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
# What a thread does in the loop, in the order of the kernel's source: words, look.
STEPS = {
    "QK": ("issue Q·Kᵀ", face("QK")), "PV": ("issue P·V", face("PV")),
    "wait QK": ("wait for Q·Kᵀ", {"facecolor": INK}),
    "max": ("maximum", face("max") | {"hatch": ""}), "fma": ("multiply-add", {"facecolor": "#B4B4B4"}),
    "exp": ("exponential", face("exp")), "sum": ("sum", {"facecolor": "#8C6BB1"}),
    "wait PV": ("wait for P·V", {"facecolor": theme.OVER}),
    "pack": ("to 16 bits", {"facecolor": "#5B7F95"}),
    "rescale": ("rescale O", face("rescale") | {"hatch": ""}),
    "rest": ("barriers, addresses", {"facecolor": "#E4E4E4"})}
_KINDS = {"FMNMX": "max", "FFMA": "fma", "MUFU": "exp", "FADD": "sum", "F2FP": "pack",
          "FMUL": "rescale"}


def loop_of(sass: str) -> list[str]:
    """Return the steps, as `STEPS` names them, of the first loop of a listing with two matmuls."""
    lines, labels, found = sass.splitlines(), {}, []
    for n, line in enumerate(lines):
        if mark := _LABEL.match(line):
            labels[mark[1]] = n
        elif (branch := _BRANCH.search(line)) and branch[1] in labels:
            found.append(lines[labels[branch[1]]:n + 1])
    bodies = [[op[1] for line in body if (op := _OPCODE.search(line))] for body in found]
    bodies = [body for body in bodies if sum(op.startswith("WARPGROUP.DEPBAR") for op in body) == 2]
    if not bodies:
        raise ValueError("sass: expected a loop that waits for two matmuls of a warpgroup")
    body, steps, seen = min(bodies, key=len), [], Counter()
    matmuls = sum(op.startswith("HGMMA") for op in body)
    for op in body:
        name = op.split(".")[0]
        seen[op] += 1
        if name == "HGMMA":
            seen[name] += op != name
            steps.append("QK" if seen[name] <= matmuls // 2 else "PV")
        elif op.startswith("WARPGROUP.DEPBAR"):
            steps.append("wait QK" if seen[op] == 1 else "wait PV")
        else:
            steps.append(_KINDS.get(name, "rest"))
    return steps


@styled
def strip(machine: Sequence[str]) -> Figure:
    """Draw a loop's steps as ticks: in the order of the source above, as the machine has them below."""
    order = [step for step in STEPS if step != "rest"]
    ours = [step for step in machine if step != "rest"]
    rows = {"source": sorted(ours, key=order.index), "machine": ours}
    fig = theme.figure(2.2, layout=None)
    ax = fig.add_axes((0.09, 0.18, 0.9, 0.48))
    ax.set(xlim=(0, len(ours)), ylim=(2.1, -0.25))
    for y, steps in enumerate(rows.values()):
        for step in order:
            boxes(ax, [(n, y + 0.1, 1, 0.72) for n, found in enumerate(steps) if found == step],
                  facecolor=STEPS[step][1]["facecolor"], edgecolor="none")
        for step in ("wait QK", "wait PV"):
            n = steps.index(step) + 0.5
            ax.plot([n, n], [y - 0.02, y + 0.9], color=STEPS[step][1]["facecolor"], lw=2.2)
    before = {name: Counter(steps[:steps.index("wait PV")])["exp"] for name, steps in rows.items()}
    heading(fig, f"Exponentials before the wait for P·V: {before['source']} in the source,"
                 f" {before['machine'] or 'none'} in the machine code")
    ax.set_yticks([0.46, 1.46], ["source", "machine"], fontsize=SMALL)
    bare(ax, "left")
    ax.set_xlabel("instructions of one round of the loop, in the order in which a thread issues them",
                  fontsize=SMALL, labelpad=2)
    ax.tick_params(axis="x", labelsize=TINY)
    for at, some in (((-0.1, 1.14), order[:5]), ((-0.1, 1.0), order[5:])):
        theme.patch_key(ax, [STEPS[step] for step in some], at=at, loc="lower left")
    return theme.describe(fig, f"{len(ours)} instructions of a loop. Before the wait for P·V come"
                               f" {before['source']} exponentials in the source's order, and"
                               f" {before['machine']} in the machine code's.")
