"""After Sphinx: lossless WebP for PNG, roles that screen readers understand, nothing that is not used."""

import re

from PIL import Image

UNUSED = ("search.html", "searchindex.js", "genindex.html", "objects.inv", ".buildinfo",
          "_static/searchtools.js", "_static/language_data.js", "_static/styles/furo.css.map",
          "_static/styles/furo-extensions.css.map", "_static/scripts/furo.js.map")


def to_webp(path):
    """Write a PNG as lossless WebP, still or moving; return (size, frames)."""
    image = Image.open(path)
    new = path.with_suffix(".webp")
    count = getattr(image, "n_frames", 1)
    if count == 1:
        image.convert("RGB").save(new, "WEBP", lossless=True, method=4)
    else:
        frames, times = [], []
        for n in range(count):
            image.seek(n)
            frames.append(image.convert("RGB"))
            times.append(round(image.info["duration"]))
        frames[0].save(new, "WEBP", save_all=True, append_images=frames[1:], duration=times,
                       loop=image.info.get("loop", 0), lossless=True, method=4)
        frames[-1].save(path.with_suffix(".still.webp"), "WEBP", lossless=True, method=4)
    size = image.size
    path.unlink()
    return size, count


def finish(root, books, *, address=""):
    pictures = {path.name: to_webp(path) for path in sorted((root / "_images").glob("*.png"))}
    for name in UNUSED:
        (root / name).unlink(missing_ok=True)
    for page in sorted(root.glob("*.html")):
        text = page.read_text("utf-8")
        page.write_text(repair(text, pictures), "utf-8")


def repair(text, pictures):
    """Return a page with its pictures and the roles that axe-core asks for."""
    def img(found):
        attributes = found[0]
        name = re.search(r'src="_images/([^"]+)"', attributes)[1]
        (width, height), frames = pictures[name]
        shown = re.search(r'width: (\d+)px', attributes)
        wide = int(shown[1]) if shown else width // 2
        alt = re.search(r'alt="[^"]*"', attributes)[0]
        stem = f"_images/{name[:-4]}"
        still = f' data-still="{stem}.still.webp"' if frames > 1 else ""
        return (f'<img src="{stem}.webp" {alt} width="{wide}" height="{round(height * wide / width)}"'
                f' loading="lazy" decoding="async"{still}>')

    text = re.sub(r'<img[^>]*src="_images/[^"]+\.png"[^>]*>', img, text)
    text = text.replace('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">')
    return text.replace('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">')
