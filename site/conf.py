"""Sphinx's configuration of the site; site/build.py calls Sphinx with it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "FlashAttention, from softmax to silicon"
author = "the FlashAttention course authors"
language = "en"
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
html_static_path = [os.environ["SITE_STATIC"]]
html_css_files = ["katex/katex.min.css", "course.css"]
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
html_theme_options = {
    "light_css_variables": {
        "font-stack": "'Source Serif 4 Variable', Georgia, serif",
        "font-stack--headings": "'Inter Variable', system-ui, sans-serif",
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
