"""Similarity of reconstructions: how far it can be trusted is drawn, too."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from ccvr.core.arrays import arrays_to_bytes
from ccvr.report.figures.inversion import inversion
from ccvr.report.runs import read_runs
from tests.report.conftest import MakeRun, analyses

OWN = {1: [0.9, 0.7, 0.8, 0.8], 3: [0.5, 0.3, 0.4, 0.4]}
CHANCE = {1: [0.2, 0.2, 0.4, 0.4], 3: [np.nan] * 4}


def panel_of(make_run: MakeRun, own=OWN, chance=CHANCE, **more):
    path = make_run()
    arrays, about = analyses()["inversion"]
    scores = {f"similarity_{n}": np.array(own[n]) for n in own} | {f"chance_{n}": np.array(chance[n]) for n in own}
    content = arrays_to_bytes({**arrays, **scores, **{name: np.array(value) for name, value in more.items()}}, about)
    (path / "analysis" / "inversion.safetensors").write_bytes(content)
    return inversion(read_runs([path])[0])[1]


def bars(panel) -> dict[float, tuple[float, float]]:
    """Of the reconstructions, by n."""
    (axes,) = panel.figure.axes
    first = next(each for each in axes.collections if isinstance(each, LineCollection))
    return {float(low[0]): (low[1], high[1]) for low, high in first.get_segments()}


def test_bars_are_two_standard_errors(make_run: MakeRun) -> None:
    found = bars(panel_of(make_run))
    error = np.std(OWN[1], ddof=1) / 2
    assert set(found) == {1.0, 3.0}
    assert found[1.0] == pytest.approx((0.8 - 2 * error, 0.8 + 2 * error))


def test_words_tell_means_errors_and_what_is_left(make_run: MakeRun) -> None:
    alt = panel_of(make_run, error_1=[0.001, 0.003], error_3=[0.01, 0.02]).alt
    assert "n = 1: reconstruction 0.800 ± 0.082, by chance 0.300 ± 0.115, error left 0.20 %" in alt
    assert "n = 3: reconstruction 0.400 ± 0.082, error left 1.50 %" in alt


def test_an_analysis_that_kept_no_errors_is_drawn(make_run: MakeRun) -> None:
    assert "error left" not in panel_of(make_run).alt


def test_the_axis_starts_at_nought_or_shows_what_is_below(make_run: MakeRun) -> None:
    assert panel_of(make_run).figure.axes[0].get_ylim()[0] == 0


def test_what_is_below_nought_is_shown(make_run: MakeRun) -> None:
    below = panel_of(make_run, own={1: [-0.2, -0.1], 3: [0.1, 0.2]}, chance={1: [0.0, 0.1], 3: [0.0, 0.1]})
    assert below.figure.axes[0].get_ylim()[0] < bars(below)[1.0][0] < -0.15
