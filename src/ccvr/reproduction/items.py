"""Every table and figure of the paper: which cells it needs, which heads and analyses of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ccvr.core.tables import Table
from ccvr.report.published import ALPHAS, TABLES, Published, published
from ccvr.reproduction.heads import CCVR, HEAD_NAMES, ORACLE, Entries, HeadName

LEFT = "cifar10-a0.1-fedavg"
"""The cell that the paper looks at most closely."""
THREE = tuple(f"cifar10-a0.1-{name}" for name in ("fedavg", "fedprox", "moon"))


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    id: str
    title: str
    entries: Entries = field(default_factory=dict)
    """(Cell, head) → what the paper says, where it prints numbers."""
    more_cells: tuple[str, ...] = ()
    """Cells of which no number is printed."""
    analyses: tuple[str, ...] = ()
    remark: str = ""
    """What cannot be had, and what stands in its place."""
    counterpart: bool = False
    """Whether it is on CIFAR-10 what the paper has on data that cannot be had."""
    by_round: bool = False
    """Whether it shows accuracies by round, not those of heads."""
    trains: bool = True
    """Whether its cells must be trained; who owns what is known without."""

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(cell for cell, _ in self.entries), *self.more_cells]))

    @property
    def is_figure(self) -> bool:
        return self.id.startswith("figure")

    def heads(self, cell: str) -> tuple[HeadName, ...]:
        return tuple(head for each, head in self.entries if each == cell)


def _entries(table: str, cells: Iterable[str] | None = None) -> Entries:
    found = published(table)
    return {(cell, HeadName(head)): each for (cell, head), each in found.items() if cells is None or cell in cells}


def _anywhere(cell: str, head: HeadName) -> Published | None:
    """What any table says of an entry; those that share it agree."""
    return next((published(table)[cell, head] for table in TABLES if (cell, head) in published(table)), None)


def _alphas(algorithm: str) -> tuple[str, ...]:
    return tuple(f"cifar10-a{alpha}-{algorithm}" for alpha in ALPHAS)


def _has_data(cell: str, head: str) -> bool:
    """CIFAR-100 has 500 images of each class."""
    return not (cell.startswith("cifar100-") and head == "oracle-partial-1000")


NO_CINIC = "CINIC-10 is not to be had here; ours is the counterpart on CIFAR-10, alpha 0.1"
NO_IMAGENET = "ImageNet and ResNet-50 are not to be had; ours is the counterpart on CIFAR-10, the run's own network"
SMALL_NETWORK = ("cifar100-a0.1-fedavg-simple-cnn", "cifar100-a0.5-fedavg-simple-cnn")
"""CIFAR-100 with the network of CIFAR-10."""
CALIBRATED = (*_alphas("fedavg"), *SMALL_NETWORK, "cifar100-a0.5-fedavg")

_ITEMS = (
    Item("table1", "Regularisation and calibration (Table 1)", _entries("table1")),
    Item("table2", "Main results (Table 2)", _entries("table2")),
    Item("table3", "Numbers of virtual features per class (Table 3)", _entries("table3")),
    Item("table4", "10, 50 and 100 clients (Table 4)", _entries("table4")),
    Item("table5", "Calibration with whole and partial data (Table 5)", _entries("table5")),
    Item("figure1", "CKA of every two clients in three layers", more_cells=(LEFT,), analyses=("cka",)),
    Item(
        "figure2",
        "Mean CKA by layer, non-IID and IID",
        more_cells=(LEFT, "cifar10-iid-fedavg"),
        analyses=("cka",),
    ),
    Item("figure3", "Labels of the clients and norms of their heads", more_cells=(LEFT, "cifar10-iid-fedavg")),
    Item("figure4", "Calibration with different amounts of real data", _entries("table5")),
    Item(
        "figure5",
        "t-SNE of FedAvg on CINIC-10",
        more_cells=(LEFT,),
        analyses=("tsne",),
        remark=NO_CINIC,
        counterpart=True,
    ),
    Item(
        "figure6",
        "Separability of the Gaussians and gain",
        {(cell, head): None for cell in (*THREE, "cifar10-a0.1-fedavgm") for head in (CCVR, ORACLE)},
        analyses=("separability",),
    ),
    Item("figure7", "Virtual features per class, FedAvg", _entries("table3", _alphas("fedavg"))),
    Item(
        "figure8",
        "Image from a raw feature",
        more_cells=(LEFT,),
        analyses=("inversion",),
        remark=NO_IMAGENET,
        counterpart=True,
    ),
    Item(
        "figure9",
        "Image from a mean of features",
        more_cells=(LEFT,),
        analyses=("inversion",),
        remark=NO_IMAGENET,
        counterpart=True,
    ),
    Item("figure10", "Norms of the head's rows before and after CCVR", more_cells=THREE, analyses=("norms",)),
    Item(
        "figure11",
        "Mean CKA by layer of different methods",
        more_cells=(*THREE, f"{LEFT}-clsnorm", f"{LEFT}-clsprox"),
        analyses=("cka",),
    ),
    Item("figure12", "Norms of the clients' heads, first and last round", more_cells=THREE),
    Item(
        "figure13",
        "t-SNE of three methods on CINIC-10",
        more_cells=THREE,
        analyses=("tsne",),
        remark=NO_CINIC,
        counterpart=True,
    ),
    Item("figure14", "Virtual features per class: FedAvg, FedProx, MOON", _entries("table3")),
    Item(
        "figure15",
        "Label distributions",
        more_cells=(*_alphas("fedavg"), "cifar100-a0.5-fedavg", "cinic10-a0.5-fedavg"),
        trains=False,
    ),
    Item(
        "calibrators",
        "All calibrators (not in the paper)",
        {(cell, head): _anywhere(cell, head) for cell in CALIBRATED for head in HEAD_NAMES if _has_data(cell, head)},
        remark="ours alone: what other calibrators make of the same statistics",
    ),
    Item(
        "rounds",
        "Accuracy by round (not in the paper)",
        more_cells=(*(cell for table in ("table2", "table1") for cell, _ in published(table)), *SMALL_NETWORK),
        by_round=True,
    ),
)
ITEMS: Table[Item] = Table("table or figure", {item.id: item for item in _ITEMS}, closed=True)
