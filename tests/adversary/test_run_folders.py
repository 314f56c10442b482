"""Damaged run folders, comparisons and records, given to every command that reads them."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import CheckpointSpec, Spec
from tests.adversary.calling import Called, call, inside, tree
from tests.adversary.damage import damage

TINY = Spec(
    threads=1,
    workers=1,
    partition=PartitionSpec(num_clients=3, alpha=0.5),
    training=TrainingSpec(algorithm="moon", rounds=2, local_epochs=1, step="torch"),  # clients keep something
    checkpoint=CheckpointSpec(keep=2),
    calibration=CalibrationSpec(methods=("ccvr,num_virtual=5,epochs=1", "lda")),
)


@dataclass(frozen=True)
class Reading:
    """A command on what was damaged, and what it may write."""

    argv: tuple[str, ...]
    reads: tuple[str, ...]
    """Patterns of the files that it reads; most damage is there."""
    of: str = "run"
    writes: tuple[str, ...] | None = ()
    """Names of files that it may write; None where it adds to the run."""
    weight: int = 4


STATE = ("spec.toml", "results.json", "partition.safetensors", "provenance.json", "checkpoints/*", "memories/*")
"""What every command reads that opens a run."""
READINGS = (
    Reading(("show", "run"), ("results.json",)),
    Reading(("show", "run", "--json"), ("results.json",)),
    Reading(("show", "run", "--partition"), ("results.json", "partition.safetensors")),
    Reading(
        ("report", "run", "--quiet"),
        ("spec.toml", "results.json", "rounds.jsonl", "provenance.json", "partition.safetensors", "analysis/*"),
        writes=("report.html",),
    ),
    Reading(("resume", "run", "--quiet"), ("results.json",), writes=("report.html",), weight=2),
    Reading(("evaluate", "run"), ("model.safetensors", "spec.toml")),
    Reading(("evaluate", "run", "--head", "lda", "--quiet"), ("model.safetensors", "heads/lda.safetensors")),
    Reading(("calibrate", "run", "--method", "ncm", "--quiet", "--no-report"), (*STATE, "statistics/*"), writes=None),
    Reading(("personalise", "run", "--method", "prior", "--quiet", "--no-report"), (*STATE, "heads/*"), writes=None),
    Reading(
        ("analyze", "run", "--only", "norms", "separability"),
        (*STATE, "rounds.jsonl", "statistics/*", "heads/*"),
        writes=None,
    ),
    Reading(("resume", "begun", "--quiet", "--no-report"), (*STATE, "rounds.jsonl"), of="begun", writes=None),
    Reading(("compare", "compared/comparison.json"), ("comparison.json",), of="compared"),
    Reading(("compare", "compared/comparison.json", "--json"), ("comparison.json",), of="compared", weight=2),
    Reading(
        ("compare", "compared"),
        ("comparison.json", "*/spec.toml", "*/results.json", "*/rounds.jsonl"),
        of="compared",
        writes=("comparison.json", "comparison.html"),
        weight=2,
    ),
    Reading(
        ("reproduce", "table2", "--budget", "0", "--out", "run", "--results", "none"), ("*", "analysis/*"), weight=2
    ),
    Reading(
        ("reproduce", "table2", "--budget", "0", "--out", "none", "--results", "recorded"), ("*/*",), of="recorded"
    ),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has everything, one that was stopped, a comparison and a record."""
    folder = tmp_path_factory.mktemp("whole")
    run(TINY, folder / "run")
    with inside(folder):
        assert call("analyze", "run", "--only", "confusion", "norms", "cka", "separability").code == 0
        assert call("personalise", "run", "--method", "prior", "--quiet").code == 0
        options = (
            "--training.rounds 1 --training.local-epochs 1 --training.step torch --partition.num-clients 3 --quiet"
        )
        options += " --partition.alpha 0.5 --workers 1 --calibration.methods lda --algorithms fedavg fedprox --seeds 1"
        assert call("compare", *options.split(), "--out", "compared").code == 0
        recorded = call("reproduce", "--record", "--out", "run", "--results", "recorded", "--quiet")
        assert recorded.code == 0, recorded
    shutil.copytree(folder / "run", folder / "begun")
    for name in ("results.json", "report.html", "model.safetensors"):
        (folder / "begun" / name).unlink()
    return folder


