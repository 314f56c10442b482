"""The paper's figures from runs and from rows of tables."""

from dataclasses import replace

import pytest

from ccvr.report.groups import Spread
from ccvr.report.palette import look
from ccvr.report.published import Published
from ccvr.report.runs import RunFiles
from ccvr.report.svg import save_bytes
from ccvr.reproduction.cells import SCALES, Scale
from ccvr.reproduction.comparison import TableRow
from ccvr.reproduction.paper_figures import DRAWS, Shown, layer

QUICK, LONG = SCALES["quick"], SCALES["paper"]


@pytest.fixture
def runs(make_run):
    files = RunFiles.read(make_run("run"))
    return [shown(files, method, QUICK) for method in ("FedAvg", "FedProx")]


def shown(files, method, scale):
    named = replace(files, name=method, spec={**files.spec, "training": {"algorithm": method.lower()}})
    return Shown(f"cell-{method.lower()}", method, "CIFAR-10, α = 0.1", scale, named)


def rows(heads, scale=QUICK, start=50.0):
    return [
        TableRow(
            "cell",
            head,
            "s",
            f"FedAvg + {head}",
            Published(60 + place, 0.5, None),
            Spread(start + place, 0.25),
            scale=scale,
        )
        for place, head in enumerate(heads)
    ]


VIRTUAL = rows(["uncalibrated", "ccvr-m50", "ccvr-m100", "ccvr-m2000"])
REAL = rows(["uncalibrated", "oracle", "oracle-partial-1000", "oracle-partial-100"])
PANELS = {
    "figure1": ["a", "b", "head"] * 2,
    "figure2": [""],
    "figure3": ["labels", "round 1", "round 3"] * 2,
    "figure4": [""],
    "figure5": ["true class", "predicted before", "predicted after (ccvr)"] * 2,
    "figure6": [""],
    "figure7": [""],
    "figure8": ["", ""],
    "figure9": ["", ""],
    "figure10": ["", ""],
    "figure11": [""],
    "figure12": ["round 1", "round 3"] * 2,
    "figure13": ["true class", "predicted before", "predicted after (ccvr)"] * 2,
    "figure14": [""],
    "figure15": ["", ""],
}
TOGETHER = ("figure2", "figure6", "figure11")
CURVES = ("figure4", "figure7", "figure14")


def draw(figure, runs, entries=None):
    with look():
        return DRAWS[figure](runs, (REAL if figure == "figure4" else VIRTUAL) if entries is None else entries)


def legend_of(plate):
    return [text.get_text() for text in plate.panel.figure.legends[0].get_texts()]


def test_every_figure_has_its_row():
    assert list(PANELS) == list(DRAWS)


@pytest.mark.parametrize("figure", PANELS)
def test_every_figure_is_drawn_and_says_what_it_shows(figure, runs):
    plates = draw(figure, runs)
    assert [plate.panel.name for plate in plates] == PANELS[figure]
    for plate in plates:
        assert len(plate.panel.alt) > 30
        assert save_bytes(plate.panel.figure, "svg").startswith(b"<?xml")
    if figure in TOGETHER:
        assert [(plate.of, plate.about) for plate in plates] == [("quick", "CIFAR-10, α = 0.1, quick scale (10 × 5)")]
    elif figure not in CURVES:
        ends = plates[0], plates[-1]
        assert [plate.of for plate in ends] == ["cell-fedavg", "cell-fedprox"]
        assert ends[1].about == "FedProx, CIFAR-10, α = 0.1, quick scale (10 × 5)"


@pytest.mark.parametrize("figure", TOGETHER)
def test_runs_that_stand_together_are_told_apart_by_their_methods(figure, runs):
    methods = ["FedAvg", "FedProx", "MOON", "FedAvg + clsnorm", "FedAvg + clsprox"]
    (plate,) = draw(figure, [shown(runs[0].files, method, QUICK) for method in methods])
    names = legend_of(plate)
    assert [name for name in names if name not in ("ccvr", "oracle")] == methods
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("figure", TOGETHER)
def test_runs_of_different_scales_do_not_stand_together(figure, runs):
    plates = draw(figure, [shown(runs[0].files, "FedAvg", LONG), *runs])
    assert [plate.of for plate in plates] == ["paper", "quick"]
    assert [plate.about.rpartition(", ")[2] for plate in plates] == ["paper scale (100 × 10)", "quick scale (10 × 5)"]
    assert ["FedProx" in legend_of(plate) for plate in plates] == [False, True]


def test_of_a_cell_the_first_run_is_drawn(runs):
    plates = draw("figure10", [shown(runs[0].files, "FedAvg", LONG), *runs])
    assert [plate.about.rpartition(", ")[2] for plate in plates] == ["paper scale (100 × 10)", "quick scale (10 × 5)"]


@pytest.mark.parametrize(("figure", "number"), [("figure8", 1), ("figure9", 3)])
def test_pictures_are_of_means_of_so_many_features(figure, number, runs):
    assert f"for means of {number} features" in draw(figure, runs)[0].panel.alt


def test_both_curves_in_the_order_of_the_amounts():
    (plate,) = draw("figure4", [])
    assert plate.panel.alt == (
        "Test accuracy in percent by real samples per class, none, 100, 1000, all: the paper (100 × 10): 60.00, 63.00, "
        "62.00, 61.00; ours (10 × 5): 50.00, 53.00, 52.00, 51.00."
    )
    assert [text.get_text() for text in plate.panel.figure.axes[0].get_xticklabels()] == ["none", "100", "1000", "all"]
    assert plate.of == "cell"


def test_each_scale_has_a_curve_of_its_own_that_ends_where_it_lacks_a_point():
    some = [
        row
        for row in rows(["uncalibrated", "ccvr-m50", "ccvr-m100", "ccvr-m2000"], LONG, 70.0)
        if row.head != "ccvr-m50"
    ]
    (plate,) = draw("figure7", [], [*some, *VIRTUAL])
    assert legend_of(plate) == ["the paper (100 × 10)", "ours (100 × 10)", "ours (10 × 5)"]
    assert plate.panel.alt.endswith(
        "; ours (100 × 10): 70.00, –, 72.00, 73.00; ours (10 × 5): 50.00, 51.00, 52.00, 53.00."
    )
    curves = [list(line.get_ydata()) for line in plate.panel.figure.axes[0].lines if len(line.get_ydata()) == 4]
    assert [50.0, 51.0, 52.0, 53.0] in curves
    assert [str(y) for y in next(curve for curve in curves if curve[0] == 70.0)] == ["70.0", "nan", "72.0", "73.0"]


def test_without_ours_the_papers_curve_stands_alone():
    (plate,) = draw("figure7", [], [TableRow(row.cell, row.head, "s", "m", row.paper) for row in VIRTUAL])
    assert "ours" not in plate.panel.alt


@pytest.mark.parametrize("figure", DRAWS)
def test_nothing_is_drawn_from_nothing(figure):
    assert draw(figure, [], []) == []


def test_scales_and_layers_in_words():
    assert (LONG.phrase, Scale(10, 1).phrase) == ("paper scale (100 × 10)", "10 × 1 scale")
    assert (LONG.numbers, Scale(10, 1).numbers) == ("100 × 10", "10 × 1")
    assert [layer(path) for path in ("backbone.model.layer1.2", "head")] == ["layer1", "head"]
