"""Re-training: stochastic gradient descent as one would write it down, and classes without features left alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ccvr.calibration.retrain import retrain
from ccvr.calibration.spec import CalibrationOptions
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head, LinearHead, NormedHead

C, D = 5, 3
OPTIONS = CalibrationOptions(epochs=3, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear() -> LinearHead:
    draw = seeded(7)
    weight = torch.randn(C, D, dtype=torch.float64, generator=draw)
    return LinearHead(weight, torch.randn(C, dtype=torch.float64, generator=draw))


def without_bias() -> LinearHead:
    return LinearHead(torch.randn(C, D, dtype=torch.float64, generator=seeded(7)), None)


def normed() -> NormedHead:
    return NormedHead(torch.randn(C, D, dtype=torch.float64, generator=seeded(7)))


def samples(labels: list[int], n: int = 45) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    y = rng.choice(labels, n)
    z = 2 * np.eye(C, D)[y] + rng.standard_normal((n, D))
    return torch.from_numpy(z), torch.from_numpy(y)


def plain_sgd(head: Head, z: Tensor, y: Tensor, options: CalibrationOptions, seed: int) -> dict[str, np.ndarray]:
    """The same in NumPy: softmax over the classes that are there, gradients by hand, momentum, weight decay."""
    x, labels, rng = z.numpy(), y.numpy(), seeded(seed)
    parameters = {name: tensor.detach().numpy().copy() for name, tensor in head.named_parameters()}
    velocity = {name: np.zeros_like(array) for name, array in parameters.items()}
    present = np.isin(np.arange(C), labels)
    for _ in range(options.epochs):
        order = torch.randperm(len(labels), generator=rng).numpy()
        for start in range(0, len(order), options.batch_size):
            batch = order[start : start + options.batch_size]
            weight = parameters["weight"]
            norm = np.linalg.norm(weight, axis=1, keepdims=True) if head.kind == "normed" else np.ones((C, 1))
            scores = x[batch] @ (weight / norm).T + parameters.get("bias", 0)
            exponent = np.where(present, np.exp(scores - scores.max(1, keepdims=True)), 0)
            error = exponent / exponent.sum(1, keepdims=True) - np.eye(C)[labels[batch]]
            gradient = {"weight": error.T @ x[batch] / len(batch), "bias": error.mean(0)}
            if head.kind == "normed":  # d(w/‖w‖) = (I − ŵŵᵀ)/‖w‖ dw
                unit, g = weight / norm, gradient["weight"]
                gradient["weight"] = (g - unit * (g * unit).sum(1, keepdims=True)) / norm
            for name, array in parameters.items():
                step = gradient[name] + options.weight_decay * array
                velocity[name] = options.momentum * velocity[name] + step
                parameters[name] = array - options.lr * velocity[name]
    return parameters


@pytest.mark.parametrize("make", [linear, without_bias, normed])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4], [0, 2, 3]], ids=["all classes", "two absent"])
def test_retraining_equals_a_plain_loop(make, labels):
    head, (z, y) = make(), samples(labels)
    expected = plain_sgd(head, z, y, OPTIONS, seed=3)
    start = {name: tensor.detach().clone() for name, tensor in head.named_parameters()}
    found = retrain(head, z, y, OPTIONS, rng=seeded(3))
    for name, tensor in found.named_parameters():
        np.testing.assert_allclose(tensor.detach()[labels], expected[name][labels], rtol=0, atol=1e-9)
        assert (tensor - start[name])[labels].abs().min() > 1e-6, "every row of a class that is there moved"


@pytest.mark.parametrize("make", [linear, without_bias, normed])
def test_a_class_without_features_keeps_its_row_to_the_bit(make):
    head, before = make(), make()
    retrain(head, *samples([0, 2, 3]), OPTIONS, rng=seeded())
    for (name, new), old in zip(head.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(new[[1, 4]], old[[1, 4]]), name


def test_a_class_without_features_stays_out_of_the_softmax():
    """However high its score: the other rows do not notice the absent class."""
    quiet, loud = linear(), linear()
    with torch.no_grad():
        loud.bias[1] += 1000
        loud.weight[4] *= 100
    for head in (quiet, loud):
        retrain(head, *samples([0, 2, 3]), OPTIONS, rng=seeded())
    assert torch.equal(quiet.weight[[0, 2, 3]], loud.weight[[0, 2, 3]])
    assert torch.equal(quiet.bias[[0, 2, 3]], loud.bias[[0, 2, 3]])
    # The usual cross-entropy over all scores would have moved them: the loud class takes all the probability.
    plain = linear()
    with torch.no_grad():
        plain.bias[1] += 1000
    z, y = samples([0, 2, 3])
    loss = torch.nn.functional.cross_entropy(plain(z), y)
    (gradient,) = torch.autograd.grad(loss, plain.bias)
    assert abs(gradient[1]) > 0.9


def test_the_seed_decides_the_order_and_nothing_else_does():
    first, again, other = (retrain(linear(), *samples([0, 1]), OPTIONS, rng=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


def test_a_long_training_reaches_the_minimum():
    z, y = samples(list(range(C)), n=300)
    options = CalibrationOptions(epochs=200, batch_size=300, lr=0.3, weight_decay=0)
    head = retrain(linear(), z, y, options, rng=seeded())
    loss = torch.nn.functional.cross_entropy(head(z), y)
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-3


def test_nothing_to_train_on_is_refused():
    with pytest.raises(CalibrationError) as refused:
        retrain(linear(), torch.empty(0, D), torch.empty(0, dtype=torch.int64), OPTIONS, rng=seeded())
    message = "there are no features to re-train a head on. Take them from clients that have images."
    assert str(refused.value) == message


def test_divergence_is_an_error_and_not_a_head():
    head = LinearHead(torch.zeros(2, 3), torch.zeros(2))
    features, labels = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    options = CalibrationOptions(lr=1e10, batch_size=8)
    with pytest.raises(
        CalibrationError, match=r"re-training diverged: the loss is .*\. Lower calibration\.lr \(1e\+10\)"
    ):
        retrain(head, features, labels, options, rng=torch.Generator().manual_seed(0))
