"""Who owns which image: every index once, by the rule that was asked for, the same for the same seed."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ccvr.core.errors import PartitionError, SpecError, UnknownName
from ccvr.data.partition import PARTITIONERS, Partition, _draw_dirichlet, dirichlet, draw_partition, hold_out
from ccvr.data.spec import DataSpec, PartitionSpec

laws = settings(deadline=None)
EASY = {"alpha": 1.0, "min_size": 1}


def balanced(num_images: int, num_classes: int = 10) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(num_images) % num_classes)


def message_of(error: type[Exception], call) -> str:
    with pytest.raises(error) as refused:
        call()
    return str(refused.value)


# --- every row of the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PARTITIONERS)
@laws
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    num_clients=st.integers(1, 8),
    classes_per_client=st.integers(1, 6),
    alpha=st.floats(0.3, 100),
    seed=st.integers(0, 2**31),
)
def test_every_index_is_owned_exactly_once(kind, counts, num_clients, classes_per_client, alpha, seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)) * 3, counts))  # labels with gaps
    spec = PartitionSpec(kind, num_clients, alpha, classes_per_client, min_size=1, seed=seed)
    try:
        partition = draw_partition(labels, spec)
    except PartitionError:
        assume(False)
    assert len(partition) == num_clients
    assert sorted(np.concatenate(partition.shards).tolist()) == list(range(len(labels)))
    for shard in partition.shards:
        assert shard.dtype == np.int64
        assert len(shard) >= 1
        assert (np.diff(shard) > 0).all(), "sorted"


@pytest.mark.parametrize("kind", PARTITIONERS)
def test_the_seed_alone_decides(kind):
    labels = balanced(400)
    spec = PartitionSpec(kind, num_clients=10, **EASY, seed=1)
    np.random.seed(5)  # noqa: NPY002 — the global generator must not matter
    first = draw_partition(labels, spec)
    np.random.seed(6)  # noqa: NPY002
    again, other = draw_partition(labels, spec), draw_partition(labels, replace(spec, seed=2))
    assert all(np.array_equal(a, b) for a, b in zip(first.shards, again.shards, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.shards, other.shards, strict=True))


@pytest.mark.parametrize("kind", PARTITIONERS)
def test_too_many_clients_for_the_images(kind):
    message = message_of(PartitionError, lambda: draw_partition(balanced(99), PartitionSpec(kind)))
    assert message == (
        "10 clients of at least 10 samples need 100; there are 99. Lower partition.min_size or partition.num_clients."
    )


# --- iid --------------------------------------------------------------------------------------------------------------


@laws
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 99))
def test_iid_sizes_differ_by_one_at_most(num_images, num_clients, seed):
    assume(num_images >= num_clients)
    partition = draw_partition(balanced(num_images), PartitionSpec("iid", num_clients, min_size=1, seed=seed))
    sizes = [len(shard) for shard in partition.shards]
    assert max(sizes) - min(sizes) <= 1


def test_iid_clients_look_alike():
    labels = np.sort(balanced(20_000))
    counts = draw_partition(labels, PartitionSpec("iid", num_clients=4)).label_counts(labels, 10)
    # 500 of each class expected, hypergeometric standard deviation below √(500 · 0.75) ≈ 19; 5 of them on 40 numbers.
    assert np.abs(counts - 500).max() < 97


# --- dirichlet --------------------------------------------------------------------------------------------------------


def plain_shares(alpha: float, num_clients: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Dir_K(alpha) by its definition: K gamma variables, divided by their sum. [draws, K]"""
    gamma = rng.gamma(alpha, size=(draws, num_clients))
    return gamma / gamma.sum(1, keepdims=True)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_shares_have_the_distribution_of_the_paper(alpha):
    """Share of client k in a class: mean 1/K, variance (K − 1) / (K² (K alpha + 1)), and the quantiles of Dir_K."""
    num_clients, num_classes, per_class, draws = 5, 40, 500, 25
    labels = np.arange(num_classes * per_class) % num_classes
    found = []
    for seed in range(draws):
        spec = PartitionSpec("dirichlet", num_clients, alpha, min_size=1, seed=seed)
        parts = dirichlet(labels, spec, rng=np.random.default_rng(seed))
        found.append(Partition(tuple(parts)).label_counts(labels, num_classes).T / per_class)
    shares = np.concatenate(found)  # [1000, K], one row a class
    n = len(shares)
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    assert np.abs(shares.mean(0) - 1 / num_clients).max() < 5 * math.sqrt(variance / n)
    plain = plain_shares(alpha, num_clients, 20_000, np.random.default_rng(1))
    spread = ((plain - 1 / num_clients) ** 2).std() / math.sqrt(n)  # standard error of a variance of n shares
    assert np.abs(shares.var(0) - variance).max() < 5 * spread + 1 / per_class
    # Kolmogorov's distance of two samples, 1.95 √(1/n + 1/m) at one in a thousand, and 1/500 for whole images.
    grid = np.linspace(0, 1, 101)
    for k in range(num_clients):
        ours, theirs = (
            np.searchsorted(np.sort(x[:, k]), grid + 1 / per_class, "right") / len(x) for x in (shares, plain)
        )
        jump = np.searchsorted(np.sort(plain[:, k]), grid + 2 / per_class, "right") / len(plain) - theirs
        assert (np.abs(ours - theirs) < 1.95 * math.sqrt(1 / n + 1 / len(plain)) + jump + 0.01).all()


