"""A figure as SVG text that can stand in a page: the page's colours, ids of its own, values on hover."""

import html
import io
import re
import warnings

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ccvr.report.palette import INK, look
from ccvr.report.text import plain

HOVER = "hover-"
DPI = {"svg": 90, "png": 200, "pdf": 200}
FONT = re.compile(r"font-family: (?:&#?\w+;|[^;\"])*;? ?")
"""The page chooses the font."""


def hover(artist: Artist, text: str) -> None:
    """Show ``text`` where the pointer rests on the artist; its gid carries it into the SVG."""
    artist.set_gid(HOVER + text.encode("utf-8", "replace").hex())


def save_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file; the same figure gives the same bytes."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    file = io.BytesIO()
    with look(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's browser has it
        figure.savefig(file, format=kind, metadata=dates[kind], dpi=DPI[kind])
    return file.getvalue()


def inline(figure: Figure, name: str, alt: str) -> str:
    """SVG for a page; ``name`` keeps its ids apart from those of other figures, ``alt`` says what it shows."""
    text = save_bytes(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", lambda tag: _tag(tag[0], name), text)
    text = re.sub(r">\s+<(?!/text)", "><", text)
    alt = html.escape(plain(alt))
    return text.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1).strip()


def _tag(tag: str, name: str) -> str:
    tag = FONT.sub("", tag.replace(INK, "currentColor")).replace("; stroke-linejoin: miter", "")
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", tag)  # a hundredth of a point is enough
    if tag.startswith("<path"):
        tag = re.sub(r" ?\n(?=[A-Za-z\"])", "", tag)
    title = re.search(rf' id="{HOVER}([0-9a-f]*)"', tag)
    if title:
        words = html.escape(plain(bytes.fromhex(title[1]).decode()))
        return f"{tag.replace(title[0], '')}<title>{words}</title>"
    tag = re.sub(r' id="(?:figure|axes|patch|line2d|text|xtick|ytick|matplotlib\.axis|legend)_\d+"', "", tag)
    tag = re.sub(r' id="', f' id="{name}-', tag)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", tag)
