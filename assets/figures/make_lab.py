"""Film the README's lab: chapter 06's, in JupyterLab in Chromium, while a key moves a slider.

    python assets/figures/make_lab.py        writes lab.gif beside this script

It needs what `make test-browser` needs, and runs from the course's folder.
"""

import io
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from scripts.render_notebooks import KERNEL_METADATA  # noqa: E402
from tests.browser import chromium  # noqa: E402
from tests.browser.page import NotebookPage  # noqa: E402
from tests.browser.server import jupyterlab  # noqa: E402

CELL = ("from flashlib.course.ch06 import lab\n"
        "lab.block_lab(algorithm='flash_v2', Br=8, Bc=64, N=4096, d=128)")
STEPS = 10
FRAME_MS, LAST_MS = 1100, 2500


def frames(page):
    """Yield a picture of the lab at each position of its first slider, the height of a query tile."""
    (lab,) = page.labs()
    slider = next(control for kind, control in lab.controls() if kind == "slider")
    for step in range(STEPS):
        if step:
            lab.move("slider", slider)
        page.page.mouse.move(0, 0)
        yield Image.open(io.BytesIO(lab.root.screenshot())).convert("RGB")


def main():
    with tempfile.TemporaryDirectory() as scratch, jupyterlab(Path(scratch)) as server, \
            sync_playwright() as playwright:
        notebook = new_notebook(cells=[new_code_cell(CELL)], metadata=KERNEL_METADATA)
        nbformat.write(notebook, server.folder / "work" / "lab.ipynb")
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=list(chromium.FLAGS))
        page = NotebookPage(browser, server, "lab.ipynb", Path(scratch), dots=2)
        page.run()
        taken = [frame.crop((0, 0, 1696, frame.height)) for frame in frames(page)]
        page.close()
        browser.close()
    shown = [frame.quantize(255, dither=Image.Dither.NONE) for frame in taken]
    shown[0].save(HERE / "lab.gif", save_all=True, append_images=shown[1:], loop=0, optimize=True,
                  duration=[FRAME_MS] * (STEPS - 1) + [LAST_MS])


if __name__ == "__main__":
    main()
