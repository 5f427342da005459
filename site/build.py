"""Build the site: sources from the notebooks, Sphinx, then images, search and figures.

    python site/build.py OUT        what `make site` calls, in an environment of its own
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import post
import prep
from tongue import ENGLISH, LANGUAGES

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / "build" / "site"
MODULES = HERE / "node_modules"
FONTS = ("inter/files/inter-latin-wght-normal", "jetbrains-mono/files/jetbrains-mono-latin-wght-normal",
         "source-serif-4/files/source-serif-4-latin-wght-normal",
         "source-serif-4/files/source-serif-4-latin-wght-italic")


def static(out):
    """Gather styles, scripts and fonts in one folder, with the fonts' licences."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(HERE / "static", out)
    katex = MODULES / "katex" / "dist"
    (out / "katex" / "fonts").mkdir(parents=True)
    style = (katex / "katex.min.css").read_text("utf-8")    # which also names fonts for browsers of old
    style = re.sub(r',url\([^)]*\.(?:woff|ttf)\) format\("\w+"\)', "", style)
    (out / "katex" / "katex.min.css").write_text(style, "utf-8")
    for font in sorted((katex / "fonts").glob("*.woff2")):
        shutil.copy(font, out / "katex" / "fonts")
    shutil.copy(MODULES / "katex" / "LICENSE", out / "katex")
    (out / "fonts").mkdir()
    for name in FONTS:
        package, _, file = name.split("/")
        folder = MODULES / "@fontsource-variable" / package
        shutil.copy(folder / "files" / f"{file}.woff2", out / "fonts")
        shutil.copy(folder / "LICENSE", out / "fonts" / f"LICENSE-{package}")


def sphinx(language):
    """Start Sphinx on the sources of one language."""
    return subprocess.Popen(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE),
         "-d", str(WORK / "doctrees" / language.code), str(WORK / "src" / language.code),
         str(WORK / "html" / language.code)],
        env=os.environ | {"SITE_STATIC": str(WORK / "static"), "SITE_LANGUAGE": language.code})


def main(out):
    start = time.monotonic()
    if not shutil.which("node"):
        sys.exit("The site's formulas are rendered by Node.js: no `node` was found, install it first.")
    for language in LANGUAGES.values():
        books = prep.write(WORK / "src" / language.code, language=language,
                           repository=os.environ.get("SITE_REPO", ""))
    static(WORK / "static")
    print(f"sources of {len(books)} chapters: {time.monotonic() - start:.0f} s", flush=True)
    shutil.rmtree(WORK / "html", ignore_errors=True)
    running = [sphinx(language) for language in LANGUAGES.values()]     # side by side
    if any([process.wait() for process in running]):
        sys.exit("Sphinx failed, or found something to warn of.")
    print(f"Sphinx: {time.monotonic() - start:.0f} s", flush=True)
    built = WORK / "html" / ENGLISH.code
    for language in LANGUAGES.values():
        if language.folder:
            shutil.move(WORK / "html" / language.code, built / language.folder)
    post.finish(built, books, address=os.environ.get("SITE_URL", ""))
    shutil.copytree(WORK / "src" / "extra", built, dirs_exist_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(built, out)
    print(f"{out}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
