import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ccvr.models.state import Scratch, Tensors, WeightedMean, buffers_of, copied, num_bytes, parameters_of, plain

values = st.floats(-1e6, 1e6, width=32)
weights = st.integers(1, 10**6)
clients = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.tuples(st.lists(values, min_size=size, max_size=size), weights), min_size=1, max_size=8)
)


def mean_of(pairs: list[tuple[Tensors, float]]) -> Tensors:
    mean = WeightedMean()
    for tensors, weight in pairs:
        mean.add(tensors, weight)
    return mean.result()


@given(clients)
def test_it_is_numpys_average_in_double_precision(pairs: list[tuple[list[float], int]]) -> None:
    rows, shares = np.array([row for row, _ in pairs]), np.array([weight for _, weight in pairs])
    found = mean_of([({"x": torch.tensor(row, dtype=torch.float64)}, weight) for row, weight in pairs])["x"]
    assert np.allclose(found.numpy(), np.average(rows, axis=0, weights=shares), rtol=1e-12, atol=1e-6)


@given(clients)
def test_float32_is_rounded_once_at_the_end(pairs: list[tuple[list[float], int]]) -> None:
    found = mean_of([({"x": torch.tensor(row)}, weight) for row, weight in pairs])["x"]
    total = sum(weight for _, weight in pairs)
    exact = [sum(weight * row[i] for row, weight in pairs) / total for i in range(len(pairs[0][0]))]
    assert found.dtype == torch.float32
    assert torch.allclose(found, torch.tensor(exact, dtype=torch.float64).float(), rtol=1.2e-7, atol=1e-6)


@given(clients, st.randoms(use_true_random=False))
def test_the_order_matters_in_the_last_bits_only(pairs: list[tuple[list[float], int]], random) -> None:
    added = [({"x": torch.tensor(row, dtype=torch.float64)}, weight) for row, weight in pairs]
    shuffled = random.sample(added, len(added))
    assert torch.allclose(mean_of(added)["x"], mean_of(shuffled)["x"], rtol=1e-12, atol=1e-7)


@given(clients, st.integers(2, 1000))
def test_only_the_ratio_of_weights_counts(pairs: list[tuple[list[float], int]], factor: int) -> None:
    added = [({"x": torch.tensor(row, dtype=torch.float64)}, weight) for row, weight in pairs]
    scaled = [(tensors, weight * factor) for tensors, weight in added]
    assert torch.allclose(mean_of(added)["x"], mean_of(scaled)["x"], rtol=1e-12, atol=1e-7)


@given(st.lists(values, min_size=1), weights)
def test_one_client_is_its_own_mean(row: list[float], weight: int) -> None:
    assert mean_of([({"x": torch.tensor(row)}, weight)])["x"].tolist() == row


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), weights), min_size=1))
def test_integers_keep_their_maximum(pairs: list[tuple[int, int]]) -> None:
    found = mean_of([({"steps": torch.tensor(number)}, weight) for number, weight in pairs])["steps"]
    assert found.dtype == torch.int64
    assert found.item() == max(number for number, _ in pairs)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_types_are_kept(name: str) -> None:
    dtype = getattr(torch, name)
    found = mean_of([({"x": torch.ones(3).to(dtype)}, 1), ({"x": torch.ones(3).to(dtype)}, 3)])["x"]
    assert found.dtype == dtype
    assert found.tolist() == [1, 1, 1]


def test_small_clients_are_not_lost_beside_large_ones_in_half_precision() -> None:
    pairs = [({"x": torch.tensor([60000.0]).half()}, 1000.0)] + [({"x": torch.tensor([1.0]).half()}, 1.0)] * 1000
    assert mean_of(pairs)["x"].item() == pytest.approx(30000.5, rel=1e-3)  # the sum itself is no half number


def test_what_is_added_and_what_comes_out_are_left_alone() -> None:
    tensors = {"x": torch.ones(2), "n": torch.tensor([1, 2])}
    mean = WeightedMean()
    mean.add(tensors, 2)
    first = mean.result()
    mean.add({"x": torch.full((2,), 4.0), "n": torch.tensor([5, 0])}, 1)
    assert tensors["x"].tolist() == [1, 1]
    assert tensors["n"].tolist() == [1, 2]
    assert first["x"].tolist() == [1, 1]
    assert first["n"].tolist() == [1, 2]
    assert mean.result()["x"].tolist() == [2, 2]
    assert mean.result()["n"].tolist() == [5, 2]


def test_nothing_added_nothing_out() -> None:
    assert WeightedMean().result() == {}


def test_a_mean_is_of_the_same_names() -> None:
    mean = WeightedMean()
    mean.add({"x": torch.ones(2)}, 1)
    with pytest.raises(ValueError, match=r"other names than before: \['x', 'y'\]"):
        mean.add({"y": torch.ones(2)}, 1)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0).expand(2, 3),
        torch.ones(1).expand(4),
        torch.eye(3).to_sparse(),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.ones(2, requires_grad=True),
    ],
    ids=["expanded", "one number", "sparse", "conjugate", "negative", "channels last", "with gradient"],
)
def test_a_plain_tensor_is_the_same_numbers_one_after_the_other(tensor: Tensor) -> None:
    found, kept = plain(tensor), tensor.detach().to_dense().clone()
    assert torch.equal(found, kept)
    assert found.is_contiguous()
    assert not any([found.requires_grad, found.is_conj(), found.is_neg(), found.is_sparse])
    assert found.view(-1).view(torch.uint8).numpy().nbytes == found.numel() * found.element_size()
    one = copied({"x": tensor})["x"]
    one.add_(1)
    assert torch.equal(tensor.detach().to_dense(), kept)


