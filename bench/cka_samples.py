"""Does it matter on which images CKA is measured? The paper says test samples in its text, 50,000 in its appendix.

    python bench/cka_samples.py RUN

Trains every client of a finished run for one more round, then prints the mean CKA of every layer on the test images, on
the first 10,000 training images and on all of them, as Markdown.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ccvr.analysis.layer_cka import layer_cka
from ccvr.analysis.layers import cka_layers
from ccvr.core.run import RunFolder
from ccvr.experiment.finished_run import open_finished_run
from ccvr.models.state import Scratch
from ccvr.training.client_state import ClientStates


def means(models: Sequence[nn.Module], images: Tensor, layers: Sequence[str]) -> list[float]:
    found = layer_cka(models, images, layers, rng=torch.Generator().manual_seed(0))
    return [each.mean for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = open_finished_run(RunFolder.open(parser.parse_args().run))
    kept = ClientStates(run.folder.client_states)
    states = run.engine.local_models(run.state, range(len(run.setup.kept)), states=kept)
    models = [Scratch(run.setup.fresh_model()).load(state) for state in states]
    dataset = run.setup.dataset
    layers = cka_layers(models[0], dataset.test.inputs[:2])
    train = dataset.train.inputs
    sets = {"test": dataset.test.inputs, "10,000 of training": train[:10_000], "all of training": train}
    columns = {name: means(models, images, layers) for name, images in sets.items()}
    print(f"| layer | {' | '.join(columns)} |")
    print("|---|" + "---:|" * len(columns))
    for place, layer in enumerate(layers):
        print(f"| `{layer}` | {' | '.join(f'{values[place]:.3f}' for values in columns.values())} |")


if __name__ == "__main__":
    main()