@pytest.fixture(scope="module")
def usual(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Reading, float]:
    """The processor time of each command on undamaged files; that it works at all."""
    times = {}
    for reading in READINGS:
        folder = copied(whole, reading, tmp_path_factory.mktemp("usual"))
        with inside(folder):
            done = call(*reading.argv)
        assert (done.code, done.faults(60)) == (0, []), (reading.argv, done)
        times[reading] = done.seconds
    again = max(seconds for reading, seconds in times.items() if reading.of == "begun")
    return {each: max(seconds, again * (each.argv[0] == "resume")) for each, seconds in times.items()}


def copied(whole: Path, reading: Reading, folder: Path) -> Path:
    shutil.copytree(whole / reading.of, folder / reading.of)
    return folder


def cases(seed: int, number: int) -> Iterator[tuple[Reading, random.Random]]:
    chosen = random.Random(seed)
    for case in range(number):
        (reading,) = chosen.choices(READINGS, [each.weight for each in READINGS])
        yield reading, random.Random(f"{seed}/{case}")


def attack(whole: Path, reading: Reading, rng: random.Random, folder: Path) -> tuple[str, Called, list[str]]:
    """Damage a copy and give it to a command: what was done, what came out, files that changed and must not."""
    target = copied(whole, reading, folder) / reading.of
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.suffix not in (".html", ".lock"))
    read = [path for path in files if any(path.relative_to(target).match(pattern) for pattern in reading.reads)]
    words = {}
    for _ in range(rng.choice((1, 1, 1, 2))):
        path = rng.choice(rng.choice((read, read, read, files)))
        if path not in words and path.is_file() and not path.is_symlink():
            words[path] = f"{path.relative_to(target)}: {damage(path, rng)}"
    before = tree(target, *(reading.writes or ()))
    is_finished = all((target / name).is_file() for name in ("results.json", "model.safetensors"))
    with inside(folder):
        done = call(*reading.argv)
    after = tree(target, *(reading.writes or ()))
    may_write = reading.writes is None or (reading.argv[0] == "resume" and not is_finished)
    wrong = [] if may_write else [name for name in before | after if before.get(name) != after.get(name)]
    return "; ".join(words.values()), done, wrong


def storm(whole: Path, usual: dict[Reading, float], folder: Path, *, seed: int, number: int) -> None:
    faults: list[str] = []
    codes: Counter[int] = Counter()
    for case, (reading, rng) in enumerate(cases(seed, number)):
        here = folder / str(case)
        here.mkdir()
        words, done, wrong = attack(whole, reading, rng, here)
        codes[done.code] += 1
        found = done.faults(usual[reading]) + [f"{name} is changed" for name in wrong]
        if found:
            faults.append(f"{seed}/{case} {' '.join(reading.argv)}; {words}: {', '.join(found)}: {done.err[:500]}")
            if log := os.environ.get("FUZZ_LOG"):
                with open(log, "a") as file:
                    file.write(faults[-1].strip() + "\n")
        shutil.rmtree(here, ignore_errors=True)
    assert not faults, f"{len(faults)} of {number}:\n" + "\n".join(faults[:20])
    if log := os.environ.get("FUZZ_LOG"):
        with open(log, "a") as file:
            file.write(f"seed {seed}: {number} cases, exit codes {dict(codes)}\n")
    assert min(codes[0], codes[2]) > number / 20, f"the damage is too small or too large to tell: {codes}"


def test_no_damage_is_worse_than_one_line(whole: Path, usual: dict[Reading, float], tmp_path: Path) -> None:
    storm(whole, usual, tmp_path, seed=0, number=30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_of_many_damages_none_is_worse_than_one_line(
    seed: int, whole: Path, usual: dict[Reading, float], tmp_path: Path
) -> None:
    storm(whole, usual, tmp_path, seed=seed, number=500)
