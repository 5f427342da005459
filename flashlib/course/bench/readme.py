"""Rewrite the README's table of measurements from the recorded CSV file.

    python -m flashlib.course.bench.readme
"""

import argparse
from pathlib import Path

from flashlib.course.bench.peers import NAMES
from flashlib.course.notebook.data import measurements, read_measurement
from flashlib.course.plots.parts import origin

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
README = Path(__file__).resolve().parents[3] / "README.md"


def table(measurement, backward=None):
    """Return the Markdown table: TFLOP/s by shape, and our ratio to each peer.

    `backward`: a measurement whose backward rows are taken in place of the first one's.
    """
    rows = [row for row in measurement.rows if backward is None or row["mode"] == "forward"]
    rows += [row for row in backward.rows if row["mode"] == "backward"] if backward else []
    present = {row["impl"] for row in rows}
    peers = [impl for impl in NAMES if impl in present and not impl.startswith("ours")]
    cases = {}
    for row in rows:
        key = tuple(row[name] for name in ("mode", "causal", "B", "H", "N_q", "d"))
        cases.setdefault(key, {})[row["impl"]] = row
    head = ["B, H, N, d", "mask", "pass", "ours", *(f"{NAMES[peer]} (ours ÷ it)" for peer in peers)]
    lines = [_row(head), _row(["---"] * 3 + ["--:"] * (1 + len(peers)))]
    order = {"forward": 0, "backward": 1}
    for key in sorted(cases, key=lambda case: (order[case[0]], case[5], case[4], case[1])):
        mode, causal, *shape = key
        rows = cases[key]
        cells = [", ".join(map(str, shape)), "causal" if causal else "none", mode]
        cells.append(f"**{rows['ours']['tflops_per_s']:.0f}**")
        cells += [_peer(rows.get(peer)) for peer in peers]
        lines.append(_row(cells))
    said = [_origin(measurement)] if backward is None else [
        f"Forward: {_origin(measurement)}", "", f"Backward: {_origin(backward)}"]
    return "\n".join([*lines, "", *said])


def _row(cells):
    return f"| {' | '.join(cells)} |"


def _peer(row):
    return "–" if row is None else f"{row['tflops_per_s']:.0f} ({row['ours_over_this']:.2f}×)"


def _origin(measurement):
    head = measurement.provenance
    versions = ", ".join(f"{name} {head[name]}" for name in ("torch", "triton", "cudnn")
                         if head.get(name, "none") != "none")
    absent = [name for key, name in NAMES.items() if f"absent_{key}" in head]
    matmul, copy = (measurement.number(f"ceiling_{name}_per_s") / 1e12
                    for name in ("matmul_flops", "copy_bytes"))
    text = (f"*TFLOP/s, {head['dtype']}, {origin(measurement)} ({versions}); medians, all in one run,"
            f" in which a bf16 matmul of {int(measurement.number('ceiling_matmul_rows'))}³ reached"
            f" {matmul:.0f} TFLOP/s and a copy {copy:.2f} TB/s.")
    if absent:
        text += f" Not timed there: {', '.join(absent)}."
    return text + f" Repeat it with `make bench`; `{head['command']}` wrote the file.*"


def rewrite(text, body):
    """Return a Markdown text with what stands between the two markers replaced.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ValueError(f"text: expected {START} and then {END}, once each")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n{body}\n{END}{after}"


def main(argv=None):
    """Rewrite the README in place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="a file of flashlib.course.bench.attention")
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args(argv)
    found = [read_measurement(options.csv)] if options.csv else [
        measurements(f"attention_{name}") for name in ("h200", "backward_h200")]
    text = options.readme.read_text(encoding="utf-8")
    options.readme.write_text(rewrite(text, table(*found)), encoding="utf-8")


if __name__ == "__main__":
    main()
