"""Draw the picture that is shown where the course's address is shared: 1200 × 630, recorded times.

    python assets/figures/make_social.py        writes social.png beside this script, from social.html

It needs Chromium, and the site's fonts: `make site` fetches them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

import flashlib as fl  # noqa: E402
from flashlib.course.plots.theme import TENSOR_COLORS  # noqa: E402
from tests.browser import chromium  # noqa: E402

FONTS = ROOT / "site" / "node_modules" / "@fontsource-variable"
SIZE = (1200, 630)
STEP = {"mode": "forward+backward", "N_q": 4096}
PALE = "KS"


def page():
    """Return the picture as HTML; its bars are as long as what was recorded."""
    recorded = fl.data.measurements("attention_demo_h200").where(**STEP)
    seconds = {impl: recorded.where(impl=impl).column("seconds")[0] for impl in ("standard", "flash")}
    lanes = "".join(
        f'<div class="lane {impl}"><span>{name}</span><span><span class="run" style="width:'
        f'{100 * seconds[impl] / max(seconds.values()):.1f}%"></span></span><span class="ms">'
        f"{seconds[impl] * 1e3:.2f} ms</span></div>"
        for impl, name in (("standard", "standard attention"), ("flash", "FlashAttention")))
    hues = "".join(f'<b class="{"pale" if name in PALE else ""}" style="background:'
                   f'{TENSOR_COLORS[name]}">{name}</b>' for name in "QKVSPO")
    words = {"lanes": lanes, "hues": hues, "gpu": recorded.provenance["gpu"]}
    for name, folder in (("serif", "source-serif-4"), ("sans", "inter")):
        words[name] = (FONTS / folder / "files" / f"{folder}-latin-wght-normal.woff2").as_uri()
    text = (HERE / "social.html").read_text("utf-8")
    for name, value in words.items():
        text = text.replace("{{" + name + "}}", value)
    return text


if __name__ == "__main__":
    if not FONTS.is_dir():
        sys.exit("The site's fonts are not there: `make site` fetches them.")
    with tempfile.TemporaryDirectory() as scratch:
        drawn = Path(scratch) / "social.html"
        drawn.write_text(page(), "utf-8")
        subprocess.run([chromium.find(), *chromium.FLAGS, f"--window-size={SIZE[0]},{SIZE[1]}",
                        "--hide-scrollbars", f"--screenshot={HERE / 'social.png'}", drawn.as_uri()],
                       check=True, capture_output=True)
    print("social.png")
