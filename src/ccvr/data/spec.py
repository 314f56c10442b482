"""What a spec says about samples and their owners."""

from dataclasses import dataclass, replace
from pathlib import Path

from ccvr.core.errors import SpecError
from ccvr.core.trust import FOLDER


@dataclass(frozen=True)
class DataSpec:
    """Which samples are learned from."""

    name: str = "digits"
    """digits, cifar10, cifar100, cinic10, mnist, fashion-mnist, folder:PATH, or your own as package.module:name."""
    root: Path | None = None
    """Folder that holds the data set; without it $CCVR_DATA, then the user's cache folder."""
    validation: float = 0.0
    """Part of each client's samples, per class, that enters neither training nor statistics (the paper: 0.15)."""
    augment: bool | None = None
    """Change the training inputs from step to step: shift images by up to 4 pixels and mirror them, or what the data
    set brings; without it what suits the data set."""
    unlabelled: str = ""
    """Samples without labels at the server: a fraction of the training samples, which no client gets, as 0.1, or the
    name of another data set."""
    shared: float = 0.0
    """Part of the training samples that every client gets beside its own (Zhao et al. 2018): raw data moves. Statistics
    are of the clients' own samples alone."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise SpecError(f"data.validation is {self.validation}; give a fraction from 0 to below 1.")
        if not 0 <= self.shared < 1:
            raise SpecError(f"data.shared is {self.shared}; give a fraction from 0 to below 1.")
        if self.unlabelled and self.unlabelled_fraction == 0 and self.unlabelled.replace(".", "").isdecimal():
            raise SpecError(f"data.unlabelled is {self.unlabelled}; leave it out for none.")
        if not 0 <= self.unlabelled_fraction < 1:
            raise SpecError(f"data.unlabelled is {self.unlabelled}; give a fraction below 1, or a data set's name.")

    @property
    def unlabelled_fraction(self) -> float:
        """Part of the training samples that the server has without labels; 0 where it has another data set's."""
        try:
            return float(self.unlabelled or 0)
        except ValueError:
            return 0.0

    def anchored(self) -> "DataSpec":
        """The same with absolute paths, so that a run can be resumed from another folder."""
        root = None if self.root is None else self.root.expanduser().resolve()
        return replace(self, root=root, name=_anchored(self.name), unlabelled=_anchored(self.unlabelled))


def _anchored(name: str) -> str:
    path = name.removeprefix(FOLDER)
    return name if path == name else f"{FOLDER}{Path(path).expanduser().resolve()}"


@dataclass(frozen=True)
class PartitionSpec:
    """Which client owns which training sample. Its seed is its own: all runs of a comparison share the owners."""

    kind: str = "dirichlet"
    """iid, dirichlet, shards, or your own as package.module:name."""
    num_clients: int = 10
    alpha: float = 0.1
    """dirichlet: concentration; the smaller, the more the clients differ."""
    classes_per_client: int = 2
    """shards: how many classes a client has."""
    min_size: int = 10
    """Fewest samples that a client may have; dirichlet draws again, up to 1,000 times, until all have them."""
    balance: bool = False
    """dirichlet: a client that has its even share of the samples gets nothing of the classes that are still to come."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_clients", "classes_per_client", "min_size"):
            if getattr(self, name) < 1:
                raise SpecError(f"partition.{name} is {getattr(self, name)}; give at least 1.")
        if not self.alpha > 0:
            raise SpecError(f"partition.alpha is {self.alpha}; give a number above 0.")
