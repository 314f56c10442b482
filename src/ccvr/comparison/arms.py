"""Algorithms compared over seeds: the numbers of their runs, paired differences, and the file of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, cast

from ccvr.comparison.paired import LEVEL, MIN_SEEDS, Paired, holm
from ccvr.core.errors import RunError
from ccvr.core.files import parse_json, read_text
from ccvr.core.results import UNCALIBRATED, personal_rows
from ccvr.core.schema import Count, Percent, Size, mistyped
from ccvr.report.groups import Spread
from ccvr.report.runs import RunFiles
from ccvr.report.text_table import Value

FORMAT = "ccvr-comparison/1"


@dataclass(frozen=True)
class ArmRun:
    """The numbers of one finished run; accuracies in percent."""

    seed: int
    accuracy: dict[str, float]
    """By label of the head."""
    deployed: str
    personal: dict[str, float]
    """By label, the mean over clients of their own models under their label mixes."""
    bytes: int
    """What the rounds moved down and up, and the statistics of the deployed head."""
    seconds: float
    """The rounds with their scoring, and the fit of the deployed head."""

    @classmethod
    def of(cls, run: RunFiles) -> "ArmRun":
        """The numbers of a run's files.

        Raises:
            RunError: rounds.jsonl lacks rounds.
        """
        expected = run.setting("training.rounds", len(run.rounds))
        if len(run.rounds) != expected:
            raise RunError(
                f"{run.folder.rounds} has {len(run.rounds)} rounds of {expected}. "
                "Delete the run's folder to train again."
            )
        rows = run.results["calibrations"]
        deployed = rows.get(run.deployed, {})
        means = {label: row["accuracy"]["mean"] for label, row in personal_rows(run.results).items()}
        clients = [client for each in run.rounds for client in each.get("clients", ())]
        moved = sum(client.get(way, 0) for client in clients for way in ("bytes_down", "bytes_up"))
        moved += sum(each.get("revision_bytes", 0) for each in run.rounds)
        trained = sum(each.get("seconds") or 0.0 for each in run.rounds)
        return cls(
            seed=int(run.spec.get("seed", 0)),
            accuracy=run.accuracy,
            deployed=run.deployed,
            personal={label: mean for label, mean in means.items() if mean is not None},
            bytes=moved + deployed.get("bytes", 0),
            seconds=round(trained + deployed.get("seconds", 0.0), 3),
        )

    @property
    def before(self) -> float:
        return self.accuracy[UNCALIBRATED]

    @property
    def after(self) -> float:
        return self.accuracy[self.deployed]


MAX_SEEDS = 10_000
"""From the least seed of a comparison to the largest, and runs in all."""
MAX_ARMS, MAX_LABELS = 200, 500
"""Rows and columns of a table that can be read."""


class WrittenRun(TypedDict):
    """An ``ArmRun`` in comparison.json."""

    seed: Count
    accuracy: dict[str, Percent]
    deployed: str
    personal: dict[str, Percent]
    bytes: Count
    seconds: Size


class WrittenArm(TypedDict):
    name: str
    runs: list[WrittenRun]


class Written(TypedDict):
    """The content of comparison.json."""

    format: str
    name: str
    about: str
    seeds: list[Count]
    arms: list[WrittenArm]
    spec: dict[str, Any]
    redraw: bool


Measure = Callable[[ArmRun], float | None]
BEFORE, AFTER = "before", "after"
MEASURES: dict[str, Measure] = {
    BEFORE: lambda run: run.before,
    AFTER: lambda run: run.after,
    "gain": lambda run: run.after - run.before,
    "MB": lambda run: run.bytes / 1e6,
    "seconds": lambda run: run.seconds,
}
"""Columns of the table beside those of heads and own models."""
TESTED = (BEFORE, AFTER)
"""What algorithms are told apart by."""


@dataclass(frozen=True)
class Arm:
    """One algorithm, as the command named it, and its finished runs."""

    name: str
    runs: tuple[ArmRun, ...]

    def spread(self, measure: Measure) -> Spread | None:
        return Spread.of_known([measure(run) for run in self.runs]) if self.runs else None

    def with_kept(self, kept: "Arm") -> "Arm":
        """The same with the runs that only ``kept`` has, in the order of seeds."""
        seeds = {run.seed: run for run in (*kept.runs, *self.runs)}
        return Arm(self.name, tuple(seeds[seed] for seed in sorted(seeds)))

    def minus(self, other: "Arm", measure: Measure) -> list[float]:
        """Differences at the seeds that both have."""
        theirs = {run.seed: measure(run) for run in other.runs}
        pairs = [(measure(run), theirs.get(run.seed)) for run in self.runs]
        return [mine - their for mine, their in pairs if mine is not None and their is not None]


@dataclass(frozen=True)
class Difference:
    """An algorithm minus the first one in one measure, with a p that is corrected for all tests of the comparison."""

    arm: str
    measure: str
    paired: Paired
    p: float | None

    @property
    def is_clear(self) -> bool:
        """Whether it is more than noise."""
        return self.p is not None and self.p < LEVEL

    @property
    def verdict(self) -> str:
        if self.p is None:
            return "cannot be said"
        return "not clear" if not self.is_clear else "better" if self.paired.mean > 0 else "worse"

    def row(self) -> dict[str, Value]:
        """Its numbers for files and programs."""
        found = self.paired
        return {
            "calibration": self.measure,
            "algorithm": self.arm,
            "seeds": found.n,
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": self.p,
            "verdict": self.verdict,
        }


def p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 0.0005 else "< 0.001"


@dataclass(frozen=True)
class Comparison:
    """Algorithms on the same clients; the first is what the others are compared with."""

    name: str
    about: str
    """What was run, in a few words."""
    seeds: tuple[int, ...]
    """The seeds that were asked for."""
    arms: tuple[Arm, ...]
    spec: Mapping[str, Any]
    """The spec that all runs share; the algorithm, the server and the seed are each run's own."""
    redraw: bool = False
    """Whether each seed has a partition of its own."""

    def differences(self) -> list[Difference]:
        """Each algorithm minus the first, before and after calibration, where they have a seed in common."""
        first, *others = self.arms
        found = [
            (arm.name, measure, Paired.of(values))
            for measure in TESTED
            for arm in others
            if (values := arm.minus(first, MEASURES[measure]))
        ]
        corrected = iter(holm([paired.p for _, _, paired in found if paired.p is not None]))
        return [Difference(*each, None if each[2].p is None else next(corrected)) for each in found]

    def verdicts(self) -> list[str]:
        """What can be said, in plain sentences."""
        first, differences = self.arms[0].name, self.differences()
        if not differences:
            return []
        if all(each.p is None for each in differences):
            return [
                f"Nothing can be said about noise: that takes {MIN_SEEDS} seeds of two algorithms. Give more --seeds."
            ]
        said = [
            f"{each.arm} is {each.verdict} than {first} {each.measure} calibration: {each.paired.mean:+.2f} points, "
            f"more than noise (p {p_text(each.p)})."
            for each in differences
            if each.is_clear and each.p is not None
        ]
        return said or [f"No difference to {first} is more than noise."]

    def content(self) -> dict[str, Any]:
        """Numbers of every run, and what they say; no weights, no paths."""
        return {"format": FORMAT, **asdict(self), "differences": [each.row() for each in self.differences()]}

    def to_bytes(self) -> bytes:
        """The content as a small JSON file."""
        text = json.dumps(self.content(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode(errors="backslashreplace")  # half a character becomes JSON's own escape

    @classmethod
    def read(cls, path: Path) -> "Comparison":
        try:
            return cls._of(parse_json(read_text(path)))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} is no comparison ({error}). Give a file or a folder that `ccvr compare` made."
            ) from error

    @classmethod
    def _of(cls, content: object) -> "Comparison":
        fact = mistyped(content, Written)
        found = cast(Written, content)
        if fact or (fact := _impossible(found)):
            raise ValueError(fact)
        arms = tuple(Arm(each["name"], tuple(map(_arm_run, each["runs"]))) for each in found["arms"])
        return cls(found["name"], found["about"], tuple(found["seeds"]), arms, found["spec"], found["redraw"])

    def with_kept(self, kept: "Comparison") -> "Comparison":
        """The same with what only an earlier file has: algorithms and seeds whose runs are not beside it any more."""
        known = {arm.name: arm for arm in kept.arms}
        mine = {arm.name for arm in self.arms}
        arms = [arm.with_kept(known[arm.name]) if arm.name in known else arm for arm in self.arms]
        others = [arm for arm in kept.arms if arm.name not in mine]
        return replace(self, arms=(*arms, *others), seeds=tuple(sorted({*self.seeds, *kept.seeds})))


