"""Sphinx's configuration of the site; site/build.py calls Sphinx with it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from front import title
from tongue import LANGUAGES

edition = LANGUAGES[os.environ.get("SITE_LANGUAGE", "en")]
project = title(edition.say)
author = "the FlashAttention course authors"
language = edition.sphinx
extensions = ["myst_nb", "sphinx_copybutton", "formulas", "sphinx_parts"]
templates_path = [str(Path(__file__).parent / "templates")]
exclude_patterns = []
suppress_warnings = ["myst.header"]

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_inline", "attrs_block"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

html_theme = "furo"
html_title = project
html_baseurl = os.environ.get("SITE_URL", "")
if html_baseurl and edition.folder:
    html_baseurl = f"{html_baseurl.rstrip('/')}/{edition.folder}"
html_static_path = [os.environ["SITE_STATIC"]]
html_css_files = ["katex/katex.min.css", "course.css", *(["chinese.css"] if edition.folder else [])]
html_js_files = [("course.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_domain_indices = False
html_permalinks_icon = "#"
html_sidebars = {"**": [
    "sidebar/brand.html", "course-search.html", "sidebar/scroll-start.html", "sidebar/navigation.html",
    "sidebar/scroll-end.html"]}
# Chinese characters come from the reader's system; chinese.css says why the quotation marks come first.
stacks = {
    "en": ("'Source Serif 4 Variable', Georgia, serif", "'Inter Variable', system-ui, sans-serif"),
    "zh": ("'Chinese marks', 'Source Serif 4 Variable', 'Noto Serif CJK SC', 'Source Han Serif SC',"
           " 'Songti SC', STSong, SimSun, Georgia, serif",
           "'Chinese marks', 'Inter Variable', 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC',"
           " 'WenQuanYi Micro Hei', system-ui, sans-serif"),
}
html_theme_options = {
    "light_css_variables": {
        "font-stack": stacks[edition.code][0],
        "font-stack--headings": stacks[edition.code][1],
        "font-stack--monospace": "'JetBrains Mono Variable', ui-monospace, monospace",
        "color-brand-primary": "#2b5c80",
        "color-brand-content": "#2b5c80",
        "color-brand-visited": "#5b4b8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8cc1e0",
        "color-brand-content": "#8cc1e0",
        "color-brand-visited": "#b9a7e0",
    },
}
html_math_renderer = "katex"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_selector = "div.cell_input div.highlight pre"
