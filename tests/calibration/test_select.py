"""ccvr.select: a head is chosen by counts that nobody trusts, and only where it wins by more than chance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ccvr
from ccvr.calibration.select import Selection
from ccvr.core.errors import CalibrationError

Counts = ccvr.ClassCounts
CANDIDATES = {"uncalibrated": "the old one", "ccvr": "the new one", "lda": "another"}


def counts(correct: list[int], total: list[int]) -> Counts:
    return Counts(torch.tensor(correct), torch.tensor(total))


def reply(total: list[int], **correct: list[int]) -> dict[str, Counts]:
    return {name: counts(right, total) for name, right in correct.items()}


def chosen(replies: list[dict[str, Counts]], **options: str) -> Selection[str]:
    candidates = {name: CANDIDATES[name] for name in replies[0]}
    return ccvr.select(candidates, replies, **options)


def plain_recall(correct: np.ndarray, total: np.ndarray) -> tuple[float, float]:
    """Percent: the mean over classes that have samples, and its standard error, class by class."""
    rates, variances = [], []
    for right, n in zip(correct.tolist(), total.tolist(), strict=True):
        if n:
            rates.append(right / n)
            inner = min(max(right / n, 1 / (n + 2)), (n + 1) / (n + 2))
            variances.append(inner * (1 - inner) / n)
    return 100 * sum(rates) / len(rates), 100 * math.sqrt(sum(variances)) / len(rates)


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_the_best_wins_where_it_wins_by_more_than_a_standard_error():
    found = chosen([reply([100, 100], uncalibrated=[50, 50], ccvr=[70, 60], lda=[60, 60])])
    assert (found.name, found.chosen) == ("ccvr", "the new one")
    assert found.recall == pytest.approx({"uncalibrated": 50, "ccvr": 65, "lda": 60})
    # √(0.7 · 0.3 / 100 + 0.6 · 0.4 / 100) / 2 = 0.0335
    assert found.error["ccvr"] == pytest.approx(3.3541, abs=1e-4)
    assert str(found) == "chosen: ccvr (uncalibrated: 50.00 ± 3.54 %; ccvr: 65.00 ± 3.35 %; lda: 60.00 ± 3.46 %)"


@pytest.mark.parametrize(("right", "name"), [(53, "uncalibrated"), (54, "ccvr")])
def test_a_win_within_a_standard_error_is_none(right, name):
    """50 of 100 in two classes: the standard error is 3.54 points."""
    found = chosen([reply([100, 100], uncalibrated=[50, 50], ccvr=[right, right])])
    assert found.name == name


def test_the_larger_of_the_two_standard_errors_counts():
    """Right everywhere is not certain: of 9 samples its error is 9.6 points; the original's is 10.5."""
    assert chosen([reply([9], uncalibrated=[8], ccvr=[9])]).name == "ccvr", "11.1 points against 10.5"
    assert chosen([reply([25, 25], uncalibrated=[25, 24], ccvr=[25, 25])]).name == "uncalibrated", "2 against 2.7"
    assert chosen([reply([9, 1], uncalibrated=[8, 1], ccvr=[9, 0])]).name == "uncalibrated"


@pytest.mark.parametrize("right", [[50, 50], [100, 100], [0, 0]])
def test_a_tie_leaves_the_original(right):
    assert chosen([reply([100, 100], ccvr=right, uncalibrated=right, lda=right)]).name == "uncalibrated"


def test_classes_count_alike_however_many_samples_they_have():
    """Accuracy would choose ccvr, which gives up the small class."""
    found = chosen([reply([1000, 100], uncalibrated=[800, 80], ccvr=[900, 20])])
    assert found.name == "uncalibrated"
    assert found.recall["ccvr"] == pytest.approx(55)


def test_another_name_of_the_original():
    replies = [{"before": counts([10], [100]), "after": counts([90], [100])}]
    assert ccvr.select({"before": 1, "after": 2}, replies, original="before").chosen == 2
    assert ccvr.select({"before": 1, "after": 2}, replies, original="after").chosen == 2


def test_the_original_alone():
    assert chosen([reply([5], uncalibrated=[3])]).name == "uncalibrated"


@st.composite
def federations(any_of: st.DrawFn) -> list[dict[str, Counts]]:
    num_classes, names = any_of(st.integers(1, 4)), any_of(st.sampled_from([("ccvr",), ("ccvr", "lda")]))
    rng = np.random.default_rng(any_of(st.integers(0, 2**32 - 1)))
    totals = [rng.integers(0, 9, num_classes) for _ in range(any_of(st.integers(1, 5)))]
    totals[0][0] += 1
    return [
        {name: counts(rng.integers(0, total + 1).tolist(), total.tolist()) for name in ("uncalibrated", *names)}
        for total in totals
    ]


@given(federations())
def test_the_rule_written_plainly(replies):
    total = sum(each["ccvr"].total for each in replies).numpy()
    plain = {name: plain_recall(sum(each[name].correct for each in replies).numpy(), total) for name in replies[0]}
    found = chosen(replies)
    for name, (recall, error) in plain.items():
        assert found.recall[name] == pytest.approx(recall)
        assert found.error[name] == pytest.approx(error, abs=1e-9)
    best = max(found.recall, key=found.recall.get)
    gain = found.recall[best] - found.recall["uncalibrated"]
    wins = gain > max(found.error[best], found.error["uncalibrated"])
    assert found.recall[found.name] == found.recall[best if wins else "uncalibrated"]
    assert (found.name == "uncalibrated") is not wins
    assert found.chosen == CANDIDATES[found.name]


