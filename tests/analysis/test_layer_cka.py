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


def net(seed: int) -> nn.Sequential:
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


NUMBERS = 9 + 9 + 3
EACH = 4 * 1100 * NUMBERS
"""Bytes of one model's features."""
PRODUCT = 8 * 9 * 9


class Counted(nn.Module):
    """Counts how many samples pass."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.layers = model
        self.samples = 0

    def forward(self, x: Tensor) -> Tensor:
        self.samples += len(x)
        y: Tensor = self.layers(x)
        return y


@pytest.mark.parametrize(
    ("memory", "passes"),
    [
        (None, [1, 1, 1, 1]),
        (4 * EACH + PRODUCT, [1, 1, 1, 1]),
        (4 * EACH + PRODUCT - 1, [1, 1, 2, 2]),  # room for three: 0 and 1 are held, then 2 and 3
        (2 * EACH + PRODUCT, [1, 2, 3, 3]),
        (2 * EACH + PRODUCT - 1, [2, 3, 4, 4]),  # no room for two: the last layer comes by itself, with room for all
        (1, [3, 6, 9, 9]),
    ],
)
def test_models_pass_as_seldom_as_memory_allows(memory: int | None, passes: list[int]) -> None:
    models = [Counted(model) for model in MODELS]
    found = layer_cka(models, X, [f"layers.{layer}" for layer in LAYERS], rng=rng(), memory=memory)
    looked = 2  # to know how wide layers are
    assert [(model.samples - looked) / len(X) for model in models] == passes
    assert [part.width for part in found] == [9, 9, 3]
    for part, layer in zip(found, LAYERS, strict=True):
        assert part.layer == f"layers.{layer}"
        assert torch.allclose(part.cka, whole(layer), rtol=0, atol=1e-9)
        assert torch.equal(part.samples, torch.arange(1100))


def test_a_small_machine_holds_a_quarter_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: 4 * (4 * EACH + PRODUCT) - 1)
    models = [Counted(model) for model in MODELS]
    layer_cka(models, X, [f"layers.{layer}" for layer in LAYERS], rng=rng())
    assert models[3].samples == 2 + 2 * len(X)


def test_ten_mobilenets_pass_once() -> None:
    widths = {"block4": 4096, "block6": 2560, "pool": 1280, "head": 100}
    assert list(module._dealt(widths, 10_000, module.MEMORY)) == [(list(widths), 12)]


def test_wide_layers_are_compared_on_samples_that_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FEATURES", 5)
    monkeypatch.setattr(module, "MAX_GRAM_SAMPLES", 700)
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
