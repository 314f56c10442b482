import pytest
import torch
from torch import Tensor, nn

from ccvr.analysis import layer_cka as module
from ccvr.analysis.cka import pairwise_cka
from ccvr.analysis.layer_cka import LayerCka, choose_samples, layer_cka
from ccvr.analysis.layers import layer_outputs
from ccvr.core.errors import AnalysisError

LAYERS = ("0", "1", "2")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))


MODELS = [net(seed) for seed in range(4)]
X = torch.randn(1100, 6, generator=rng()) + 1


def whole(layer: str, x: Tensor = X) -> Tensor:
    features = []
    for model in MODELS:
        with layer_outputs(model, [layer]) as outputs:
            features.append(outputs(x)[layer])
    return pairwise_cka(features)


@pytest.mark.parametrize("memory", [2**30, 8 * 81 * 3, 1])
def test_it_is_that_of_whole_matrices_in_any_number_of_passes(memory: int) -> None:
    found = layer_cka(MODELS, X, LAYERS, rng=rng(), memory=memory)
    assert [part.layer for part in found] == list(LAYERS)
    assert [part.width for part in found] == [9, 9, 3]
    for part in found:
        assert torch.allclose(part.cka, whole(part.layer), rtol=0, atol=1e-9)
        assert torch.equal(part.samples, torch.arange(1100))


def test_memory_bounds_a_pass() -> None:
    jobs = [("a", (0, k)) for k in range(7)]
    shares = list(module._dealt(jobs, {"a": 10}, 8 * 100 * 3))
    assert [len(share) for share in shares] == [3, 3, 1]
    assert [job for share in shares for job in share] == jobs


def test_wide_layers_are_compared_on_samples_that_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FEATURES", 5)
    monkeypatch.setattr(module, "MOST_GRAM_SAMPLES", 700)
    first, _, last = layer_cka(MODELS, X, LAYERS, rng=rng(3))
    assert len(first.samples) == 700
    assert torch.equal(last.samples, torch.arange(1100))
    assert torch.allclose(first.cka, whole("0", X[first.samples]), rtol=0, atol=1e-9)
    assert torch.allclose(last.cka, whole("2"), rtol=0, atol=1e-9)
    again = layer_cka(MODELS, X, LAYERS, rng=rng(3))[0]
    assert torch.equal(again.samples, first.samples)


def test_samples_are_drawn_without_repetition() -> None:
    found = choose_samples(50, most=20, rng=rng())
    assert len(set(found.tolist())) == 20
    assert torch.equal(found, found.sort().values)
    assert found.max() > 25
    assert torch.equal(choose_samples(7, rng=rng()), torch.arange(7))


def test_the_mean_is_of_different_models() -> None:
    matrix = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]], dtype=torch.float64)
    assert LayerCka("head", 10, matrix, torch.arange(5)).mean == pytest.approx(0.4)


def test_one_model_is_refused() -> None:
    with pytest.raises(AnalysisError, match="1 models"):
        layer_cka(MODELS[:1], X, LAYERS, rng=rng())