@given(federations(), st.randoms())
def test_the_order_of_clients_does_not_matter(replies, random):
    shuffled = replies.copy()
    random.shuffle(shuffled)
    assert chosen(shuffled) == chosen(replies)


def test_replies_may_come_one_at_a_time():
    replies = (reply([50], uncalibrated=[10], ccvr=[40]) for _ in range(3))
    assert ccvr.select({"uncalibrated": 1, "ccvr": 2}, replies).chosen == 2


# --- counts that cannot be --------------------------------------------------------------------------------------------

SOUND = reply([5, 5], uncalibrated=[3, 3], ccvr=[4, 4])
MORE_RIGHT = 'client 1 counts more right than there are, or below 0, for "ccvr".'
NO_LISTS = 'the counts of client 1 for "ccvr" are not two lists of whole numbers.'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (counts([6, 4], [5, 5]), MORE_RIGHT),
        (counts([-1, 4], [5, 5]), MORE_RIGHT),
        (counts([-9, 4], [-5, 5]), MORE_RIGHT),
        (counts([4, 4], [5, 2**60]), "client 1 counts more than 1,000,000,000 samples of a class."),
        (counts([4, 4], [5, 10**9 + 1]), "client 1 counts more than 1,000,000,000 samples of a class."),
        (Counts(torch.tensor([4.0, 4.0]), torch.tensor([5, 5])), NO_LISTS),
        (Counts(torch.tensor([4, 4]), torch.tensor([5.0, math.nan])), NO_LISTS),
        (Counts(torch.tensor([[4, 4]]), torch.tensor([[5, 5]])), NO_LISTS),
        (counts([4], [5, 5]), NO_LISTS),
        (counts([4, 4, 1], [5, 5]), NO_LISTS),
        (counts([4, 4], [5, 6]), "client 1 counted the candidates on different samples."),
        (counts([4], [5]), "client 1 counted the candidates on different samples."),
    ],
)
def test_counts_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(CalibrationError) as refused:
        chosen([SOUND, {**SOUND, "ccvr": wrong}])
    assert str(refused.value) == message


@pytest.mark.parametrize("num_classes", [1, 3])
def test_a_client_with_another_number_of_classes_is_refused(num_classes):
    """One class would even be added to all of them."""
    other = reply([5] * num_classes, uncalibrated=[0] * num_classes, ccvr=[5] * num_classes)
    with pytest.raises(CalibrationError, match="client 1"):
        chosen([SOUND, other])


def test_a_candidate_without_counts_is_refused():
    with pytest.raises(CalibrationError) as refused:
        ccvr.select(CANDIDATES, [{**SOUND, "lda": SOUND["ccvr"]}, SOUND])
    assert str(refused.value) == 'client 1 sent no counts for "lda".'


@pytest.mark.parametrize("replies", [[], [reply([0, 0], uncalibrated=[0, 0], ccvr=[0, 0])]], ids=["nobody", "nothing"])
def test_nothing_held_out_is_refused(replies):
    with pytest.raises(CalibrationError) as refused:
        ccvr.select({"uncalibrated": 1, "ccvr": 2}, replies)
    assert str(refused.value) == (
        "no client held out samples, or as many of a class as it tells of, so nothing can be compared. Hold more out: "
        "in a run with data.validation."
    )


def test_an_original_that_is_no_candidate_is_refused():
    with pytest.raises(CalibrationError) as refused:
        ccvr.select({"ccvr": 1, "lda": 2}, [SOUND])
    assert str(refused.value) == 'the original "uncalibrated" is not among the candidates: ccvr, lda. Add it.'


# --- what it is there for ---------------------------------------------------------------------------------------------


def far_away(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two classes that 0 separates; one in five samples of class 0 lies far off, on its own side."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    x = 2.0 * y - 1 + 0.2 * rng.standard_normal(n)
    x = np.where((y == 0) & (rng.random(n) < 0.2), x - 20, x)
    return torch.from_numpy(x).float().unsqueeze(1), torch.from_numpy(y)


def test_select_refuses_a_ccvr_that_hurts():
    """The Gaussian of class 0 is so wide that its virtual features lie on both sides of class 1."""
    model = nn.Sequential(nn.Identity(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-3.0], [3.0]]))
        model[1].bias.zero_()
    statistics = ccvr.merge(ccvr.collect(model, [far_away(500, seed)], num_classes=2) for seed in range(3))
    candidates = {"uncalibrated": model, "ccvr": ccvr.calibrate(model, statistics, "ccvr")}
    held_out = [far_away(200, seed) for seed in (10, 11)]
    replies = [{name: ccvr.score(each, [part], 2) for name, each in candidates.items()} for part in held_out]
    found = ccvr.select(candidates, replies)
    assert found.recall["uncalibrated"] == pytest.approx(100, abs=0.5)
    assert found.recall["ccvr"] < 80
    assert found.name == "uncalibrated"
    assert found.chosen is model


def test_select_takes_a_calibration_that_helps():
    model = nn.Sequential(nn.Identity(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-3.0], [3.0]]))
        model[1].bias.copy_(torch.tensor([6.0, 0.0]))
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(0, 2, 900))
    x = (2.0 * y - 1 + torch.from_numpy(0.5 * rng.standard_normal(900))).float().unsqueeze(1)
    statistics = ccvr.collect(model, [(x[:600], y[:600])], num_classes=2)
    candidates = {"uncalibrated": model, "lda": ccvr.calibrate(model, statistics, "lda")}
    replies = [{name: ccvr.score(each, [(x[600:], y[600:])], 2) for name, each in candidates.items()}]
    found = ccvr.select(candidates, replies)
    assert found.name == "lda"
    assert found.recall["lda"] > found.recall["uncalibrated"] + 10
