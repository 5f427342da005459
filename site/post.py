"""After Sphinx: small pictures and pages, roles for screen readers, the gallery, the search's index."""

import html
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import edition
import fonts
import front
import pictures
import search_index
import slim
from tongue import CHINESE, ENGLISH, catalogue

ASSETS = Path(__file__).resolve().parent.parent / "assets"

UNUSED = (
    "search.html", "searchindex.js", "genindex.html", "objects.inv", ".buildinfo", "_sources",
    "_static/searchtools.js", "_static/language_data.js", "_static/doctools.js",
    "_static/sphinx_highlight.js", "_static/english-stemmer.js", "_static/base-stemmer.js",
    "_static/basic.css", "_static/debug.css", "_static/skeleton.css", "_static/file.png",
    "_static/minus.png", "_static/plus.png", "_static/styles/furo.css.map",
    "_static/styles/furo-extensions.css.map", "_static/scripts/furo.js.map",
    "_static/scripts/furo-extensions.js")


def gather(root, languages):
    """Put the pictures of all languages into one folder, and drop what else is there twice."""
    for language in languages:
        own = root / language.folder
        for name in UNUSED:
            path = own / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if own == root:
            continue
        for path in (own / "_images").glob("*"):
            if not (root / "_images" / path.name).exists():
                path.rename(root / "_images" / path.name)
        for name in ("_images", "_static"):
            shutil.rmtree(own / name)


def finish(root, books, *, address="", languages=(ENGLISH, CHINESE)):
    """Turn Sphinx's outputs, in the folder `root` and for Chinese in one inside it, into the site."""
    address = address.rstrip("/")
    gather(root, languages)
    drawn = pictures.convert(root / "_images")
    chapters = [f"{book.path.stem}.html" for book in books]
    order = ["index.html", *chapters, "questions.html", "glossary.html", "figures.html"]
    pages = {}
    for language in languages:
        words = spoken(root, language)
        shown = {}
        for name in sorted(path.name for path in (root / language.folder).glob("*.html")):
            text = (root / language.folder / name).read_text("utf-8")
            text, shown[name.removesuffix(".html")] = repair(text, drawn)
            text = edition.finish(name, text, language, address=address, words=words)
            pages[language.folder + name] = text
        name = f"{language.folder}figures.html"
        pages[name] = gallery(pages[name], shown, up="../" if language.folder else "")
        searched = {name: pages[name] for name in addresses(order[:-1], language)}
        index = search_index.script(searched, language)
        (root / edition.index_of(language)).write_text(index, "utf-8")
    styled(root, pages, languages)
    for name, text in pages.items():
        (root / name).write_text(text, "utf-8")
    for name in ("course.js", "search.js"):                 # no string of theirs goes over a line's end
        path = root / "_static" / name
        path.write_text(re.sub(r"(?m)^\s*//.*\n|^[ \t]+", "", path.read_text("utf-8")), "utf-8")
    button = root / "_static" / "copybutton.js"             # it knows Chinese by another name
    button.write_text(button.read_text("utf-8").replace("'zh-CN'", f"'{CHINESE.html}'"), "utf-8")
    if address:
        publish(root, [name for language in languages for name in addresses(order, language)], address)


def styled(root, pages, languages):
    """Make style sheets and pages small together, and drop the fonts that no formula wants."""
    static, katex = root / "_static", root / "_static" / "katex"
    sheets = {path: slim.sheet(path.read_text("utf-8")) for path in static.rglob("*.css")}
    if not any("-Color-" in text for text in pages.values()):
        sheets = {path: slim.ANSI.sub("", style) for path, style in sheets.items()}
    for language in languages:                              # the theme writes its colors into each page
        own = [name for name in pages if name.startswith(language.folder) or not language.folder]
        inline = re.search(r"(?s)<style>\s*(body \{.*?)</style>", pages[own[0]])
        path = static / ("chinese.css" if language.folder else "course.css")
        sheets[path] += slim.sheet(inline[1])
        pages |= {name: pages[name].replace(inline[0], "") for name in own}
    scripts = "".join(path.read_text("utf-8") for path in static.rglob("*.js"))
    strings = re.findall(r"""(?s)"[^"\n]*"|'[^'\n]*'|`[^`]*`""", scripts)
    said = set(re.findall(r"[\w-]+", " ".join(strings)))
    formulas = sheets.pop(katex / "katex.min.css")
    classes = said.union(*(found.split() for text in pages.values()
                           for found in re.findall(r' (?:class|k)="([^"]*)"', text)))
    sheets = {path: slim.living(style, classes) for path, style in sheets.items()}
    taken = set(slim.CLASS.findall("".join(sheets.values())))
    small, sheets[static / "pygments.css"] = slim.code(pages, sheets[static / "pygments.css"])
    for language in languages:
        script = root / (f"{language.folder}_words.js" if language.folder else "_static/course.js")
        if not script.exists():                             # then the English ones do
            continue
        drawn = json.dumps(slim.switches(pages[f"{language.folder}index.html"]), ensure_ascii=False)
        script.write_text(f"window.COURSE_SWITCHES??={drawn};\n{script.read_text('utf-8')}", "utf-8")
    small = {name: slim.frame(slim.unnamed(text, taken | said | {"notranslate", "math"}))
             for name, text in small.items()}
    small, formulas = slim.named(small, slim.Sheet(formulas), taken)
    pages |= {name: slim.bare(text) for name, text in small.items()}
    for path, style in (sheets | {katex / "katex.min.css": formulas}).items():
        path.write_text(style, "utf-8")
    signs = set(html.unescape("".join([*pages.values(), scripts])))
    for font in static.rglob("*.woff2"):
        if font.parent.parent == katex and font.name not in formulas:
            font.unlink()
        else:
            fonts.subset(font, signs)


