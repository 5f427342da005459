"""What the built site shows without a browser: links, pictures, weights, recorded numbers."""

import gzip
import itertools
import json
import re
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "_site"
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
PAGES = ["index", *CHAPTERS, "questions", "glossary", "figures"]
# Bytes; of the site, all that is in the folder, both editions.
HTML_GZ, SCRIPTS_GZ, PICTURES, SITE = 60_000, 40_000, 900_000, 10_000_000


def text(name):
    """Return a page with quotes around all values."""
    page = (BUILT / f"{name}.html").read_text("utf-8")
    value = re.compile(r"""( [\w-]+=)([^\s"'=<>]+)(?=[ >])""")
    return re.sub(r"<\w[^>]*>", lambda tag: value.sub(r'\1"\2"', tag[0]), page)


def notebook(name, folder=""):
    """Return the notebook that a page offers, the only file of a zip."""
    with zipfile.ZipFile(BUILT / folder / "notebooks" / f"{name}.zip") as packed:
        assert packed.namelist() == [f"{name}.ipynb"]
        return json.loads(packed.read(f"{name}.ipynb"))


@pytest.fixture(scope="module")
def pages(part):
    return part("check_site").read(BUILT)


def test_the_pages(pages):
    names = {path.relative_to(BUILT).with_suffix("").as_posix() for path in pages}
    assert names == {f"{folder}{name}" for folder in ("", "zh/") for name in PAGES}


def test_no_link_leads_nowhere(pages, part):
    assert part("check_site").broken(pages) == []
    assert sum(len(page.links) for page in pages.values()) > 3000


def test_nothing_is_loaded_from_elsewhere(pages, part):
    outside = part("check_site").outside
    for path, page in pages.items():
        assert [load for load in page.loads if outside(load)] == [], path.name
    for style in BUILT.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", style.read_text("utf-8")), style.name


def test_no_anchor_stands_twice(pages):
    assert {path.name: page.twice for path, page in pages.items() if page.twice} == {}


def test_every_picture_says_what_it_shows(pages):
    large = [(path.name, image) for path, page in pages.items() for image in page.images
             if "_images/small/" not in image["src"]]
    assert [name for name, image in large if not image.get("alt")] == []
    assert [name for name, image in large if not image.get("width") or image["loading"] != "lazy"] == []
    assert len(large) > 200


def test_every_picture_of_a_notebook_is_on_its_page(pages, part):
    left_out = 0
    for name in CHAPTERS:
        book = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))
        left_out += len(book["cells"])
        book["cells"] = part("prep").shown(book["cells"])
        left_out -= len(book["cells"])
        drawn = [alt for _, _, alt in part("prep").outputs(book, "image/png")]
        assert [image["alt"] for image in pages[BUILT / f"{name}.html"].images] == drawn
    assert left_out == 5, "those of labs whose explorer says as much, or opens otherwise"


def test_films_are_kept_to_the_pixel_and_pictures_but_for_rims(part, tmp_path):
    from PIL import Image, ImageChops

    (tmp_path / "small").mkdir()
    book = json.loads((ROOT / "notebooks" / f"{CHAPTERS[6]}.ipynb").read_text("utf-8"))
    still, moving = 0, 0
    for _, png, _ in list(part("prep").outputs(book, "image/png"))[:4]:
        path = tmp_path / "picture.png"
        path.write_bytes(png)
        before = [frame.copy() for frame in _frames(Image.open(path))]
        name, size, count, _ = part("pictures").to_webp(path, tmp_path / "small")
        after = Image.open(tmp_path / name)
        assert (after.size, getattr(after, "n_frames", 1)) == (size, count) and len(before) == count
        for old, new in zip(before, _frames(after), strict=True):
            moved = max(most for _, most in ImageChops.difference(old, new).getextrema())
            assert moved <= (part("pictures").RIM if count == 1 else 0)
            left = part("pictures").colors(new)
            fills = [color for color, n in part("pictures").colors(old).items()
                     if n > 2 * part("pictures").AREA * old.width * old.height]
            assert count > 1 or (len(fills) > 1 and left.keys() >= set(fills))
        still, moving = still + (count == 1), moving + (count > 1)
    assert still and moving


def _frames(image):
    for n in range(getattr(image, "n_frames", 1)):
        image.seek(n)
        yield image.convert("RGB")


