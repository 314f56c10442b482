"""Every calibrator × transform × number of draws, on finished runs of one experiment, as Markdown.

    python bench/calibrators.py RUN… [--most 2000]
    python bench/calibrators.py RUN --inference

Fits what the runs do not have yet (a stopped bench goes on), and prints mean ± standard deviation over the runs, which
should differ in their seed alone. Accuracies are percent of the test set. ``--inference`` times a pass of the
calibrated models over that of the uncalibrated one: 500 images, one thread, alternating, median of nine.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import ccvr
from ccvr.calibration.methods import parse_calibration
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.core.run import RunFolder
from ccvr.experiment.events import HeadScored
from ccvr.experiment.load import MODEL_FORMAT, Blueprint
from ccvr.experiment.pipeline import calibrate_again
from ccvr.kernels.inputs import rows_of
from ccvr.models.tensor_file import tensors_from_bytes

DRAWS = (50, 100, 500, 1000, 2000)
TRANSFORMS = {
    "T0": "transform=none",
    "T1": "transform=tukey:0.5",
    "T1 signed": "transform=signed-tukey:0.5",
    "T2": "transform=tukey:0.5,transform_at=draws",
}
DRAWING = ("ccvr", "ccvr-converged")
OTHERS = {
    "ncm": "ncm,label=ncm",
    "ncm, T1": "ncm,transform=tukey:0.5,label=ncm-t1",
    "cof-means": "cof-means,label=cof-means",
    "cof": "cof,label=cof",
    "lda": "lda,label=lda",
    "lda, T1": "lda,transform=tukey:0.5,label=lda-t1",
    "lda, OAS": "lda,shrinkage=oas,label=lda-oas",
    "ridge": "ridge,label=ridge",
    "ridge, T1": "ridge,transform=tukey:0.5,label=ridge-t1",
    "ccvr, diagonal": "ccvr,kind=diagonal,label=ccvr-diagonal",
    "ccvr-converged, diagonal": "ccvr-converged,kind=diagonal,label=converged-diagonal",
    "ccvr-converged, pooled": "ccvr-converged,kind=pooled,label=converged-pooled",
    "ccvr-converged, class covariances half pooled": "ccvr-converged,shrinkage=pooled:0.5,label=converged-rda",
    "lda, taps": "lda,taps=auto,label=lda-taps",
    "ridge, taps": "ridge,taps=auto,label=ridge-taps",
    "kernel, D = 500": "kernel,num_features=500,label=kernel-500",
    "kernel, D = 1000": "kernel,num_features=1000,label=kernel-1000",
    "kernel, D = 2000": "kernel,label=kernel-2000",
    "kernel, D = 4000": "kernel,num_features=4000,label=kernel-4000",
    "oracle": "oracle,epochs=50,label=bench-oracle",
}


def drawing_label(method: str, transform: str, number: int) -> str:
    return f"{method}-{transform.replace(' ', '-').lower()}-m{number}"


def texts(most: int) -> Iterator[str]:
    yield from OTHERS.values()
    for method in DRAWING:
        for name, transform in TRANSFORMS.items():
            for number in (number for number in DRAWS if number <= most):
                yield f"{method},{transform},num_virtual={number},label={drawing_label(method, name, number)}"


def complete(path: Path, most: int) -> dict[str, Any]:
    """Fit what a run does not have, and return its results."""
    folder = RunFolder.open(path)
    have = folder.read_json(folder.results)["accuracy"]
    wanted = [parse_calibration(text) for text in texts(most)]
    missing = [calibration for calibration in wanted if calibration.label not in have]
    for event in calibrate_again(folder, missing) if missing else ():
        if isinstance(event, HeadScored):
            print(f"# {path.name} {event.label}: {event.accuracy:.2f} in {event.seconds:.1f} s", flush=True)
    return results_of(path)


def results_of(path: Path) -> dict[str, Any]:
    folder = RunFolder.open(path)
    found: dict[str, Any] = folder.read_json(folder.results)
    return found


def cell(runs: Sequence[dict[str, Any]], label: str) -> str:
    values = [run["accuracy"][label] for run in runs if label in run["accuracy"]]
    if len(values) < len(runs):
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def tables(runs: Sequence[dict[str, Any]], most: int, num_clients: int) -> Iterator[str]:
    numbers = [number for number in DRAWS if number <= most]
    yield f"| method | transform | {' | '.join(f'M_c = {number}' for number in numbers)} |"
    yield "|---|---|" + "---|" * len(numbers)
    for method in DRAWING:
        for name in TRANSFORMS:
            cells = [cell(runs, drawing_label(method, name, number)) for number in numbers]
            yield f"| `{method}` | {name} | {' | '.join(cells)} |"
    yield ""
    yield "| method | kind | kB a client | accuracy | gain | seconds |"
    yield "|---|---|---|---|---|---|"
    yield f"| uncalibrated | | | {cell(runs, UNCALIBRATED)} | | |"
    before = statistics.mean(run["accuracy"][UNCALIBRATED] for run in runs)
    for name, text in OTHERS.items():
        calibration = parse_calibration(text)
        if any(calibration.label not in run["calibrations"] for run in runs):
            continue
        rows = [run["calibrations"][calibration.label] for run in runs]
        kilobytes = statistics.mean(row["bytes"] for row in rows) / num_clients / 1000
        gain = statistics.mean(run["accuracy"][calibration.label] for run in runs) - before
        seconds = statistics.median(row["seconds"] for row in rows)
        kind = rows[0]["statistics"]
        yield f"| {name} | {kind} | {kilobytes:,.0f} | {cell(runs, calibration.label)} | {gain:+.2f} | {seconds:.1f} |"


def inference(path: Path) -> Iterator[str]:
    torch.set_num_threads(1)
    before = ccvr.load(path, head=UNCALIBRATED)
    folder = RunFolder.open(path)
    header, _ = tensors_from_bytes(folder.model.read_bytes(), format=MODEL_FORMAT)
    images = rows_of(Blueprint.from_header(header).inputs, torch.zeros(500, dtype=torch.int64))

    def seconds(model: torch.nn.Module) -> float:
        started = time.perf_counter()
        with torch.no_grad():
            model(images)
        return time.perf_counter() - started

    yield "| head | time of a pass, of the uncalibrated model's | numbers in the head |"
    yield "|---|---|---|"
    for name, text in OTHERS.items():
        label = parse_calibration(text).label
        if "taps" not in label and "kernel" not in label:
            continue
        after = ccvr.load(path, head=label)
        ratio = statistics.median(seconds(after) / seconds(before) for _ in range(9))
        yield f"| {name} | {ratio:.2f} | {sum(t.numel() for t in after.head.state_dict().values()):,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=max(DRAWS), help="leave out larger numbers of draws")
    parser.add_argument("--fitted", action="store_true", help="fit nothing; show what is there")
    parser.add_argument("--inference", action="store_true", help="time passes instead")
    arguments = parser.parse_args()
    if arguments.inference:
        print("\n".join(inference(arguments.runs[0])))
        return
    runs = [results_of(path) if arguments.fitted else complete(path, arguments.most) for path in arguments.runs]
    num_clients = runs[0]["num_clients"]
    print("\n".join(tables(runs, arguments.most, num_clients)))


if __name__ == "__main__":
    main()
