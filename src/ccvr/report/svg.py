"""A figure as SVG that can stand in a page: the page's colours, ids of its own, values on hover."""

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
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
ASSUMED = ("font-size:9px", "text-anchor:start", "stroke-linejoin:miter", "image-rendering:crisp-edges")
"""What page.css, SVG itself or what stands behind it says of all drawings."""
SHAPES = ("d", "x", "y", "width", "height", "transform", "viewBox")
"""Attributes that are numbers."""
LEVEL = re.compile(r"M(\S+) (\S+)L(\S+) \2(?=M|$)")
RECTANGLE = re.compile(r"M(\S+) (\S+)L(\S+) \2L\3 (\S+)L\1 \4(?:L\1 \2)?z?")

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
    """Values that the figure tells on hover."""
    return sum(len(_texts(str(artist.get_gid()))) for artist in _telling(figure))


def _telling(figure: Figure) -> list[Artist]:
    """The artists that tell something on hover."""
    return figure.findobj(lambda artist: str(artist.get_gid()).startswith(HOVER))


@contextmanager
def _silent(figure: Figure) -> Iterator[None]:
    """For a while nothing tells its values, and cells are one picture."""
    kept = [(artist, artist.get_gid(), artist.get_rasterized()) for artist in _telling(figure)]
    for artist, _, _ in kept:
        artist.set_gid(None)
        artist.set_rasterized(isinstance(artist, QuadMesh))
    yield
    for artist, gid, rasterized in kept:
        artist.set_gid(gid)
        artist.set_rasterized(rasterized)


def inline(figure: Figure, name: str, alt: str, *, telling: bool = True) -> str:
    """SVG for a page; ``name`` keeps its ids apart from those of other figures, ``alt`` says what it shows; if it is
    not ``telling``, there are no values on hover and it is lighter.
    """
    with nullcontext() if telling else _silent(figure):
        root = ElementTree.fromstring(save_bytes(figure, "svg"))
    referred = {word for each in root.iter() for value in each.attrib.values() for word in _references(value)}
    for element in list(root.iter()):
        _titles(element)
        _lighten(element, name, referred)
    _flatten(root)
    root.attrib = {"role": "img", "aria-label": plain(alt), **root.attrib}
    return ElementTree.tostring(root, encoding="unicode")


def _references(value: str) -> list[str]:
    """The ids that an attribute refers to."""
    return re.findall(r"^(?:url\()?#([^)]+)", value)


def _texts(gid: str) -> list[str]:
    return bytes.fromhex(gid.removeprefix(HOVER)).decode().split(BREAK)


def _titles(element: Element) -> None:
    """Take the texts of a hover out of the id: one for all, or one for each marker of a line or cell of a mesh."""
    if not element.get("id", "").startswith(HOVER):
        return
    texts = _texts(element.attrib.pop("id"))
    marks = [element] if len(texts) == 1 else list(element.iter(f"{SVG}use")) or list(element.iter(f"{SVG}path"))
    for mark, text in zip(marks, texts, strict=True):
        title = Element(f"{SVG}title")
        title.text = plain(text)
        mark.insert(0, title)


def _lighten(element: Element, name: str, referred: set[str]) -> None:
    """Leave out what the page does not need, and give the rest the page's colours and ids of this figure."""
    if element.tag not in (f"{SVG}text", f"{SVG}tspan", f"{SVG}title"):
        element.text = None
    element.tail = None
    for key in [key for key in SHAPES if key in element.attrib]:
        element.set(key, _numbers(element.attrib[key]))
    if element.get("transform", "").startswith("rotate(0 "):
        del element.attrib["transform"]
    if element.get("id") and element.attrib["id"] not in referred:
        del element.attrib["id"]
    if element.get("id"):
        element.set("id", f"{name}-{element.attrib['id']}")
    for key in (HREF, "clip-path"):
        if key in element.attrib:
            element.set(key, re.sub(r"^(url\()?#", rf"\g<1>#{name}-", element.attrib[key]))
    if element.get(HREF, "").startswith(PNG):
        element.set(HREF, _picture(element.attrib[HREF]))
    if "style" in element.attrib:
        element.set("style", _style(element.attrib["style"]))


def _picture(link: str) -> str:
    """A PNG in base64; where nothing of it is transparent, the same with a table of its colours if they are few, and as
    JPEG if they are many and that is smaller.
    """
    opened = Image.open(io.BytesIO(base64.b64decode(link.removeprefix(PNG))))
    if opened.mode == "RGBA" and opened.getchannel("A").getextrema() != (255, 255):
        return link
    image = opened.convert("RGB")
    if image.getcolors(256):
        return min(link, _link(image.quantize(256, dither=Image.Dither.NONE), "PNG", optimize=True), key=len)
    return min(link, _link(image, "JPEG", quality=90, subsampling=0, optimize=True), key=len)


def _link(image: Image.Image, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _numbers(text: str) -> str:
    """Numbers to a tenth of a point; paths without needless spaces, level lines and rectangles by their sides."""
    text = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text).replace("-0 ", "0 ")
    text = re.sub(r"\s*([MLCQz])\s*", r"\1", " ".join(text.split()))
    return LEVEL.sub(
        lambda line: f"M{line[1]} {line[2]}" + ("h0" if line[1] == line[3] else f"H{line[3]}"),
        RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", text),
    )


def _style(text: str) -> str:
    """Text and axes in the page's own colour; the page chooses the font, too."""
    for own, of_page in ((INK, "currentColor"), (PAPER, "var(--paper)")):
        text = text.replace(own, of_page)
    parts = [part.strip().replace(": ", ":") for part in text.split(";")]
    return ";".join(part for part in parts if part not in ASSUMED and not part.startswith("font-family"))


def _flatten(element: Element) -> None:
    """Drop what is empty, and groups that group nothing."""
    children: list[Element] = []
    for child in element:
        _flatten(child)
        if child.tag == f"{SVG}g" and not child.attrib and (not len(child) or child[0].tag != f"{SVG}title"):
            children += child
        elif child.tag not in DROPPED and not _is_empty(child):
            children.append(child)
    element[:] = children


def _is_empty(element: Element) -> bool:
    unseen = element.tag == f"{SVG}path" and element.get("style") == "fill:none"
    return unseen or (element.tag in (f"{SVG}g", f"{SVG}defs") and not len(element))
