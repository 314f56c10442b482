"""Tensors in one piece are the tensors that they were, and add up to the same bits."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ccvr.models.flat import ALIGNED, Flat, Layout, whole_of
from ccvr.models.state import Scratch, WeightedMean, buffers_of, copied, flattened, parameters_of

shapes = st.dictionaries(st.text(max_size=3), st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=5)


def drawn(named, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in named.items()}


def same(left, right):
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@given(shapes)
def test_the_parts_are_the_tensors_in_their_order(named):
    tensors = drawn(named)
    flat = flattened(tensors)
    assert isinstance(flat, Flat)
    assert same(flat, tensors)
    assert same(flat | {}, tensors)
    assert same({} | flat, tensors)
    assert same(copied(flat), tensors)
    begins = [(flat[name].data_ptr() - flat.whole.data_ptr()) // 4 for name in flat]
    assert all(begin % ALIGNED == 0 for begin in begins)
    assert all(tensor.is_contiguous() for tensor in flat.values())
    next(iter(flat.values())).fill_(7)
    assert flat.whole[0] == 7, "the parts are no copies"


def test_parts_are_found_in_a_piece_that_begins_somewhere():
    layout = Layout((("a", (2, 3)), ("b", (4,))))
    numbers = torch.arange(100.0)
    flat = Flat(layout, numbers[10 : 10 + layout.size])
    assert torch.equal(flat["a"], numbers[10:16].view(2, 3))
    assert torch.equal(flat["b"], numbers[26:30])


ONE = torch.rand(4, 3, 2, 2)
ODD = {
    "channels last": ONE.contiguous(memory_format=torch.channels_last),
    "transposed": ONE.transpose(0, 1),
    "one channel": ONE[:, :1].clone(memory_format=torch.channels_last),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.0),
    "sparse": torch.eye(3).to_sparse(),
    "trained": nn.Parameter(ONE),
    "expanded": torch.ones(1).expand(3),
}


def test_copies_are_plain_whatever_the_tensors_are():
    flat = flattened(ODD | {"again": ONE, "overlapping": ONE[1:]})
    assert isinstance(flat, Flat)
    for name, tensor in ODD.items():
        assert torch.equal(flat[name], tensor.detach().to_dense())
        assert flat[name].stride() == torch.empty(tensor.shape).stride()
        assert not flat[name].requires_grad
    before = ONE.clone()
    flat["again"].zero_()
    assert torch.equal(ONE, before)
    assert torch.equal(flat["overlapping"], before[1:])


@pytest.mark.parametrize("other", [torch.ones(2).double(), torch.ones(2).bfloat16(), torch.ones(2).to(torch.int64)])
def test_tensors_of_other_types_are_copied_one_by_one(other):
    given_ = {"x": ONE, "y": other}
    found = flattened(given_)
    assert type(found) is dict
    assert same(found, given_)
    assert found["x"].data_ptr() != ONE.data_ptr()
    assert flattened({}) == {}


def test_it_looks_and_is_copied_like_a_dict():
    flat = flattened({"x": torch.tensor([1.0, 2.0])})
    assert repr(flat) == "{'x': tensor([1., 2.])}"
    assert type(flat.copy()) is dict
    with pytest.raises(TypeError):
        flat["x"] = ONE
    assert same(pickle.loads(pickle.dumps(flat)), flat)


def test_one_piece_of_another_layout_is_not_taken():
    one, other = flattened(drawn({"a": (2, 3)})), flattened(drawn({"a": (3, 2)}))
    assert whole_of(one, one.layout) is one.whole
    assert whole_of(other, one.layout) is None
    assert whole_of(dict(one), one.layout) is None


@given(shapes, st.lists(st.tuples(st.integers(1, 2**20), st.booleans()), min_size=1, max_size=6))
def test_a_mean_has_the_same_bits_whichever_results_are_in_one_piece(named, row):
    plainly, mixed = WeightedMean(), WeightedMean()
    for seed, (weight, is_flat) in enumerate(row):
        tensors = drawn(named, seed)
        plainly.add(tensors, weight)
        mixed.add(flattened(tensors) if is_flat else tensors, weight)
    assert same(plainly.result(), mixed.result())


class Net(nn.Module):
    """Some layers; one without a bias, and one that does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3, bias=False)
        self.norm.weight.requires_grad_(False)
        self.register_buffer("scale", torch.full((7,), 0.5))
        self.register_buffer("mean", torch.zeros(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.norm(self.first(x)) * self.scale
        self.mean += 0.1 * z.detach().mean(0)
        return self.last(z)


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def start():
    return parameters_of(net()), buffers_of(net())


def trained(scratch):
    optimiser = torch.optim.SGD([p for p in scratch.trained() if p.requires_grad], lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        optimiser.zero_grad()
        scratch.model(torch.randn(6, 5, generator=generator)).square().sum().backward()
        optimiser.step()
    return copied(scratch.parameters()), copied(scratch.buffers())


def test_a_flat_model_trains_and_loads_as_any_other():
    plainly, flat = Scratch(net()), Scratch(net()).flatten()
    assert isinstance(flat.parameters(), Flat)
    assert isinstance(flat.buffers(), Flat)
    first = trained(flat)
    assert all(map(same, first, trained(plainly)))
    assert not same(first[0], start()[0])
    parameters, buffers = start()
    for given_ in ((flattened(parameters), flattened(buffers)), (parameters, buffers), (parameters | buffers,)):
        flat.load(*given_)
        assert same(copied(flat.parameters()), parameters)
        assert isinstance(flat.parameters(), Flat), "it was written to, not replaced"
        assert all(map(same, trained(flat), first))


def put_in(net):
    net.first.weight = nn.Parameter(torch.full((7, 5), 3.0))


def put_elsewhere(net):
    net.first.weight.data = torch.full((7, 5), 3.0)


def take_away(net):
    net.first.bias = None


def turn(net):
    net.mean = net.mean.view(7, 1)


@pytest.mark.parametrize("change", [put_in, put_elsewhere, take_away, turn])
def test_what_a_module_puts_in_the_place_of_a_tensor_is_read_and_written(change):
    plainly, flat = Scratch(net()), Scratch(net()).flatten()
    for scratch in (plainly, flat):
        change(scratch.model)
    assert same(copied(plainly.parameters()), copied(flat.parameters()))
    assert same(copied(plainly.buffers()), copied(flat.buffers()))
    assert not (isinstance(flat.parameters(), Flat) and isinstance(flat.buffers(), Flat))
    given_ = {name: torch.ones_like(tensor) for name, tensor in {**flat.parameters(), **flat.buffers()}.items()}
    flat.load(given_)
    assert all((tensor == 1).all() for tensor in {**flat.parameters(), **flat.buffers()}.values())
    assert all((tensor == 1).all() for tensor in flat.model.state_dict().values())


def alias_in_a_buffer(net):
    net.register_buffer("seen", net.first.bias.data)


def alias_in_an_attribute(net):
    net.seen = net.first.bias.detach()


def alias_of_a_part(net):
    net.seen = net.first.weight.detach()[:2]


def tie(net):
    net.norm.bias = net.first.bias


def turned(net):
    net.first.weight.data = net.first.weight.data.t().contiguous().t()


def one_channel(net):
    net.conv = nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last)


def double(net):
    net.norm.double()


@pytest.mark.parametrize(
    "change",
    [alias_in_a_buffer, alias_in_an_attribute, alias_of_a_part, tie, turned, one_channel, double],
)
def test_a_model_that_would_notice_is_left_where_it_is(change):
    model = net()
    change(model)
    before = {name: p.data_ptr() for name, p in model.named_parameters() if not nn.parameter.is_lazy(p)}
    scratch = Scratch(model).flatten()
    assert {name: p.data_ptr() for name, p in model.named_parameters() if name in before} == before
    assert not isinstance(scratch.parameters(), Flat)
