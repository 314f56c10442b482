"""Algorithms × seeds on the same clients: the runs, and how they are brought to their ends."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ccvr.algorithms.table import canonical
from ccvr.calibration.methods import SELECT, Calibration, parse_calibrations
from ccvr.comparison.queue import work
from ccvr.core.budget import Budget
from ccvr.core.errors import RunError, SpecError
from ccvr.core.results import UNCALIBRATED
from ccvr.core.run import RunFolder
from ccvr.core.trust import Trust
from ccvr.experiment.events import Event, RoundDone
from ccvr.experiment.pipeline import calibrate_again, require_names
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.run_or_resume import named_in, require_same_training, run_or_resume, settle
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import Spec
from ccvr.training.rounds import first_state

UNDER = re.compile(r"\+(?=[^\W\d])")
"""Between an algorithm and the server optimiser that it runs under; the + of 1e+3 is followed by a digit."""


@dataclass(frozen=True)
class PlannedRun:
    """One algorithm at one seed, and where its run lies."""

    arm: str
    spec: Spec
    folder: RunFolder

    @property
    def name(self) -> str:
        return f"{self.arm}, seed {self.spec.seed}"

    @property
    def is_trained(self) -> bool:
        return self.folder.results.is_file() and self.folder.model.is_file()

    @property
    def is_done(self) -> bool:
        return self.is_trained and not self.missing() and self.deploys() is None

    def missing(self) -> list[Calibration]:
        """Calibrations of the spec that the finished run lacks. Raises RunError where one has other options there."""
        rows = self.folder.read_results()["calibrations"]
        wanted = parse_calibrations(self.spec.calibration)
        for each in wanted:
            row, options = rows.get(each.label, {}), {"method": each.name, **asdict(each.method)}
            for name, value in options.items():
                if row.get(name, value) != value and name != "seed":  # a run keeps the seed that it used
                    raise RunError(
                        f'{self.folder.path} has "{each.label}" with {name} = {row[name]!r}, not {value!r}. Give the '
                        "new one a name: METHOD,label=NAME."
                    )
        return [each for each in wanted if each.label not in rows]

    def deploys(self) -> str | None:
        """The label that the spec wants as the model, where the finished run has another one."""
        calibration, results = self.spec.calibration, self.folder.read_results()
        first = next((each.label for each in parse_calibrations(calibration)), UNCALIBRATED)
        wanted = calibration.deploy or first
        has = SELECT if wanted == SELECT and "selection" in results else results["deployed"]
        return None if has == wanted else wanted


def preset_name(text: str) -> str:
    """The preset that a text means, which may leave the algorithm out, as cifar10-a0.1; other texts as they are."""
    return f"{text}-fedavg" if f"{text}-fedavg" in PRESETS else text


def base_name(spec: Spec) -> str:
    """The spec's name without an algorithm: data, owners, regularisers."""
    plain = replace(spec, training=replace(spec.training, algorithm="fedavg", server=""))
    return plain.name.replace("-fedavg", "", 1)


def with_algorithm(spec: Spec, text: str) -> Spec:
    """The spec with an algorithm of the form ALGORITHM[+SERVER], each with its options."""
    algorithm, *server = UNDER.split(text)
    if len(server) > 1:
        raise SpecError(f'"{text}" names {len(server)} servers. Give ALGORITHM or ALGORITHM+SERVER.')
    above = canonical(server[0]) if server else spec.training.server
    return replace(spec, training=replace(spec.training, algorithm=canonical(algorithm), server=above))


def planned_runs(
    spec: Spec, arms: Sequence[str], num_seeds: int, out: Path, *, redraw: bool = False, trust: Trust = False
) -> list[PlannedRun]:
    """Every algorithm at the seeds from the spec's on: all algorithms of a seed before the next seed.

    ``redraw`` gives each seed a partition of its own. Mistakes in any algorithm are found here.
    """
    specs = {arm: with_algorithm(spec, arm) for arm in arms}
    for each in specs.values():
        require_names(each)
    texts = Counter((specs[arm].training.algorithm, specs[arm].training.server) for arm in arms)
    for (algorithm, _), number in texts.items():
        if number > 1:
            raise SpecError(f'the algorithm "{algorithm}" is given {number} times. Leave one out.')
    runs = []
    for seed in range(spec.seed, spec.seed + num_seeds):
        for arm in arms:
            made = replace(specs[arm], seed=seed)
            made = replace(made, partition=replace(made.partition, seed=seed)) if redraw else made
            folder = RunFolder(out / f"{base_name(spec)}-{_slug(made)}-s{seed}", trust or named_in(made))
            if folder.spec.is_file():
                require_same_training(made, folder)
            runs.append(PlannedRun(arm, made, folder))
    return runs


def require_trainable(runs: Sequence[PlannedRun]) -> None:
    """Refuse algorithms that cannot train the model, before any of the runs begins."""
    new = {run.arm: run.spec for run in runs if not run.folder.spec.is_file()}
    if new:
        setup = prepare(next(iter(new.values())))
        model = setup.fresh_model()
        for spec in new.values():
            first_state(model, len(setup.kept), spec.training)


def _slug(spec: Spec) -> str:
    """Algorithm and server of a spec, as a part of a folder's name."""
    text = "+".join(filter(None, (spec.training.algorithm, spec.training.server)))
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.")


def train_all(runs: Sequence[PlannedRun], budget: Budget) -> Iterator[Any]:
    """Bring the runs to their ends. Where the budget ends, the work stops after a round; the same call goes on."""
    return work([run for run in runs if not run.is_done], _steps, budget)


def _steps(run: PlannedRun) -> Iterator[tuple[Event, bool]]:
    """Train what is not trained; of a trained run fit the heads that it lacks."""
    if not run.is_trained:
        for event in run_or_resume(run.spec, run.folder.path, trust=run.folder.trust):
            yield event, isinstance(event, RoundDone) and event.round < event.rounds
        return
    settle(run.folder, run.spec)
    for event in calibrate_again(run.folder, run.missing(), chosen=run.deploys()):
        yield event, True
