import copy

import pytest
import torch
from torch import Tensor, nn

from ccvr.models.digest import backbone_digest
from ccvr.models.heads import LinearHead
from ccvr.models.random_features import RandomFeatures


def net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Tied(nn.Module):
    """Features come from the embedding whose weight is the head's too, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 5)
        self.head = nn.Linear(5, 3, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 3)])
        self.classifier = self.layers[1]


def moved(model: nn.Module, name: str) -> nn.Module:
    """A copy in which one number of one tensor is the next one."""
    other = copy.deepcopy(model)
    flat = other.state_dict()[name].view(-1)
    flat[0] = torch.nextafter(flat[0], flat[0] + 1) if flat.is_floating_point() else flat[0] + 1
    return other


@pytest.mark.parametrize("head", ["0", "3"])
def test_it_moves_with_every_tensor_but_the_head_s(head: str) -> None:
    model = net()
    digest = backbone_digest(model, head)
    assert len(digest) == 64
    assert {"1.running_var", "1.num_batches_tracked"} <= set(model.state_dict())
    for name in model.state_dict():
        assert (backbone_digest(moved(model, name), head) == digest) == name.startswith(f"{head}."), name


def test_equal_models_have_equal_digests() -> None:
    assert backbone_digest(net(), "3") == backbone_digest(net().eval(), "3") != backbone_digest(net(), "0")


def test_another_head_of_another_kind_is_none_of_its_business() -> None:
    model, other = net(), net()
    other[3] = nn.Linear(5, 9, bias=False)
    assert backbone_digest(other, "3") == backbone_digest(model, "3")
    other[3] = LinearHead(torch.zeros(3, 8), None, RandomFeatures(torch.zeros(5, 8), torch.zeros(8)))
    assert backbone_digest(other, "3") == backbone_digest(model, "3")


def test_names_types_and_shapes_count() -> None:
    plain = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 2))
    reshaped, renamed = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(6, 2)), nn.Sequential(nn.Identity())
    reshaped[0].weight.data = plain[0].weight.data.reshape(4, 6)
    renamed.extend([plain[0], plain[1]])
    as_double = copy.deepcopy(plain).double()
    heads = [(plain, "1"), (reshaped, "1"), (renamed, "2"), (as_double, "1")]
    assert len({backbone_digest(model, head) for model, head in heads}) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_type_of_number(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    assert backbone_digest(moved(model, "0.weight"), "3") != backbone_digest(model, "3")


def test_a_head_of_two_names_is_left_out_under_both() -> None:
    model = TwoNames()
    for path in ("layers.1", "classifier"):
        digest = backbone_digest(model, path)
        assert backbone_digest(moved(model, "classifier.weight"), path) == digest
        assert backbone_digest(moved(model, "layers.0.weight"), path) != digest


def test_a_weight_that_the_backbone_shares_with_its_head_counts() -> None:
    model = Tied()
    other = moved(model, "embedding.weight")
    x = torch.zeros(1, 1, dtype=torch.int64)
    assert not torch.equal(other.embedding(x), model.embedding(x))
    assert backbone_digest(other, "head") != backbone_digest(model, "head")


def test_the_model_is_only_looked_at() -> None:
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    backbone_digest(model, "3")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
