"""Arguments of merge that cannot be, and parts that claim what shuts out others."""

import pytest
import torch

import ccvr
from ccvr.core.errors import CcvrError
from ccvr.statistics.limits import MAX_COUNT

CLASSES, WIDTH = 3, 5


def part(n=20, seed=0):
    z = torch.randn(CLASSES * n, WIDTH, generator=torch.Generator().manual_seed(seed))
    return ccvr.statistics_of(z, torch.arange(CLASSES).repeat_interleave(n), CLASSES)


@pytest.mark.parametrize("name", ["max_count", "max_clients"])
@pytest.mark.parametrize("value", [float("nan"), 2.5, "5", True, 0, -5, [1], 10**30])
def test_a_limit_that_cannot_be_is_refused_before_a_part_is_read(name, value):
    def parts():
        raise AssertionError("no part is read")
        yield

    with pytest.raises(CcvrError, match=f"^{name} is "):
        ccvr.merge(parts(), **{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((None,), {}), "the parts are a NoneType"),
        (((3,), {}), "the parts are a int"),
        ((([part()],), {"like": b"1"}), "like is a bytes"),
        ((([part()],), {"like": "x"}), "like is a str"),
    ],
)
def test_arguments_of_other_types_are_one_line(given, message):
    with pytest.raises(CcvrError, match=message):
        ccvr.merge(*given[0], **given[1])


def test_a_client_that_claims_to_withhold_much_shuts_nobody_out():
    liar = part()
    liar.withheld.fill_(MAX_COUNT + 1)
    with pytest.raises(CcvrError, match="samples withheld"):
        ccvr.ClassStatistics.from_bytes(liar.to_bytes())
    liar.withheld.fill_(MAX_COUNT)
    honest = part(seed=1)
    honest.withheld.fill_(7)
    total = ccvr.merge([liar.to_bytes(), honest.to_bytes(), honest.to_bytes()])
    assert int(total.withheld) == MAX_COUNT + 14


@pytest.mark.parametrize("kind", ["pooled", "diagonal"])
def test_adding_to_a_smaller_kind_leaves_the_larger_one_as_it_was(kind):
    whole, more = part(), part(seed=1)
    before = whole.to_bytes()
    smaller = whole.as_kind(kind)
    smaller.add_(more.as_kind(kind))
    assert whole.to_bytes() == before
    assert int(smaller.count.sum()) == 2 * int(whole.count.sum())


def test_merging_leaves_the_parts_as_they_were():
    parts = [part(seed=seed) for seed in range(3)]
    before = [each.to_bytes() for each in parts]
    ccvr.merge(parts)
    assert [each.to_bytes() for each in parts] == before


def test_merging_bytes_under_another_default_device():
    parts = [part(seed=seed).to_bytes() for seed in range(2)]
    with torch.device("meta"):
        found = ccvr.merge(parts)
    assert found.to_bytes() == ccvr.merge(parts).to_bytes()