def test_dirichlet_classes_are_drawn_independently_and_images_at_random():
    labels = np.arange(4000) % 2
    parts = dirichlet(labels, PartitionSpec(num_clients=2, alpha=1, min_size=1), rng=np.random.default_rng(8))
    counts = Partition(tuple(parts)).label_counts(labels, 2)
    assert counts[0, 0] != counts[0, 1]
    own = np.sort(parts[0][labels[parts[0]] == 0])
    assert (np.diff(own) > 2).any(), "not one run of neighbours"


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.5])
def test_the_paper_s_ten_clients(alpha):
    labels = balanced(50_000)
    counts = draw_partition(labels, PartitionSpec(alpha=alpha)).label_counts(labels, 10)
    assert counts.sum() == 50_000
    assert counts.sum(1).min() >= 10
    # How uneven: Σ_k p² has the mean (alpha + 1) / (K alpha + 1): 0.70, 0.55, 0.25.
    concentration = ((counts / 5000) ** 2).sum(0).mean()
    assert abs(concentration - (alpha + 1) / (10 * alpha + 1)) < 0.2


def test_a_hundred_clients_at_alpha_a_tenth():
    labels = balanced(50_000)
    for seed in range(3):
        partition = draw_partition(labels, PartitionSpec(num_clients=100, alpha=0.1, seed=seed))
        assert len(partition) == 100
        assert min(map(len, partition.shards)) >= 10


@laws
@given(st.integers(2, 12), st.floats(0.05, 2), st.integers(0, 2**31))
def test_balance_gives_a_full_client_no_further_class(num_clients, alpha, seed):
    """Classes go from the first to the last: whoever has N/K images before a class gets none of it."""
    labels = balanced(600)
    spec = PartitionSpec(num_clients=num_clients, alpha=alpha, balance=True, min_size=1, seed=seed)
    try:
        counts = draw_partition(labels, spec).label_counts(labels, 10)
    except PartitionError:
        assume(False)
    before = np.cumsum(counts, axis=1) - counts
    assert (counts[before * num_clients >= len(labels)] == 0).all()
    assert counts.sum() == len(labels)
    assert counts.sum(1).max() <= len(labels) // num_clients + 60, "at most one class above the even share"