class TestTensorsOfAModel:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    def test_parameters_and_buffers_are_the_state_each_once(self) -> None:
        parameters, buffers = parameters_of(self.model), buffers_of(self.model)
        assert set(parameters) == {"0.weight", "0.bias", "1.weight", "1.bias"}
        assert set(buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
        state = self.model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in (parameters | buffers).items())

    def test_they_are_copies_without_gradient(self) -> None:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        parameters, buffers = parameters_of(model), buffers_of(model)
        with torch.no_grad():
            model[0].weight.zero_()
        model.train()(torch.randn(4, 2))
        assert parameters["0.weight"].abs().sum() > 0
        assert not parameters["0.weight"].requires_grad
        assert buffers["1.num_batches_tracked"].item() == 0

    def test_tied_weights_keep_both_names(self) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        assert {"0.weight", "1.weight"} <= set(parameters_of(model))
        assert set(parameters_of(model)) | set(buffers_of(model)) == set(model.state_dict())

    def test_bytes(self) -> None:
        assert num_bytes(parameters_of(self.model)) == 4 * (6 + 3 + 3 + 3)
        assert num_bytes(parameters_of(self.model), buffers_of(self.model)) == 4 * (6 + 3 + 3 + 3 + 3 + 3) + 8
        assert num_bytes() == 0


class Odd(nn.Module):
    """Tensors of every kind: tied, absent, frozen, not kept, and one that is another tensor after each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = self.again = nn.BatchNorm1d(3)
        self.without_moments = nn.BatchNorm1d(3, track_running_stats=False)
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        self.passing = self.passing + 1
        return self.without_moments(self.norm(self.second(self.first(x))))


def odd(seed: int) -> Odd:
    torch.manual_seed(seed)
    return Odd().train()


def step(model: nn.Module) -> None:
    """Change everything that training changes."""
    model(torch.randn(5, 3)).pow(2).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def state(model: nn.Module) -> Tensors:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class TestScratch:
    def test_it_reads_the_state_as_it_is_now(self) -> None:
        model = odd(0)
        scratch = Scratch(model)
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        before = state(model)
        for _ in range(2):
            assert set(scratch.parameters()) == names
            assert same(scratch.parameters() | scratch.buffers(), state(model))
            assert not set(scratch.parameters()) & set(scratch.buffers())
            step(model)
        assert not same(before, state(model))

    def test_it_writes_the_whole_state(self) -> None:
        source, target = odd(1), odd(2)
        step(source)
        scratch = Scratch(target)
        for _ in range(2):
            step(target)  # and so puts other tensors in the places
            assert not same(state(source), state(target))
            assert scratch.load(source.state_dict()) is target
            assert same(state(source), state(target))
        assert target.passing.tolist() == [0, 0], "what is not kept is as it was at first"
        assert target.first.weight is target.second.weight
        assert not target.frozen.requires_grad
        assert target.second.bias.requires_grad

    def test_what_is_written_is_not_held(self) -> None:
        given = state(odd(1))
        kept = {name: tensor.clone() for name, tensor in given.items()}
        scratch = Scratch(odd(2))
        step(scratch.load(given))
        assert same(given, kept)

    def test_what_is_read_is_the_model_s_own_memory(self) -> None:
        model = odd(0)
        scratch = Scratch(model)
        read = scratch.parameters() | scratch.buffers()
        assert not any(tensor.requires_grad for tensor in read.values())
        for name, tensor in model.state_dict().items():
            assert read[name].data_ptr() == tensor.data_ptr(), name

    def test_what_is_copied_is_not_held(self) -> None:
        model = odd(0)
        scratch, before = Scratch(model), state(model)
        read = copied(scratch.parameters() | scratch.buffers())
        for tensor in read.values():
            tensor.add_(1)
        assert same(state(model), before)
        assert all(torch.equal(tensor, before[name] + 1) for name, tensor in read.items()), "tied tensors, one by one"
        read = copied(scratch.parameters() | scratch.buffers())
        step(model)
        assert same(read, before)

    def test_it_tells_once_which_modules_a_model_has_put_elsewhere(self) -> None:
        model = odd(0)
        scratch = Scratch(model)
        step(model)  # other tensors in the same places are no matter
        assert scratch.moved() == []
        model.norm, model.extra = nn.BatchNorm1d(3), nn.Linear(2, 2)
        assert scratch.moved() == [], "looked for once"
        again = Scratch(odd(0))
        again.model.norm, again.model.extra = nn.BatchNorm1d(3), nn.Linear(2, 2)
        del again.model.second
        assert again.moved() == [
            "extra.bias",
            "extra.weight",
            "norm.bias",
            "norm.num_batches_tracked",
            "norm.running_mean",
            "norm.running_var",
            "norm.weight",
            "second.bias",
            "second.weight",
        ]

    @pytest.mark.parametrize("name", ["first.weight", "second.weight", "frozen", "norm.running_var", "passes"])
    def test_a_missing_tensor_is_an_error_and_nothing_is_written(self, name: str) -> None:
        model, given = odd(0), state(odd(1))
        before = state(model)
        del given[name]
        with pytest.raises(KeyError, match=name):
            Scratch(model).load(given)
        assert same(state(model), before)

    def test_what_is_trained_is_the_models_own_each_once(self) -> None:
        model = odd(0)
        trained = Scratch(model).trained()
        assert [id(parameter) for parameter in trained] == [id(parameter) for parameter in model.parameters()]
        assert sum(parameter is model.first.weight for parameter in trained) == 1
