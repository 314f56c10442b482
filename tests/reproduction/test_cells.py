"""Cells are told apart by what they train, not by their names."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ccvr.calibration.methods import parse_calibrations
from ccvr.core.fields import with_field
from ccvr.experiment.presets import PRESETS
from ccvr.report.published import TABLES, published
from ccvr.reproduction.cells import CELLS, SCALES, Scale, identity, scale_of
from ccvr.reproduction.heads import HEADS, calibration_of, find_label
from ccvr.reproduction.items import ITEMS
from ccvr.reproduction.paper_figures import DRAWS
from ccvr.reproduction.record import cell_name
from tests.reproduction.made import QUICK, trained

LEFT = CELLS["cifar10-a0.1-fedavg"]


def test_every_published_entry_is_a_cell_and_a_head():
    for table in TABLES:
        for cell, head in published(table):
            assert cell in CELLS
            assert head in HEADS


def test_no_two_cells_train_the_same():
    assert len({identity(cell.spec) for cell in CELLS.values()}) == len(CELLS)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: replace(spec, seed=7),
        lambda spec: replace(spec, workers=3, threads=2),
        lambda spec: replace(spec, data=replace(spec.data, root=Path("/elsewhere"))),
        lambda spec: replace(spec, training=replace(spec.training, rounds=3, local_epochs=1, evaluate_every=2)),
        lambda spec: replace(spec, calibration=replace(spec.calibration, methods=("lda",))),
        lambda spec: replace(spec, checkpoint=replace(spec.checkpoint, keep=0)),
    ],
)
def test_what_leaves_a_cell_the_same(change):
    assert identity(change(LEFT.spec)) == identity(LEFT.spec)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: replace(spec, training=replace(spec.training, lr=0.02)),
        lambda spec: replace(spec, training=replace(spec.training, algorithm="fedprox")),
        lambda spec: replace(spec, training=replace(spec.training, client_fraction=0.5)),
        lambda spec: replace(spec, partition=replace(spec.partition, seed=1)),
        lambda spec: replace(spec, partition=replace(spec.partition, balance=True)),
        lambda spec: replace(spec, data=replace(spec.data, augment=False)),
        lambda spec: replace(spec, data=replace(spec.data, validation=0.15)),
        lambda spec: replace(spec, model=replace(spec.model, name="mobilenet-v2")),
    ],
)
def test_what_makes_it_another(change):
    assert identity(change(LEFT.spec)) != identity(LEFT.spec)


def test_an_algorithm_is_the_same_cell_however_it_is_written():
    prox = CELLS["cifar10-a0.1-fedprox"].spec
    same, other = (
        replace(prox, training=replace(prox.training, algorithm=f"fedprox,mu={mu}")) for mu in ("1e-3", "0.1")
    )
    assert identity(same) == identity(prox) != identity(other)


def test_a_scale_and_a_seed_change_nothing_else():
    made = LEFT.at(QUICK, 2)
    assert (made.seed, made.training.rounds, made.training.local_epochs) == (2, 10, 5)
    assert replace(made, seed=0, training=LEFT.spec.training) == LEFT.spec == PRESETS["cifar10-a0.1-fedavg"]
    assert made.partition.seed == 0, "all seeds share the owners"


def test_a_scales_label_states_what_it_is():
    assert [scale.label for scale in SCALES.values()] == ["paper (100 × 10)", "half (50 × 10)", "quick (10 × 5)"]
    assert (Scale(10, 1).label, Scale(10, 1).folder, QUICK.folder) == ("10 × 1", "10x1", "quick")
    assert scale_of(LEFT.at(QUICK, 0)) == QUICK


@pytest.mark.parametrize(
    ("options", "cell", "scale"),
    [
        ({"model.name": "simple-cnn", "partition.alpha": 0.1}, "cifar100-a0.1-fedavg-simple-cnn", QUICK),
        ({"model.name": "simple-cnn"}, "cifar100-a0.5-fedavg-simple-cnn", QUICK),
        ({"training.local_epochs": 1}, "cifar100-a0.5-fedavg", Scale(10, 1)),
    ],
)
def test_what_a_run_of_a_preset_with_options_is_recorded_as(options, cell, scale):
    """The runs that the page of the paper names."""
    spec = PRESETS["cifar100-a0.5-fedavg"]
    for name, value in {"training.rounds": 10, "training.local_epochs": 5, **options}.items():
        spec = with_field(spec, name, value)
    assert (cell_name(spec), scale_of(spec)) == (cell, scale)


@pytest.mark.parametrize("number", [50, 100])
def test_ten_clients_train_in_a_round_whatever_their_number(number):
    spec = CELLS[f"cifar10-a0.1-moon-n{number}"].spec
    assert spec.partition.num_clients == number
    assert round(spec.training.client_fraction * number) == 10


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["cifar10-a0.1-fedavg", "cifar10-a0.5-fedavgm", "cifar100-a0.5-fedavg"])
def test_every_head_can_be_fitted_and_found_again(cell):
    spec = CELLS[cell].at(QUICK, 3)
    for head in HEADS:
        if head != "uncalibrated":
            found = trained(cell, {"uncalibrated": 50.0, head: 60.0}, seed=3).files.results
            assert find_label(head, spec, found) == head
            assert calibration_of(head, spec).label == head


def test_a_head_is_found_by_what_it_is():
    """The paper's M_c at alpha 0.1 is 2000, at 0.5 it is 100: `ccvr` of the run is that entry of the sweep."""
    run = trained("cifar10-a0.1-fedavg", {"uncalibrated": 50.0, "ccvr": 60.0})
    assert run.accuracy("ccvr-m2000", LEFT) == 60.0
    assert run.accuracy("ccvr-m100", LEFT) is None
    other = CELLS["cifar10-a0.5-fedavg"]
    assert trained(other.name, {"uncalibrated": 50.0, "ccvr": 61.0}).accuracy("ccvr-m100", other) == 61.0


