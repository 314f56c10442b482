"""Runs as large as real ones: every analysis, most points in the tsne."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ccvr.core.arrays import arrays_to_bytes
from ccvr.core.run import RunFolder
from tests.report.conftest import CALIBRATION, results, spec, write_run

HEADS = ["uncalibrated", "ccvr", "oracle", *(f"ccvr-m{n}-r{r}" for n in (50, 100, 500, 1000) for r in (1, 2, 3))]
LAYERS = [*(f"backbone.layer{i}" for i in range(1, 7)), "head"]
POINTS = 10_000
COMPARED = 10
"""Clients, at most, whose models are compared."""


@dataclass(frozen=True)
class Shape:
    classes: int
    clients: int
    rounds: int


def write_realistic_run(path: Path, number: int, shape: Shape) -> Path:
    rng = np.random.default_rng(number)
    folder = RunFolder(write_run(path, analyzed=False, made=_spec(number), said=_results(rng, shape)))
    folder.rounds.write_text("".join(json.dumps(_record(r, rng, shape)) + "\n" for r in range(1, shape.rounds + 1)))
    save_file({"label_counts": rng.integers(0, 3000, (shape.clients, shape.classes))}, folder.partition)
    for key, (arrays, about) in _analyses(rng, shape).items():
        folder.analysis(key).parent.mkdir(exist_ok=True)
        folder.analysis(key).write_bytes(arrays_to_bytes(arrays, about))
    return path


def _spec(number: int) -> dict[str, Any]:
    algorithm = ("fedavg", "fedprox", "fedavgm", "moon")[number % 4]
    return spec(number // 4, data__name="cifar10", training__algorithm=algorithm)


def _results(rng: np.random.Generator, shape: Shape) -> dict[str, Any]:
    percent = {label: [round(float(v), 4) for v in rng.uniform(20, 90, shape.classes + 3)] for label in HEADS}
    clients = [round(float(v), 4) for v in rng.uniform(50, 99, shape.clients)]
    scores = {"mean": clients[0], "worst": min(clients), "p10": clients[0]}
    own = {"method": "prior", "options": {"smoothing": 1.0}, "accuracy": scores, "clients": clients}
    return results(
        personal={"prior": {**own, "head": HEADS[1]}, "finetune": {**own, "head": HEADS[0]}},
        accuracy={label: values[0] for label, values in percent.items()},
        per_class_recall={label: values[1:-2] for label, values in percent.items()},
        client_accuracy={label: {"mean": v[-2], "worst": v[-1], "p10": v[-1]} for label, v in percent.items()},
        calibrations={label: {**CALIBRATION, "num_virtual": _virtual(label)} for label in HEADS[1:]},
        class_names=[f"class number {i}" for i in range(shape.classes)],
        num_clients=shape.clients,
    )


def _virtual(label: str) -> int:
    return int(label.split("-")[1][1:]) if "-m" in label else 2000


def _record(number: int, rng: np.random.Generator, shape: Shape) -> dict[str, Any]:
    norms = rng.uniform(0.5, 2, (shape.clients, shape.classes)).tolist()
    clients = [
        {"client": c, "examples": 5000, "loss": rng.random(), "head_row_norms": norms[c]} for c in range(shape.clients)
    ]
    scores = {"accuracy": 100 * rng.random(), "loss": rng.random(), "seconds": 10 * rng.random()}
    return {"round": number, **scores, "clients": clients}


def _pictures(rng: np.random.Generator) -> Any:
    """As smooth as photographs: patches with noise on them."""
    patches = rng.uniform(30, 225, (4, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    return (patches + rng.uniform(-25, 25, patches.shape)).astype(np.uint8)


def _analyses(rng: np.random.Generator, shape: Shape) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    classes, compared, rounds = shape.classes, min(shape.clients, COMPARED), np.arange(1, shape.rounds + 1)
    cka, other = rng.uniform(0.3, 1, (2, len(LAYERS), compared, compared))
    about = {"layers": LAYERS, "widths": [1000] * 7, "clients": list(range(compared))}
    by_round = {"rounds": rounds, "lean": rng.random(len(rounds)), "spread": rng.random(len(rounds))}
    labels = {key: rng.integers(0, classes, POINTS) for key in ("truth", "before", "after")}
    centres = 20 * rng.standard_normal((classes, 2))
    points = (centres[labels["truth"]] + 5 * rng.standard_normal((POINTS, 2))).astype(np.float32)
    inverted: dict[str, Any] = {}
    for n in (1, 3, 10, 30):
        for kind in ("reconstructions", "originals"):
            inverted[f"{kind}_{n}"] = _pictures(rng)
        inverted |= {f"{kind}_{n}": rng.random(16) for kind in ("similarity", "chance", "error")}
    return {
        "confusion": ({"confusion": rng.integers(0, 200, (len(HEADS), classes, classes))}, {"heads": HEADS}),
        "norms": ({"norms": rng.random((len(HEADS), classes)), **by_round}, {"heads": HEADS}),
        "cka": ({"cka": cka}, {**about, "mean": cka.mean((1, 2)).tolist()}),
        "cka-against": ({"cka": other}, {**about, "mean": other.mean((1, 2)).tolist(), "run": "iid"}),
        "separability": (
            {"distances": np.ones((classes, classes)), "classes": np.arange(classes)},
            {"mean": 1.25, "gains": dict.fromkeys(HEADS[1:], 5.0)},
        ),
        "tsne": ({"points": points, **labels}, {"after": "ccvr"}),
        "inversion": (inverted, {"numbers": [1, 3, 10, 30], "client": 1, "class": 2}),
    }
