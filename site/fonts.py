"""Fonts with the signs of this site only."""

from fontTools import subset as tools

# What a reader may type into the search, whatever the pages say.
TYPED = {chr(n) for n in (*range(0x20, 0x7F), *range(0xA0, 0x180))}


def subset(path, signs):
    """Write a font anew without glyphs that no page asks for; its features and axes stay."""
    options = tools.Options(flavor="woff2", layout_features=["*"], name_IDs=["*"], notdef_outline=True)
    font = tools.load_font(str(path), options)
    chosen = tools.Subsetter(options)
    chosen.populate(unicodes=map(ord, signs | TYPED))
    chosen.subset(font)
    tools.save_font(font, str(path), options)