@pytest.mark.parametrize("name", [*PAGES, *(f"zh/{name}" for name in PAGES)])
def test_weight_of_a_page(name, pages):
    path = BUILT / f"{name}.html"
    page = pages[path]
    assert len(gzip.compress(text(name).encode())) <= HTML_GZ
    pictures = {image["src"] for image in page.images}
    assert sum((path.parent / source).stat().st_size for source in pictures) <= PICTURES
    scripts = [load.split("?")[0] for load in page.loads if re.search(r"\.js(\?|$)", load)]
    weight = sum(len(gzip.compress((path.parent / script).read_bytes())) for script in scripts)
    assert 0 < weight <= SCRIPTS_GZ


def test_weight_of_the_site():
    assert sum(path.stat().st_size for path in BUILT.rglob("*") if path.is_file()) <= SITE


def test_styles_have_no_colors_of_terminals():
    assert not any("-Color" in path.read_text("utf-8") for path in BUILT.rglob("*.css"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_its_parts(name):
    page = text(name)
    assert '<div class="question container">' in page
    assert re.search(r"\d+ min to read", page)
    assert f'href="notebooks/{name}.zip" download' in page
    assert (BUILT / "notebooks" / f"{name}.zip").stat().st_size > 5_000
    assert page.count('class="term"') >= 8 and '<div class="takeaway container">' in page
    assert not re.search(r"colab\.research|/blob/main/notebooks", page), "nobody named a repository"
    assert "katex-error" not in page and "all chapters</a>" not in page


def test_next_says_the_next_chapters_question(part):
    rows, _ = part("prep").chapters()
    for row, after in itertools.pairwise(rows):
        assert f'<span class="asks">{part("html").escape(after.question)}</span>' in text(
            f"{row.number}_{row.slug}").split('class="next-page"')[1].split("</a>")[0]


def test_the_front_page_begins_with_recorded_numbers(part):
    standard, flash = part("prep").seconds()
    page = text("index")
    assert f"{standard * 1e3:.2f} ms" in page and f"{flash * 1e3:.2f} ms" in page
    assert abs(flash / standard - 1 / 3) < 0.04, "a third of the time"
    more = float(re.search(r"<b>× ([\d.]+)</b> arithmetic", page)[1])
    assert abs(more - 7 / 6) < 0.01, "a sixth more arithmetic"
    rows, _ = part("prep").chapters()
    for row in rows:
        assert part("html").escape(row.question) in page and f"{row.minutes} min</span>" in page


def test_the_front_page_and_each_lab_say_what_to_type():
    for folder in ("", "zh/"):
        page = text(f"{folder}index")
        assert 'id="course"' in page and re.search(r"<pre[^>]*>make lab\n</pre>", page)
        assert 'href="index.html#course"' in text(f"{folder}{CHAPTERS[0]}")


def test_figures_have_the_headings_above_them_for_captions():
    page = text("figures")
    captions = re.findall(r'<a href="(\w+)\.html#figure-\d+"><img[^>]*>([^<]*)</a>', page)
    assert len(captions) == len(set(captions)) > 100
    for name, caption in captions:
        assert caption and re.sub(r" \(\d\)$", "", caption) in re.sub("<[^>]*>", "", text(name))


def test_predictions_have_fields():
    fields = {name: text(name).count("data-answer=") for name in CHAPTERS}
    assert sum(fields.values()) >= 25 and sum(count > 0 for count in fields.values()) >= 11
    assert 'data-answer="142606336"' in text(CHAPTERS[0])


def test_downloads_carry_no_outputs_and_the_same_cells():
    for name in CHAPTERS:
        book = notebook(name)
        full = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))
        assert [c["source"] for c in book["cells"]] == ["".join(c["source"]) for c in full["cells"]]
        assert not any(c.get("outputs") for c in book["cells"])


def test_the_search_knows_every_section(part):
    script = (BUILT / "_static" / "search-index.js").read_text("utf-8")
    entries = part("search_index").entries(script)
    assert len(entries) > 300
    assert {page for page, *_ in entries} == {f"{name}.html" for name in PAGES if name != "figures"}
    for page, anchor, _, heading, _ in entries:
        assert heading and (not anchor or f'id="{anchor}"' in text(page.removesuffix(".html")))
    assert len(gzip.compress(script.encode())) < 200_000
