"""The paper's figures from runs and from rows of tables."""

import pytest

from ccvr.report.comparison import Row
from ccvr.report.groups import Spread
from ccvr.report.palette import look
from ccvr.report.published import Published
from ccvr.report.reproduced import DRAWS
from ccvr.report.runs import RunFiles
from ccvr.report.svg import save_bytes


@pytest.fixture
def runs(make_run):
    return {name: RunFiles.read(make_run(name)) for name in ("one", "two")}


def rows(heads):
    return [
        Row("cell", head, "s", "m", Published(60 + place, 0.5, None), Spread(50 + place, 0.25), scale="quick (10 × 5)")
        for place, head in enumerate(heads)
    ]


VIRTUAL = rows(["uncalibrated", "ccvr-m50", "ccvr-m100", "ccvr-m2000"])
REAL = rows(["uncalibrated", "oracle", "oracle-partial-1000", "oracle-partial-100"])
PANELS = {
    "figure1": 3 * 3,  # three layers, two runs and the one that both are compared with
    "figure2": 1,
    "figure3": 3 * 2,  # labels, first round, last round
    "figure4": 1,
    "figure6": 1,
    "figure7": 1,
    "figure8": 2,
    "figure9": 2,
    "figure10": 2,
    "figure11": 1,
    "figure12": 2 * 2,
    "figure14": 1,
    "figure15": 2,
}


@pytest.mark.parametrize("figure", PANELS)
def test_every_figure_is_drawn_and_says_what_it_shows(figure, runs):
    with look():
        panels = DRAWS[figure](runs, REAL if figure == "figure4" else VIRTUAL)
    assert len(panels) == PANELS[figure]
    for panel in panels:
        assert len(panel.alt) > 30
        assert save_bytes(panel.figure, "svg").startswith(b"<?xml")


@pytest.mark.parametrize("figure", ["figure5", "figure13"])
def test_counterparts_show_truth_before_and_after(figure, runs):
    with look():
        assert [panel.name.split(" · ")[1].split(" (")[0] for panel in DRAWS[figure](runs, [])[:3]] == [
            "true class",
            "predicted before",
            "predicted after",
        ]


def test_rounds_of_the_clients_norms_are_the_first_and_the_last(runs):
    with look():
        names = [panel.name for panel in DRAWS["figure12"]({"one": runs["one"]}, [])]
    assert [name.rpartition(" ")[2] for name in names] == ["1", "3"]


@pytest.mark.parametrize(("figure", "number"), [("figure8", 1), ("figure9", 3)])
def test_pictures_are_of_means_of_so_many_features(figure, number, runs):
    with look():
        panel = DRAWS[figure](runs, [])[0]
    assert f"for means of {number} features" in panel.alt


def test_both_curves_in_the_order_of_the_amounts():
    with look():
        (panel,) = DRAWS["figure4"]({}, REAL)
    assert panel.alt == (
        "cell, test accuracy in percent by real samples per class: paper (100 × 10): 60.00, 63.00, 62.00, 61.00; "
        "ours, quick (10 × 5): 50.00, 53.00, 52.00, 51.00."
    )
    assert [text.get_text() for text in panel.figure.axes[0].get_xticklabels()] == ["none", "100", "1000", "all"]


def test_without_ours_the_papers_curve_stands_alone():
    bare = [Row(row.cell, row.head, "s", "m", row.paper) for row in VIRTUAL]
    with look():
        (panel,) = DRAWS["figure7"]({}, bare)
    assert "ours" not in panel.alt


@pytest.mark.parametrize("figure", DRAWS)
def test_nothing_is_drawn_from_nothing(figure):
    with look():
        assert DRAWS[figure]({}, []) == []
