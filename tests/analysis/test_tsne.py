import sys

import pytest
import torch
from torch import Tensor

from ccvr.analysis.tsne import embed, principal_components
from ccvr.core.errors import AnalysisError


def three_clusters() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    centres = 6 * torch.eye(3, 80)
    return centres[labels] + torch.randn(300, 80, generator=rng), labels


def purity(points: Tensor, labels: Tensor) -> float:
    distances = torch.cdist(points, points)
    distances.fill_diagonal_(torch.inf)
    neighbours = labels[distances.topk(10, largest=False).indices]
    return (neighbours == labels.unsqueeze(1)).double().mean().item()


def test_clusters_stay_apart_and_nothing_is_random() -> None:
    pytest.importorskip("openTSNE")
    features, labels = three_clusters()
    points = embed(features)
    assert points.shape == (300, 2)
    assert purity(points, labels) > 0.95
    assert purity(features[:, 10:12].double(), labels) < 0.6  # the measure can tell
    torch.manual_seed(1)
    assert torch.equal(embed(features), points)


def test_few_points_and_one_dimension() -> None:
    pytest.importorskip("openTSNE")
    assert embed(torch.tensor([[0.0], [1.0], [5.0], [6.0]])).isfinite().all()


def test_principal_components_are_those_of_the_singular_values() -> None:
    x = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7) + 5
    found = principal_components(x, 3)
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    assert torch.allclose(found.abs(), (u * s)[:, :3].abs())
    directions = torch.linalg.lstsq(x - x.mean(0), found).solution
    assert (directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all()
    assert principal_components(x, 50).shape == (40, 6)


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
        embed(features)


def test_where_opentsne_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(AnalysisError, match=r'pip install "ccvr\[tsne\]"'):
        embed(torch.zeros(9, 2))
