"""The explorers in JupyterLab: anywidget draws them, keys move them, and the kernel hears of it."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from scripts.render_notebooks import KERNEL_METADATA

pytestmark = pytest.mark.browser

SHOW = """
from flashlib.course.widgets.explorer import explorer
shown = [explorer("blocks", algorithm="v1", Br=64), explorer("walk", run="v1"), explorer("softmax")]
display(*shown)
"""

ASK = """code => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel
    .requestExecute({code}).done"""


def test_the_explorers_draw_and_the_kernel_follows(open_notebook, tmp_path):
    pytest.importorskip("anywidget", reason='anywidget is not installed: pip install ".[explorer]"')
    path = tmp_path / "97_explore.ipynb"
    lead = "shown[0].state = {**shown[0].state, 'gpu': 'H100'}"
    cells = [new_code_cell(SHOW), new_code_cell(lead)]
    nbformat.write(new_notebook(cells=cells, metadata=KERNEL_METADATA), path)
    with open_notebook(path) as notebook:
        page = notebook.page
        head = page.locator(".fx-blocks .fx-head")
        head.get_by_text("227 KiB").wait_for()
        assert head.inner_text().startswith("FlashAttention v1 moves")
        assert page.locator(".fx-walk [aria-current]").count() == 1
        assert page.locator(".fx-softmax svg").count() == 2
        slider = page.locator(".fx-blocks [data-key=Br]")
        slider.focus()
        slider.press("ArrowRight")
        page.locator(".fx-blocks [data-row=Br] output", has_text="80").wait_for()
        page.evaluate(ASK, "assert shown[0].state['Br'] == 80, shown[0].state")
        pick = page.locator(".fx-blocks [data-key=algorithm]")
        pick.nth(6).focus()
        pick.nth(6).press("ArrowRight")                     # from the backward pass to decoding
        page.locator(".fx-blocks .fx-head", has_text="8 of 132 SMs work").wait_for()
        parts = page.locator(".fx-blocks [data-key=parts]")
        parts.focus()
        parts.press("ArrowRight")
        page.locator(".fx-blocks .fx-head", has_text="16 of 132 SMs work").wait_for()
        page.evaluate(ASK, "assert shown[0].state['parts'] == 2, shown[0].state")
        assert notebook.errors() == []
