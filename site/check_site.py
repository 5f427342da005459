"""Look at a built site: links, fragments, pictures, and what it would load from elsewhere.

    python site/check_site.py _site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

DRAWN = ("#svg-sun", "#svg-moon")                           # by course.js


class Page(HTMLParser):
    """What one page has and wants."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.images, self.loads, self.twice = set(), [], [], [], []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            if given["id"] in self.ids:
                self.twice.append(given["id"])
            self.ids.add(given["id"])
        for name in ("href", "src", "data-still"):
            if given.get(name) and not (tag == "use" and given[name].startswith(DRAWN)):
                self.links.append(given[name])
        if tag == "img":
            self.images.append(given)
        named = given.get("rel") in ("canonical", "alternate")
        linked = given.get("href") if tag == "link" and not named else None
        if loads := given.get("src") or linked:
            self.loads.append(loads)


def outside(address):
    return bool(urlsplit(address).scheme) or address.startswith("//")


def read(root):
    """Return {path: Page} of a built site."""
    return {path: Page(path) for path in sorted(Path(root).resolve().rglob("*.html"))}


def broken(pages):
    """Return (page, address, reason) of each link inside the site that leads nowhere."""
    bad = []
    for path, page in pages.items():
        for address in page.links:
            parts = urlsplit(address)
            if outside(address):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.is_file():
                bad.append((path.name, address, "no such file"))
            elif place and target in pages and place not in pages[target].ids:
                bad.append((path.name, address, "no such place"))
    return bad


def main(root):
    pages = read(root)
    links = sum(len(page.links) for page in pages.values())
    bad = broken(pages)
    loads = [(path.name, load) for path, page in pages.items() for load in page.loads if outside(load)]
    for found in [*bad, *loads]:
        print(*found)
    print(f"{len(pages)} pages, {links} links, {len(bad)} broken, {len(loads)} loads from elsewhere")
    return bool(bad or loads)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
