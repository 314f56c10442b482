"""Run folders as `ccvr run` and `ccvr analyze` leave them, with made-up numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import save_file

from ccvr.core.arrays import arrays_to_bytes
from ccvr.core.run import RunFolder

CLASSES = ["cat", "dog", "frog"]
CALIBRATION = {"method": "ccvr", "num_virtual": 100, "per_class": 100, "seed": 0, "bytes": 10, "seconds": 0.1}

MakeRun = Callable[..., Path]


def spec(seed: int = 0, **changes: Any) -> dict[str, Any]:
    partition = {"kind": "dirichlet", "alpha": 0.1, "num_clients": 4}
    training = {"algorithm": "fedavg", "rounds": 3, "local_epochs": 2, "lr": 0.01}
    made = {"seed": seed, "data": {"name": "digits"}, "partition": partition, "training": training}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        made[section] = {**made[section], field: value}
    return {**made, "calibration": {"methods": ["ccvr", "oracle"]}}


def results(before: float = 61.5, after: float = 67.6251, **changes: Any) -> dict[str, Any]:
    return {
        "accuracy": {"uncalibrated": before, "ccvr": after, "oracle": 70.0},
        "per_class_recall": {
            "uncalibrated": [50.0, 1.5, 75.0],
            "ccvr": [60.126, 70.0, 66.0],
            "oracle": [70.0, 70.0, None],
        },
        "client_accuracy": {
            "uncalibrated": {"mean": 60.0, "worst": 12.3456, "p10": 20.0},
            "ccvr": {"mean": 65.0, "worst": 40.0, "p10": 45.0},
            "oracle": {"mean": None, "worst": None, "p10": None},
        },
        "calibrations": {"ccvr": CALIBRATION, "oracle": {**CALIBRATION, "method": "oracle"}},
        "deployed": "ccvr",
        "class_names": CLASSES,
        "num_clients": 4,
        **changes,
    }


def record(round: int) -> dict[str, Any]:
    clients = [
        {"client": c, "examples": 10 + c, "loss": 1 / round, "head_row_norms": [1.0, 2.0, 0.5 + c]}
        for c in (2, 0, 1, 3)
    ]
    return {"round": round, "accuracy": 20.0 * round, "loss": 1.5 / round, "seconds": 0.5, "clients": clients}


def analyses() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    rng = np.random.default_rng(0)
    heads = ["uncalibrated", "ccvr", "oracle"]
    cka = {"layers": ["a", "b", "head"], "widths": [9, 9, 3], "clients": [0, 1], "mean": [0.9, 0.8, 0.3]}
    likeness = np.stack([np.array([[1, m], [m, 1]]) for m in cka["mean"]])
    labels = {key: rng.integers(0, 3, 50) for key in ("truth", "before", "after")}
    pictures = {
        f"{kind}_{n}": rng.integers(0, 255, (2, 3, 4, 4), dtype=np.uint8)
        for kind in ("reconstructions", "originals")
        for n in (1, 3)
    }
    leans = {"rounds": np.array([1, 2, 3]), "lean": np.array([0.9, np.nan, 0.5]), "spread": np.array([0.1, 0.2, 0.3])}
    scores = {f"{kind}_{n}": np.array([0.5, 0.25]) for kind in ("similarity", "chance") for n in (1, 3)}
    return {
        "confusion": ({"confusion": rng.integers(1, 20, (3, 3, 3))}, {"heads": heads}),
        "norms": ({"norms": rng.random((3, 3)) + 1, **leans}, {"heads": heads}),
        "cka": ({"cka": likeness}, cka),
        "cka-against": ({"cka": likeness**0.5}, {**cka, "mean": [0.95, 0.9, 0.5], "run": "iid"}),
        "separability": (
            {"distances": np.ones((3, 3)), "classes": np.arange(3)},
            {"mean": 1.25, "gains": {"ccvr": 6.1, "oracle": 8.5}},
        ),
        "tsne": ({"points": rng.random((50, 2)), **labels}, {"after": "ccvr"}),
        "inversion": (pictures | scores, {"numbers": [1, 3], "client": 1, "class": 2}),
    }


def write_run(path: Path, *, analyzed: bool = True, made: Any = None, said: Any = None) -> Path:
    folder = RunFolder(path)
    folder.path.mkdir()
    folder.spec.write_text(tomli_w.dumps(made or spec()), encoding="utf-8")
    folder.results.write_text(json.dumps(said or results()))  # as escapes: half a character cannot be written
    command = ["ccvr", "run", "--out", "a folder"]
    folder.write_json(folder.provenance, {"command": command, "commit": "abc", "versions": {"torch": "2"}})
    folder.rounds.write_text("".join(json.dumps(record(r)) + "\n" for r in (1, 2, 3)))
    save_file({"label_counts": np.arange(12).reshape(4, 3)}, folder.partition)
    for key, (arrays, about) in analyses().items() if analyzed else ():
        folder.analysis(key).parent.mkdir(exist_ok=True)
        folder.analysis(key).write_bytes(arrays_to_bytes(arrays, about))
    return folder.path


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return lambda name="run", **options: write_run(tmp_path / name, **options)
