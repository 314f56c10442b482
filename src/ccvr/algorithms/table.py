"""The table of algorithms, and how a spec names one."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from ccvr.algorithms.algorithm import Algorithm, WithServer
from ccvr.algorithms.clusters import Ifca
from ccvr.algorithms.distillation import FedDF
from ccvr.algorithms.drift import FedAvg, FedDyn, FedNova, FedProx, FedSam, Scaffold
from ccvr.algorithms.features import FedBABU, FedDecorr, Moon
from ccvr.algorithms.labels import FedIR, FedLC, FedNTD, FedRS
from ccvr.algorithms.matching import FedMA, Pfnm
from ccvr.algorithms.personal import FedBn, FedPer, FedRep, LgFedAvg, PerFedAvg
from ccvr.algorithms.servers import FedAdagrad, FedAdam, FedAvgM, FedExp, FedYogi
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import SpecError
from ccvr.core.methods import make, text_of
from ccvr.core.tables import Table

ALGORITHMS: Table[type[Algorithm]] = Table(
    "algorithm",
    {
        "fedavg": FedAvg,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "fednova": FedNova,
        "feddyn": FedDyn,
        "fedsam": FedSam,
        "moon": Moon,
        "feddecorr": FedDecorr,
        "fedbabu": FedBABU,
        "fedir": FedIR,
        "fedlc": FedLC,
        "fedrs": FedRS,
        "fedntd": FedNTD,
        "fedavgm": FedAvgM,
        "fedadagrad": FedAdagrad,
        "fedadam": FedAdam,
        "fedyogi": FedYogi,
        "fedexp": FedExp,
        "feddf": FedDF,
        "fedma": FedMA,
        "pfnm": Pfnm,
        "fedper": FedPer,
        "lg-fedavg": LgFedAvg,
        "fedbn": FedBn,
        "fedrep": FedRep,
        "per-fedavg": PerFedAvg,
        "ifca": Ifca,
    },
)


@cache
def find_algorithm(text: str) -> Algorithm:
    """The algorithm of ``name[,option=value…]``.

    Example:
    >>> find_algorithm("fedprox,mu=0.01")
    FedProx(mu=0.01)
    """
    return make(ALGORITHMS, Algorithm, text)


def algorithm_of(spec: TrainingSpec) -> Algorithm:
    """The algorithm of a spec, under its server optimiser where it names one.

    Raises:
        SpecError: ``training.server`` is no server optimiser, or the two have no meaning together.
    """
    algorithm = find_algorithm(spec.algorithm)
    if not spec.server:
        return algorithm
    server = find_algorithm(spec.server)
    if not server.is_server:
        known = ", ".join(name for name, row in ALGORITHMS.items() if row.is_server)
        raise SpecError(
            f'training.server is "{spec.server}", which is no server optimiser. Known: {known}. One of your own has '
            "is_server = True (docs/extending.md)."
        )
    if algorithm.is_server or not algorithm.averages:
        raise SpecError(
            f'training.server is "{spec.server}", and "{spec.algorithm}" has a rule of its own for the server. '
            "Leave training.server out, or choose another algorithm."
        )
    if server.needs_sample_mean and not algorithm.is_sample_mean:
        raise SpecError(
            f'training.server is "{spec.server}", which compares the clients\' changes with their mean by samples, and '
            f'"{spec.algorithm}" takes another mean. Choose another server optimiser.'
        )
    return WithServer(algorithm, server)


# --- how an algorithm was written before it had options of its own ----------------------------------------------------

OLD_OPTIONS: dict[str, dict[str, str]] = {
    "fedavg": {},
    "fedprox": {"mu": "mu"},
    "moon": {"mu": "mu", "temperature": "temperature"},
    "fedavgm": {"server_momentum": "momentum"},
}
"""By algorithm, fields of a training section that became its options, and their names now."""
OLD_DEFAULTS = {"mu": None, "temperature": 0.5, "server_momentum": 0.1}


def canonical(text: str) -> str:
    """An algorithm of ours without options that have their default; one of the user's own as it is."""
    name = text.partition(",")[0]
    if ":" in name or name not in ALGORITHMS:
        return text
    algorithm = find_algorithm(text)
    changed = {each.name: getattr(algorithm, each.name) for each in fields(algorithm)}
    return text_of(name, {key: value for key, value in changed.items() if value != getattr(type(algorithm)(), key)})


def upgraded(training: Mapping[str, Any]) -> dict[str, Any]:
    """A training section with its methods as text, also if they are tables or flat fields of older versions."""
    section = {key: _as_text(value) if key in ("algorithm", "server") else value for key, value in training.items()}
    given = section.get("algorithm", "fedavg")
    old = {key: section.pop(key) for key in OLD_DEFAULTS if key in section}
    if not old or not isinstance(given, str):
        return section
    name = given.partition(",")[0]
    renamed = OLD_OPTIONS.get(name, {key: key for key in OLD_DEFAULTS})  # an option that it lacks is an error then
    options = {new: old[key] for key, new in renamed.items() if old.get(key) not in (None, OLD_DEFAULTS[key])}
    return {**section, "algorithm": canonical(text_of(given, options))}


def _as_text(method: Any) -> Any:
    """A method that a TOML file gives as a table, as text."""
    if not isinstance(method, Mapping):
        return method
    options = {key: value for key, value in method.items() if key != "name"}
    return text_of(str(method.get("name", "fedavg")), options)
