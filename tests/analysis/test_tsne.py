import sys

import pytest
import torch
from torch import Tensor

from ccvr.analysis.tsne import embed, principal_components
from ccvr.core.errors import AnalysisError


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def three_clusters() -> tuple[Tensor, Tensor]:
    labels = torch.arange(300) % 3
    centres = 6 * torch.eye(3, 80)
    return centres[labels] + torch.randn(300, 80, generator=rng()), labels


def purity(points: Tensor, labels: Tensor) -> float:
    distances = torch.cdist(points, points)
    distances.fill_diagonal_(torch.inf)
    neighbours = labels[distances.topk(10, largest=False).indices]
    return (neighbours == labels.unsqueeze(1)).double().mean().item()


def test_clusters_stay_apart_and_the_same_seed_gives_the_same_points() -> None:
    pytest.importorskip("openTSNE")
    features, labels = three_clusters()
    points = embed(features, rng=rng())
    assert points.shape == (300, 2)
    assert purity(points, labels) > 0.95
    assert purity(features[:, 10:12].double(), labels) < 0.6  # the measure can tell
    torch.manual_seed(1)
    assert torch.equal(embed(features, num_threads=2, rng=rng()), points)


def test_few_points_and_one_dimension() -> None:
    pytest.importorskip("openTSNE")
    assert embed(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), rng=rng()).isfinite().all()


def test_principal_components_are_those_of_the_singular_values() -> None:
    x = torch.randn(40, 6, dtype=torch.float64, generator=rng()) * torch.arange(1, 7) + 5
    found = principal_components(x, 3, rng=rng())
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    assert torch.allclose(found.abs(), (u * s)[:, :3].abs())
    directions = torch.linalg.lstsq(x - x.mean(0), found).solution
    assert (directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all()
    assert principal_components(x, 50, rng=rng()).shape == (40, 6)


@pytest.mark.parametrize("shape", [(300, 900), (900, 300)])
def test_those_of_wide_features_are_found_without_all_the_others(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = 0.9 ** torch.arange(300.0)
    left, right = (torch.linalg.qr(torch.randn(n, 300, generator=rng(n)).double()).Q for n in shape)
    x = left * sizes @ right.T
    u, s, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", None)  # of 5,000² numbers it takes minutes
        found = principal_components(x, 20, rng=rng())
    signs = v[:20].gather(1, v[:20].abs().argmax(1, keepdim=True)).sign().T
    assert torch.allclose(found, (u * s)[:, :20] * signs, rtol=0, atol=1e-6)
    assert torch.allclose(found, principal_components(x, 20, rng=rng(9)), rtol=0, atol=1e-6), "whatever the start"
    assert torch.equal(found, principal_components(x, 20, rng=rng()))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(3, 2), "at least 4"),
        (torch.ones(9, 2), "all 9 features are the same"),
        (torch.tensor([[0.0, torch.nan]] * 5), "not finite"),
    ],
)
def test_features_that_show_nothing_are_refused(features: Tensor, message: str) -> None:
    pytest.importorskip("openTSNE")
    with pytest.raises(AnalysisError, match=message):
        embed(features, rng=rng())


def test_where_opentsne_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(AnalysisError, match=r'pip install "ccvr\[tsne\]"'):
        embed(torch.zeros(9, 2), rng=rng())
