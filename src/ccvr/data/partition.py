"""Which client owns which training sample."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ccvr.core.arrays import IntArray
from ccvr.core.errors import PartitionError
from ccvr.core.seeds import stream
from ccvr.core.tables import Table
from ccvr.data.spec import PartitionSpec

Partitioner = Callable[..., list[IntArray]]
MAX_DRAWS = 1000


@dataclass(frozen=True)
class Partition:
    """Client k owns the samples ``shards[k]``; every index belongs to at most one client."""

    shards: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.shards)

    def label_counts(self, labels: IntArray, num_classes: int) -> IntArray:
        """Samples of each client and class, [K, C]."""
        return np.stack([np.bincount(labels[shard], minlength=num_classes) for shard in self.shards]).astype(np.int64)


def iid(labels: IntArray, spec: PartitionSpec, *, rng: np.random.Generator) -> list[IntArray]:
    """Shuffle, then deal out equal parts."""
    return np.array_split(rng.permutation(len(labels)), spec.num_clients)


def dirichlet(labels: IntArray, spec: PartitionSpec, *, rng: np.random.Generator) -> list[IntArray]:
    """Per class c draw p ~ Dir_K(alpha) and give client k the share p_k of its samples (Luo et al. 2021, 5.1).

    Drawn anew, as a whole, until every client has ``min_size`` samples.
    """
    for _ in range(MAX_DRAWS):
        shards = _draw_dirichlet(labels, spec, rng=rng)
        sizes = np.array([len(shard) for shard in shards])
        if sizes.min() >= spec.min_size:
            return shards
    raise PartitionError(
        f"dirichlet(alpha={spec.alpha}) left client {sizes.argmin()} with {sizes.min()} samples after {MAX_DRAWS} "
        f"draws; min_size is {spec.min_size}. Raise alpha, lower min_size, or use fewer clients."
    )


def _draw_dirichlet(labels: IntArray, spec: PartitionSpec, *, rng: np.random.Generator) -> list[IntArray]:
    parts: list[list[IntArray]] = [[] for _ in range(spec.num_clients)]
    for label in np.unique(labels):
        owned = rng.permutation(np.flatnonzero(labels == label))
        sizes = np.array([sum(map(len, part)) for part in parts])
        # To leave out full clients and scale the other shares up is to draw among those others: Dirichlet's neutrality.
        takers = np.flatnonzero(sizes * spec.num_clients < (len(labels) if spec.balance else np.inf))
        shares = rng.dirichlet(np.full(len(takers), spec.alpha))
        cuts = (np.cumsum(shares)[:-1] * len(owned)).astype(np.int64)
        for client, piece in zip(takers, np.split(owned, cuts), strict=True):
            parts[client].append(piece)
    return [np.concatenate(part) for part in parts]


def shards(labels: IntArray, spec: PartitionSpec, *, rng: np.random.Generator) -> list[IntArray]:
    """Give each client ``classes_per_client`` classes and split every class evenly among its owners.

    Clients choose in turn from the classes with the fewest owners, so no class is left over.
    """
    classes = np.unique(labels)
    wanted, slots = spec.classes_per_client, spec.classes_per_client * spec.num_clients
    if wanted > len(classes) or slots < len(classes):
        raise PartitionError(
            f"shards cannot give {spec.num_clients} clients {wanted} of {len(classes)} classes each and use all. "
            f"Choose partition.classes_per_client from {-(-len(classes) // spec.num_clients)} to {len(classes)}."
        )
    owners: list[list[int]] = [[] for _ in classes]
    for client in range(spec.num_clients):
        fewest_first = np.lexsort((rng.random(len(classes)), np.array([len(clients) for clients in owners])))
        for index in fewest_first[:wanted]:
            owners[index].append(client)
    parts: list[list[IntArray]] = [[] for _ in range(spec.num_clients)]
    for label, clients in zip(classes, owners, strict=True):
        owned = rng.permutation(np.flatnonzero(labels == label))
        if len(owned) < len(clients):
            raise PartitionError(
                f"shards has {len(clients)} owners for class {label}, which has {len(owned)} samples. "
                "Lower partition.classes_per_client or partition.num_clients."
            )
        for client, piece in zip(clients, np.array_split(owned, len(clients)), strict=True):
            parts[client].append(piece)
    return [np.concatenate(part) for part in parts]


PARTITIONERS: Table[Partitioner] = Table("partition", {"iid": iid, "dirichlet": dirichlet, "shards": shards})


def draw_partition(labels: IntArray, spec: PartitionSpec) -> Partition:
    """The partition that a spec names, checked: sorted shards, each index once, no client below ``min_size``."""
    if spec.num_clients * spec.min_size > len(labels):
        raise PartitionError(
            f"{spec.num_clients} clients of at least {spec.min_size} samples need {spec.num_clients * spec.min_size}; "
            f"there are {len(labels)}. Lower partition.min_size or partition.num_clients."
        )
    drawn = PARTITIONERS[spec.kind](labels, spec, rng=stream(spec.seed, "partition"))
    if not isinstance(drawn, list | tuple) or not all(_are_indices(shard) for shard in drawn):
        raise PartitionError(f'partition "{spec.kind}" must return a list with one array of whole numbers per client.')
    checked = tuple(np.sort(np.asarray(shard, dtype=np.int64)) for shard in drawn)
    _require_a_partition(checked, len(labels), spec)
    return Partition(checked)


def _are_indices(shard: object) -> bool:
    array = np.asarray(shard)
    return array.ndim == 1 and (not array.size or np.issubdtype(array.dtype, np.integer))


def _require_a_partition(drawn: tuple[IntArray, ...], num_samples: int, spec: PartitionSpec) -> None:
    if len(drawn) != spec.num_clients:
        wanted = spec.num_clients
        raise PartitionError(f'partition "{spec.kind}" made {len(drawn)} clients; partition.num_clients is {wanted}.')
    sizes = [len(shard) for shard in drawn]
    if min(sizes) < spec.min_size:
        raise PartitionError(
            f'partition "{spec.kind}" left client {int(np.argmin(sizes))} with {min(sizes)} samples; '
            f"partition.min_size is {spec.min_size}. Lower it, or use fewer clients."
        )
    indices = np.concatenate(drawn)
    if len(np.unique(indices)) != len(indices) or indices.min() < 0 or indices.max() >= num_samples:
        raise PartitionError(f'partition "{spec.kind}" gave a sample to two clients, or one that does not exist.')


def draw_among(owned: IntArray, labels: IntArray, spec: PartitionSpec) -> Partition:
    """A partition of the samples ``owned`` alone, by their indices among all."""
    return Partition(tuple(owned[shard] for shard in draw_partition(labels[owned], spec).shards))


def set_aside(
    owned: IntArray, labels: IntArray, fraction: float, *, seed: int, purpose: str
) -> tuple[IntArray, IntArray]:
    """The samples ``owned`` without ``fraction`` of them, and that part, to which each class gives its share."""
    (rest,), (aside,) = (
        part.shards for part in hold_out(Partition((owned,)), labels, fraction, seed=seed, purpose=purpose)
    )
    return rest, aside


def hold_out(
    partition: Partition, labels: IntArray, fraction: float, *, seed: int, purpose: str = "validation"
) -> tuple[Partition, Partition]:
    """Split each client's samples into a part that stays and ``fraction`` of them, rounded down, held out.

    Stratified: each class gives its share, rounded so that the client's total is right; every client keeps a sample.
    """
    kept, held = [], []
    for client, shard in enumerate(partition.shards):
        rng = stream(seed, purpose, client=client)
        classes, sizes = np.unique(labels[shard], return_counts=True)
        out = [np.empty(0, np.int64)]
        for label, number in zip(classes, _shares(sizes, int(fraction * len(shard))), strict=True):
            out.append(rng.permutation(shard[labels[shard] == label])[:number])
        held.append(np.sort(np.concatenate(out)))
        kept.append(np.setdiff1d(shard, held[-1]))
    return Partition(tuple(kept)), Partition(tuple(held))


def _shares(sizes: IntArray, total: int) -> IntArray:
    """``total`` in proportion to ``sizes``: rounded down, the rest to the largest remainders."""
    exact = sizes * (total / max(sizes.sum(), 1))
    shares: IntArray = exact.astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return shares
