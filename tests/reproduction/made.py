"""Finished trainings with made-up accuracies, as records and as values."""

from dataclasses import asdict
from pathlib import Path

from ccvr.core.fields import plain
from ccvr.core.run import RunFolder, write_atomically
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import CELLS, SCALES, Scale
from ccvr.reproduction.heads import calibration_of
from ccvr.reproduction.records import record_bytes
from ccvr.reproduction.run_index import RunIndex, Trained

QUICK, PAPER = SCALES["quick"], SCALES["paper"]
CLIENT = {"mean": 50.0, "worst": 10.0, "p10": 20.0}


def trained(cell: str, accuracies: dict[str, float], *, seed: int = 0, scale: Scale = QUICK) -> Trained:
    spec = CELLS[cell].at(scale, seed)
    calibrations = {
        head: {"method": made.name, **asdict(made.method), "seed": seed, "bytes": 1, "seconds": 0.1}
        for head in accuracies
        if head != "uncalibrated"
        for made in [calibration_of(head, spec)]
    }
    results = {
        "accuracy": accuracies,
        "per_class_recall": {head: [value, value] for head, value in accuracies.items()},
        "client_accuracy": dict.fromkeys(accuracies, CLIENT),
        "calibrations": calibrations,
        "deployed": "uncalibrated",
        "class_names": ["cat", "dog"],
        "num_clients": 10,
    }
    rounds = [{"round": 1, "accuracy": accuracies["uncalibrated"], "loss": 1.0, "seconds": 2.0}]
    name = f"{cell}-s{seed}"
    return Trained(spec, RunFiles(name, RunFolder(Path(name)), plain(spec), results, rounds, {}, None, {}))


def trainings(*found: Trained) -> RunIndex:
    return RunIndex(found)


def write_records(folder: Path, *found: Trained) -> None:
    for number, each in enumerate(found):
        write_atomically(folder / f"{number}.json", record_bytes(each.files, scale="any"))
