"""What a server asks about a model, and what a client answers: class statistics, and scores of candidate heads."""

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from flwr.app import RecordDict
from torch import Tensor, nn

from ccvr.calibration.select import require_valid_counts
from ccvr.core.errors import FederationError, ModelError, SpecError
from ccvr.core.trust import require_trust
from ccvr.experiment.load import head_bytes, head_from_bytes
from ccvr.flower.federation import Federation
from ccvr.flower.messages import BLOBS, blob_of, pack, setting_of
from ccvr.kernels.inputs import Inputs, num_rows
from ccvr.models.heads import Head
from ccvr.models.modes import buffers_kept
from ccvr.models.passes import outputs_of
from ccvr.models.scoring import ClassCounts, count
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes
from ccvr.statistics.collect import Batches, collect_request, read_features
from ccvr.statistics.limits import MAX_COUNT
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from ccvr.statistics.wire import payload_bytes
from ccvr.training.moments import require_sums

HELLO, STATISTICS, SCORES, PERSONAL = "ccvr_hello", "ccvr_statistics", "ccvr_scores", "ccvr_personal"
MOMENTS = "ccvr_moments"
"""Flower's names for the queries; the first asks a node which client it is."""
ROOM = 10**9
"""Bytes of statistics that may wait at the SuperLink, which keeps them in memory or in one busy file."""
Owned = Mapping[int, Tensor]
"""By client, the most samples of each class that it can have, [C]: by the partition, or by the user's limit."""
OWN = "own"
"""The name of a client's own model among its counts."""
TRUST_REMEDY = (
    "If this machine trusts the server, start its SuperNode with CCVR_TRUST=1, or its app with register(…, trust=True)"
)
STATE, COUNTS, SUMS = "ccvr-state/1", "ccvr-counts/1", "ccvr-moments/1"
"""Formats of bytes."""


def require_count(name: str, number: int, *, least: int = 0) -> None:
    if type(number) is not int or not least <= number <= MAX_COUNT:
        raise SpecError(f"{name} is {number}; give a whole number from {least} to {MAX_COUNT:,}.")


def state_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return tensors_to_bytes(tensors, format=STATE)


def load_state(model: nn.Module, blob: bytes) -> nn.Module:
    """Give a client's model the server's tensors."""
    try:
        model.load_state_dict(tensors_from_bytes(blob, format=STATE)[1])
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"this client's model does not take the server's tensors ({reason}).") from error
    return model


# --- statistics -------------------------------------------------------------------------------------------------------


def expected(model: nn.Module, example: Inputs, head: str, request: Request) -> ClassStatistics:
    """What an honest client's statistics are like, from inputs [B, …] on which the features are finite."""
    weight = model.get_submodule(head).weight
    assert isinstance(weight, Tensor)
    cheap = request.kind if request.projection is not None else "means"  # a user's own kind may cost much memory
    labels = torch.zeros(num_rows(example), dtype=torch.int64)
    asked = replace(request, kind=cheap, min_count=0)
    found = collect_request(model, [(example, labels)], len(weight), asked, head=head)
    return ClassStatistics.zeros(  # of no samples: the example need not have the magnitudes of the clients' inputs
        found.num_classes,
        found.num_features,
        kind=request.kind,
        source=found.source,
        projection=found.projection,
    )