def test_balance_draws_as_codes_do_that_cut_off_full_clients_and_rescale():
    """One class is dealt out already and client 0 is full: the others' shares are Dir_K's, scaled to sum to 1."""
    num_clients, alpha, per_class = 3, 0.5, 300
    labels = np.repeat([0, 1], [per_class, per_class])
    plain = plain_shares(alpha, num_clients, 40_000, np.random.default_rng(1))
    found = []
    for seed in range(2000):
        spec = PartitionSpec(num_clients=num_clients, alpha=alpha, balance=True, min_size=1)
        parts = _draw_dirichlet(labels, spec, rng=np.random.default_rng(seed))
        counts = Partition(tuple(parts)).label_counts(labels, 2)
        if counts[0, 0] >= 200 > counts[1:, 0].max():
            found.append(counts[1, 1] / per_class)
    rescaled = plain[:, 1] / (plain[:, 1] + plain[:, 2])
    expected = np.quantile(rescaled, np.linspace(0.1, 0.9, 9))
    ours = np.searchsorted(np.sort(found), expected) / len(found)
    # Kolmogorov: 1.95/√n at one in a thousand.
    assert np.abs(ours - np.linspace(0.1, 0.9, 9)).max() < 1.95 / math.sqrt(len(found)) + 0.02


def test_without_balance_nothing_changes():
    """The owners of runs that were made before there was a choice."""
    labels = balanced(1000)
    counts = draw_partition(labels, PartitionSpec(alpha=0.5)).label_counts(labels, 10)
    assert counts.sum(1).tolist() == [107, 84, 65, 153, 108, 84, 78, 72, 120, 129]


def test_dirichlet_gives_up_and_says_which_knob_to_turn():
    spec = PartitionSpec(num_clients=8, alpha=0.01, min_size=5)
    message = message_of(PartitionError, lambda: draw_partition(np.arange(64) % 2, spec))
    assert re.sub(r"client \d ", "client K ", message) == (
        "dirichlet(alpha=0.01) left client K with 0 samples after 1000 draws; min_size is 5. "
        "Raise alpha, lower min_size, or use fewer clients."
    )


# --- shards -----------------------------------------------------------------------------------------------------------


@laws
@given(
    num_classes=st.integers(1, 12),
    num_clients=st.integers(1, 15),
    wanted=st.integers(1, 12),
    seed=st.integers(0, 999),
)
def test_shards_give_each_client_its_number_of_classes(num_classes, num_clients, wanted, seed):
    assume(wanted <= num_classes <= wanted * num_clients)
    labels = balanced(30 * num_classes, num_classes)
    spec = PartitionSpec("shards", num_clients, classes_per_client=wanted, min_size=1, seed=seed)
    counts = draw_partition(labels, spec).label_counts(labels, num_classes)
    assert ((counts > 0).sum(1) == wanted).all(), "exactly that many classes"
    owners = (counts > 0).sum(0)
    assert owners.min() >= 1, "every class is used"
    assert owners.max() - owners.min() <= 1, "classes have the same number of owners, up to one"
    for column in counts.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1, "owners share a class evenly"


@pytest.mark.parametrize(
    ("num_clients", "wanted", "message"),
    [
        (
            4,
            11,
            "shards cannot give 4 clients 11 of 10 classes each and use all. "
            "Choose partition.classes_per_client from 3 to 10.",
        ),
        (
            4,
            2,
            "shards cannot give 4 clients 2 of 10 classes each and use all. "
            "Choose partition.classes_per_client from 3 to 10.",
        ),
    ],
)
def test_shards_that_cannot_be(num_clients, wanted, message):
    spec = PartitionSpec("shards", num_clients, classes_per_client=wanted)
    assert message_of(PartitionError, lambda: draw_partition(balanced(1000), spec)) == message
    for possible in (3, 10):
        draw_partition(balanced(1000), replace(spec, classes_per_client=possible))


