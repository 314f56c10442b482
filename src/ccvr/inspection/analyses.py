"""What a finished run shows when it is looked at closely; each analysis is a row: a run → arrays."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccvr.analysis.confusion import confusion
from ccvr.analysis.layer_cka import layer_cka
from ccvr.analysis.layers import cka_layers
from ccvr.analysis.mean_inversion import invert_means
from ccvr.analysis.norms import lean, row_norms, spread
from ccvr.analysis.separability import separability
from ccvr.analysis.tsne import embed
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.core.arrays import Array, read_arrays
from ccvr.core.errors import AnalysisError, RunError
from ccvr.core.machine import cores
from ccvr.core.seeds import derive_seed
from ccvr.core.tables import Table
from ccvr.data.batches import in_order
from ccvr.experiment.finished_run import FinishedRun
from ccvr.experiment.load import read_head
from ccvr.experiment.statistics_cache import StatisticsCache
from ccvr.kernels.crops import is_images
from ccvr.kernels.inputs import Inputs, on
from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch
from ccvr.statistics.request import Request
from ccvr.training.client_state import ClientStates

MAX_CLIENTS = 10
"""Clients whose local models are compared."""
MANY_SAMPLES = 2_000
"""So many that all cores are worth while."""
NUMBERS = (1, 3, 10, 30)
"""Features in a mean that is inverted."""
SHOWN = 4
"""Reconstructions of each number that are kept as pictures."""


@dataclass(frozen=True)
class AnalysisResult:
    """Arrays, what they are about, and the finding in a few words."""

    arrays: Mapping[str, Array]
    about: Mapping[str, Any]
    headline: str


@dataclass(frozen=True)
class Subject:
    """A finished run and what several analyses ask of it."""

    run: FinishedRun
    points: int
    """Test samples in the plane."""

    @property
    def labels(self) -> list[str]:
        return list(self.run.results["accuracy"])

    @property
    def deployed(self) -> str:
        return str(self.run.results["deployed"])

    def rng(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.run.setup.spec.seed, f"analysis/{purpose}"))

    def model(self, label: str) -> SplitModel:
        return self.run.model.with_head(read_head(self.run.folder.head(label)).to(self.run.setup.spec.device))

    @cached_property
    def predictions(self) -> dict[str, Tensor]:
        """The class that each head takes each test sample for, [N]."""
        models = ((label, self.model(label)) for label in self.labels)
        return {label: self._over_test(model, model).argmax(1) for label, model in models}

    @cached_property
    def features(self) -> Tensor:
        """What enters the head, of all test samples."""
        return self._over_test(self.run.model, self.run.model.features)

    def _over_test(self, model: SplitModel, function: Callable[[Inputs], Tensor]) -> Tensor:
        device = self.run.setup.spec.device
        with evaluating(model):
            batches = in_order(self.run.setup.dataset.test)
            return torch.cat([function(on(device, inputs)).detach().cpu() for inputs, _ in batches])


def find_confusion(subject: Subject) -> AnalysisResult:
    """[H, C, C]: which class each head takes for which."""
    dataset = subject.run.setup.dataset
    matrices = [confusion(found, dataset.test.labels, dataset.num_classes) for found in subject.predictions.values()]
    right = {label: int(m.diagonal().sum()) for label, m in zip(subject.labels, matrices, strict=True)}
    changed = f"{right[UNCALIBRATED]:,} → {right[subject.deployed]:,} of {len(dataset.test):,} test samples are right"
    return AnalysisResult({"confusion": torch.stack(matrices).numpy()}, {"heads": subject.labels}, changed)


def find_norms(subject: Subject) -> AnalysisResult:
    """[H, C]: norms of every head's rows, those on other features left out; and how the clients' heads lean, [R]."""
    heads = {label: read_head(subject.run.folder.head(label)).weight for label in subject.labels}
    width = heads[UNCALIBRATED].shape[1]
    norms = {label: row_norms(weight) for label, weight in heads.items() if weight.shape[1] == width}
    spreads = [f"{label} {spread(each):.2f}" for label, each in norms.items()]
    arrays = {"norms": torch.stack(list(norms.values())).numpy(), **_of_clients(subject)}
    return AnalysisResult(arrays, {"heads": list(norms)}, f"spread of row norms: {', '.join(spreads[:4])}")


def _of_clients(subject: Subject) -> dict[str, Array]:
    """By round: the clients' mean lean towards their classes and mean spread of row norms, both [R]."""
    owned = torch.from_numpy(subject.run.setup.label_counts)
    rounds, leans, spreads = [], [], []
    folder = subject.run.folder
    try:
        for record in folder.read_rounds():
            if not all(each["head_row_norms"] for each in record["clients"]):
                return {}  # heads that stay with their clients
            norms = torch.tensor([each["head_row_norms"] for each in record["clients"]], dtype=torch.float64)
            counts = owned[[each["client"] for each in record["clients"]]]
            rounds.append(record["round"])
            leans.append(lean(norms, counts).nanmean().item())
            spreads.append(sum(map(spread, norms)) / len(norms))
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{folder.rounds} does not fit the run ({error!r}). Delete it to go on without it.") from error
    return {"rounds": np.array(rounds, dtype=np.int64), "lean": np.array(leans), "spread": np.array(spreads)}


