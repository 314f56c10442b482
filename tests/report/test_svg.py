"""Figures as SVG in a page: nothing is lost but what is not seen."""

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ccvr.report.figures.matrix import draw_matrix
from ccvr.report.figures.panel import dots, lines, new_axes
from ccvr.report.palette import INK, look, pens
from ccvr.report.svg import SVG, inline

PEN = next(pens())


def drawn(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(inline(figure, "name", "what it shows"))


def titles(root: ElementTree.Element, tag: str) -> list[tuple[str, ElementTree.Element]]:
    marks = [(mark.find(f"{SVG}title"), mark) for mark in root.iter(f"{SVG}{tag}")]
    return [(title.text or "", mark) for title, mark in marks if title is not None]


def test_each_point_tells_its_own_value() -> None:
    with look():
        figure, _ = lines({"a": [(1.0, 5.0), (2.0, 1.0), (3.0, 3.0)]}, "x", "y")
        found = titles(drawn(figure), "use")
    assert [text for text, _ in found] == ["a: 5 (x 1)", "a: 1 (x 2)", "a: 3 (x 3)"]
    heights = [float(mark.attrib["y"]) for _, mark in found]
    assert heights[0] < heights[2] < heights[1], "up is less in SVG"


def test_what_is_no_number_has_no_point() -> None:
    with look():
        figure, axes = new_axes()
        dots(axes, [(0, 1.0), (1, np.nan), (2, 3.0)], PEN, ["one", "lost", "three"])
        assert [text for text, _ in titles(drawn(figure), "use")] == ["one", "three"]
        figure, axes = new_axes()
        dots(axes, [(0, np.nan)], PEN, ["lost"])
        assert titles(drawn(figure), "use") == []


@pytest.mark.parametrize("hole", [None, (1, 0)])
def test_each_cell_tells_its_own_value(hole: tuple[int, int] | None) -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    if hole:
        matrix[hole] = np.nan
    with look():
        figure = draw_matrix(matrix, ("client", [7, 8]), ("class", ["x", "y", "z"]), "number", digits=1)
        found = titles(drawn(figure), "path")
    values = {(r, c): f"client {7 + r}, class {'xyz'[c]}: {matrix[r, c]:.1f}" for r in (0, 1) for c in (0, 1, 2)}
    assert [text for text, _ in found] == [text for place, text in values.items() if place != hole]
    fills = [re.findall(r"fill:(#\w+)", mark.attrib["style"])[0] for _, mark in found]
    assert len(set(fills)) == len(fills)


def test_many_cells_are_one_picture() -> None:
    with look():
        root = drawn(draw_matrix(np.random.default_rng(0).random((60, 60)), ("r", range(60)), ("c", range(60)), "s"))
    assert titles(root, "path") == []
    assert len(list(root.iter(f"{SVG}image"))) == 2, "the cells and the scale"


def test_ids_are_the_figures_own_and_all_references_arrive() -> None:
    with look():
        text = inline(lines({"a": [(1.0, 5.0), (2.0, 1.0)]}, "x", "y")[0], "name", "words")
    ids = set(re.findall(r' id="([^"]+)"', text))
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    assert ids == referred
    assert ids
    assert all(each.startswith("name-") for each in ids)


def test_colours_of_text_and_axes_are_the_pages() -> None:
    with look():
        text = inline(lines({"a": [(1.0, 5.0), (2.0, 1.0)]}, "x", "y")[0], "name", "words")
    assert INK not in text
    assert "currentColor" in text


def test_words_cannot_leave_their_attribute() -> None:
    with look():
        figure, axes = new_axes()
        dots(axes, [(0, 1), (1, 2)], PEN, ['<b>"&', "two\nlines"])
        root = ElementTree.fromstring(inline(figure, "name", '"><script>\x00'))
    assert root.attrib["aria-label"] == '"><script>\N{REPLACEMENT CHARACTER}'
    assert [text for text, _ in titles(root, "use")] == ['<b>"&', "two lines"]


def test_points_stay_where_they_were() -> None:
    """Paths are shortened, and still go through the same places: to a tenth of a point."""
    with look():
        figure, axes = new_axes()
        axes.plot([0, 1, 2], [3.0, 3.0, 1.0], color="#ff0000")
        (line,) = (path for path in drawn(figure).iter(f"{SVG}path") if "#ff0000" in path.get("style", ""))
        expected = axes.transData.transform([[0, 3], [1, 3], [2, 1]]) * 72 / figure.dpi
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", line.attrib["d"])]
    assert np.array(numbers).reshape(3, 2)[:, 0] == pytest.approx(expected[:, 0], abs=0.06)
    assert 216 - np.array(numbers).reshape(3, 2)[:, 1] == pytest.approx(expected[:, 1], abs=0.06)


def picture(pixels: np.ndarray) -> Image.Image:
    """What an image of a figure looks like in the page."""
    with look():
        figure, axes = new_axes()
        axes.imshow(pixels, interpolation="none")
        (image,) = drawn(figure).iter(f"{SVG}image")
    link = next(value for key, value in image.attrib.items() if key.endswith("href"))
    return Image.open(io.BytesIO(base64.b64decode(link.partition(",")[2])))


def test_photographs_become_jpeg_and_look_the_same() -> None:
    waves = np.sin(np.arange(48) / 5)[:, None, None] * np.cos(np.arange(48) / 7)[None, :, None] * [100, 60, 90] + 120
    pixels = (waves + np.random.default_rng(0).uniform(-9, 9, waves.shape)).astype(np.uint8)
    found = picture(pixels)
    assert found.format == "JPEG"
    assert np.abs(np.asarray(found).astype(float) - pixels).mean() < 4


def test_small_or_transparent_pictures_stay_as_they_are() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    found = picture(pixels)
    assert found.format == "PNG"
    assert np.array_equal(np.asarray(found.convert("RGB")), pixels)
    clear = np.random.default_rng(0).integers(0, 256, (48, 48, 4), dtype=np.uint8)
    assert picture(clear).format == "PNG"
