"""Re-training: gradient descent as one would write it down, the minimum itself, absent classes left alone."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ccvr.calibration.calibrator import Descent
from ccvr.calibration.retrain import converge, retrain
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head, LinearHead, NormedHead

C, D = 5, 3
OPTIONS = Descent(epochs=3, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3)
solved = partial(converge, l2=1e-3, iterations=300)


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


def plain_sgd(head: Head, z: Tensor, y: Tensor, options: Descent, seed: int) -> dict[str, np.ndarray]:
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
    options = Descent(epochs=200, batch_size=300, lr=0.3, weight_decay=0)
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
    options = Descent(lr=1e10, batch_size=8)
    with pytest.raises(
        CalibrationError,
        match=r"re-training diverged: the loss is .* features as large as [\d.]+\. Lower the option lr \(1e\+10\)",
    ):
        retrain(head, features, labels, options, rng=torch.Generator().manual_seed(0))


# --- to convergence ---------------------------------------------------------------------------------------------------


def objective(head: Head, z: Tensor, y: Tensor, l2: float) -> float:
    """Mean cross-entropy over the classes that are there, and l2/2 of their squared weights and biases."""
    there = y.unique()
    scores = head.score(z)[:, there].detach()
    squares = sum(float(tensor.detach()[there].square().sum()) for tensor in head.parameters())
    return float(torch.nn.functional.cross_entropy(scores, torch.searchsorted(there, y))) + l2 / 2 * squares


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4], [0, 2, 3]], ids=["all classes", "two absent"])
@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_converging_equals_logistic_regression(labels, l2, bias):
    """On standardised features where there is a bias, which is a weight of a feature that is always 1.

    Rows of the classes that are there may lie anywhere together; those of the plain solution lie around zero.
    """
    z, y = samples(labels, n=300)
    head = solved(linear() if bias else without_bias(), z, y, l2=l2)
    mean, std = (z.mean(0), z.std(0, correction=0)) if bias else (torch.zeros(z.shape[1]), torch.ones(z.shape[1]))
    s = (z - mean) / std
    x = np.column_stack([s, np.ones(len(z))]) if bias else s.numpy()
    plain = LogisticRegression(C=1 / (l2 * len(z)), fit_intercept=False, tol=1e-10, max_iter=5000).fit(x, y.numpy())
    weight = head.weight.detach()
    parts = [weight * std, (head.bias.detach() + weight @ mean).unsqueeze(1)] if bias else [weight]
    found = torch.cat(parts, dim=1).numpy()[labels]
    np.testing.assert_allclose(found - found.mean(0), plain.coef_, atol=2e-3 * np.abs(plain.coef_).max())


def test_scale_and_offset_of_features_do_not_matter():
    z, y = samples(list(range(C)), n=300)
    moved = z * torch.logspace(-1, 4, z.shape[1], dtype=z.dtype) + 7
    plain, other = (solved(linear(), t, y) for t in (z, moved))
    centred = [head.score(t) - head.score(t).mean(1, keepdim=True) for head, t in ((plain, z), (other, moved))]
    torch.testing.assert_close(*centred, rtol=0, atol=0.05)


def test_classes_that_are_there_stay_beside_those_that_are_frozen():
    z, y = samples([0, 2, 3], n=300)
    before, after = linear(), solved(linear(), z, y, l2=0.1)
    there = torch.tensor([0, 2, 3])
    std = z.std(0, correction=0)
    torch.testing.assert_close(
        (after.weight[there] * std).mean(0), (before.weight[there] * std).mean(0), rtol=0, atol=1e-5
    )
    assert not torch.allclose(after.weight[there], before.weight[there], atol=0.05)


@pytest.mark.parametrize(("make", "l2"), [(linear, 1e-3), (without_bias, 1e-3), (normed, 0.0)])
def test_converging_in_float32_reaches_the_minimum_of_float64(make, l2):
    z, y = samples(list(range(C)), n=400)
    exact = solved(make(), z, y, l2=l2, iterations=2000)
    found = solved(make().float(), z.float(), y, l2=l2)
    assert found.weight.dtype == torch.float32
    assert objective(found, z.float(), y, 0) == pytest.approx(objective(exact, z, y, 0), abs=1e-4)


def test_the_penalty_does_not_wear_a_normed_head_away():
    """Its scores do not depend on how long its rows are, so a penalty could only shorten them for ever."""
    z, y = samples(list(range(C)), n=400)
    free, bound = (solved(normed(), z, y, l2=l2) for l2 in (0.0, 0.1))
    assert objective(bound, z, y, 0) == pytest.approx(objective(free, z, y, 0), abs=1e-5)


def test_few_iterations_stop_early():
    z, y = samples(list(range(C)), n=400)
    short, long = (solved(linear(), z, y, iterations=n) for n in (1, 300))
    assert objective(long, z, y, 1e-4) < objective(short, z, y, 1e-4) - 0.01


def test_the_minimum_is_the_same_from_anywhere_and_needs_no_seed():
    z, y = samples(list(range(C)), n=200)
    far = linear()
    with torch.no_grad():
        far.weight.mul_(-5)
    near, far = (solved(head, z, y, l2=1e-2) for head in (linear(), far))
    torch.testing.assert_close(near.weight, far.weight, rtol=0, atol=1e-3)


@pytest.mark.parametrize("make", [linear, without_bias, normed])
def test_converging_keeps_the_row_of_a_class_without_features_to_the_bit(make):
    head, before = make(), make()
    solved(head, *samples([0, 2, 3]))
    for (name, new), old in zip(head.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(new[[1, 4]], old[[1, 4]]), name
        assert not torch.equal(new[[0, 2, 3]], old[[0, 2, 3]]), name


def test_converging_on_nothing_is_refused():
    with pytest.raises(CalibrationError, match="there are no features to re-train a head on"):
        solved(linear(), torch.empty(0, D), torch.empty(0, dtype=torch.int64))


# --- wherever it is called --------------------------------------------------------------------------------------------

Step = Callable[[Head, Tensor, Tensor], Head]
WAYS: dict[str, Step] = {
    "retrain": lambda head, z, y: retrain(head, z, y, OPTIONS, rng=seeded()),
    "converge": solved,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_head_whose_weights_lie_by_column(way):
    """As those of a transposed matrix do."""
    z, y = samples(list(range(C)))
    by_row = linear()
    by_column = LinearHead(by_row.weight.detach().T.contiguous().T, by_row.bias)
    expected, found = (WAYS[way](head, z, y) for head in (by_row, by_column))
    torch.testing.assert_close(found.weight, expected.weight)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_on_even_where_the_caller_turned_them_off(way):
    z, y = samples(list(range(C)))
    expected = WAYS[way](linear(), z, y)
    with torch.no_grad():
        found = WAYS[way](linear(), z, y)
    assert torch.equal(found.weight, expected.weight)