def test_a_class_with_fewer_images_than_owners():
    labels = np.array([0] * 30 + [7] * 2)
    spec = PartitionSpec("shards", num_clients=3, classes_per_client=2, min_size=1)
    assert message_of(PartitionError, lambda: draw_partition(labels, spec)) == (
        "shards has 3 owners for class 7, which has 2 samples. "
        "Lower partition.classes_per_client or partition.num_clients."
    )


# --- a user's own -----------------------------------------------------------------------------------------------------

MODULE = """
import numpy as np

def halves(labels, spec, *, rng):
    return np.array_split(rng.permutation(len(labels)), 2)

def some(labels, spec, *, rng):
    return [[5, 3, 1], [2, 0]]

def twice(labels, spec, *, rng):
    return [np.arange(30), np.arange(29, 50)]

def twice_in_one(labels, spec, *, rng):
    return [np.array([0, 1, 1]), np.array([2, 3])]

def beyond(labels, spec, *, rng):
    return [np.arange(30), np.arange(31, len(labels) + 1)]

def below(labels, spec, *, rng):
    return [np.arange(-1, 30), np.arange(30, 50)]

def nothing(labels, spec, *, rng):
    return [[], []]

def one_empty(labels, spec, *, rng):
    return [np.arange(50), np.empty(0)]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_partitions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def draw(name: str, num_clients: int = 2) -> Partition:
        return draw_partition(np.zeros(50, np.int64), PartitionSpec(f"my_partitions:{name}", num_clients, min_size=1))

    return draw


def test_a_partition_of_the_user_s_own(own):
    assert sorted(np.concatenate(own("halves").shards).tolist()) == list(range(50))
    assert [shard.tolist() for shard in own("some").shards] == [[1, 3, 5], [0, 2]], "images may be left out"


@pytest.mark.parametrize(
    ("name", "num_clients", "message"),
    [
        ("halves", 3, 'partition "my_partitions:halves" made 2 clients; partition.num_clients is 3.'),
        ("twice", 2, 'partition "my_partitions:twice" gave a sample to two clients, or one that does not exist.'),
        (
            "twice_in_one",
            2,
            'partition "my_partitions:twice_in_one" gave a sample to two clients, or one that does not exist.',
        ),
        ("beyond", 2, 'partition "my_partitions:beyond" gave a sample to two clients, or one that does not exist.'),
        ("below", 2, 'partition "my_partitions:below" gave a sample to two clients, or one that does not exist.'),
        (
            "nothing",
            2,
            'partition "my_partitions:nothing" left client 0 with 0 samples; partition.min_size is 1. '
            "Lower it, or use fewer clients.",
        ),
        (
            "one_empty",
            2,
            'partition "my_partitions:one_empty" left client 1 with 0 samples; partition.min_size is 1. '
            "Lower it, or use fewer clients.",
        ),
    ],
)
def test_a_partition_that_breaks_the_rules_is_refused(own, name, num_clients, message):
    assert message_of(PartitionError, lambda: own(name, num_clients)) == message


def test_an_unknown_partition():
    message = message_of(UnknownName, lambda: draw_partition(balanced(100), PartitionSpec("dirichlett")))
    assert message == 'no partition "dirichlett". Did you mean "dirichlet"? Known: dirichlet, iid, shards.'


# --- what is held out, what is counted --------------------------------------------------------------------------------


@laws
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    fraction=st.sampled_from([0.0, 0.1, 0.15, 0.25, 0.5, 0.9, 0.999]),
    seed=st.integers(0, 999),
)
def test_hold_out_takes_a_part_of_each_client_and_class(sizes, fraction, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, sum(sizes))
    shards = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    partition = Partition(tuple(np.sort(shard) for shard in shards))
    kept, held = hold_out(partition, labels, fraction, seed=seed)
    before, out = partition.label_counts(labels, 3), held.label_counts(labels, 3)
    totals = [math.floor(fraction * n) for n in sizes]
    assert out.sum(1).tolist() == totals, "the part that was asked for, of every client"
    shares = before * (np.array(totals) / np.maximum(sizes, 1))[:, None]
    assert (np.abs(out - shares) < 1).all(), "each class gives its share"
    for whole, stays, goes in zip(partition.shards, kept.shards, held.shards, strict=True):
        assert sorted([*stays, *goes]) == whole.tolist(), "disjoint, and together what it was"
        assert (np.diff(stays) > 0).all()
        assert (np.diff(goes) > 0).all()
    again = hold_out(partition, labels, fraction, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(held.shards, again[1].shards, strict=True))


def test_hold_out_is_random_by_seed_and_by_client():
    labels = np.zeros(200, np.int64)
    partition = Partition((np.arange(100), np.arange(100, 200)))
    one, two = (hold_out(partition, labels, 0.15, seed=seed)[1].shards for seed in (1, 2))
    assert [len(shard) for shard in one] == [15, 15]
    assert not np.array_equal(one[0], two[0])
    assert not np.array_equal(one[0], one[1] - 100)


def test_hold_out_is_right_for_many_small_clients():
    labels = np.arange(1000) % 10
    partition = Partition(tuple(np.split(np.random.default_rng(0).permutation(1000), 50)))
    assert [len(shard) for shard in hold_out(partition, labels, 0.15, seed=0)[1].shards] == [3] * 50


@pytest.mark.parametrize(
    "drawn", [None, [np.array([0.7, 1.2])], [np.array([[0, 1]])]], ids=["none", "floats", "matrix"]
)
def test_a_partitioner_that_returns_no_indices(drawn, tmp_path, monkeypatch):
    module = f"draws_{type(drawn).__name__}_{np.ndim(drawn[0]) if drawn else 0}"
    (tmp_path / f"{module}.py").write_text(f"from numpy import array\ndef mine(labels, spec, *, rng): return {drawn!r}")
    monkeypatch.syspath_prepend(tmp_path)
    spec = PartitionSpec(kind=f"{module}:mine", num_clients=1, min_size=1)
    message = message_of(PartitionError, lambda: draw_partition(np.zeros(5, np.int64), spec))
    assert message == f'partition "{module}:mine" must return a list with one array of whole numbers per client.'


def test_hold_out_of_one_client_does_not_depend_on_the_others():
    labels = balanced(300)
    first, second, third = np.split(np.arange(300), 3)
    together = hold_out(Partition((first, second)), labels, 0.2, seed=3)[1]
    apart = hold_out(Partition((first, third)), labels, 0.2, seed=3)[1]
    assert np.array_equal(together.shards[0], apart.shards[0])


def test_label_counts():
    labels = np.array([0, 2, 2, 1, 0, 2])
    partition = Partition((np.array([0, 1, 2]), np.empty(0, np.int64), np.array([5, 4])))
    counts = partition.label_counts(labels, 4)
    assert counts.tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [1, 0, 1, 0]]
    assert counts.dtype == np.int64


# --- what a spec may say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_clients": 0}, "partition.num_clients is 0; give at least 1."),
        ({"classes_per_client": 0}, "partition.classes_per_client is 0; give at least 1."),
        ({"min_size": 0}, "partition.min_size is 0; give at least 1."),
        ({"alpha": 0.0}, "partition.alpha is 0.0; give a number above 0."),
        ({"alpha": float("nan")}, "partition.alpha is nan; give a number above 0."),
    ],
)
def test_impossible_partitions(fields, message):
    assert message_of(SpecError, lambda: PartitionSpec(**fields)) == message


@pytest.mark.parametrize("validation", [-0.1, 1.0, float("nan")])
def test_impossible_validation(validation):
    message = message_of(SpecError, lambda: DataSpec(validation=validation))
    assert message == f"data.validation is {validation}; give a fraction from 0 to below 1."
