"""The paper's way to hyperparameters: train without a held-out part, choose by it, give it back and train again."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ccvr.algorithms.table import algorithm_of
from ccvr.calibration.methods import SELECT
from ccvr.core.errors import CcvrError, SpecError, TrainingError
from ccvr.core.fields import hint_of, parse, plain, with_field
from ccvr.core.results import UNCALIBRATED, Results
from ccvr.core.run import RunFolder
from ccvr.experiment.events import Event
from ccvr.experiment.run_or_resume import run_or_resume
from ccvr.experiment.spec import Spec

VALIDATION = 0.15
"""What the paper holds out."""
TUNABLE = ("training.", "model.", "data.augment")

Values = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One choice of hyperparameters and what it reached; accuracies in percent, None where training failed."""

    values: Values
    run: str
    validation_accuracy: float | None
    test_accuracy: float | None
    """Of the model that lacks the held-out part; it has no say in the choice."""


@dataclass(frozen=True)
class Trying:
    """A candidate, or what was chosen, is about to be trained."""

    what: str
    number: int
    total: int


@dataclass(frozen=True)
class Failed:
    what: str
    error: CcvrError


@dataclass(frozen=True)
class Tuned:
    """The end: every candidate, the chosen one, and what it reached when trained with all samples."""

    candidates: Sequence[Candidate]
    chosen: Candidate
    retrained: Path
    results: Results


def grid(spec: Spec, fields: Mapping[str, Sequence[str]]) -> tuple[Spec, list[Values]]:
    """The spec with what has a single value, and every combination of the values of the others."""
    parsed: dict[str, list[Any]] = {}
    for name, texts in fields.items():
        hint = hint_of(Spec, name)
        _require_tunable(name, texts)
        parsed[name] = list(dict.fromkeys(parse(hint, text, name) for text in texts))
    open_ones = {name: values for name, values in parsed.items() if len(values) > 1}
    if not open_ones:
        raise SpecError("nothing to choose from. Give a field several values: --training.lr 0.001 0.01 0.1")
    if spec.calibration.deploy == SELECT:
        raise SpecError('calibration.deploy is "select", but the last training holds nothing out. Name a head instead.')
    for name, values in parsed.items():
        spec = with_field(spec, name, values[0]) if len(values) == 1 else spec
    candidates = [dict(zip(open_ones, values, strict=True)) for values in itertools.product(*open_ones.values())]
    specs = [with_all(spec, candidate) for candidate in candidates]  # impossible values are found before any training
    for each in specs:
        algorithm_of(each.training)
    return spec, candidates


def _require_tunable(name: str, texts: Sequence[str]) -> None:
    if not texts:
        raise SpecError(f"{name} has no value. Give one to fix it, several to choose from.")
    if name == "data.validation":
        raise SpecError(
            f"data.validation is what tuning sets: {VALIDATION}, then 0 for the last training. Leave it out."
        )
    if name.startswith("calibration."):
        raise SpecError(
            f"{name} needs no training. Run `ccvr run --data.validation {VALIDATION}`, then `ccvr calibrate RUN "
            "--method … --deploy select`."
        )
    if len(texts) > 1 and not name.startswith(TUNABLE):
        raise SpecError(f"{name} has several values; only training.*, model.* and data.augment are chosen.")


def tune(spec: Spec, candidates: Sequence[Values], out: Path) -> Iterator[Event | Trying | Failed | Tuned]:
    """Train every candidate with 15 % held out, then the best one with all. What is trained already is not again."""
    tried = []
    for number, values in enumerate(candidates, start=1):
        path = out / "candidates" / folder_name(values)
        yield Trying(described(values), number, len(candidates))
        results = None
        try:
            yield from run_or_resume(held_out(spec, values), path)
            results = RunFolder(path).read_results()
        except TrainingError as error:  # a learning rate that is too high is an answer
            yield Failed(described(values), error)
        tried.append(_candidate(values, path, results))
    chosen = best(tried)
    path = out / f"retrained-{folder_name(chosen.values)}"
    yield Trying(f"{described(chosen.values)}, with all samples", 1, 1)
    yield from run_or_resume(with_all(spec, chosen.values), path)
    results = RunFolder(path).read_results()
    _keep(out, spec, tried, chosen, path, results)
    yield Tuned(tried, chosen, path, results)


def held_out(spec: Spec, values: Values) -> Spec:
    """What a candidate trains: no heads, as the choice rests on the trained one."""
    no_heads = replace(spec.calibration, methods=(), deploy="")
    return replace(_with(spec, {**values, "data.validation": VALIDATION}), calibration=no_heads)


def with_all(spec: Spec, values: Values) -> Spec:
    """What the chosen one trains: nothing is held out, whatever the spec says."""
    return _with(spec, {**values, "data.validation": 0.0})


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The highest validation accuracy; of equals the first."""
    trained = [candidate for candidate in candidates if candidate.validation_accuracy is not None]
    if not trained:
        raise TrainingError("no candidate could be trained. Lower training.lr, or give other values.")
    return max(trained, key=lambda candidate: candidate.validation_accuracy or 0.0)


def _with(spec: Spec, values: Values) -> Spec:
    for name, value in values.items():
        spec = with_field(spec, name, value)
    return spec


def _candidate(values: Values, path: Path, results: Results | None) -> Candidate:
    if results is None:
        return Candidate(values, path.name, None, None)
    validation = results["validation_accuracy"][UNCALIBRATED]
    return Candidate(values, path.name, validation, results["accuracy"][UNCALIBRATED])


def described(values: Values) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def folder_name(values: Values) -> str:
    return re.sub(r"[^\w.=-]+", "-", "-".join(f"{name}={value}" for name, value in values.items()))


def _keep(out: Path, spec: Spec, tried: Sequence[Candidate], chosen: Candidate, path: Path, results: Results) -> None:
    """tuning.json: every candidate's accuracy on the held-out part, and the chosen one's after the last training."""
    content = {
        "validation": VALIDATION,
        "by": f"validation accuracy of the {UNCALIBRATED} model",
        "candidates": [asdict(candidate) for candidate in tried],
        "chosen": chosen.values,
        "retrained": {"run": path.name, "accuracy": results["accuracy"]},
        "given": plain(replace(spec, data=replace(spec.data, root=None))),
    }
    folder = RunFolder(out)
    folder.write_json(out / "tuning.json", content)
