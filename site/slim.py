"""What a page says in fewer bytes and shows the same: formulas, code, names, style sheets."""

import re
from collections import Counter
from functools import cache
from itertools import product
from string import ascii_letters, digits

# Comments of a style sheet but a license, then the spaces that mean nothing; strings stay as they are.
KEPT = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|/\*!.*?\*/)"""
COMMENTS = re.compile(KEPT + r"|/\*.*?\*/", re.S)
SPACES = re.compile(KEPT + r"|\s*([{};])\s*|\s+", re.S)
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
FACE = re.compile(r"@font-face\{[^}]*\}")
CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")

# The source of each formula once more, and the name of a language that HTML knows.
SPARE = re.compile(r'<annotation .*?</annotation>| xmlns="http://www.w3.org/1998/Math/MathML"', re.S)
ALONE = re.compile(r"<mrow>(<(m[ino])\b[^>]*>[^<]*</\2>)</mrow>")
TAG = re.compile(r"<(/?)(\w+)([^>]*)>")
SIZES = re.compile(r"\.(?:sizing|fontsize-ensurer)\.reset-size(\d+)\.size(\d+)")
PART = re.compile(r'<i k="([^"]*)"(?: style="([^"]*)")?')
LEAF = re.compile(PART.pattern + r">([^<]*)</i>")
HUE = re.compile("t[A-Z]")

# Code, and Pygments' classes for it; what stands there has the usual color in both styles.
TOKEN = re.compile(r'<span class="([a-z][a-z0-9]{0,2})">([^<]*)</span>')
ONE = r"<i class=(\w+)>[^<]*</i>"
PRE = re.compile(r"<pre.*?</pre>", re.S)
COLOR = re.compile(r"(body[^{}]* )?\.highlight \.(\w+)\{([^{}]*)\}")
# The colors of a terminal's output: MyST-NB's style sheet has hundreds of them, 30 kB in all.
ANSI = re.compile(r"[^{}]*\.-Color[^{}]*\{[^{}]*\}")
SWITCH = re.compile(r'(?s)<symbol id="svg-(?:sun|moon)[^"]*".*?</symbol>')
# Tags that begin or end a block: there a line's end means nothing. And values that need no quotes.
BLOCK = (r"</?(?:div|p|[uod]l|li|d[td]|section|h\d|table|thead|tbody|tr|t[hd]|details|summary|aside"
         "|header|footer)")
IDLE = re.compile(rf"\n(?={BLOCK}\b)|(?<=>)\n(?=<(?:link|meta|script|title|/head|/body|body)\b)")
VALUE = re.compile(r"""( [\w-]+=)"([^\s"'=<>`/]+)"(?=[ >])""")


def sheet(style):
    """Return a style sheet without comments and idle spaces."""
    style = COMMENTS.sub(lambda found: found[1] or " ", style)
    return SPACES.sub(lambda found: found[1] or found[2] or " ", style).strip()


# What a place tells as well as a class does: the rows of a table that stacks parts, what is in them.
PLACES = {"vlist-r": ".vlist-t>*", "vlist": ".vlist-t>*>:first-child",
          "vlist-s": ".vlist-t>*>:nth-child(2)", "pstrut": ":first-child"}


class Sheet:
    """KaTeX's style sheet: which classes it names, alone or by their place, and which are used."""

    def __init__(self, text):
        self.faces = FACE.findall(text)
        self.rules = [([SIZES.sub(r".sizing-\1-\2", one) for one in found[1].split(",")], found[2])
                      for found in RULE.finditer(FACE.sub("", text))]
        every = [one for selectors, _ in self.rules for one in selectors]
        self.named = {name for one in every for name in CLASS.findall(one)}
        self.parents = {name for one in every for name in re.findall(r"\.([\w-]+)>span", one)}
        self.grandparents = {name for one in every for name in re.findall(r"\.([\w-]+)>span>span", one)}
        self.rules = [([CLASS.sub(lambda found: PLACES.get(found[1], found[0]), one)
                        for one in selectors], told) for selectors, told in self.rules]
        every = [one for selectors, _ in self.rules for one in selectors]
        placed = {name for one in every if not re.fullmatch(r"\.katex \.[\w-]+", one)
                  for name in CLASS.findall(one)}
        self.plain = {}
        for selectors, told in self.rules:
            for name in {name for one in selectors for name in CLASS.findall(one)} - placed - {"katex"}:
                self.plain[name] = self.plain.get(name, "") + f"{told};"

    def wanted(self, names):
        """Return the rules of the classes {old: new}."""
        written = []
        for selectors, told in self.rules:
            selectors = [re.sub(r":not\(\.([\w-]+)\)",
                                lambda found: found[0] * (found[1] in names), one) for one in selectors]
            left = {CLASS.sub(lambda found: "." + names[found[1]], one).replace("span", ":is(b,i)")
                    for one in selectors if names.keys() >= set(CLASS.findall(one))}
            if left:
                written.append(f'{",".join(sorted(left))}{{{told}}}')
        return written


@cache
def katex(path):
    return Sheet(path.read_text("utf-8"))


