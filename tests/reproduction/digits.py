"""A table, a figure and their cells that take a second: the embedded digits."""

from dataclasses import dataclass, replace

import pytest

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import CalibrationError
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.spec import Spec
from ccvr.report.published import Published
from ccvr.reproduction.cells import CELLS, SCALES, Cell, Scale
from ccvr.reproduction.items import ITEMS, Item

PLAIN = Cell(
    "digits-fedavg",
    Spec(
        workers=1,
        partition=PartitionSpec(num_clients=3, alpha=0.5),
        training=TrainingSpec(rounds=100, local_epochs=10, batch_size=64),
        calibration=CalibrationSpec(methods=("ccvr,num_virtual=20,epochs=2", "oracle,epochs=1")),
    ),
)
PROX = Cell("digits-fedprox", replace(PLAIN.spec, training=replace(PLAIN.spec.training, algorithm="fedprox,mu=0.01")))
NOWHERE = Cell("nowhere-fedavg", replace(PLAIN.spec, data=replace(PLAIN.spec.data, name="cinic10")))
TABLE = Item(
    "table9",
    "Digits",
    {
        (PLAIN.name, "uncalibrated"): Published(90.0, 1.0, None),
        (PLAIN.name, "ccvr"): Published(95.0, 0.5, 5.0),
        (PLAIN.name, "ccvr-m50"): Published(94.0, 0.5, 4.0),
        (PROX.name, "uncalibrated"): Published(91.0, None, None),
        (PROX.name, "ccvr"): Published(95.5, None, 4.5),
    },
)
SHARES = Item("table8", "One cell of the same", {(PLAIN.name, "lda"): None})
UNOBTAINABLE = Item("table7", "No data", {(NOWHERE.name, "ccvr"): None, (PLAIN.name, "ccvr"): None})
TINY = Scale(2, 1)


@dataclass(frozen=True, kw_only=True)
class Unable(Calibrator):
    def fit(self, head, statistics, *, rng):
        raise CalibrationError("not this one")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add them to the tables that the command reads; quick is two rounds of one epoch."""
    for cell in (PLAIN, PROX, NOWHERE):
        monkeypatch.setitem(CELLS._rows, cell.name, cell)
    for item in (TABLE, SHARES, UNOBTAINABLE):
        monkeypatch.setitem(ITEMS._rows, item.id, item)
    monkeypatch.setitem(SCALES._rows, "quick", TINY)