@pytest.mark.parametrize("head", [head for head in HEADS if head != "uncalibrated"])
def test_a_head_is_found_in_rows_of_before_methods_had_options(head):
    """They have the options of all methods, and None where the method chose."""
    spec = CELLS["cifar10-a0.5-fedavg"].at(QUICK, 3)
    made = calibration_of(head, spec)
    (ccvr,) = [each for each in parse_calibrations(spec.calibration) if each.name == "ccvr"]
    others = {"matched": None, "taps": None, "kind": "", "l2": 0.001, "ridge": 0.001, **asdict(ccvr.method)}
    row = {**others, **asdict(made.method), "method": made.name, "seed": 3, "matched": None}
    if head in ("kernel", "lda", "ncm"):
        row["taps"] = None
    results = {"accuracy": {"mine": 60.0}, "calibrations": {"mine": row}}
    assert find_label(head, spec, results) == "mine"
    for change in ({"seed": 4}, {"method": "another"}):
        assert find_label(head, spec, {**results, "calibrations": {"mine": {**row, **change}}}) is None


@pytest.mark.parametrize(
    ("head", "change"),
    [
        ("ccvr", {"matched": True}),
        ("ccvr", {"epochs": 11}),
        ("ccvr-converged", {"matched": False}),
        ("lda", {"taps": "auto"}),
        ("lda-taps", {"taps": None}),
        ("kernel", {"taps": ""}),
        ("oracle", {"epochs": 10}),
    ],
)
def test_a_row_with_another_option_is_another_head(head, change):
    run = trained("cifar10-a0.1-fedavg", {"uncalibrated": 50.0, head: 60.0})
    assert run.accuracy(head, LEFT) == 60.0
    run.files.results["calibrations"][head].update(change)
    assert run.accuracy(head, LEFT) is None


def test_a_repeat_with_another_seed_is_another_head():
    run = trained("cifar10-a0.1-fedavg", {"uncalibrated": 50.0, "ccvr": 60.0})
    run.files.results["calibrations"]["ccvr"]["seed"] = 5
    assert run.accuracy("ccvr", LEFT) is None


# --- tables and figures -----------------------------------------------------------------------------------------------


def test_every_table_and_figure_is_listed_in_the_papers_order():
    ids = [f"table{n}" for n in range(1, 6)] + [f"figure{n}" for n in range(1, 16)]
    assert list(ITEMS)[: len(ids)] == ids
    assert set(DRAWS) == {name for name in ids if name.startswith("figure")}


def test_items_name_cells_that_there_are():
    for item in ITEMS.values():
        assert item.cells
        assert set(item.cells) <= set(CELLS)
    marked = {item.id for item in ITEMS.values() if "counterpart" in item.remark}
    assert marked == {"figure5", "figure8", "figure9", "figure13"}, "what cannot be had"


def test_tables_share_cells():
    assert set(ITEMS["table5"].cells) < set(ITEMS["table3"].cells) < set(ITEMS["table2"].cells)
    assert "cifar10-a0.1-fedavg" in set(ITEMS["table1"].cells) & set(ITEMS["table4"].cells)