def _arm_run(written: WrittenRun) -> ArmRun:
    """The run without keys of later versions."""
    return ArmRun(**{field.name: cast(dict[str, Any], written)[field.name] for field in fields(ArmRun)})


def _impossible(found: Written) -> str | None:
    """What no comparison has, where every value has its type."""
    if found["format"] != FORMAT:
        return f"the format is {found['format']!r:.60}, this version reads {FORMAT!r}"
    if not found["arms"] or not found["seeds"]:
        return "it has no algorithms or no seeds"
    if max(found["seeds"]) - min(found["seeds"]) > MAX_SEEDS:
        return f"its seeds are more than {MAX_SEEDS:,} apart"
    runs = [run for arm in found["arms"] for run in arm["runs"]]
    labels = {label for run in runs for label in (*run["accuracy"], *run["personal"])}
    if len(found["arms"]) > MAX_ARMS or len(runs) > MAX_SEEDS or len(labels) > MAX_LABELS:
        return f"it has more than {MAX_ARMS} algorithms, {MAX_SEEDS:,} runs or {MAX_LABELS} labels"
    for arm in found["arms"]:
        for run in arm["runs"]:
            for label in (UNCALIBRATED, run["deployed"]):
                if label not in run["accuracy"]:
                    return f"{arm['name']!r:.60} with seed {run['seed']} has no accuracy of {label!r:.60}"
    return None
