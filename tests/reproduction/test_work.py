"""What is missing is made, once, and no more than the budget allows."""

import contextlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.calibration.table import CALIBRATORS
from ccvr.comparison.queue import JobElsewhere, JobFailed, JobStarted, OutOfTime
from ccvr.core.budget import Budget, parse_duration
from ccvr.core.errors import UsageError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment import pipeline
from ccvr.experiment.events import HeadScored, RoundDone
from ccvr.experiment.pipeline import run, start
from ccvr.experiment.run_or_resume import settle
from ccvr.experiment.spec import read_spec, to_toml
from ccvr.inspection.analyze import Analyzed
from ccvr.reproduction.cells import Scale
from ccvr.reproduction.heads import HEADS, Head
from ccvr.reproduction.items import ITEMS, Item
from ccvr.reproduction.work import chosen_cells, do_all, in_order, jobs_of, turns_below
from tests.reproduction import digits


@pytest.fixture(autouse=True)
def _digits(monkeypatch, tmp_path):
    monkeypatch.setenv("CCVR_DATA", str(tmp_path / "no-data"))
    digits.install(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The plain cell, trained under a name of its own."""
    path = tmp_path_factory.mktemp("cells") / "anything" / "called-otherwise"
    run(digits.PLAIN.at(digits.TINY, 0), path)
    return path


def jobs(out, *ids, seeds=1, scale=digits.TINY, cells=()):
    items = [ITEMS[name] for name in ids]
    turns = [(scale, seed) for seed in range(seeds)]
    return jobs_of(items, chosen_cells(items, cells), turns, out, lambda spec: spec)


def do(found, budget=None, train=True):
    return list(do_all(in_order(found, lambda spec: spec.training.rounds, train=train), Budget(budget)))


class Clock:
    """Time that passes when a test says so."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


def rounds(steps):
    return sum(isinstance(step, RoundDone) for step in steps)


def test_a_table_is_made_and_then_there_is_nothing_left(tmp_path):
    steps = do(jobs(tmp_path, "table9"))
    assert [step.job.cell.name for step in steps if isinstance(step, JobStarted)] == ["digits-fedavg", "digits-fedprox"]
    assert rounds(steps) == 4
    assert [step.label for step in steps if isinstance(step, HeadScored)].count("ccvr-m50") == 1
    assert all(job.is_done for job in jobs(tmp_path, "table9"))
    assert do(jobs(tmp_path, "table9")) == []
    assert sorted(path.name for path in (tmp_path / "quick").iterdir()) == ["digits-fedavg-s0", "digits-fedprox-s0"]


def test_tables_share_cells_and_a_cell_is_known_by_its_settings(finished, tmp_path):
    shutil.copytree(finished.parents[1], tmp_path / "out")
    steps = do(jobs(tmp_path / "out", "table9", "table8", cells=("digits-fedavg",)))
    assert rounds(steps) == 0, "it is trained already, whatever its folder is called"
    assert [step.label for step in steps if isinstance(step, HeadScored)] == ["ccvr-m50", "lda"]
    results = RunFolder(tmp_path / "out" / "anything" / "called-otherwise").read_results()
    assert set(results["accuracy"]) == {"uncalibrated", "ccvr", "oracle", "ccvr-m50", "lda"}
    assert results["calibrations"]["ccvr-m50"]["epochs"] == 2, "the cell's options"


def test_another_scale_or_seed_is_another_training(finished):
    assert [job.is_trained for job in jobs(finished.parents[1], "table8", seeds=2)] == [True, False]
    assert [job.is_trained for job in jobs(finished.parents[1], "table8", scale=Scale(3, 1))] == [False]


def test_without_training_only_what_is_trained_is_completed(finished, tmp_path):
    shutil.copytree(finished.parents[1], tmp_path / "out")
    steps = do(jobs(tmp_path / "out", "table9", seeds=2), train=False)
    assert rounds(steps) == 0
    assert [step.label for step in steps if isinstance(step, HeadScored)] == ["ccvr-m50"]


def test_turns_are_the_scales_and_seeds_that_there_are(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "a")
    run(digits.PROX.at(Scale(1, 1), 2), tmp_path / "b")
    assert turns_below(tmp_path, None) == [(Scale(1, 1), 2), (digits.TINY, 0)]
    assert turns_below(tmp_path, Scale(1, 1)) == [(Scale(1, 1), 2)]
    found = jobs_of([digits.TABLE], digits.TABLE.cells, turns_below(tmp_path, None), tmp_path, lambda spec: spec)
    assert {(job.cell.name, job.spec.seed) for job in found if job.is_trained} == {
        ("digits-fedprox", 2),
        ("digits-fedavg", 0),
    }


def test_a_head_of_the_same_name_is_left_alone(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out" / "run")
    folder = RunFolder(tmp_path / "out" / "run")
    results = folder.read_results()
    for key in ("accuracy", "per_class_recall", "client_accuracy"):
        results[key]["lda"] = results[key]["ccvr"]
    results["calibrations"]["lda"] = {**results["calibrations"]["ccvr"], "method": "lda", "transform": "tukey:0.5"}
    folder.write_json(folder.results, results)
    do(jobs(tmp_path / "out", "table8"))
    assert set(folder.read_results()["accuracy"]) == {"uncalibrated", "ccvr", "oracle", "lda", "lda-2"}


def test_order_is_what_is_trained_then_what_was_begun_then_seed_and_cost(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "a")
    begun = next(job for job in jobs(tmp_path, "table9", seeds=2) if job.name.startswith("digits-fedprox, seed 1"))
    write_atomically(begun.folder.spec, to_toml(begun.spec).encode())
    found = in_order(
        jobs(tmp_path, "table9", "table7", seeds=2),
        lambda spec: 1.0 if spec.data.name == "cinic10" else {"fedavg": 2, "fedprox": 3}[spec.training.algorithm_name],
        train=True,
    )
    assert [(job.cell.name, job.spec.seed) for job in found] == [
        ("digits-fedavg", 0),
        ("digits-fedprox", 1),
        ("nowhere-fedavg", 0),
        ("digits-fedprox", 0),
        ("nowhere-fedavg", 1),
        ("digits-fedavg", 1),
    ]


def test_a_spent_budget_stops_in_the_middle_of_a_cell_and_the_next_time_goes_on(finished, tmp_path):
    scale = Scale(3, 1)
    steps = do(jobs(tmp_path / "parts", "table8", scale=scale), budget=1e-9)
    assert steps == [OutOfTime(1)], "nothing is begun when nothing is left"
    first = []
    clock = Clock()
    for step in do_all(jobs(tmp_path / "parts", "table8", scale=scale), Budget(60, clock=clock)):
        first.append(step)
        clock.seconds += 61 * isinstance(step, RoundDone)
    assert (rounds(first), first[-1]) == (1, OutOfTime(1))
    (job,) = jobs(tmp_path / "parts", "table8", scale=scale)
    assert job.is_started
    assert not job.is_trained
    second = do(jobs(tmp_path / "parts", "table8", scale=scale))
    assert rounds(second) == 2, "one round of three was there"
    assert job.is_done
    do(jobs(tmp_path / "whole", "table8", scale=scale))
    (whole,) = jobs(tmp_path / "whole", "table8", scale=scale)
    assert job.folder.read_results()["accuracy"] == whole.folder.read_results()["accuracy"]
    assert job.folder.model.read_bytes() == whole.folder.model.read_bytes()


def test_the_last_round_is_not_left_without_its_calibrations(tmp_path):
    steps = []
    clock = Clock()
    for step in do_all(jobs(tmp_path, "table9", cells=("digits-fedprox",)), Budget(60, clock=clock)):
        steps.append(step)
        clock.seconds += 61 * (isinstance(step, RoundDone) and step.round == 2)
    assert not any(isinstance(step, OutOfTime) for step in steps)
    (job,) = jobs(tmp_path, "table9", cells=("digits-fedprox",))
    assert job.is_done


def test_a_cell_that_cannot_be_made_does_not_keep_others_from_it(tmp_path):
    steps = do(jobs(tmp_path, "table7"))
    (failed,) = [step for step in steps if isinstance(step, JobFailed)]
    assert failed.job.cell.name == "nowhere-fedavg"
    assert "ccvr data get cinic10" in str(failed.error)
    assert {job.cell.name: job.is_done for job in jobs(tmp_path, "table7")} == {
        "nowhere-fedavg": False,
        "digits-fedavg": True,
    }


def test_a_head_that_cannot_be_fitted_does_not_keep_others_from_it(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setitem(CALIBRATORS._rows, "unable", digits.Unable)
    monkeypatch.setitem(HEADS._rows, "fails", Head(lambda ccvr: digits.Unable(), "fails"))
    entries = {(digits.PLAIN.name, head): None for head in ("ncm", "fails", "lda")}
    monkeypatch.setitem(ITEMS._rows, "table6", Item("table6", "Three heads", entries))
    steps = do(jobs(tmp_path, "table6"))
    assert [step.label for step in steps if isinstance(step, HeadScored)] == ["ncm", "lda"]
    assert [str(step.error) for step in steps if isinstance(step, JobFailed)] == ["not this one"]


def test_a_cell_that_another_process_is_training_is_left_to_it(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        steps = do(jobs(tmp_path, "table8", "table9"))
    assert not any(isinstance(step, JobFailed) for step in steps)
    assert [step.job.cell.name for step in steps if isinstance(step, JobElsewhere)] == ["digits-fedavg"]
    assert next(job for job in jobs(tmp_path, "table9") if job.cell.name == "digits-fedprox").is_done


def test_a_run_in_the_way_is_named_and_left_as_it_is(finished, tmp_path):
    way = tmp_path / "quick" / "digits-fedprox-s0"
    shutil.copytree(finished, way)
    before = (way / "results.json").read_bytes()
    steps = do(jobs(tmp_path, "table9", cells=("digits-fedprox",)))
    (failed,) = [step for step in steps if isinstance(step, JobFailed)]
    assert str(failed.error) == (
        f"{way} holds a run with training.algorithm = 'fedavg', not 'fedprox,mu=0.01'. Move it, or use another --out."
    )
    assert (way / "results.json").read_bytes() == before


def test_analyses_of_a_figure_are_made_once(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "out" / "run")
    figure = Item("figure99", "Norms", more_cells=(digits.PLAIN.name,), analyses=("norms",))
    monkeypatch.setitem(ITEMS._rows, figure.id, figure)
    steps = do(jobs(tmp_path / "out", "figure99"))
    assert [step.name for step in steps if isinstance(step, Analyzed)] == ["norms"]
    assert do(jobs(tmp_path / "out", "figure99")) == []


def test_a_run_that_another_process_began_meanwhile_is_left_to_it(tmp_path, monkeypatch):
    """Both found no run; the other was faster while this one read its data."""
    (job,) = jobs(tmp_path, "table8")
    other = start(job.spec, job.folder.path)
    prepare = pipeline.prepare

    def slow(spec):
        setup = prepare(spec)
        next(other)
        return setup

    with contextlib.closing(other):
        steps = []
        for step in do_all([job], Budget()):
            if isinstance(step, JobStarted):
                monkeypatch.setattr(pipeline, "prepare", slow_once(monkeypatch, slow, prepare))
            steps.append(step)
    assert steps == [JobStarted(job, 1, 1), JobElsewhere(job)]


def slow_once(monkeypatch, slow, prepare):
    def call(spec):
        monkeypatch.setattr(pipeline, "prepare", prepare)
        return slow(spec)

    return call


def test_results_without_a_spec_are_no_training(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "quick" / "digits-fedavg-s0")
    (path / "spec.toml").unlink()
    (job,) = jobs(tmp_path, "table8")
    assert not job.is_trained
    (failed,) = [step for step in do([job]) if isinstance(step, JobFailed)]
    assert str(failed.error) == f"{path} exists and is not a run. Choose another --out."


def test_a_damaged_run_does_not_keep_others_from_it(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "quick" / "digits-fedavg-s0")
    (path / "results.json").write_text('{"accuracy": {')
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "spec.toml").write_text("x = 1\n")
    steps = do(jobs(tmp_path, "table9"))
    (failed,) = [step for step in steps if isinstance(step, JobFailed)]
    assert str(failed.error).startswith(f"{path / 'results.json'} cannot be read (")
    assert f"Delete it and make it again with `ccvr resume {path}`" in str(failed.error)
    assert {job.cell.name: job.is_done for job in jobs(tmp_path, "table9")} == {
        "digits-fedavg": False,
        "digits-fedprox": True,
    }


def test_of_cells_that_cost_the_same_the_one_that_most_need_comes_first():
    items = [ITEMS["table2"]]
    cells = chosen_cells(items, ["cifar10-*"])
    noise = itertools.cycle([1.0, 1.004, 0.996])
    found = in_order(
        jobs_of(items, cells, [(digits.TINY, 0)], Path("none"), lambda s: s), lambda _: next(noise), train=True
    )
    assert found[0].cell.name == "cifar10-a0.1-fedavg"
    assert {job.cell.spec.training.algorithm for job in found[-3:]} == {"fedavgm"}, "which table2 alone needs"


def test_where_data_lie_and_how_many_workers_hold_for_runs_that_are_there(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "out" / "run")
    items, root = [ITEMS["table8"]], tmp_path / "data"

    def change(spec):
        return replace(spec, workers=2, data=replace(spec.data, root=root))

    found = jobs_of(items, ["digits-fedavg"], [(digits.TINY, 0)], tmp_path / "out", change)
    assert rounds(do(found)) == 0
    spec = read_spec(path / "spec.toml")
    assert (spec.workers, spec.data.root) == (2, root)
    plain = jobs_of(items, ["digits-fedavg"], [(digits.TINY, 0)], tmp_path / "out", lambda spec: spec)
    assert do(plain) == []
    settle(RunFolder(path), replace(digits.PLAIN.spec, workers=None))
    assert read_spec(path / "spec.toml") == spec, "what is not given stays"


# --- patterns and times -----------------------------------------------------------------------------------------------


def test_patterns_choose_cells():
    items = [ITEMS["table2"]]
    assert chosen_cells(items, ["cifar10-a0.1-*"]) == [
        f"cifar10-a0.1-{name}" for name in ("fedavg", "fedprox", "fedavgm", "moon")
    ]
    assert chosen_cells(items, ["*-moon", "cifar100-*"])[:2] == ["cifar100-a0.5-fedavg", "cifar100-a0.5-fedprox"]
    assert len(chosen_cells(items, [])) == 20


def test_a_pattern_that_matches_nothing_is_a_mistake():
    with pytest.raises(
        UsageError, match=r'^--cells "cifar10-a0\.2-\*" is not a cell of table1\. Did you mean "cifar10-a0\.'
    ):
        chosen_cells([ITEMS["table1"]], ["cifar10-a0.1-*", "cifar10-a0.2-*"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("1.5h", 5400), ("45s", 45), ("0", 0), ("0h", 0)],
)
def test_times(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "-1h", "2h!", "1e3s", "infh", "nan", "2d", "h2", "1,5h", "٢h"])
def test_times_that_are_none(text):
    with pytest.raises(UsageError, match=r'^--budget is ".*"; give hours, minutes or seconds: 2h, 90m, 1h30m, or 0'):
        parse_duration(text)


def test_no_budget_is_never_spent():
    assert not Budget(None).is_spent()
    assert Budget(0.0).is_spent()


def test_an_analysis_that_fails_does_not_keep_others_from_it(finished, tmp_path, monkeypatch):
    path = shutil.copytree(finished, tmp_path / "out" / "run")
    (path / "rounds.jsonl").write_text("[]\n")
    figure = Item("figure99", "Two", more_cells=(digits.PLAIN.name,), analyses=("norms", "confusion"))
    monkeypatch.setitem(ITEMS._rows, figure.id, figure)
    steps = do(jobs(tmp_path / "out", "figure99"))
    assert [step.name for step in steps if isinstance(step, Analyzed)] == ["confusion"]
    (failed,) = [step for step in steps if isinstance(step, JobFailed)]
    assert "rounds.jsonl" in str(failed.error)