def formula(markup, style):
    """Return a formula of KaTeX's without what nobody sees: spans and classes that mean nothing.

    What is left of the spans are <i k="classes">, until `named` knows the classes of all pages.
    """
    math, text = SPARE.sub("", markup).split('<span class="katex-html"')
    math = re.sub(r"<semantics><mrow>(.*)</mrow></semantics>", r"\1", math)
    math = math.replace('<span class="katex-mathml">', '<i k="katex-mathml">')
    math = math.replace("</span>", "</i>")
    stack = [("", "", set(), []), ("", "", set(), [])]      # (opens, closes, classes, what is inside)
    text = f'<span class="katex-html"{text}'
    last = 0
    for found in TAG.finditer(text):
        stack[-1][3].append(text[last:found.start()])
        last = found.end()
        closes, tag, told = found.groups()
        if not closes and tag == "span":
            classes = re.search(r'class="([^"]*)"', told)
            stack.append((*opened(classes[1].split() if classes else [], told, style), []))
        elif not closes or tag != "span":                   # of a drawing
            stack[-1][3].append(found[0].replace(' xmlns="http://www.w3.org/2000/svg"', ""))
        elif len(stack) > 2:                                # of a part of the formula
            opens, closing, classes, inside = stack.pop()
            if not opens and (style.parents & stack[-1][2] or style.grandparents & stack[-2][2]):
                opens, closing = "<i>", "</i>"
            stack[-1][3].append(f'{opens}{"".join(inside)}{closing}')
        else:                                               # of what is around formula and text
            stack[-1][3].append(found[0])
    return ALONE.sub(r"\1", math) + "".join(stack[-1][3]) + text[last:]


def opened(classes, told, style):
    """Return how a span of KaTeX's is opened and closed, and its classes that are named anywhere."""
    if "katex-html" in classes:
        return '<i k="katex-html" aria-hidden=true>', "</i>", set(classes)
    if {"sizing", "fontsize-ensurer"} & set(classes):
        sizes = [re.fullmatch(r"(?:reset-)?size(\d+)", name) for name in classes]
        classes = ["sizing-" + "-".join(size[1] for size in sizes if size),
                   *(name for name, size in zip(classes, sizes, strict=True) if not size)]
    classes = [name for name in classes if name in style.named or HUE.fullmatch(name)]
    length = re.search(r' style="[^"]*"', told)
    if not classes and not length:
        return "", "", set()
    own = " ".join(name for name in classes if name not in PLACES)
    names = f' k="{own}"' if own or length else ""
    return f'<i{names}{length[0] if length else ""}>', "</i>", set(classes)


def shortest(taken):
    """Yield names for classes that no other style sheet has."""
    for name in (*ascii_letters, *map("".join, product(ascii_letters, ascii_letters + digits))):
        if name not in taken:
            yield name


def named(pages, style, taken):
    """Write formulas' parts with the shortest names of classes; return (pages, KaTeX's style sheet).

    What means the same in every place is one class: a letter's font with its lengths, say.
    """
    count, parts = Counter(), {}
    for text in pages.values():
        count.update(PART.findall(text))
    for classes, lengths in count:
        told = [style.plain[name] for name in classes.split() if name in style.plain]
        told += [f"{length}!important;" for length in lengths.split(";") if length]
        rest = [name for name in classes.split() if name not in style.plain]
        parts[classes, lengths] = [*(["".join(told)] if told else []), *rest]
    often = Counter()
    for part, n in count.items():
        often.update(dict.fromkeys(parts[part], n))
    names = {name: name for name in often if HUE.fullmatch(name)}
    leaves = Counter(found[:2] for text in pages.values() for found in LEAF.findall(text))
    bold = next((part for part, _ in leaves.most_common() if not set(parts[part]) & style.named), None)
    free = shortest(taken)
    names |= {name: next(free) for name, _ in often.most_common() if name not in names}

    def leaf(found):
        return f"<b>{found[3]}</b>" if (found[1], found[2] or "") == bold else found[0]

    def one(found):
        classes = " ".join(names[name] for name in parts[found[1], found[2] or ""])
        return f'<i class="{classes}"' if " " in classes else f"<i class={classes}"

    rules = style.wanted(names | {"katex": "katex", "katex-display": "katex-display"})
    rules += [f".katex .{new}{{{told}}}" for told, new in names.items() if ":" in told]
    rules += [f".katex b{{font-weight:inherit;{told}}}" for told in parts.get(bold, ())]
    written = "".join([".katex i{font-style:inherit}", *rules])
    faces = "".join(face for face in style.faces if face_of(face) in asked(rules))
    pages = {name: PART.sub(one, LEAF.sub(leaf, text)) for name, text in pages.items()}
    return pages, faces + written


def face_of(told):
    """Return which of KaTeX's fonts a face is or a rule asks for: (family, bold, slanted)."""
    family = re.search(r"KaTeX_\w+(?![\w-]*\.)", told)
    return (family[0] if family else "", bool(re.search("font-weight:(bold|700)", told)),
            bool(re.search("font-style:italic", told)))


