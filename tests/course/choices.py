"""Every choice of a lab, and the corners of several, for the tests of the labs.

`scripts/render_notebooks.py --check --sweep`, which .ci/run runs, sets the same controls in the
notebooks and makes the pictures pixel by pixel; here a figure is drawn up to its pixels.
"""


def drawn(fig):
    """Lay a figure out, with every text in it, and return it."""
    fig.draw_without_rendering()
    return fig


def draw_every_choice(lab):
    """Draw every option of every control, the others at their defaults; return {control: drawn}."""
    drawn(lab.figure())
    counts = {}
    for key, control in lab.controls.items():
        others = [value for _, value in control.options if value != control.default]
        for value in others:
            drawn(lab.figure(**{key: value}))
        counts[key] = 1 + len(others)
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
