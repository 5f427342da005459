"""The notebooks' pictures as the site shows them: WebP in few colors, and small for the gallery."""

import hashlib
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

# Of K, S and P in figures (flashlib.course.plots.theme).
LIGHT_HUES = ((221, 204, 119), (136, 204, 238), (153, 153, 51))
# A color with this share of a picture stays as it is; one of a rim may move by as much in a channel.
AREA, RIM = 0.0005, 24


def colors(image):
    """Return {color: pixels}; to make room for all that there may be takes long."""
    return {color: n for n, color in image.getcolors(1 << 10) or image.getcolors(1 << 24)}


def few_colors(image):
    """Return a picture without most of the shades between two areas, of which no eye tells the half."""
    count = Counter(colors(image))
    kept, moved = [], {}
    for color, n in count.most_common():
        far, near = min(((max(map(abs, map(int.__sub__, color, one))), one) for one in kept),
                        default=(256, color))
        if far > RIM or n >= AREA * count.total():
            kept.append(near := color)
        moved[color] = near
    return image if len(kept) > 256 else painted(image, moved)


def painted(frame, moved):
    """Return a picture with other colors, {old: new}; one of few, all at once by its palette."""
    few = frame.convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    palette = few.getpalette("RGB")
    old = list(zip(*(palette[n::3] for n in range(3)), strict=True))
    if not colors(frame).keys() <= set(old):         # the palette has not all of them
        new = frame.copy()
        new.putdata([moved[pixel] for pixel in frame.getdata()])
        return new
    few.putpalette([value for color in old for value in moved.get(color, color)])
    return few.convert("RGB")


def shows_tensors(image):
    """Tell whether a picture has areas in the hues of K, S or P, too light to be turned round."""
    found = sum(n for color, n in colors(image).items()
                if any(max(map(abs, map(int.__sub__, color, hue))) <= 6 for hue in LIGHT_HUES))
    return found > 0.002 * image.width * image.height


def to_webp(path, small):
    """Write a PNG as WebP, a film to the pixel and its still; return (name, size, frames, tensors)."""
    image = Image.open(path)
    new = path.with_name(f"{path.stem[:12]}.webp")          # a page says it often: no whole hash
    frames, times = [], []
    for n in range(getattr(image, "n_frames", 1)):
        image.seek(n)
        frames.append(image.convert("RGB"))
        times.append(round(image.info.get("duration", 0)))
    last = frames[-1]
    tensors = shows_tensors(last)
    still = few_colors(last)
    best = {"lossless": True, "method": 4, "quality": 100}
    if len(frames) > 1:
        frames[0].save(new, "WEBP", save_all=True, append_images=frames[1:], duration=times,
                       loop=image.info.get("loop", 0), minimize_size=True, **best)
    still.save(new.with_suffix(".still.webp") if len(frames) > 1 else new, "WEBP", **best)
    last.thumbnail((220, 220))
    last.save(small / new.name, "WEBP", quality=35, method=6)
    path.unlink()
    return new.name, image.size, len(frames), tensors


def convert(folder):
    """Convert each different picture once; return {PNG: (new name, size, frames, tensors)}."""
    small = folder / "small"
    small.mkdir()
    first, same = {}, {}
    for path in sorted(folder.glob("*.png")):
        same[path.name] = first.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
        if same[path.name] != path:
            path.unlink()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip(first.values(), pool.map(lambda path: to_webp(path, small), first.values()),
                        strict=True))
    return {name: made[path] for name, path in same.items()}
