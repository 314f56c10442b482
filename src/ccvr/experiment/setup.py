"""From a spec to what a run works on: samples, owners, a fresh model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from safetensors.numpy import save

from ccvr.core.arrays import IntArray
from ccvr.core.errors import SpecError
from ccvr.data.catalogue import load
from ccvr.data.partition import Partition, draw_among, hold_out, set_aside
from ccvr.data.samples import Dataset
from ccvr.experiment.load import Blueprint
from ccvr.experiment.spec import Spec
from ccvr.experiment.step import runs_kernels
from ccvr.kernels.inputs import Inputs, described, rows_of, tensors_of
from ccvr.models.build import build_model, model_name
from ccvr.models.preprocess import fit_preprocess, preprocess_name
from ccvr.models.split import SplitModel
from ccvr.models.state import num_bytes


@dataclass(frozen=True)
class Setup:
    """The samples of a run and who owns them; ``kept`` trains, ``held_out`` validates.

    Statistics, oracles and label mixes are of ``kept`` alone: samples that all clients share would count once for each.
    """

    spec: Spec
    dataset: Dataset
    kept: Partition
    held_out: Partition
    unlabelled: Inputs | None = None
    """What the server has without labels."""
    shared: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """Samples that no client owns and all train on."""

    @property
    def trained_on(self) -> tuple[IntArray, ...]:
        """The samples that each client trains on: its own, and the shared ones."""
        if not len(self.shared):
            return self.kept.shards
        return tuple(np.sort(np.concatenate([own, self.shared])) for own in self.kept.shards)

    @property
    def shared_bytes(self) -> int:
        """Inputs and labels of the shared samples, once for each client."""
        rows = torch.from_numpy(self.shared)
        labels = self.dataset.train.labels[rows]
        return len(self.kept) * num_bytes(tensors_of(rows_of(self.dataset.train.inputs, rows)), {"labels": labels})

    @property
    def label_counts(self) -> IntArray:
        """Training samples that each client owns, by class, [K, C]."""
        return self.kept.label_counts(self.dataset.train.labels.numpy(), self.dataset.num_classes)

    @property
    def blueprint(self) -> Blueprint:
        """What builds the run's model again."""
        model, inputs = self.spec.model, self.dataset.train.first(2)
        preprocess = preprocess_name(self.dataset.preprocess, inputs)
        return Blueprint(model_name(model, inputs), model.head, inputs, preprocess)

    def fresh_model(self) -> SplitModel:
        model = self.builder()
        model.class_names = self.dataset.class_names
        return model.to(self.spec.device)

    @cached_property
    def builder(self) -> Callable[[], SplitModel]:
        """Makes a fresh model, here or in another process."""
        kept = torch.from_numpy(np.concatenate(self.kept.shards))  # what is held out must not show in any constant
        inputs = rows_of(self.dataset.train.inputs, kept)
        return partial(
            build_model,
            self.spec.model,
            rows_of(inputs, torch.arange(1)),
            self.dataset.num_classes,
            preprocess=fit_preprocess(self.dataset.preprocess, inputs),
            head_kind="normed" if self.spec.training.clsnorm else "linear",
            kernels=runs_kernels(self.spec),
            seed=self.spec.seed,
        )

    def partition_bytes(self) -> bytes:
        """Owner [N]: the client of each training sample (−1 for none); held_out [N]; label_counts [K, C]; a SHA-256.

        And shared [N], where there are such samples.
        """
        owner = np.full(len(self.dataset.train), -1, dtype=np.int32)
        held_out = np.zeros(len(self.dataset.train), dtype=np.bool_)
        for client, (kept, held) in enumerate(zip(self.kept.shards, self.held_out.shards, strict=True)):
            owner[kept] = owner[held] = client
            held_out[held] = True
        tensors = {"owner": owner, "held_out": held_out, "label_counts": self.label_counts}
        if len(self.shared):
            tensors["shared"] = np.isin(np.arange(len(owner)), self.shared)
        return save(tensors, {"data": self.dataset.digest()})


def prepare(spec: Spec) -> Setup:
    """Load the samples and draw who owns them."""
    _require_device(spec.device)
    dataset = load(spec.data.name, spec.data.root)
    labels = dataset.train.labels.numpy()
    seed = spec.partition.seed
    everything = np.arange(len(labels))
    rest, aside = set_aside(everything, labels, spec.data.unlabelled_fraction, seed=seed, purpose="unlabelled")
    owned, shared = set_aside(rest, labels, spec.data.shared, seed=seed, purpose="shared")
    if spec.data.shared and not len(shared):
        raise SpecError(f"data.shared is {spec.data.shared}, which is none of {len(rest)} samples. Give more.")
    partition = draw_among(owned, labels, spec.partition)
    kept, held_out = hold_out(partition, labels, spec.data.validation, seed=seed)
    return Setup(spec, dataset, kept, held_out, _unlabelled(spec, dataset, aside), shared)


def _unlabelled(spec: Spec, dataset: Dataset, aside: IntArray) -> Inputs | None:
    """The inputs set aside, or those of another data set."""
    if not spec.data.unlabelled or spec.data.unlabelled_fraction:
        if spec.data.unlabelled_fraction and not len(aside):
            total = len(dataset.train)
            raise SpecError(f"data.unlabelled is {spec.data.unlabelled}, which is none of {total} samples. Give more.")
        return rows_of(dataset.train.inputs, torch.from_numpy(aside)) if len(aside) else None
    if spec.data.unlabelled == spec.data.name:
        raise SpecError(
            f'data.unlabelled is "{spec.data.name}", whose samples train and validate. Give a fraction of it, as 0.1.'
        )
    other = load(spec.data.unlabelled, spec.data.root).train
    mine, theirs = (described(samples.first(1)) for samples in (dataset.train, other))
    if mine != theirs:
        raise SpecError(
            f'data.unlabelled is "{spec.data.unlabelled}", whose samples are {theirs}; those of "{spec.data.name}" '
            f"are {mine}. Choose a data set of the same shape."
        )
    return other.inputs


def _require_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError('device is "cuda", but torch finds no CUDA device. Use --device cpu.')
