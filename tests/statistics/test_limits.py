"""What no samples have is refused, and what a part may claim is bounded."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import tensors_from_bytes, with_checksum
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.limits import FACTOR, MAX_CLIENTS, MAX_COUNT
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source
from ccvr.statistics.wire import FORMAT

D = 32
PROJECTION = Projection(torch.zeros(3).double(), torch.ones(3).double(), D, 0.5, 7)


def client(kind: str = "full", number: int = 8, seed: int = 0, transform: str = "none") -> ClassStatistics:
    z = torch.randn(number, D, generator=torch.Generator().manual_seed(seed)).abs()
    source, projection = Source("abc", "fc", transform=transform), None
    if kind == "kernel":
        projection, source, z = PROJECTION, replace(source, projection=PROJECTION.digest), z.cos()
    y = torch.arange(number) // 8  # eight samples of each class
    return statistics_of(z, y, 3, kind=kind, source=source, projection=projection)


def forged(sent: ClassStatistics, **tensors: Tensor) -> bytes:
    header, own = tensors_from_bytes(sent.to_bytes(dtype=torch.float64), format=FORMAT)
    assert own.keys() | {"clients"} >= tensors.keys()
    del header["checksum"]
    return with_checksum(own | tensors, **header)


def multiple_of_identity(size: float) -> ClassStatistics:
    """One class of 8 samples with scatter size · I [32, 32], which 8 samples cannot have."""
    second = size * torch.eye(D).double().unsqueeze(0).repeat(3, 1, 1)
    sums = torch.tensor([8, 0, 0]), torch.zeros(3, D).double(), second, torch.tensor([1, 0, 0]), torch.tensor(0)
    return ClassStatistics.of_sums("full", Source("abc", "fc"), *sums)


def test_a_scatter_of_more_directions_than_samples_cannot_be_said():
    """Of 10⁶ · I in 32 dimensions 8 samples span 7."""
    read = ClassStatistics.from_bytes(multiple_of_identity(1e6).to_bytes(dtype=torch.float64))
    values = torch.linalg.eigvalsh(read.scatter(0))
    assert int((values > 1e-6 * values.max()).sum()) == 7


def test_a_scatter_of_two_samples_is_one_direction_of_what_features_reach():
    factor = torch.full((D,), 1e9).double()
    sent = statistics_of(torch.eye(2, D), torch.zeros(2).long(), 3, source=Source("abc", "fc"))
    with pytest.raises(StatisticsError, match=r"the root mean square of a feature is 7\.07e\+08; the most is 1e\+06"):
        ClassStatistics.from_bytes(forged(sent, factor=factor))


@pytest.mark.parametrize("mean", [1e9, -1e9, 1.1e6])
def test_means_that_no_features_have(mean):
    with pytest.raises(StatisticsError, match=r"a mean is as large as 1.*; the most is 1e\+06"):
        ClassStatistics.from_bytes(forged(client(), mean=torch.full((1, D), mean).double()))


@pytest.mark.parametrize("mean", [1.01, -1.01, 10.0])
def test_cosines_have_means_from_minus_one_to_one(mean):
    with pytest.raises(StatisticsError, match=r"no cosine is above 1|no such feature is below -1"):
        ClassStatistics.from_bytes(forged(client("kernel"), mean=torch.full((1, D), mean).double()))


def test_cosines_spread_no_further_than_one():
    """Means of 0.9 leave room for a spread of 0.19 n."""
    sent = client("kernel", number=16)
    blob = forged(sent, mean=torch.full((2, D), 0.9).double())
    factor = tensors_from_bytes(blob, format=FORMAT)[1]["factor"] * 0
    ClassStatistics.from_bytes(forged(sent, mean=torch.full((2, D), 0.9).double(), factor=factor))
    factor[0] = (0.3 * 16) ** 0.5
    with pytest.raises(StatisticsError, match=r"the root mean square of a feature is 1\.\d+; the most is 1"):
        ClassStatistics.from_bytes(forged(sent, mean=torch.full((2, D), 0.9).double(), factor=factor))


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal", "means"])
def test_features_of_tukey_are_not_negative(kind):
    sent = client(kind, transform="tukey:0.5")
    mean = sent.mean[:1].clone()
    assert ClassStatistics.from_bytes(forged(sent, mean=mean)).count[0] == 8
    mean[0, 3] = -0.01
    with pytest.raises(StatisticsError, match=r"a mean is -0\.01, and no such feature is below 0"):
        ClassStatistics.from_bytes(forged(sent, mean=mean))


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal"])
def test_features_that_are_not_negative_spread_no_further_than_their_sum(kind):
    sent = client(kind, transform="tukey:0.5")
    with pytest.raises(StatisticsError, match="features that are not below 0 spread further than their sums allow"):
        ClassStatistics.from_bytes(forged(sent, mean=1e-3 * sent.mean[:1]))
    one = torch.zeros(8, D)
    one[0] = 1  # the furthest that they can: all of a sum in one sample
    edge = statistics_of(one, torch.zeros(8).long(), 3, kind=kind, source=sent.source)
    assert ClassStatistics.from_bytes(edge.to_bytes()).count[0] == 8


# --- what the server expects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal", "means", "kernel"])
def test_honest_clients_are_like_the_server(kind):
    like = client(kind, seed=1)
    assert merge([client(kind, seed=k).to_bytes() for k in range(2, 6)], like=like).clients[0] == 4


@pytest.mark.parametrize("kind", ["full", "diagonal", "means"])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_means_far_beyond_the_servers_are_refused(kind, as_bytes):
    like = client(kind, seed=1)
    norm = float(like.second_moments().sum(1).max().sqrt())
    mean = torch.zeros(1, D).double()
    for factor, allowed in ((0.99, True), (1.01, False)):
        mean[0, 0] = factor * FACTOR * float(like.second_moments().max().sqrt())
        blob = forged(client(kind), mean=mean)
        part = blob if as_bytes else ClassStatistics.from_bytes(blob)
        if allowed and kind == "means":
            assert merge([part], like=like).mean.norm() <= FACTOR * norm
        if not allowed:
            with pytest.raises(StatisticsError, match="the server's own statistics show at most"):
                merge([part], like=like)


def test_spreads_far_beyond_the_servers_are_refused():
    sent, like = client(), client(seed=1)
    factor = tensors_from_bytes(sent.to_bytes(dtype=torch.float64), format=FORMAT)[1]["factor"]
    with pytest.raises(StatisticsError, match=r"the root mean square of a feature is .* 10 times that is allowed"):
        merge([forged(sent, factor=20 * factor)], like=like)
    assert merge([forged(sent, factor=20 * factor)]).count[0] == 8, "without them nobody knows"


def test_expectations_without_samples_bound_nothing():
    like = ClassStatistics.zeros(3, D, source=Source("abc", "fc"))
    assert merge([forged(client(), mean=torch.full((1, D), 1e5).double())], like=like).count[0] == 8


# --- counts -----------------------------------------------------------------------------------------------------------


def claiming(count: int, clients: int = 1) -> ClassStatistics:
    own = client("means")
    return replace(own, count=torch.tensor([count, 0, 0]), clients=torch.tensor([clients, 0, 0]))


def test_a_client_is_one_client():
    blob = claiming(10**15, MAX_CLIENTS).to_bytes()
    with pytest.raises(StatisticsError) as refused:
        merge([blob])
    assert str(refused.value) == (
        "a part is of 1,000,000 clients; the most is 1. "
        "Leave it out, or raise max_clients where servers send what they merged."
    )
    merged = merge([client(seed=k) for k in range(3)])
    assert merge([merged, merged]).clients[0] == 6, "statistics of this process are the caller's own"
    assert merge([merged.to_bytes()] * 2, max_clients=3).clients[0] == 6
    with pytest.raises(StatisticsError, match="a part is of 3 clients; the most is 2"):
        merge([merged], max_clients=2)


@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_part_may_claim_so_many_samples(as_bytes):
    part = client().to_bytes() if as_bytes else client()
    assert merge([part], max_count=8).count[0] == 8
    with pytest.raises(StatisticsError) as refused:
        merge([part], max_count=7)
    assert str(refused.value) == (
        "a part counts 8 samples of class 0; the most is 7. Leave it out, or raise max_count."
    )


def test_sums_do_not_overflow():
    """9,300 parts of 10¹⁵ samples would be a negative number."""
    total = claiming(MAX_COUNT * MAX_CLIENTS, 1000)
    before = total.copy()
    with pytest.raises(StatisticsError, match="the sum would be of more than 1,000,000,000,000,000 samples of a class"):
        total.add_(claiming(1))
    assert torch.equal(total.count, before.count)
    assert torch.equal(total.clients, before.clients)
    with pytest.raises(StatisticsError, match="the sum would be of more than 1,000,000 clients of a class"):
        claiming(MAX_CLIENTS, MAX_CLIENTS).add_(claiming(1))
    withheld = replace(client(), withheld=torch.tensor(MAX_COUNT * MAX_CLIENTS))
    with pytest.raises(StatisticsError, match="samples withheld"):
        withheld.add_(replace(client(), withheld=torch.tensor(1)))
    least = claiming(-(2**63))
    with pytest.raises(StatisticsError, match="samples of a class"):
        least.add_(claiming(0))


def test_what_is_refused_leaves_the_sum_as_it_was():
    good = client()
    reasons: list[StatisticsError] = []
    parts = [good, (good + good).to_bytes(), client("diagonal"), good.to_bytes()]
    merged = merge(parts, refused=reasons.append)
    assert merged.count[0] == 16
    assert [str(reason)[:20] for reason in reasons] == ["a part is of 2 clien", "statistics with kind"]
