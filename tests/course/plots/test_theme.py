import matplotlib as mpl
import pytest

from flashlib import plots
from flashlib.course.plots import theme

STYLE = {"Q": "#332288", "K": "#DDCC77", "V": "#117733", "S": "#88CCEE", "P": "#999933",
         "O": "#CC6677"}


@pytest.mark.parametrize("tensor", STYLE)
def test_tensor_colors_are_those_of_the_style_guide(tensor):
    assert plots.TENSOR_COLORS[tensor].upper() == STYLE[tensor]


@pytest.mark.parametrize("name, tensor", [
    ("Qi", "Q"), ("S_ij", "S"), ("Sij", "S"), ("O_acc", "O"), ("m_new", "m"), ("l", "l"),
    ("lse", "lse"), ("lse_log2", "lse"), ("delta", "delta"), ("dK", "K"),
    ("array", None), ("data", None), ("mean", None), ("logits", None), ("", None)])
def test_names_are_understood(name, tensor):
    assert theme.key_of(name) == tensor


def test_a_gradient_has_the_hue_of_its_tensor_but_lighter():
    assert theme.tensor_color("dQ") == theme.tint(theme.tensor_color("Q"), 0.4)


def test_text_is_readable_on_every_tensor():
    def luminance(color):
        rgb = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
               for c in theme.to_rgb(color)]
        return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]

    for color in theme.TENSOR_COLORS.values():
        bright, dark = sorted((luminance(color), luminance(theme.ink_on(color))), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(mpl.rcParams)
    plots.show(Q=[[1.0, 2.0]]).png()
    assert dict(mpl.rcParams) == before


def test_drawing_is_not_disturbed_by_the_settings_of_the_reader():
    expected = plots.show(Q=[[1.0, 2.0]]).png()
    with mpl.rc_context({"figure.facecolor": "black", "text.color": "white", "font.size": 30}):
        assert plots.show(Q=[[1.0, 2.0]]).png() == expected


def test_a_picture_shows_itself_with_its_alt_text():
    fig, _ = plots.subplots(height=1.0)
    plots.describe(fig, "A bar\n   grows.")
    data, metadata = fig._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == metadata["image/png"]["alt"] == "A bar grows."


def test_versions_have_one_look_each():
    looks = [tuple(plots.version_style(name).values()) for name in ("v1", "v2", "v3", "v4")]
    assert len(set(looks)) == 4
    assert plots.version_style("flash_v1") == plots.version_style("FlashAttention v1")


@pytest.mark.parametrize("n, text", [(0, "0 B"), (576, "576 B"), (1_500_000, "1.5 MB")])
def test_bytes_for_people(n, text):
    assert plots.human_bytes(n) == text


def test_a_function_stays_reachable_when_its_module_of_the_same_name_is_imported():
    import importlib

    importlib.import_module("flashlib.course.plots.roofline")
    assert callable(plots.roofline)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_plot"):
        _ = plots.no_such_plot
