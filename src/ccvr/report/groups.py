"""Runs that differ in their seed alone, taken together."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

from ccvr.core.results import UNCALIBRATED, personal_rows
from ccvr.report.runs import RunFiles

MAX_DIFFERENCES = 4
Score = Literal["mean", "worst", "p10"]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1) of a number over seeds; of one seed there is no deviation."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(mean(values), stdev(values) if len(values) > 1 else None)

    @classmethod
    def of_known(cls, values: Sequence[float | None]) -> "Spread | None":
        """None where a value is not known."""
        known = [value for value in values if value is not None]
        return cls.of(known) if len(known) == len(values) else None

    def text(self, sign: str = "") -> str:
        return f"{self.mean:{sign}.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


@dataclass(frozen=True)
class Group:
    """Repeats of one run. One run has its own name; several are named by what was run."""

    name: str
    about: str
    """What was run; of several, which runs these are."""
    runs: tuple[RunFiles, ...]

    @property
    def heads(self) -> list[str]:
        """Heads that every repeat has."""
        first, *others = self.runs
        return [label for label in first.accuracy if all(label in run.accuracy for run in others)]

    @property
    def deployed(self) -> str:
        label = self.runs[0].deployed
        return label if label in self.heads else UNCALIBRATED

    def accuracy(self, label: str) -> Spread:
        return Spread.of([run.accuracy[label] for run in self.runs])

    def gain(self, label: str) -> Spread:
        return Spread.of([run.accuracy[label] - run.before for run in self.runs])

    def worst_class(self, label: str) -> Spread | None:
        """The lowest recall of a class."""
        recalls = [run.results["per_class_recall"][label] for run in self.runs]
        return Spread.of_known([min((each for each in row if each is not None), default=None) for row in recalls])

    def worst_client(self, label: str) -> Spread | None:
        return Spread.of_known([run.results["client_accuracy"][label]["worst"] for run in self.runs])

    @property
    def own_models(self) -> list[str]:
        """Labels of the clients' own models that every repeat has, the best mean first."""
        first, *others = (personal_rows(run.results) for run in self.runs)
        common = [label for label in first if all(label in rows for rows in others)]
        means = {label: self.own(label, "mean") for label in common}
        return sorted(common, key=lambda label: -(each.mean if (each := means[label]) else 0.0))

    def own(self, label: str, key: Score) -> Spread | None:
        """Accuracy of the clients' own models under the clients' label mixes, over clients."""
        return Spread.of_known([personal_rows(run.results)[label]["accuracy"][key] for run in self.runs])

    def shared(self, label: str, key: Score) -> Spread | None:
        """The same of the global model under the head that the own models started from."""
        heads = [(run.results["client_accuracy"], personal_rows(run.results)[label]["head"]) for run in self.runs]
        return Spread.of_known([scores[head][key] for scores, head in heads])


def group(runs: Sequence[RunFiles]) -> list[Group]:
    """Groups in the order of their first runs."""
    found: list[list[RunFiles]] = []
    for run in runs:
        home = next((each for each in found if each[0].settings == run.settings), None)
        if home is None:
            found.append([run])
        else:
            home.append(run)
    firsts = [each[0] for each in found]
    return [_group(tuple(each), _what(each[0], firsts)) for each in found]


def _group(runs: tuple[RunFiles, ...], what: str) -> Group:
    names = ", ".join(run.label for run in runs)
    return Group(names, what, runs) if len(runs) == 1 else Group(what, f"{len(runs)} seeds: {names}", runs)


def _what(run: RunFiles, others: Sequence[RunFiles]) -> str:
    """What was run, and what sets it apart from others of the same data, owners and algorithm."""
    alike = [other.settings for other in others if other.what == run.what and other is not run]
    apart = {key: value for key, value in run.settings.items() if any(value != each.get(key) for each in alike)}
    return ", ".join([run.what, *(f"{key} {_short(value)}" for key, value in list(apart.items())[:MAX_DIFFERENCES])])


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
