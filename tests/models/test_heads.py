import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from ccvr.core.errors import UnknownName
from ccvr.models.heads import HEAD_KINDS, Head, LinearHead, NormedHead, copy_head
from ccvr.models.transform import FeatureTransform

TUKEY = FeatureTransform("tukey", 0.5)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(kind: str, transform: FeatureTransform | None = None) -> Head:
    return HEAD_KINDS[kind](draw(4, 6), draw(4, seed=1), transform)


def test_a_linear_head_is_a_linear_layer() -> None:
    z, weight, bias = draw(5, 6, seed=2), draw(4, 6), draw(4, seed=1)
    assert torch.equal(LinearHead(weight, bias)(z), functional.linear(z, weight, bias))
    assert torch.equal(LinearHead(weight, None)(z), functional.linear(z, weight))


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_a_normed_head_is_the_papers_formula(seed: int, scale: float) -> None:
    z, weight = draw(3, 6, seed=seed), scale * draw(4, 6, seed=seed + 1)
    head = NormedHead(weight)
    by_hand = torch.tensor([[float(w @ row) / float((w @ w) ** 0.5) for w in weight.double()] for row in z.double()])
    assert torch.allclose(head(z), by_hand, rtol=1e-4, atol=1e-5)
    softmax = by_hand.exp() / by_hand.exp().sum(1, keepdim=True)
    assert torch.allclose(head(z).softmax(1), softmax, rtol=1e-3, atol=1e-5)


def test_a_normed_head_has_no_bias() -> None:
    assert list(dict(make("normed").named_parameters())) == ["weight"]
    assert make("normed")(torch.zeros(1, 6)).tolist() == [[0.0] * 4]


@pytest.mark.parametrize("kind", HEAD_KINDS)
class TestEveryHead:
    def test_it_owns_its_weights(self, kind: str) -> None:
        weight, bias = draw(4, 6), draw(4, seed=1)
        head = HEAD_KINDS[kind](weight, bias)
        weight.zero_()
        bias.zero_()
        assert torch.equal(head.weight, draw(4, 6))
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in head.parameters())

    def test_the_transform_comes_before_the_score(self, kind: str) -> None:
        z, head = draw(5, 6, seed=2), make(kind, TUKEY)
        assert torch.equal(head(z), head.score(z.clamp(min=0).sqrt()))
        assert not torch.equal(head(z), head.score(z))

    def test_the_table_names_the_kind(self, kind: str) -> None:
        assert make(kind).kind == kind

    @pytest.mark.parametrize("transform", [None, TUKEY])
    def test_a_copy_is_equal_and_independent(self, kind: str, transform: FeatureTransform | None) -> None:
        head, z = make(kind, transform), draw(5, 6, seed=2)
        expected = head(z).detach()
        other = copy_head(head)
        assert type(other) is type(head)
        assert other.transform == head.transform
        assert torch.equal(other(z), expected)
        for parameter in other.parameters():
            parameter.data.mul_(-2).add_(1)
        assert torch.equal(head(z), expected)
        assert not torch.equal(other(z), expected)

    def test_a_copy_may_have_another_transform(self, kind: str) -> None:
        head = make(kind)
        other = copy_head(head, transform=TUKEY)
        assert other.transform == TUKEY
        assert head.transform == FeatureTransform()
        assert torch.equal(other.weight, head.weight)
        assert copy_head(other, transform=FeatureTransform()).transform == FeatureTransform()

    def test_a_copy_reads_the_same_taps(self, kind: str) -> None:
        head = HEAD_KINDS[kind](draw(4, 6), draw(4, seed=1), taps=("low", "high"))
        assert make(kind).taps == ()
        assert copy_head(head).taps == ("low", "high")
        assert copy_head(head, transform=TUKEY, start="zero").taps == ("low", "high")

    def test_a_copy_that_starts_at_zero_prefers_no_class_and_can_learn(self, kind: str) -> None:
        head = make(kind)
        zero = copy_head(head, start="zero")
        z = draw(5, 6, seed=2)
        scores = zero(z)
        assert torch.allclose(scores, scores[:, :1].expand_as(scores))
        functional.cross_entropy(scores, torch.arange(5) % 4).backward()
        assert zero.weight.grad.abs().sum() > 0
        assert torch.equal(head.weight, draw(4, 6))


def test_a_head_without_bias_is_copied_without() -> None:
    assert copy_head(LinearHead(draw(4, 6), None)).bias is None
    assert copy_head(LinearHead(draw(4, 6), None), start="zero").bias is None


def test_a_head_of_a_file_imports_nothing() -> None:
    with pytest.raises(UnknownName, match=r'^no head "os:getcwd"\. Known: linear, normed\.$'):
        HEAD_KINDS["os:getcwd"]