def asked(rules):
    """Return the fonts that rules ask for; a rule that names no family may stand within any."""
    faces = {face_of(rule) for rule in rules}
    families = {family for family, *_ in faces if family}
    return faces | {(family, *look) for family in families for none, *look in faces
                    if not none and any(look)}


def code(pages, style):
    """Return pages with few and short tags in their code, and Pygments' style sheet for these.

    Neighbours of one color stand in one tag; the two colors that come most have a tag of their own.
    """
    light, dark = {}, {}
    for before, name, told in COLOR.findall(style):
        (dark if before else light).setdefault(name, told.strip())
    usual = [re.search(rf"{before}\.highlight\{{[^}}]*(?<!-)(color: ?#\w+)", style)[1].lower()
             for before in ("(?<!] )", "] ")]
    heads, same = {}, {}
    for name in light:
        pair = light[name].lower(), dark.get(name, "").lower()
        same[name] = None if list(pair) == usual or name == "o" else heads.setdefault(pair, name)

    def token(found):
        head = same.get(found[1], "")
        return found[0] if head == "" else f"<i class={head}>{found[2]}</i>" if head else found[2]

    def run(found):
        return f'<i class={found[1]}>{re.sub("<[^>]*>", "", found[0])}</i>'

    def pre(found):
        return re.sub(rf"{ONE}(?:\s*<i class=\1>[^<]*</i>)+", run, TOKEN.sub(token, found[0]))

    pages = {name: PRE.sub(pre, text) for name, text in pages.items()}
    count = Counter(name for text in pages.values() for block in PRE.findall(text)
                    for name in re.findall(ONE, block))
    tags = {name: tag for (name, _), tag in zip(count.most_common(2), "bi", strict=False)}

    def short(found):
        tag, inside = tags.get(found[1]), found[0].partition(">")[2].removesuffix("</i>")
        return f"<{tag}>{inside}</{tag}>" if tag else found[0]

    def rule(found):
        if same[found[2]] != found[2] or found[2] not in count:
            return ""
        return f'{found[1] or ""}.highlight {tags.get(found[2], "." + found[2])}{{{found[3]}}}'

    style = ".highlight :is(b,i){font-style:inherit;font-weight:inherit}" + COLOR.sub(rule, style)
    return {name: PRE.sub(lambda found: re.sub(ONE, short, found[0]), text)
            for name, text in pages.items()}, style


def unnamed(text, names):
    """Return a page without classes that no style sheet and no script names, or not in that place."""
    def one(found):
        tag, classes = found[1], found[3].split()
        if tag not in ("table", "hr"):
            classes = [name for name in classes if name != "docutils"]
        left = [re.sub("^highlight-.*", "highlight-", name) for name in classes
                if name in names or name.startswith("highlight-")]
        return f'<{tag}{found[2]}class="{" ".join(left)}"' if left else f"<{tag}{found[2].rstrip()}"

    head, article, rest = text.partition("<article")
    rest, end, foot = rest.rpartition("</article>")
    rest = re.sub(r'<a class="reference(?: internal)?" (?=href=[^>]*>(?!\s*<img))', "<a ", rest)
    text = re.sub(r'<(\w+)(\s(?:[^<>]*\s)?)class="([^"]*)"', one, f"{head}{article}{rest}{end}{foot}")
    return re.sub(r'(<code[^>]*>)<span class="pre">([^<]*)</span></code>', r"\1\2</code>", text)


def switches(text):
    """Return the drawings of a page's switch between light and dark, hidden without a script."""
    return re.sub(r' xmlns="[^"]*"|\sclass="[^"]*"|\n', "", "".join(SWITCH.findall(text)))


def frame(text):
    """Return a page whose head and icons say nothing twice; its switch is drawn by course.js."""
    head, body, rest = text.partition("<body")
    head = re.sub(r'<!-- Generated.*?-->\s*|(?<=")\s*/(?=>)| type="text/css"|(?<=" )title="[^"]*" ', "",
                  head)
    head = head.replace('<meta name="viewport" content="width=device-width, initial-scale=1">', "")
    rest = SWITCH.sub("", rest.replace(' xmlns="http://www.w3.org/2000/svg"', ""))
    rest = re.sub(r'(?s)<symbol id="([^"]*)".*?</symbol>\s*',
                  lambda found: found[0] if f'"#{found[1]}"' in rest else "", rest)
    return head + body + rest


def bare(text):
    """Return a page without line ends before blocks, and without quotes around plain values."""
    parts = re.split(r"(<pre.*?</pre>)", text, flags=re.S)
    parts[::2] = (IDLE.sub("", part) for part in parts[::2])
    return re.sub(r"<\w[^>]*>", lambda tag: VALUE.sub(r"\1\2", tag[0]), "".join(parts))


def living(style, names):
    """Return a style sheet without the rules all of whose selectors want classes that nothing has."""
    def rule(found):
        outside = re.sub(r"/\*.*?\*/", "", found[1], flags=re.S)       # a license may stand before it
        outside = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", outside))
        dead = all(set(CLASS.findall(one)) - names for one in outside.split(","))
        return "" if dead and "@" not in found[1] and "(" not in outside else found[0]

    return re.sub(r"@media[^{}]*\{\}", "", RULE.sub(rule, style))