def find_cka(subject: Subject) -> AnalysisResult:
    """[L, K, K]: how alike the models of K clients are in each layer after one more round of local training."""
    run, total = subject.run, len(subject.run.setup.kept)
    clients = np.unique(np.linspace(0, total - 1, min(total, MAX_CLIENTS)).round().astype(int)).tolist()
    models = []
    for state in run.engine.local_models(run.state, clients, states=ClientStates(run.folder.client_states)):
        models.append(Scratch(run.setup.fresh_model()).load(state))
    test = run.setup.dataset.test
    layers = cka_layers(models[0], test.first(2))
    with _threads_for(len(test)):
        found = layer_cka(models, test.inputs, layers, rng=subject.rng("cka"))
    arrays = {"cka": torch.stack([each.cka for each in found]).numpy()}
    arrays |= {f"samples_{i}": each.samples.numpy() for i, each in enumerate(found) if len(each.samples) < len(test)}
    means = [each.mean for each in found]
    lowest = layers[int(np.nanargmin(means))] if np.isfinite(means).any() else "none is known"
    about = {"layers": list(layers), "widths": [each.width for each in found], "clients": clients, "mean": means}
    return AnalysisResult(
        arrays, about, f"mean CKA {means[0]:.2f} (first layer) … {means[-1]:.2f} (head); lowest: {lowest}"
    )


@contextmanager
def _threads_for(num_samples: int) -> Iterator[int]:
    """All cores for many samples, whose numbers hardly depend on it; few are done before threads have met."""
    before = torch.get_num_threads()
    number = cores() if num_samples >= MANY_SAMPLES else before
    torch.set_num_threads(number)
    try:
        yield number
    finally:
        torch.set_num_threads(before)


def find_separability(subject: Subject) -> AnalysisResult:
    """[P, P]: sliced Wasserstein distances of the classes' Gaussians, and what each calibration gained."""
    cache = StatisticsCache(subject.run)
    total = cache.merged(Request())
    found = separability(total.gaussians(), rng=subject.rng("separability"))
    accuracy = subject.run.results["accuracy"]
    gains = {label: accuracy[label] - accuracy[UNCALIBRATED] for label in subject.labels if label != UNCALIBRATED}
    arrays = {"distances": found.distances.numpy(), "classes": found.classes.numpy()}
    return AnalysisResult(
        arrays, {"mean": found.mean, "gains": gains}, f"mean distance of two classes {found.mean:.3f}"
    )


def find_tsne(subject: Subject) -> AnalysisResult:
    """[N, 2]: test features in the plane, with truth and predictions before and after."""
    number, rng = min(subject.points, len(subject.features)), subject.rng("tsne")
    chosen = torch.randperm(len(subject.features), generator=rng)[:number].sort().values
    features = subject.features[chosen]
    with _threads_for(number) as threads:
        points = embed(features, num_threads=threads, rng=rng)
    return _in_the_plane(subject, points.float().numpy(), chosen)


def label_again(subject: Subject) -> AnalysisResult:
    """The points that the run has, with the predictions of the heads that it has now."""
    path = subject.run.folder.analysis("tsne")
    arrays, _ = read_arrays(path)
    try:
        return _in_the_plane(subject, arrays["points"], torch.from_numpy(arrays["samples"]))
    except (LookupError, TypeError) as error:
        raise RunError(f"{path} does not fit the run ({error}). Delete it and run `ccvr analyze` again.") from error


def _in_the_plane(subject: Subject, points: Array, chosen: Tensor) -> AnalysisResult:
    arrays = {
        "points": points,
        "truth": subject.run.setup.dataset.test.labels[chosen].numpy(),
        "before": subject.predictions[UNCALIBRATED][chosen].numpy(),
        "after": subject.predictions[subject.deployed][chosen].numpy(),
        "samples": chosen.numpy(),
    }
    return AnalysisResult(arrays, {"after": subject.deployed}, f"{len(points):,} test samples in the plane")


def find_inversion(subject: Subject) -> AnalysisResult:
    """What means of n features give away of the largest client's largest class: reconstructions beside originals."""
    setup = subject.run.setup
    client = int(setup.label_counts.sum(1).argmax())
    label = int(setup.label_counts[client].argmax())
    owned = torch.from_numpy(setup.kept.shards[client])
    if not is_images(setup.dataset.train.inputs):
        raise AnalysisError("inversion reconstructs images, and the inputs of this run are others.")
    images = setup.dataset.train.inputs[owned[setup.dataset.train.labels[owned] == label]]
    numbers = [n for n in NUMBERS if 2 * n <= len(images)] or [1]
    found = invert_means(subject.run.model, images, numbers=numbers, rng=subject.rng("inversion"))
    arrays: dict[str, Array] = {}
    for each in found:
        arrays |= {
            f"reconstructions_{each.n}": each.images[:SHOWN].numpy(),
            f"originals_{each.n}": images[each.closest[:SHOWN]].numpy(),
            f"similarity_{each.n}": each.similarity.numpy(),
            f"chance_{each.n}": each.chance.numpy(),
            f"error_{each.n}": each.error.numpy(),
            f"weight_{each.n}": each.weight.numpy(),
        }
    similar = ", ".join(f"n = {each.n}: {_mean_and_error(each.similarity)}" for each in found)
    left = 100 * max(each.error.mean().item() for each in found)
    about = {"numbers": numbers, "client": client, "class": label}
    return AnalysisResult(arrays, about, f"similarity {similar}; error left at most {left:.2f} %")


def _mean_and_error(values: Tensor) -> str:
    return f"{values.mean():.2f} ± {values.std() / len(values) ** 0.5:.2f}"


Analysis = Callable[[Subject], AnalysisResult]

ANALYSES: Table[Analysis] = Table(
    "analysis",
    {
        "confusion": find_confusion,
        "norms": find_norms,
        "cka": find_cka,
        "separability": find_separability,
        "tsne": find_tsne,
        "inversion": find_inversion,
    },
    closed=True,
)

OF_HEADS: Mapping[str, Analysis] = {
    "confusion": find_confusion,
    "norms": find_norms,
    "separability": find_separability,
    "tsne": label_again,
}
"""What to find again once a run has other heads."""
