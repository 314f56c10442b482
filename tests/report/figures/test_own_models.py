"""The figure of clients with models of their own."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ccvr.report.figures.clients import own_models
from ccvr.report.runs import RunFiles
from tests.report.conftest import MakeRun, results

SCORES = {"mean": 80.0, "worst": 70.0, "p10": 71.0}
ROW: dict[str, Any] = {"method": "prior", "options": {}, "head": "ccvr", "accuracy": SCORES}


def drawn(make_run: MakeRun, counts: list[list[int]], **rows: Any) -> list[Any]:
    path = make_run(said=results(personal=rows, num_clients=len(counts)), analyzed=False)
    save_file({"label_counts": np.array(counts)}, path / "partition.safetensors")
    return own_models(RunFiles.read(path))


def test_global_and_own_accuracy_of_each_client(make_run: MakeRun) -> None:
    """Recalls of ccvr are 60.126, 70 and 66; those of oracle 70, 70 and unknown."""
    counts = [[1, 0, 0], [0, 1, 3], [0, 0, 5], [2, 2, 0]]
    prior, other = {**ROW, "clients": [71.0, 82.5, None, 90.0]}, {**ROW, "head": "oracle", "clients": [50.0] * 4}
    (panel,) = drawn(make_run, counts, prior=prior, other=other)
    assert panel.alt == (
        "Accuracy of 4 clients under their label mixes, worst to best. global, ccvr: 60.13 % to 67.00 %; "
        "global, oracle: 70.00 % to 70.00 %; own, prior: 71.00 % to 90.00 %; own, other: 50.00 % to 50.00 %."
    )
    (axes,) = panel.figure.axes
    assert sorted(round(bar.get_width(), 3) for bar in axes.patches) == sorted(
        [60.126, 67.0, 66.0, 65.063, 70.0, 70.0, 70.0, 71.0, 82.5, 90.0, *[50.0] * 4]
    )


def test_many_clients_are_not_drawn(make_run: MakeRun) -> None:
    row = {**ROW, "clients": [50.0] * 21}
    assert drawn(make_run, [[1, 1, 1]] * 21, prior=row) == []


@pytest.mark.parametrize("clients", [[], [1.0, 2.0], [None] * 4])
def test_rows_that_cannot_be_drawn(make_run: MakeRun, clients: list[float | None]) -> None:
    assert drawn(make_run, [[1, 1, 1]] * 4, prior={**ROW, "clients": clients}) == []


def test_a_run_without_any(make_run: MakeRun) -> None:
    assert own_models(RunFiles.read(make_run(analyzed=False))) == []
