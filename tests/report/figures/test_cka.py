"""Likeness of clients' models: what a run was compared with is drawn once."""

import numpy as np
import pytest

from ccvr.core.arrays import arrays_to_bytes
from ccvr.report.figures.cka import means, pairs
from ccvr.report.palette import look
from ccvr.report.runs import read_runs
from tests.report.conftest import MakeRun, analyses

CKA, ABOUT = analyses()["cka"]


@pytest.mark.parametrize("dead", [False, True])
def test_a_run_that_is_there_itself_is_not_drawn_again(dead: bool, make_run: MakeRun) -> None:
    iid, other = (CKA["cka"] ** power for power in (0.5, 2))
    if dead:
        iid[1] = np.nan
    about = {**ABOUT, "mean": [0.95, float("nan") if dead else 0.9, 0.5]}
    paths = {name: make_run(name, analyzed=False) for name in ("one", "two", "iid")}
    for path, kind, cka in (
        *((paths["one"], "cka", CKA["cka"]), (paths["two"], "cka", other), (paths["iid"], "cka", iid)),
        *((paths["one"], "cka-against", iid), (paths["two"], "cka-against", iid)),
    ):
        (path / "analysis").mkdir(exist_ok=True)
        content = arrays_to_bytes({"cka": cka}, {**about, "run": "iid"})
        (path / "analysis" / f"{kind}.safetensors").write_bytes(content)
    with look():
        both, alone = read_runs(list(paths.values())), read_runs([paths["one"], paths["two"]])
        layers = ABOUT["layers"]
        named = {
            name: [f"{name} · {layer}" for layer in layers] for name in ("one (fedavg)", "two (fedavg)", "iid (fedavg)")
        }
        assert [panel.name for panel in pairs(both)] == [name for names in named.values() for name in names]
        assert [panel.name for panel in pairs(alone)][6:] == [f"iid · {layer}" for layer in layers]
        for runs, names in ((both, list(named)), (alone, [*list(named)[:2], "iid"])):
            (panel,) = means(runs)
            (axes,) = panel.figure.axes
            assert axes.get_legend_handles_labels()[1] == names


def test_runs_that_are_alike_to_the_bit_are_both_drawn(make_run: MakeRun) -> None:
    with look():
        panels = pairs(read_runs([make_run("one"), make_run("two")]))
    names = ("one (fedavg)", "two (fedavg)", "iid")
    assert [panel.name for panel in panels] == [f"{name} · {layer}" for name in names for layer in ABOUT["layers"]]
