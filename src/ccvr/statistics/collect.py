"""One client's part: features of its samples under the global model, and their statistics.

Eval mode, no gradients, no augmentation; the model is left as it was.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ccvr.core.arguments import require_positive, require_seed, require_type, require_whole
from ccvr.core.errors import StatisticsError
from ccvr.kernels.inputs import Inputs, each, on
from ccvr.models.digest import backbone_digest
from ccvr.models.find import find_head
from ccvr.models.modes import buffers_kept, evaluating
from ccvr.models.passes import device_of, pair_of, require_batches, require_classes, require_model
from ccvr.models.random_features import MAX_FEATURES, MAX_WEIGHTS, Projection
from ccvr.models.settings import eager, settled, standard_settings
from ccvr.models.taps import find_taps, reading
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.accumulate import Accumulator
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import MIN_COUNT, Request
from ccvr.statistics.sent import Samples, SentBefore
from ccvr.statistics.source import Source

Batches = Iterable[tuple[Inputs, Tensor]]
FeatureBatches = Iterable[tuple[Tensor, Tensor]]


@eager
def collect(
    model: nn.Module,
    batches: Batches,
    *,
    num_classes: int,
    kind: str = "full",
    transform: str = "none",
    head: str | None = None,
    taps: str | Sequence[str] | None = None,
    min_count: int = MIN_COUNT,
    projection: Projection | None = None,
    rng: np.random.Generator | None = None,
    history: str | Path | None = None,
) -> ClassStatistics:
    """What a client sends: the statistics of its features, by class.

    ``batches`` of inputs and labels [B]. ``kind``: full, pooled, diagonal, means, or kernel, which needs the
    ``projection`` of the server. ``head``: path of the head, where it is not found by itself. ``taps``: layers that are
    read beside the head's input: module paths, or "auto". Classes of fewer than ``min_count`` samples are withheld.
    ``rng`` draws the noise of a kind that has some; without one it cannot be predicted, and not be repeated.
    ``history``: a file in which the client keeps digests of the samples behind what it sent. With it, statistics that
    may differ from earlier ones by few samples are a ``ccvr.DifferencingWarning``.
    """
    require_type("history", history, str | Path | None, "the path of a file")
    request = Request(kind, transform, "" if taps is None else taps, min_count, projection)
    if history is None:
        return collect_request(model, batches, num_classes, request, head=head, rng=rng)
    require_batches(batches)
    sent = SentBefore.open(Path(history))
    samples = Samples(sent.key)
    found = collect_request(model, samples.watch(batches), num_classes, request, head=head, rng=rng)
    sent.add(samples.classes(found.count), few=max(min_count, MIN_COUNT))
    return found


def collect_request(
    model: nn.Module,
    batches: Batches,
    num_classes: int,
    request: Request,
    *,
    head: str | None = None,
    rng: np.random.Generator | None = None,
) -> ClassStatistics:
    """What a client sends for a request."""
    require_model(model)
    require_batches(batches)
    require_classes(num_classes)
    require_type("head", head, str | None, "the path of a layer")
    require_type("rng", rng, np.random.Generator | None, "a generator, as of numpy.random.default_rng")
    request.validate()
    samples = _peeked(batches)
    first = next(samples)
    source = source_of(model, first[0], request, head=head)
    scored = len(model.get_submodule(source.head).get_parameter("weight"))
    if num_classes > scored:  # before memory for them is asked for
        raise StatisticsError(f'num_classes is {num_classes:,}; the head "{source.head}" scores {scored} classes.')
    with (
        buffers_kept(model),
        closing(read_features(model, samples, source.head, source.taps)) as features,
    ):  # also after an error
        return fold(features, num_classes, request, source, rng=rng)


def source_of(model: nn.Module, inputs: Inputs, request: Request, *, head: str | None = None) -> Source:
    """Where the features of a request come from; one of the inputs [B, …] is shown to the model to find its layers."""
    device = device_of(model)
    with standard_settings(device), evaluating(model), buffers_kept(model):
        example = on(device, each(lambda x: torch.cat([x[:1], x[:1]]), inputs))  # [1, …] is no batch
        path = find_head(model, example, head or "")
        taps = find_taps(model, path, example, request.taps)
    return Source(
        backbone_digest(model, path),
        path,
        taps,
        str(FeatureTransform.parse(request.transform)),
        "" if request.projection is None else request.projection.digest,
    )


def fold(
    features: FeatureBatches,
    num_classes: int,
    request: Request,
    source: Source,
    *,
    rng: np.random.Generator | None = None,
) -> ClassStatistics:
    """One client's statistics of a sound request, from its features [B, d] and labels [B], batch by batch."""
    statistics = Accumulator(num_classes, request, source)
    for z, y in features:
        with standard_settings():
            statistics.update(request.features(z), y)
    with standard_settings():
        return statistics.finish(rng=rng)


