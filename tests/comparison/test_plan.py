"""The runs of a comparison: which they are, and that stopping and asking again loses and mixes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.calibration.spec import CalibrationSpec
from ccvr.comparison.plan import PlannedRun, planned_runs, preset_name, train_all
from ccvr.comparison.queue import JobFailed, JobStarted, OutOfTime
from ccvr.core.budget import Budget
from ccvr.core.errors import RunError, SpecError, UnknownName
from ccvr.core.run import RunFolder
from ccvr.experiment.events import HeadScored, RoundDone
from ccvr.experiment.spec import Spec
from tests.cli.conftest import TINY

SMALL = replace(
    TINY,
    training=replace(TINY.training, rounds=2, step="torch"),
    calibration=CalibrationSpec(methods=("lda",)),
)
ARMS = ("fedavg", "fedavg+fedavgm,momentum=0.5")


def plan(
    out: Path, spec: Spec = SMALL, arms: tuple[str, ...] = ARMS, seeds: int = 2, **options: bool
) -> list[PlannedRun]:
    return planned_runs(spec, arms, seeds, out, **{"redraw": False, **options})


def test_all_algorithms_of_a_seed_come_before_the_next_seed(tmp_path: Path) -> None:
    runs = plan(tmp_path, replace(SMALL, seed=5), ("fedavg", "fedprox,mu=1e+1", "fedprox,mu=2+fedavgm"))
    assert [(run.spec.seed, run.spec.training.algorithm, run.spec.training.server) for run in runs] == [
        (seed, *methods)
        for seed in (5, 6)
        for methods in (("fedavg", ""), ("fedprox,mu=10", ""), ("fedprox,mu=2", "fedavgm"))
    ]
    assert {run.spec.partition.seed for run in runs} == {0}, "all share who owns what"
    assert len({run.folder.path for run in runs}) == 6
    assert [run.spec.partition.seed for run in planned_runs(SMALL, ARMS, 2, tmp_path, redraw=True)] == [0, 0, 1, 1]


def test_a_preset_may_leave_its_algorithm_out() -> None:
    assert preset_name("cifar10-a0.1") == "cifar10-a0.1-fedavg"
    assert preset_name("cifar10-a0.1-moon") == "cifar10-a0.1-moon"
    assert preset_name("mine.toml") == "mine.toml"


@pytest.mark.parametrize(
    ("arms", "error", "words"),
    [
        (("fedavg", "fedagv"), UnknownName, 'no algorithm "fedagv"'),
        (("fedavg", "fedprox,nu=1"), SpecError, 'fedprox has no option "nu"'),
        (("fedavg", "fedavg+fedprox"), SpecError, 'training.server is "fedprox", which is no server optimiser'),
        (("fedavg", "fedavg+fedavgm+fedavgm"), SpecError, '"fedavg.fedavgm.fedavgm" names 2 servers'),
        (("fedprox,mu=0.1", "fedavg", "fedprox,mu=0.10"), SpecError, '"fedprox,mu=0.1" is given 2 times'),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(arms, error, words, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        plan(tmp_path, arms=arms)


def test_a_budget_stops_between_rounds_and_the_same_call_ends_in_the_same_bits(tmp_path: Path) -> None:
    times = iter(range(1000))
    runs = plan(tmp_path / "parts", seeds=1)
    steps = list(train_all(runs, Budget(2, clock=lambda: next(times))))
    assert isinstance(steps[-1], OutOfTime)
    assert steps[-1].left == 2
    assert [step.round for step in steps if isinstance(step, RoundDone)] == [1]
    again = list(train_all(runs, Budget()))
    assert [step.round for step in again if isinstance(step, RoundDone)] == [2, 1, 2], "the first round is not repeated"
    assert list(train_all(runs, Budget())) == [], "all is done"
    whole = plan(tmp_path / "whole", seeds=1)
    list(train_all(whole, Budget()))
    for part, other in zip(runs, whole, strict=True):
        assert part.folder.model.read_bytes() == other.folder.model.read_bytes()
    first, second = (RunFolder(run.folder.path).read_results()["accuracy"]["uncalibrated"] for run in runs)
    assert first != second, "the server optimiser does something"


def test_a_run_that_fails_does_not_keep_others_from_training(tmp_path: Path) -> None:
    runs = plan(tmp_path, replace(SMALL, training=replace(SMALL.training, rounds=1)), ("fedprox,mu=1e30", "fedavg"), 1)
    steps = list(train_all(runs, Budget()))
    (failed,) = [step for step in steps if isinstance(step, JobFailed)]
    assert failed.job.arm == "fedprox,mu=1e30"
    assert "diverged in round 1" in str(failed.error)
    assert [run.is_done for run in runs] == [False, True]


def test_other_settings_in_a_folder_are_in_the_way(tmp_path: Path) -> None:
    one = replace(SMALL, training=replace(SMALL.training, rounds=1))
    list(train_all(plan(tmp_path, one, seeds=1), Budget()))
    with pytest.raises(RunError, match=r"holds a run with training.rounds = 1, not 2. Move it, or use another --out"):
        plan(tmp_path, SMALL)


def test_heads_that_are_asked_for_later_are_fitted_and_deployed_in_every_run(tmp_path: Path) -> None:
    one = replace(SMALL, training=replace(SMALL.training, rounds=1))
    list(train_all(plan(tmp_path, one, seeds=1), Budget()))
    other = replace(one, calibration=CalibrationSpec(methods=("ridge", "lda")))
    runs = plan(tmp_path, other, seeds=1)
    steps = list(train_all(runs, Budget()))
    assert [step.label for step in steps if isinstance(step, HeadScored)] == ["ridge"] * 2
    assert not [step for step in steps if isinstance(step, RoundDone)]
    assert {run.folder.read_results()["deployed"] for run in runs} == {"ridge"}
    assert [step for step in train_all(runs, Budget()) if isinstance(step, JobStarted)] == []
    changed = plan(tmp_path, replace(one, calibration=CalibrationSpec(methods=("lda,transform=tukey:0.5",))), seeds=1)
    with pytest.raises(RunError, match=r'has "lda" with transform = .*, not .tukey:0.5.. Give the new one a name'):
        list(train_all(changed, Budget()))
