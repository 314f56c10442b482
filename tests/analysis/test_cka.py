import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccvr.analysis import cka as module
from ccvr.analysis.cka import CrossSums, alignments, all_pairs, cka, gram_cka, pairwise_cka
from ccvr.core.errors import AnalysisError


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def textbook(x: Tensor, y: Tensor) -> float:
    """HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) with centring matrices written out."""
    n = len(x)
    h = torch.eye(n, dtype=torch.float64) - 1 / n
    k, l_ = h @ (x.double() @ x.double().T) @ h, h @ (y.double() @ y.double().T) @ h

    def hsic(a: Tensor, b: Tensor) -> Tensor:
        return torch.trace(a @ b) / (n - 1) ** 2

    return (hsic(k, l_) / (hsic(k, k) * hsic(l_, l_)).sqrt()).item()


def related(n: int = 60, d: int = 7, e: int = 5) -> tuple[Tensor, Tensor]:
    x = randn(n, d) + 3
    return x, x @ randn(d, e, seed=1) + randn(n, e, seed=2) - 5


@given(st.integers(2, 40), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.floats(-100, 100))
def test_it_is_the_textbook_gram_form(n: int, d: int, e: int, seed: int, shift: float) -> None:
    x = randn(n, d, seed=seed) + shift
    y = x[:, :1] * randn(1, e, seed=seed + 1) + randn(n, e, seed=seed + 2)
    expected = textbook(x - x.mean(0), y - y.mean(0))
    assert cka(x, y) == pytest.approx(expected, abs=1e-8)
    assert gram_cka([x, y])[0, 1].item() == pytest.approx(expected, abs=1e-8)


def test_real_sizes_agree_with_the_textbook_too() -> None:
    x = torch.relu(randn(1500, 300)).float()  # more than one block of rows
    y = torch.relu(x.double() @ randn(300, 40, seed=1) + 2).float()
    assert cka(x, y) == pytest.approx(textbook(x, y), abs=1e-8)
    assert 0.1 < cka(x, y) < 0.95


def test_it_is_one_with_itself_and_not_with_another() -> None:
    x, y = related()
    assert cka(x, x) == pytest.approx(1, abs=1e-12)
    assert cka(x, 2 * x + 3) == pytest.approx(1, abs=1e-12)
    assert 0.05 < cka(x, y) < 0.95


def test_rotation_scale_and_shift_change_nothing() -> None:
    x, y = related()
    rotation = torch.linalg.qr(randn(7, 7, seed=3)).Q
    expected = cka(x, y)
    assert cka(x @ rotation, y) == pytest.approx(expected, abs=1e-10)
    assert cka(-7.5 * x, y) == pytest.approx(expected, abs=1e-10)
    assert cka(x, y + 1e4 * randn(1, 5, seed=4)) == pytest.approx(expected, abs=1e-8)
    assert cka(x * torch.arange(1, 8), y) != pytest.approx(expected, abs=1e-3)  # other linear maps do


def test_features_far_from_zero_do_not_cancel() -> None:
    x, y = (z / 8 for z in related())
    far = [(z * 2**20).round() / 2**20 + 2**26 for z in (x, y)]  # exact in float64
    assert cka(*far) == pytest.approx(cka(x, y), abs=1e-6)


def test_pairs_are_symmetric() -> None:
    x, y = related()
    found = pairwise_cka([x, y, x[:, :2]])
    assert torch.equal(found, found.T)
    assert found[0, 1].item() == cka(x, y)
    assert found[1, 2].item() == pytest.approx(cka(x[:, :2], y), abs=1e-12)
    assert torch.allclose(found.diagonal(), torch.ones(3, dtype=torch.float64))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_batches_change_nothing(sizes: Sequence[int]) -> None:
    x, y = related()
    cuts = [min(sum(sizes[:i]), 60) for i in range(len(sizes))]
    sums = CrossSums(all_pairs(2))
    for start, stop in zip([0, *cuts], [*cuts, 60], strict=True):
        sums.update([x[start:stop], y[start:stop]])
    assert torch.allclose(alignments(sums.squares(), 2), pairwise_cka([x, y]), rtol=0, atol=1e-12)


def test_reading_the_sums_leaves_them() -> None:
    x, y = related()
    sums = CrossSums(all_pairs(2))
    sums.update([x, y])
    assert sums.squares() == sums.squares()


@pytest.mark.parametrize("compare", [pairwise_cka, gram_cka])
def test_constant_features_say_nothing(compare: object) -> None:
    x, _ = related()
    found = compare([x, torch.full((60, 3), 0.1)])  # type: ignore[operator]
    assert math.isnan(found[0, 1])
    assert math.isnan(found[1, 1])
    assert found[0, 0] == pytest.approx(1)


def test_wide_features_take_the_gram_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = related()
    expected = cka(x, y)
    monkeypatch.setattr(module, "MAX_FEATURES", 6)
    monkeypatch.setattr(module, "CrossSums", None)
    assert cka(x, y) == pytest.approx(expected, abs=1e-10)


def test_too_many_wide_samples_are_refused() -> None:
    wide = torch.zeros(1, 1).expand(4001, 5001)
    with pytest.raises(AnalysisError, match=r"4,001 samples have 5,001 features.*at most 4,000"):
        cka(wide, wide)


@pytest.mark.parametrize("shapes", [((3, 2), (4, 2)), ((3, 2), (3,)), ((3, 2, 2), (3, 2))])
def test_other_samples_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(AnalysisError, match="same N samples"):
        cka(*(torch.zeros(shape) for shape in shapes))
