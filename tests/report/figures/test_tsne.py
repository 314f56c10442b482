"""Points in the plane: all that should be there are, as SVG and as pixels."""

import re

import numpy as np
import pytest

from ccvr.core.arrays import arrays_to_bytes
from ccvr.report.figure_set import pixels
from ccvr.report.figures.tsne import MAX_POINTS, tsne
from ccvr.report.palette import COLOURS, look
from ccvr.report.runs import RunFiles
from ccvr.report.svg import inline
from tests.report.conftest import MakeRun

PLACES = np.array([(x, y) for x in range(6) for y in range(7)], dtype=np.float32)


def run_with(make_run: MakeRun, points: np.ndarray, truth: np.ndarray) -> RunFiles:
    path = make_run()
    arrays = {"points": points, "truth": truth, "before": truth, "after": np.zeros_like(truth)}
    (path / "analysis" / "tsne.safetensors").write_bytes(arrays_to_bytes(arrays, {"after": "ccvr"}))
    return RunFiles.read(path)


def dots(svg: str) -> list[str]:
    """Each point of the clouds, which are paths of very short lines."""
    line = r"M[\d.]+ [\d.]+(?:h0|L[\d.]+ [\d.]+)"
    return re.findall(line, "".join(re.findall(rf' d="((?:{line})+)"', svg)))


def test_every_point_is_in_the_svg(make_run: MakeRun) -> None:
    with look():
        panels = tsne(run_with(make_run, PLACES, np.arange(42) % 3))
        assert [len(dots(inline(panel.figure, "x", ""))) for panel in panels] == [42, 42, 42]


def test_every_point_is_in_the_picture_in_its_colour(make_run: MakeRun) -> None:
    truth = np.arange(42) % 3
    with look():
        figure = tsne(run_with(make_run, PLACES, truth))[0].figure
        (axes,) = figure.axes
        for text in axes.texts:
            text.set_visible(False)
        picture = pixels(figure).astype(int)
    for place, label in zip(PLACES, truth, strict=True):
        x, y = axes.transData.transform(place) * (200 / figure.dpi)
        expected = [int(COLOURS[label][i : i + 2], 16) for i in (1, 3, 5)]
        assert picture[picture.shape[0] - 1 - int(y), int(x)] == pytest.approx(expected, abs=2)


def test_points_taken_for_a_class_that_is_not_there_are_drawn(make_run: MakeRun) -> None:
    with look():
        panels = tsne(run_with(make_run, PLACES, 1 + np.arange(42) % 2))
        assert [len(dots(inline(panel.figure, "x", ""))) for panel in panels] == [42, 42, 42]
    legends = [[text.get_text() for text in panel.figure.legends[0].get_texts()] for panel in panels]
    assert legends == [["cat", "dog", "frog"]] * 3, "one legend for all"
    assert [text.get_text() for text in panels[2].figure.axes[0].texts] == ["cat"]


def test_each_class_is_named_amid_its_points_and_no_name_hides_another(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(300) % 3
    points = (rng.standard_normal((300, 2)) + truth[:, None] * (0.0, 0.1)).astype(np.float32)
    with look():
        figure = tsne(run_with(make_run, points, truth))[0].figure
        figure.draw_without_rendering()
        texts = figure.axes[0].texts
        boxes = [text.get_window_extent() for text in texts]
    assert [text.get_text() for text in texts] == ["cat", "dog", "frog"]
    for label, text in enumerate(texts):
        place = np.array(text.get_position())
        assert np.abs(points[truth == label] - place).sum(1).min() < 1e-6, "on a point of its class"
        assert np.abs(np.median(points[truth == label], axis=0) - place).max() < 1
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not boxes[one].overlaps(boxes[other])


def test_of_many_points_some_are_drawn_and_the_words_say_so(make_run: MakeRun) -> None:
    points = np.random.default_rng(0).random((10_000, 2)).astype(np.float32)
    with look():
        panel = tsne(run_with(make_run, points, np.arange(10_000) % 3))[0]
        assert len(dots(inline(panel.figure, "x", ""))) == MAX_POINTS
    assert "t-SNE of 10,000 test features, of which 2,000 are drawn" in panel.alt
