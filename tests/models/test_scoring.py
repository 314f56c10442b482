import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from ccvr.core.errors import DataError, ModelError, UsageError
from ccvr.models.modes import evaluating
from ccvr.models.scoring import ClassCounts, class_counts, count, score

NUM_CLASSES = 4


@st.composite
def counts(draw: st.DrawFn) -> ClassCounts:
    total = draw(st.lists(st.integers(0, 1000), min_size=NUM_CLASSES, max_size=NUM_CLASSES))
    correct = [draw(st.integers(0, number)) for number in total]
    loss = draw(st.integers(0, 10**6)) / 64  # sums of these are exact
    return ClassCounts(torch.tensor(correct), torch.tensor(total), loss)


def same(one: ClassCounts, other: ClassCounts) -> bool:
    tensors = torch.equal(one.correct, other.correct) and torch.equal(one.total, other.total)
    return tensors and one.loss == other.loss


class TestClassCounts:
    @given(counts(), counts(), counts())
    def test_adding_is_associative(self, a: ClassCounts, b: ClassCounts, c: ClassCounts) -> None:
        assert same((a + b) + c, a + (b + c))

    @given(counts(), counts())
    def test_adding_commutes(self, a: ClassCounts, b: ClassCounts) -> None:
        assert same(a + b, b + a)

    @given(counts())
    def test_zeros_is_the_identity(self, a: ClassCounts) -> None:
        zeros = ClassCounts.zeros(NUM_CLASSES)
        assert same(a + zeros, a)
        assert same(zeros + a, a)

    @given(counts(), counts())
    def test_adding_leaves_the_terms_alone(self, a: ClassCounts, b: ClassCounts) -> None:
        before = a.correct.clone(), a.total.clone(), a.loss
        a + b
        assert torch.equal(a.correct, before[0])
        assert torch.equal(a.total, before[1])
        assert a.loss == before[2]

    @given(counts())
    def test_accuracy_is_recall_weighted_by_class_size(self, a: ClassCounts) -> None:
        pairs = zip(a.recall, a.total.tolist(), strict=True)
        weighted = sum(recall * total for recall, total in pairs if recall is not None)
        assert a.accuracy == pytest.approx(weighted / max(int(a.total.sum()), 1))

    def test_recall_of_a_class_without_samples_is_none(self) -> None:
        found = ClassCounts(torch.tensor([1, 0, 0]), torch.tensor([4, 0, 2]), 3.0)
        assert found.recall == [25.0, None, 0.0]
        assert found.accuracy == pytest.approx(100 / 6)
        assert found.mean_loss == 0.5

    def test_nothing_counted(self) -> None:
        nothing = ClassCounts.zeros(2)
        assert nothing.accuracy == 0
        assert nothing.mean_loss == 0
        assert nothing.recall == [None, None]


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_batch_is_counted_as_by_a_plain_loop(seed: int, size: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, NUM_CLASSES, generator=rng)
    labels = torch.randint(0, NUM_CLASSES, (size,), generator=rng)
    correct, total, loss = [0] * NUM_CLASSES, [0] * NUM_CLASSES, 0.0
    for row, label in zip(scores.double(), labels.tolist(), strict=True):
        total[label] += 1
        correct[label] += int(max(range(NUM_CLASSES), key=row.tolist().__getitem__) == label)
        loss += float(row.exp().sum().log() - row[label])
    found = count(scores, labels)
    assert found.correct.tolist() == correct
    assert found.total.tolist() == total
    assert found.loss == pytest.approx(loss, rel=1e-5, abs=1e-5)


def frozen_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.9), nn.BatchNorm1d(8).eval(), nn.Linear(8, NUM_CLASSES)
    )