def addresses(names, language):
    return [language.folder + name for name in names]


def spoken(root, language):
    """Write the scripts' words in a language, {English: its own}; return whether there are any."""
    path = catalogue.HERE / language.code / "words.json"
    if path.exists():
        words = json.loads(path.read_text("utf-8"))
        text = json.dumps(words, ensure_ascii=False, separators=(",", ":"))
        (root / language.folder / "_words.js").write_text(f"window.COURSE_WORDS={text};\n", "utf-8")
    return path.exists()


def repair(text, drawn):
    """Return a page with its pictures and the roles that axe-core asks for, and [(id, file, title)]."""
    headings = re.finditer(r'<h[1-3]>(.*?)<a class="headerlink"', text, re.S)
    titles = [(heading.start(), re.sub("<[^>]*>", "", heading[1])) for heading in headings]
    shown = []

    def img(found):
        name = re.search(r'src="_images/([^"]+)"', found[0])[1]
        new, (width, height), frames, tensors = drawn[name]
        set_to = re.search(r"width: (\d+)px", found[0])
        wide = int(set_to[1]) if set_to else width // 2
        alt = re.search(r'alt="([^"]*)"', found[0])[1]
        title = next(title for place, title in reversed(titles) if place < found.start())
        look = ' class="tensors"' if tensors else ""
        shown.append((f"figure-{len(shown) + 1}", new, title, look))
        still = f' data-still="_images/{new[:-5]}.still.webp"' if frames > 1 else ""
        return (f'<img id="{shown[-1][0]}"{look} src="_images/{new}" alt="{alt}" width="{wide}"'
                f' height="{round(height * wide / width)}" loading="lazy" decoding="async"{still}>')

    text = re.sub(r'<img[^>]*src="_images/[^"]+\.png"[^>]*>', img, text)
    here = re.search(r'<a class="current reference internal" href="#">([^<]*)</a>', text)
    if here:                                                # the bar of narrow windows names the page
        text = re.sub(r'<a href="[^"]*"><div class="brand">[^<]*</div></a>',
                      f'<a href="#"><div class="brand">{here[1]}</div></a>', text)
    to_itself = r'<a class="[^"]*image-reference" href="_images/[^"]*">\s*(<img[^>]*>)\s*</a>'
    text = re.sub(to_itself, r"\1", text)
    text = text.replace('<p class="caption" role="heading">',
                        '<p class="caption" role="heading" aria-level="2">')
    text = re.sub(r'<div class="output text_html">(?=\s*<table)',
                  '<div class="output text_html wide" tabindex="0">', text)
    text = re.sub(r'(?s)(<div class="output stream[^>]*><div class="highlight"><pre>)(.*?)(?=</pre>)',
                  lambda found: found[1] + wrapped(found[2]), text)
    text = re.sub(r'<span class="[npwo]">([^<]*)</span>', r"\1", text)      # code in the usual color
    text = text.replace('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">')
    return unindented(text), shown


def wrapped(printed):
    """Return what was printed, with lines that may break: the long ones that are no rows of a table."""
    lines = printed.split("\n")
    for n, line in enumerate(lines):
        if len(html.unescape(line)) > 100 and not re.search(r"─|\S   +\S", line):
            lines[n] = f'<span class="wrap">{line}</span>'
    return "\n".join(lines)


def unindented(text):
    """Return a page without what means nothing in it: indents, empty lines, Pygments' first mark."""
    parts = re.split(r"(<pre.*?</pre>)", text, flags=re.S)
    parts[::2] = (re.sub(r"\s*\n\s*", "\n", part) for part in parts[::2])
    return "".join(parts).replace("<span></span>", "")


def gallery(text, shown, up=""):
    """Put the small pictures of each page where the page of figures has a mark for them."""
    def one(found):
        titles, met = Counter(title for _, _, title, _ in shown[found[1]]), Counter()

        def numbered(title):                                # two figures below one heading
            met[title] += 1
            return f"{title} ({met[title]})" if titles[title] > 1 else title

        items = "".join(
            f'<li><a href="{found[1]}.html#{name}"><img{look} src="{up}_images/small/{file}" alt=""'
            f' loading="lazy" width="216" height="136">{numbered(title)}</a></li>'
            for name, file, title, look in shown[found[1]])
        return f'<ul class="gallery">{items}</ul>'

    return re.sub(r"<!-- gallery (\w+) -->", one, text)


def publish(root, pages, address):
    """Write what only a published site needs: a list of its pages, a picture, an answer when lost."""
    shutil.copy(ASSETS / "figures" / "social.png", root)
    places = "".join(f"<url><loc>{html.escape(f'{address}/{name}')}</loc></url>" for name in pages)
    (root / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</urlset>\n', "utf-8")
    robots = f"User-agent: *\nAllow: /\nSitemap: {address}/sitemap.xml\n"
    (root / "robots.txt").write_text(robots, "utf-8")
    (root / ".nojekyll").touch()
    inside = "\n".join(f'<div lang="{language.html}">\n' + front.fill(
        "lost.html", language.say, address=(f"{address}/{language.folder}").rstrip("/")) + "</div>"
        for language in (ENGLISH, CHINESE))
    page = front.fill("404.html", ENGLISH.say, title=front.title(ENGLISH.say), inside=inside)
    (root / "404.html").write_text(page, "utf-8")
