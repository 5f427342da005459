"""The choices of a lab, and the corners of several, for the tests of the labs.

`scripts/render_notebooks.py --check --sweep`, which .ci/run runs, sets every control of the notebooks
to every option and makes the pictures pixel by pixel; here a figure is drawn up to its pixels, of a
slider the ends and the middle.
"""


def drawn(fig):
    """Lay a figure out, with every text in it, and return it."""
    fig.draw_without_rendering()
    return fig


def chosen(control):
    """Return what to draw of a control: all options, or of a slider its ends and its middle."""
    values = [value for _, value in control.options]
    if control.kind not in ("slider", "play"):
        return values
    return [values[n] for n in dict.fromkeys((0, len(values) // 2, len(values) - 1))]


def draw_choices(lab):
    """Draw what is `chosen` of every control, the others at their defaults; return how many of each."""
    drawn(lab.figure())
    counts = {}
    for key, control in lab.controls.items():
        values = chosen(control)
        for value in values:
            if value != control.default:
                drawn(lab.figure(**{key: value}))
        counts[key] = len(values)
    return counts


def corners(*pairs):
    """Return combinations of one of each pair in which every two choices of two pairs meet.

    Four for up to three pairs, eight for up to seven: columns of a Hadamard matrix.
    """
    count = 4 if len(pairs) <= 3 else 8
    if not len(pairs) < 8:
        raise ValueError(f"pairs: expected up to seven, got {len(pairs)}")
    return [tuple(pair[(i & column).bit_count() % 2] for column, pair in enumerate(pairs, 1))
            for i in range(count)]