def batches(number: int = 50, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(number, 6, generator=rng), torch.randint(0, NUM_CLASSES, (number,), generator=rng)
    return zip(x.split(size), y.split(size), strict=True)


@pytest.mark.parametrize("size", [1, 16, 50])
def test_a_model_is_scored_as_by_a_plain_loop_however_it_is_cut(size: int) -> None:
    model = frozen_model().eval()
    x, y = next(batches(size=50))
    with torch.no_grad():
        scores = model(x)
    found = score(model.train(), batches(size=size), NUM_CLASSES)
    assert found.accuracy == 100 * (scores.argmax(1) == y).double().mean().item()
    assert found.mean_loss == pytest.approx(functional.cross_entropy(scores, y).item(), rel=1e-5)
    assert int(found.total.sum()) == 50


@pytest.mark.parametrize("training", [True, False])
def test_scoring_leaves_modes_moments_and_gradients(training: bool) -> None:
    model = frozen_model()
    model.training = training
    modes = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    score(model, batches(), NUM_CLASSES)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_modes_come_back_after_an_error() -> None:
    model = frozen_model()
    modes = [module.training for module in model.modules()]
    with pytest.raises(ModelError, match=r"^the model fails on inputs float32 \[1, 5\]: mat1 and mat2 shapes"):
        score(model, [(torch.zeros(1, 5), torch.zeros(1, dtype=torch.int64))], NUM_CLASSES)
    assert [module.training for module in model.modules()] == modes
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes


BATCH = next(batches(size=16))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (BATCH[1].index_fill(0, torch.tensor([3]), 4), "label 4 is not one of 4 classes (0 to 3)."),
        (BATCH[1].index_fill(0, torch.tensor([3]), -1), "label -1 is not one of 4 classes (0 to 3)."),
        (BATCH[1].float(), "the labels of 16 samples are float32 [16]; give whole numbers [B]."),
        (BATCH[1][:3], "the labels of 16 samples are int64 [3]; give whole numbers [B]."),
        (BATCH[1].to("meta"), "a batch is on the meta device, which holds no numbers. Give batches with numbers."),
        ([0] * 16, "expected batches of two tensors (inputs, labels), got tuple. Give batches as such pairs."),
    ],
    ids=["above", "below", "fractional", "few", "meta", "list"],
)
def test_labels_that_cannot_be_are_one_line(labels: object, said: str) -> None:
    with pytest.raises(DataError) as caught:
        score(frozen_model(), [(BATCH[0], labels)], NUM_CLASSES)
    assert str(caught.value) == said


class Returns(nn.Module):
    """A model that returns what it is given, for any inputs."""

    def __init__(self, found: object) -> None:
        super().__init__()
        self.found = found

    def forward(self, x: Tensor) -> object:
        return self.found


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Returns(torch.zeros(16, 5)), "the model returns float32 [16, 5]; score needs scores [B, 4]."),
        (Returns(torch.zeros(16, 4, 1)), "the model returns float32 [16, 4, 1]; score needs scores [B, 4]."),
        (Returns(torch.zeros(16, 4, dtype=torch.int64)), "the model returns int64 [16, 4]; score needs scores [B, 4]."),
        (Returns((torch.zeros(16, 4),)), "the model returns tuple; score needs scores [B, 4]."),
        (frozen_model().to("meta"), "the model is on the meta device, which holds no numbers. Load its weights first."),
        ("model", "the model is a str; give an nn.Module."),
    ],
    ids=["wide", "deep", "whole", "tuple", "meta", "text"],
)
def test_models_that_give_no_scores_are_one_line(model: nn.Module, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        score(model, [BATCH], NUM_CLASSES)
    assert str(caught.value) == said


@pytest.mark.parametrize("number", [0, -1, 2.0, "4", None, True, 10**7])
def test_what_is_no_number_of_classes(number: object) -> None:
    with pytest.raises(UsageError) as caught:
        score(frozen_model(), [BATCH], number)
    assert str(caught.value) == f"num_classes is {number!r}; give a whole number from 1 to 1,000,000."


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scores_that_are_not_numbers_are_no_class(wrong: float) -> None:
    """Not class 0, which argmax gives."""
    scores = torch.zeros(16, NUM_CLASSES)
    scores[0] = wrong
    with pytest.raises(ModelError, match="not finite"):
        score(Returns(scores), [BATCH], NUM_CLASSES)
    found = class_counts(Returns(scores.fill_(float("nan"))), [(BATCH[0], torch.zeros(16).long())], NUM_CLASSES)
    assert (found.accuracy, found.total.tolist()) == (0, [16, 0, 0, 0])
    assert math.isnan(found.loss)


def test_a_class_may_be_ruled_out() -> None:
    scores = torch.eye(NUM_CLASSES).log()
    found = score(Returns(scores), [(BATCH[0][:4], torch.arange(4))], NUM_CLASSES)
    assert (found.accuracy, found.loss) == (100, 0)


def test_a_model_without_parameters_is_scored() -> None:
    assert score(nn.Identity(), [(torch.eye(NUM_CLASSES), torch.arange(4))], NUM_CLASSES).accuracy == 100