def ask_statistics(
    federation: Federation, state: bytes, request: Request, like: ClassStatistics, owned: Owned, **settings: str
) -> Iterator[ClassStatistics]:
    """The statistics of each client that has samples, as they come.

    Those that are not ``like`` are refused, and those of more samples than are ``owned``.
    """
    asked = replace(request, taps=like.source.taps)
    blobs = {"state": state, "request": asked.to_bytes()}
    content = pack(blobs, head=like.source.head, num_classes=like.num_classes, **settings)

    def read(client: int, answer: RecordDict) -> ClassStatistics | None:
        if setting_of(answer, "empty", bool, False):
            federation.without_samples.add(client)
            return None
        found = ClassStatistics.from_bytes(blob_of(answer, "statistics"), like=like)
        like.require_alike(found)
        if (found.clients > 1).any():
            raise FederationError("its statistics are of several clients, and it is one.")
        _require_owned(found.count, owned[client])
        left = min(int(owned[client].sum() - found.count.sum()), MAX_COUNT)
        if found.withheld > left:
            raise FederationError(f"it withholds {int(found.withheld):,} samples and has at most {left:,} more.")
        if not found.count.any():
            federation.without_samples.add(client)
        return found

    answers = federation.ask(
        f"the query for {request.kind} statistics",
        f"query.{STATISTICS}",
        dict.fromkeys(federation.nodes, content),
        read,
        at_once=max(2, ROOM // _most_bytes(request.kind, like.num_features, owned)),
    )
    return (answer for answer in answers if answer is not None)


def _most_bytes(kind: str, num_features: int, owned: Owned) -> int:
    """The bytes of the largest client."""
    return max((payload_bytes(kind, counts, num_features) for counts in owned.values()), default=0) or 1


def _require_owned(count: Tensor, owned: Tensor) -> None:
    """Refuse counts above what the client can have: counts are weights in every average."""
    for label in (count > owned).nonzero().flatten().tolist()[:1]:
        raise FederationError(
            f"it counts {int(count[label]):,} samples of class {label} and has at most {int(owned[label]):,}."
        )


def trusts_server() -> bool:
    """Whether this machine imports code that is not ours where a server names it."""
    return os.environ.get("CCVR_TRUST") == "1"


def answer_statistics(
    model: nn.Module, batches: Batches, content: RecordDict, *, min_count: int = 0, trust: bool = False
) -> RecordDict:
    """A client's statistics of the server's model; it withholds what its own ``min_count`` or the server's says.

    A kind of statistics that is not ours is imported only with ``trust``.
    """
    load_state(model, blob_of(content, "state"))
    samples = iter(batches)
    first = next(samples, None)
    if first is None:
        return pack({}, empty=True)
    request = Request.from_bytes(blob_of(content, "request"))
    require_trust({"kind": request.kind}, "the server's question", trust, remedy=TRUST_REMEDY)
    statistics = collect_request(
        model,
        chain([first], samples),
        setting_of(content, "num_classes", int),
        replace(request, min_count=max(min_count, request.min_count)),
        head=setting_of(content, "head", str, ""),
    )
    return pack({"statistics": statistics.to_bytes()})


# --- moments of normalisation -----------------------------------------------------------------------------------------


def ask_moments(
    federation: Federation, contents: Mapping[int, RecordDict], one: Tensors, owned: Mapping[int, int], *, round: int
) -> Iterator[Tensors]:
    """The sums of each client for batch normalisation, in the order of ``contents``.

    ``one`` are those of a single sample; sums of other layers, or of more samples than are ``owned``, are refused.
    """

    def read(client: int, answer: RecordDict) -> Tensors:
        try:
            _, sums = tensors_from_bytes(blob_of(answer, "moments"), format=SUMS)
        except UnreadableTensors as error:
            raise FederationError(f"these bytes are no moments ({error}).") from error
        require_sums(sums, one, owned[client])
        return sums

    return federation.ask(f"moments after round {round}", f"query.{MOMENTS}", contents, read, in_order=True)


def answer_moments(sums: Tensors) -> RecordDict:
    return pack({"moments": tensors_to_bytes(sums, format=SUMS)})


# --- scores -----------------------------------------------------------------------------------------------------------


def ask_scores(
    federation: Federation,
    state: bytes,
    path: str,
    heads: Mapping[str, Head],
    num_classes: int,
    owned: Owned,
    **settings: str,
) -> Iterator[dict[str, ClassCounts]]:
    """Each client's counts of every candidate head on its held-out part; more than are ``owned`` are refused."""
    blobs = {"state": state} | {f"head/{name}": head_bytes(head) for name, head in heads.items()}
    contents = dict.fromkeys(federation.nodes, pack(blobs, head=path, num_classes=num_classes, **settings))
    read = partial(_read_counts, set(heads), num_classes, owned)
    return federation.ask("the query for scores", f"query.{SCORES}", contents, read)


def ask_personal(
    federation: Federation, contents: Mapping[int, RecordDict], num_classes: int, owned: Owned
) -> Iterator[tuple[int, ClassCounts]]:
    """Each client, and the counts of its own model on the test set; more than are ``owned`` are refused."""

    def read(client: int, answer: RecordDict) -> tuple[int, ClassCounts]:
        return client, _read_counts({OWN}, num_classes, owned, client, answer)[OWN]

    return federation.ask("the query for personal scores", f"query.{PERSONAL}", contents, read)


def _read_counts(
    names: Set[str], num_classes: int, owned: Owned, client: int, answer: RecordDict
) -> dict[str, ClassCounts]:
    try:
        _, tensors = tensors_from_bytes(blob_of(answer, "counts"), format=COUNTS)
        found = [name.removeprefix("total/") for name in tensors if name.startswith("total/")]
        counts = {name: ClassCounts(tensors[f"correct/{name}"], tensors[f"total/{name}"]) for name in found}
    except (UnreadableTensors, KeyError) as error:
        raise FederationError(f"these bytes are not counts ({error}).") from error
    require_valid_counts(names, counts, client)
    wrong = [name for name in names if counts[name].total.shape != (num_classes,)]
    if wrong or counts.keys() != names:
        raise FederationError(f"counts of {', '.join(sorted(counts))}, which is not what was asked for.")
    for each in counts.values():
        _require_owned(each.total, owned[client])
    return counts


def answer_scores(model: nn.Module, batches: Batches, content: RecordDict, *, min_count: int = 0) -> RecordDict:
    """A client's counts on its held-out part, zeros where it has none or fewer than ``min_count`` of a class."""
    load_state(model, blob_of(content, "state"))
    path, num_classes = setting_of(content, "head", str, ""), setting_of(content, "num_classes", int)
    names = [name for name in content.array_records.get(BLOBS, ()) if name.startswith("head/")]
    heads = {name.removeprefix("head/"): head_from_bytes(blob_of(content, name)).eval() for name in names}
    for label, head in heads.items():
        if len(head.weight) != num_classes:
            raise ModelError(f'the head "{label}" scores {len(head.weight)} classes; {num_classes} were asked for.')
    counts = {label: ClassCounts.zeros(num_classes) for label in heads}
    layers = {head.taps for head in heads.values()}
    with buffers_kept(model):
        for taps, batch in ((taps, batch) for batch in batches for taps in layers):
            for z, y in read_features(model, [batch], path, taps):  # a model may return more than its head's scores
                for label, head in heads.items():
                    if head.taps == taps:
                        counts[label] += count(outputs_of(head, z.to(head.weight.dtype)).detach(), y)
    return counts_answer(counts, min_count=min_count)


def counts_answer(counts: Mapping[str, ClassCounts], *, min_count: int = 0) -> RecordDict:
    """Counts by name, zeros of classes with fewer than ``min_count`` samples."""
    tensors: Tensors = {}
    for label, each in counts.items():
        kept = each.total >= min_count
        tensors |= {f"correct/{label}": each.correct * kept, f"total/{label}": each.total * kept}
    return pack({"counts": tensors_to_bytes(tensors, format=COUNTS)})
