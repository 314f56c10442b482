"""Fine-tuning after the last round against a plain implementation: float64, three clients, 1e-9."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from ccvr.core.errors import SpecError, TrainingError
from ccvr.models.heads import LinearHead
from ccvr.models.transform import FeatureTransform
from ccvr.training.personalisation import Finetune, Personalisation, Start, own_model
from tests.algorithms import plain
from tests.algorithms.against_plain import BASE, SEED, epochs_of, named
from tests.algorithms.small import small_model
from tests.algorithms.test_objectives import norm_model

ROUND = 4


def start_of(model, client, spec=BASE):
    counts = torch.zeros(3, dtype=torch.int64)
    return Start(copy.deepcopy(model).train(), client, counts, None, spec, ROUND, SEED)


class HeadOnly(plain.Rule):
    """Gradients of the head alone."""

    def gradients(self, local, w, x, y):
        found = super().gradients(local, w, x, y)
        return {name: found[name] for name in found if name in ("W2", "b2")}


@pytest.mark.parametrize(
    ("method", "rule", "lr"),
    [
        (Finetune(epochs=3), plain.Rule(), BASE.lr),
        (Finetune(epochs=1, lr=0.2), plain.Rule(), 0.2),
        (Finetune(epochs=2, scope="head"), HeadOnly(), BASE.lr),
    ],
)
@pytest.mark.parametrize("clsnorm", [False, True])
def test_equals_the_plain_implementation(method, rule, lr, clsnorm, clients):
    model = small_model(clsnorm=clsnorm)
    first = named({name: value.detach().clone() for name, value in model.named_parameters()})
    spec = replace(BASE, clsnorm=clsnorm, clsprox=0.7)  # which is no part of it
    plainly = replace(spec, local_epochs=method.epochs, lr=lr, clsprox=0.0)
    for client in clients:
        local = plain.Local(client.id, ROUND, first, plainly)
        expected = plain.train_locally(local, epochs_of(clients, plainly)(client.id, ROUND), rule)
        made = own_model(method, start_of(model, client, spec))
        found = named({name: value.detach() for name, value in made.named_parameters()})
        assert found.keys() == expected.keys()
        for name in found:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-9)
            assert torch.equal(found[name], first[name]) == (method.scope == "head" and name in ("W1", "b1"))


def test_the_head_alone_leaves_the_backbone_in_its_bits(clients):
    """Moments of batch normalisation, too; and the next model trains them again."""
    model = norm_model()
    made = own_model(Finetune(scope="head"), start_of(model, clients[1]))
    same = {name: torch.equal(made.state_dict()[name], tensor) for name, tensor in model.state_dict().items()}
    assert {name for name in same if not same[name]} == {"head.weight", "head.bias"}
    whole = own_model(Finetune(), start_of(model, clients[1]))
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(whole.state_dict()[name], tensor)]
    assert {"backbone.model.1.weight", "backbone.model.2.running_mean", "head.bias"} <= set(moved)


def test_it_is_repeatable_whatever_else_draws(clients):
    model = norm_model()
    model.backbone.model.insert(3, nn.Dropout(0.5))
    torch.manual_seed(1)
    first = own_model(Finetune(), start_of(model, clients[0])).state_dict()
    torch.rand(7)
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    second = own_model(Finetune(), start_of(model, clients[0])).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.set_num_threads(1)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    other = own_model(Finetune(), replace(start_of(model, clients[0]), seed=SEED + 1)).state_dict()
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "finetune: epochs is 0; give at least 1."),
        ({"lr": 0.0}, "finetune: lr is 0.0; give a number above 0."),
        ({"lr": -1.0}, "finetune: lr is -1.0; give a number above 0."),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(SpecError) as error:
        Finetune(**options)
    assert str(error.value) == message


def test_a_steep_transform_is_refused_for_the_backbone_alone():
    """The slope of tukey:0.5 at 0, where ReLU leaves features, is infinite: every gradient would be NaN."""
    steep, even = (LinearHead(torch.ones(3, 5), None, FeatureTransform("tukey", power)) for power in (0.5, 1.0))
    with pytest.raises(SpecError, match=r'below the transform "tukey:0.5", which is infinitely steep at 0'):
        Finetune().require(steep, None)
    Finetune(scope="head").require(steep, None)
    Finetune().require(even, None)
    z = torch.zeros(1, 5, requires_grad=True)
    steep(z).sum().backward()
    assert not z.grad.isfinite().all()


def test_training_that_diverges(clients):
    with pytest.raises(TrainingError, match=r"client 2 diverged in round 4: .*\. Lower the learning rate \(1e\+30\)"):
        own_model(Finetune(lr=1e30), start_of(norm_model(), clients[2]))


@dataclass(frozen=True)
class Draws(Personalisation):
    def personalise(self, start):
        start.model.head.weight.data = torch.rand(3, 5)
        return start.model


@dataclass(frozen=True)
class Nothing(Personalisation):
    def personalise(self, start):
        return None


def test_a_method_of_the_user_s_own(clients):
    """Its draws are the client's, and it must give a model."""
    first, again, other = (own_model(Draws(), start_of(small_model(), clients[k])) for k in (0, 0, 1))
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    with pytest.raises(TrainingError, match="the personalisation Nothing gave a NoneType; it must give a model"):
        own_model(Nothing(), start_of(small_model(), clients[0]))