def read_features(
    model: nn.Module, batches: Batches, head: str, taps: Sequence[str] = ()
) -> Generator[tuple[Tensor, Tensor]]:
    """Features [B, d] before any transform, and labels [B], batch by batch, on the CPU.

    In between the model is as it was, but for its buffers, and free for other threads: a caller may stop anywhere.
    """
    device = device_of(model)
    for inputs, labels in map(pair_of, batches):
        with standard_settings(device), evaluating(model), reading(model, head, taps) as features:
            z = features(on(device, inputs)).cpu()
        yield z, labels.cpu()


def _peeked(batches: Batches) -> Iterator[tuple[Inputs, Tensor]]:
    """The first batch twice, then the others: once to look at, once to use."""
    found = False
    for batch in batches:
        if not found:
            yield pair_of(batch)
        found = True
        yield pair_of(batch)
    if not found:
        raise StatisticsError("there are no batches: this client has no samples, and nothing to send.")


@settled
def statistics_of(
    z: Tensor,
    y: Tensor,
    num_classes: int | None = None,
    *,
    kind: str = "full",
    model: nn.Module | None = None,
    head: str = "",
    source: Source | None = None,
    projection: Projection | None = None,
    min_count: int = 0,
    rng: np.random.Generator | None = None,
) -> ClassStatistics:
    """The statistics of features z [N, d], transformed already, with labels y [N].

    To calibrate with them, say whose they are: ``model``, and the path of its ``head``.
    """
    pair_of((z, y))
    if model is not None:
        source = Source(backbone_digest(model, head), head)
    classes = num_classes if num_classes is not None else max(1, int(y.max()) + 1) if y.numel() else 1
    require_classes(classes)
    request = Request(kind, min_count=min_count, projection=projection)
    statistics = Accumulator(classes, request, source)
    statistics.update(z, y)
    return statistics.finish(rng=rng)


@settled
def random_features(
    first: ClassStatistics, *, num_features: int = 2000, bandwidth: float = 0.5, seed: int = 0
) -> Projection:
    """The projection for ``kind="kernel"``, from merged statistics of the same taps that hold variances."""
    require_statistics(first)
    require_whole("num_features", num_features, 1, min(MAX_FEATURES, MAX_WEIGHTS // first.num_features))
    require_positive("bandwidth", bandwidth)
    require_seed(seed)
    diagonal = first.as_kind("diagonal")
    n = int(diagonal.count.sum())
    if not n:
        raise StatisticsError("the statistics hold no samples. Collect them from clients that have some.")
    mean = diagonal.total.sum(0) / n
    variance = (diagonal.second.sum(0) / n - mean**2).clamp(min=0)
    std = variance.sqrt()
    dead = std <= 1e-6 * std.max()  # a unit that never fires says nothing; do not blow up its rounding
    return Projection(mean, torch.where(dead, 1.0, std), num_features, bandwidth, seed)


def require_statistics(found: object) -> None:
    """Refuse what is no statistics.

    Raises:
        StatisticsError: it is something else.
    """
    if not isinstance(found, ClassStatistics):
        raise StatisticsError(f"expected class statistics, got {type(found).__name__}. Give those of ccvr.merge.")
