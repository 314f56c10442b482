"""Figures from cells: what they are called, what they say on themselves, which runs they show."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ccvr.core.errors import RunError
from ccvr.report.panel_files import named
from ccvr.reproduction.figures import Drawing, draw
from ccvr.reproduction.items import ITEMS
from tests.reproduction.made import PAPER, QUICK, trained, trainings

CELL = "cifar10-a0.1-fedavg"
CKA = ["backbone.model.layer1.2", "backbone.model.layer2.2", "backbone.model.layer4", "head"]
ANALYSES = {
    "cka": (
        {"cka": np.ones((4, 2, 2))},
        {"layers": CKA, "mean": [0.9, 0.8, 0.7, 0.6], "clients": [0, 1], "widths": [9, 9, 9, 2]},
    ),
    "norms": ({"norms": np.array([[1.0, 2.0]] * 2)}, {"heads": ["uncalibrated", "ccvr"]}),
    "separability": ({}, {"mean": 0.3, "gains": {"ccvr": 6.0, "oracle": 8.0}}),
    "tsne": (
        {"points": np.eye(2), **{key: np.arange(2) for key in ("truth", "before", "after")}},
        {"after": "ccvr"},
    ),
    "inversion": (
        {
            f"{kind}_{n}": np.zeros((1, 3, 4, 4), dtype=np.uint8) if kind.endswith("s") else np.ones(2)
            for kind in ("originals", "reconstructions", "similarity", "chance")
            for n in (1, 3)
        },
        {"numbers": [1, 3], "client": 0, "class": 1},
    ),
}
CLIENTS = [{"client": c, "head_row_norms": [1.0, 2.0 + c]} for c in range(2)]
ROUNDS = [{"round": number, "accuracy": 50.0, "clients": CLIENTS} for number in (1, 10)]


def analysed(cell, scale=QUICK, seed=0):
    found = trained(cell, {"uncalibrated": 50.0, "ccvr": 56.0}, scale=scale, seed=seed)
    results = {**found.files.results, "deployed": "ccvr"}
    counts = np.array([[1, 0], [3, 4]])
    return replace(
        found, files=replace(found.files, results=results, analyses=ANALYSES, rounds=ROUNDS, label_counts=counts)
    )


def drawn(figure, *found, scale=None) -> Drawing:
    item = ITEMS[figure]
    return draw(item, item.cells, trainings(*found), scale, Path("nowhere"))


def title_of(figure: Figure) -> list[str]:
    return figure.get_suptitle().split("\n")


def files_of(drawing: Drawing) -> list[str]:
    return [name for name, _ in named(drawing.id, drawing.panels)]


COUNTERPARTS = ("figure5", "figure8", "figure9", "figure13")


@pytest.mark.parametrize("figure", [item.id for item in ITEMS.values() if item.is_figure])
def test_every_file_says_what_it_shows(figure):
    item = ITEMS[figure]
    panels = drawn(figure, *map(analysed, item.cells)).panels
    titles = [" ".join(title_of(panel.figure)) for panel in panels]
    start = "Counterpart on CIFAR-10 of " if figure in COUNTERPARTS else ""
    assert titles
    assert all(title.startswith(f"{start}Figure {figure.removeprefix('figure')}: {item.title} ") for title in titles)
    assert len(set(titles)) == len(titles)


def test_titles_name_method_layer_or_round_alpha_and_scale():
    cells = [analysed(cell) for cell in (CELL, "cifar10-a0.1-fedprox")]
    assert [title_of(panel.figure)[1] for panel in drawn("figure1", *cells).panels] == [
        f"FedAvg, CIFAR-10, α = 0.1, quick scale (10 × 5) · {layer}" for layer in ("layer1", "layer4", "head")
    ]
    assert title_of(drawn("figure12", *cells).panels[-1].figure) == [
        "Figure 12: Norms of the clients' heads, first and last round",
        "FedProx, CIFAR-10, α = 0.1, quick scale (10 × 5) · round 10",
    ]


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        ("figure1", ["figure1-layer1", "figure1-layer4", "figure1-head"]),
        ("figure2", ["figure2-quick"]),
        (
            "figure3",
            [f"figure3-{cell}-{what}" for cell in ("a0-1", "iid") for what in ("labels", "round-1", "round-10")],
        ),
        ("figure8", ["figure8"]),
        ("figure10", ["figure10-fedavg", "figure10-fedprox", "figure10-moon"]),
        (
            "figure15",
            [
                f"figure15-{cell}"
                for cell in ("cifar10-a0-5", "cifar10-a0-1", "cifar10-a0-05", "cifar100-a0-5", "cinic10-a0-5")
            ],
        ),
    ],
)
def test_files_are_called_by_what_sets_a_panel_apart(figure, names):
    assert files_of(drawn(figure, *map(analysed, ITEMS[figure].cells))) == names


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        ("figure2", ["FedAvg, CIFAR-10, α = 0.1", "FedAvg, CIFAR-10, iid"]),
        ("figure6", ["FedAvg", "FedProx", "MOON", "FedAvgM"]),
        ("figure11", ["FedAvg", "FedProx", "MOON", "FedAvg + clsnorm", "FedAvg + clsprox"]),
    ],
)
def test_legends_tell_the_cells_apart(figure, names):
    (panel,) = drawn(figure, *map(analysed, ITEMS[figure].cells)).panels
    found = [text.get_text() for text in panel.figure.legends[0].get_texts()]
    assert [name for name in found if name not in ("ccvr", "oracle")] == names


def damaged(found):
    """A cell whose analysis lacks what figures read."""
    analyses = {**ANALYSES, "cka": (ANALYSES["cka"][0], {})}
    return replace(found, files=replace(found.files, analyses=analyses))


def test_a_cell_that_is_damaged_is_named_and_the_others_are_drawn():
    good, bad = analysed(CELL), damaged(analysed("cifar10-a0.1-moon"))
    drawing = drawn("figure11", good, bad)
    (panel,) = drawing.panels
    assert [text.get_text() for text in panel.figure.legends[0].get_texts()] == ["FedAvg"]
    assert any(
        each.startswith(f"cifar10-a0.1-moon ({bad.files.folder.path} is damaged: delete its") for each in drawing.lacks
    )
    with pytest.raises(RunError, match=r"^figure11 cannot be drawn: the files of several cells do not fit together \("):
        drawn("figure11", good, bad, damaged(analysed("cifar10-a0.1-fedprox")))


def test_names_do_not_depend_on_what_is_there():
    assert files_of(drawn("figure10", analysed("cifar10-a0.1-fedprox"))) == ["figure10-fedprox"]


def test_a_figure_shows_the_largest_scale_and_what_stands_together_every_scale():
    found = [analysed(CELL), analysed(CELL, scale=PAPER), analysed("cifar10-a0.1-fedprox")]
    scales = [title_of(panel.figure)[1].rpartition(", ")[2] for panel in drawn("figure10", *found).panels]
    assert scales == ["paper scale (100 × 10)", "quick scale (10 × 5)"]
    assert files_of(drawn("figure11", *found)) == ["figure11-paper", "figure11-quick"]
    assert files_of(drawn("figure11", *found, scale=QUICK)) == ["figure11-quick"]


def test_a_curve_is_of_one_scale():
    sweep = {"uncalibrated": 50.0, "ccvr-m50": 54.0, "ccvr-m100": 55.0}
    long = trained(CELL, {"uncalibrated": 60.0, "ccvr-m2000": 64.0}, scale=PAPER)
    drawing = drawn("figure7", trained(CELL, sweep), long)
    (alt,) = [panel.alt for panel in drawing.panels if "α = 0.1" in panel.alt]
    assert "; ours (100 × 10): 60.00, –, –, –, –, 64.00; ours (10 × 5): 50.00, 54.00, 55.00, –, –, –." in alt
    assert CELL in drawing.lacks, "no scale has 500"


def test_what_is_not_there_is_named():
    assert drawn("figure10", analysed(CELL)).lacks == ["cifar10-a0.1-fedprox", "cifar10-a0.1-moon"]
    assert drawn("figure5").panels == []


@pytest.mark.parametrize("figure", ["figure10", "figure12"])  # a layout of matplotlib's, and one of ours
def test_titles_stand_above_the_drawing(figure):
    drawing = drawn(figure, analysed(CELL)).panels[0].figure
    renderer = FigureCanvasAgg(drawing).get_renderer()
    drawing.draw(renderer)
    (title,) = [text for text in drawing.texts if text.get_text() == drawing.get_suptitle()]
    assert max(axes.get_tightbbox(renderer).y1 for axes in drawing.axes) <= title.get_window_extent(renderer).y0
    assert title.get_window_extent(renderer).y1 <= drawing.bbox.y1


def test_a_curve_is_of_one_set_of_seeds():
    """The two that have all of it; a third that has its ends alone would bend it."""
    heads = {"uncalibrated": 50.0, "ccvr-m50": 54.0, "ccvr-m2000": 56.0}
    found = [trained(CELL, heads, seed=0), trained(CELL, {head: value + 2 for head, value in heads.items()}, seed=1)]
    found += [trained(CELL, {"uncalibrated": 20.0, "ccvr-m2000": 22.0}, seed=2)]
    drawing = drawn("figure7", *found)
    (alt,) = [panel.alt for panel in drawing.panels if "ours" in panel.alt]
    assert alt.endswith("; ours (10 × 5), 2 seeds: 51.00, 55.00, –, –, –, 57.00.")
    assert any(text.endswith("(+4.00).") for text in drawing.findings)
    alone = drawn("figure7", found[2])
    assert any("; ours (10 × 5): 20.00, –, –, –, –, 22.00" in panel.alt for panel in alone.panels)
