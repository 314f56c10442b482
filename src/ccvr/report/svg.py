"""A figure as SVG that can stand in a page: the page's colours, ids of its own, values on hover."""

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib.artist import Artist
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from PIL import Image

from ccvr.report.palette import INK, PAPER, look
from ccvr.report.text import plain

HOVER, BREAK = "hover-", "\n"
DPI = 200
SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
PNG = "data:image/png;base64,"
DROPPED = (f"{SVG}metadata", f"{SVG}style")
NUMBERS = ("d", "x", "y", "width", "height", "transform", "viewBox")
"""Attributes that hold numbers."""

ElementTree.register_namespace("", SVG[1:-1])
ElementTree.register_namespace("xlink", HREF.split("}")[0][1:])


def hover(artist: Artist, *texts: str) -> None:
    """Show a text where the pointer rests on the artist, or one on each of its parts; its gid carries them."""
    if texts:
        joined = BREAK.join(text.replace(BREAK, " ") for text in texts)
        artist.set_gid(HOVER + joined.encode("utf-8", "replace").hex())


def save_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file; the same figure gives the same bytes."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    file = io.BytesIO()
    with look(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's browser has it
        if kind == "svg":
            dpi = figure.dpi
            FigureCanvasSVG(figure).print_svg(file, metadata=dates[kind])  # savefig would draw it twice,
            figure.set_dpi(dpi)  # and put this back
        else:
            paper = "white" if kind == "png" else "none"  # a viewer of pictures may be dark
            figure.savefig(file, format=kind, metadata=dates[kind], dpi=DPI, facecolor=paper)
    return file.getvalue()


def num_values(figure: Figure) -> int:
    """The number of values on hover."""
    return sum(len(_texts(str(artist.get_gid()))) for artist in _with_values(figure))


def _with_values(figure: Figure) -> list[Artist]:
    """The artists with values on hover."""
    return figure.findobj(lambda artist: str(artist.get_gid()).startswith(HOVER))


@contextmanager
def _silent(figure: Figure) -> Iterator[None]:
    """Take the values on hover away for a while; cells are one picture then."""
    kept = [(artist, artist.get_gid(), artist.get_rasterized()) for artist in _with_values(figure)]
    for artist, _, _ in kept:
        artist.set_gid(None)
        artist.set_rasterized(isinstance(artist, QuadMesh))
    yield
    for artist, gid, rasterized in kept:
        artist.set_gid(gid)
        artist.set_rasterized(rasterized)


def inline(figure: Figure, name: str, alt: str, *, values: bool = True) -> str:
    """SVG for a page.

    Args:
        figure: what is drawn.
        name: keeps the ids apart from those of other figures.
        alt: what the figure shows, in words.
        values: whether values are shown on hover; without them the SVG is smaller.
    """
    with nullcontext() if values else _silent(figure):
        root = ElementTree.fromstring(save_bytes(figure, "svg"))
    for element in root.iter():
        _add_titles(element)
    referred = {word for each in root.iter() for value in each.attrib.values() for word in _references(value)}
    for element in root.iter():
        _adapt(element, name, referred)
    root.attrib = {"role": "img", "aria-label": plain(alt), **root.attrib}
    return ElementTree.tostring(root, encoding="unicode")


def _references(value: str) -> list[str]:
    """The ids that an attribute refers to."""
    return re.findall(r"^(?:url\()?#([^)]+)", value)


def _texts(gid: str) -> list[str]:
    return bytes.fromhex(gid.removeprefix(HOVER)).decode().split(BREAK)


def _add_titles(element: Element) -> None:
    """Take the texts of a hover out of the id: one for all, or one for each marker of a line or cell of a mesh."""
    if not element.get("id", "").startswith(HOVER):
        return
    texts = _texts(element.attrib.pop("id"))
    marks = [element] if len(texts) == 1 else list(element.iter(f"{SVG}use")) or list(element.iter(f"{SVG}path"))
    for mark, text in zip(marks, texts, strict=True):
        if mark.get("style") == "fill: none":  # a cell without a value
            continue
        title = Element(f"{SVG}title")
        title.text = plain(text)
        mark.insert(0, title)


def _adapt(element: Element, name: str, referred: set[str]) -> None:
    """Give an element the page's colours and font and the ids of this figure; drop what is not seen."""
    element[:] = [child for child in element if child.tag not in DROPPED]
    element.tail = None
    if element.tag not in (f"{SVG}text", f"{SVG}tspan", f"{SVG}title"):
        element.text = None
    for key, value in list(element.attrib.items()):
        if (key == "id" and value not in referred) or value.startswith("rotate(-0 "):
            del element.attrib[key]
        elif key == "id":
            element.set(key, f"{name}-{value}")
        elif key in NUMBERS:
            element.set(key, _shortened(value))
        elif key == "style":
            parts = value.replace(INK, "currentColor").replace(PAPER, "var(--paper)").replace(": ", ":").split("; ")
            element.set(key, ";".join(part for part in parts if not part.startswith("font-family")))
        elif value.startswith(PNG):
            element.set(key, _picture(value))
        elif _references(value):
            element.set(key, value.replace("#", f"#{name}-", 1))


def _shortened(text: str) -> str:
    """Numbers to a tenth of a point; a line without length, which is a dot, is ``h0``."""
    text = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), text)
    text = re.sub(r"\s*([MLCQz])\s*", r"\1", text.strip())
    return re.sub(r"M(\S+ \S+)L\1(?=M|$)", r"M\1h0", text)


def _picture(link: str) -> str:
    """The same picture, as JPEG or as PNG with a palette where that is smaller; a transparent one stays PNG."""
    opened = Image.open(io.BytesIO(base64.b64decode(link.removeprefix(PNG))))
    if opened.mode == "RGBA" and opened.getchannel("A").getextrema() != (255, 255):
        return link
    image, file = opened.convert("RGB"), io.BytesIO()
    if image.getcolors(256):
        kind = "png"
        image.quantize(256, dither=Image.Dither.NONE).save(file, kind, optimize=True)
    else:
        kind = "jpeg"
        image.save(file, kind, quality=90, subsampling=0, optimize=True)
    return min(link, f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}", key=len)
