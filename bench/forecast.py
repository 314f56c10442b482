"""What `ccvr.forecast` says from statistics alone beside what happened on the test set, as Markdown.

    python bench/forecast.py RUN…

Takes finished runs that have `full` statistics of untransformed features, and calibrates each with the best method.
"""

import argparse
from pathlib import Path

import torch

import ccvr
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.core.run import RunFolder
from ccvr.data.batches import in_order
from ccvr.data.catalogue import load
from ccvr.experiment.spec import read_spec


def row(path: Path) -> str:
    folder = RunFolder.open(path)
    spec = read_spec(folder.spec)
    dataset = load(spec.data.name, spec.data.root)
    model = ccvr.load(path, head=UNCALIBRATED)
    total = ccvr.ClassStatistics.from_bytes(folder.statistics("full").read_bytes())
    said = ccvr.forecast(model, total)
    fixed = ccvr.calibrate(model, total)
    before, after = (ccvr.score(each, in_order(dataset.test), dataset.num_classes).accuracy for each in (model, fixed))
    return (
        f"| {path.name} | {said.separability:.2f} | {said.before:.1f} → {said.after:.1f} | {said.gain:+.1f} | "
        f"{before:.1f} → {after:.1f} | {after - before:+.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    torch.set_num_threads(1)
    print("| run | separability | forecast | forecast gain | test accuracy | gain |\n|---|---|---|---|---|---|")
    for path in parser.parse_args().runs:
        print(row(path), flush=True)


if __name__ == "__main__":
    main()
