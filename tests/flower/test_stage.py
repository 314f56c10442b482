"""The stage for any app: what it gives, whom it names, what it refuses."""

import gc
import math
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

import ccvr
import ccvr.flower
from ccvr.calibration.calibrate import best_method
from ccvr.calibration.table import CALIBRATORS
from ccvr.core.errors import CalibrationError, CcvrError, FederationError, ModelError, SpecError, StatisticsError
from ccvr.flower.messages import blob_of, pack
from ccvr.flower.questions import COUNTS, SCORES
from ccvr.models import scoring
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes, with_checksum
from ccvr.statistics.request import Request
from ccvr.statistics.wire import FORMAT
from tests.flower.small import EXAMPLE, batches_of, fail, grid_of, load, misbehaving, overflowing, small_model

pytestmark = pytest.mark.flower

QUESTION = "the query for pooled statistics"
DRAWING = ("ccvr", "ccvr-converged")
"""Methods that re-train the head, on features of the last layer alone."""


def same_tensors(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- what it gives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name, cls in CALIBRATORS.items() if not cls.raw and name != "kernel"])
def test_it_is_the_library_with_a_network_between(method):
    """Every calibrator gives what ``ccvr.calibrate`` gives from the same clients' bytes."""
    options = {"ccvr": ",num_virtual=20,epochs=1", "ccvr-converged": ",num_virtual=20"}.get(method, "")
    model = small_model()
    found = ccvr.flower.calibrate(grid_of(3), model, EXAMPLE, method + options, seed=5)
    kind = CALIBRATORS[method].kinds[0]
    blobs = [ccvr.collect(model, batches_of(k), num_classes=4, kind=kind).to_bytes() for k in range(3)]
    expected = ccvr.calibrate(model, ccvr.merge(blobs), method + options, seed=5)
    assert same_tensors(found.model, expected)
    assert found.absent == {}
    assert found.method == method


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal", "means"])
def test_without_a_method_the_best_for_the_kind(kind):
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, kind=kind)
    assert found.statistics.kind == kind
    blobs = [ccvr.collect(small_model(), batches_of(k), num_classes=4, kind=kind).to_bytes() for k in range(2)]
    assert same_tensors(found.model, ccvr.calibrate(small_model(), ccvr.merge(blobs)))


def asked_in(message) -> Request:
    return Request.from_bytes(blob_of(message.content, "request"))


def test_kernel_takes_two_exchanges():
    grid = grid_of(3)
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "kernel,num_features=50")
    asked = [asked_in(message) for message in grid.sent]
    assert [each.kind for each in asked] == ["diagonal"] * 3 + ["kernel"] * 3
    assert {each.taps for each in asked} == {"+".join(found.statistics.source.taps)} != {""}
    assert found.statistics.num_features == 50
    test = batches_of(9)
    assert ccvr.score(found.model, test, 4).accuracy > ccvr.score(small_model(), test, 4).accuracy + 20


def test_taps_are_those_that_the_server_chose():
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", taps="1")
    assert found.statistics.source.taps == ("1",)
    assert found.statistics.num_features == 8 + 6


def test_a_kernel_without_taps_reads_the_last_layer_alone():
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "kernel,num_features=50", taps="")
    assert found.statistics.source.taps == ()
    assert len(found.statistics.projection.mean) == 6


@pytest.mark.parametrize("taps", ["", None, "auto"])
def test_layers_behind_the_method_go_before_the_argument(taps):
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda,taps=1", taps=taps)
    assert found.statistics.source.taps == ("1",)


SHORT = "ccvr,num_virtual=20,epochs=1"


def test_a_seed_behind_the_method_counts():
    three, four = (ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, f"{SHORT},seed={n}") for n in (3, 4))
    assert not same_tensors(three.model, four.model)
    for method, seed in ((SHORT, 3), (f"{SHORT},seed=3", 9)):
        assert same_tensors(three.model, ccvr.calibrate(small_model(), three.statistics, method, seed=seed))
        assert same_tensors(
            three.model, ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, method, seed=seed).model
        )
    assert same_tensors(four.model, ccvr.calibrate(small_model(), three.statistics, f"{SHORT},seed=4"))


def test_a_seed_behind_kernel_decides_its_random_features():
    three, again, four = (
        ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, f"kernel,num_features=50{more}", seed=seed)
        for more, seed in ((",seed=3", 9), ("", 3), (",seed=4", 3))
    )
    digests = [found.statistics.projection.digest for found in (three, again, four)]
    assert digests[0] == digests[1] != digests[2]
    assert same_tensors(three.model, again.model)
    assert same_tensors(three.model, ccvr.calibrate(small_model(), three.statistics, "kernel"))


def bare_model():
    """A head and nothing before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Linear(5, 4)


def load_bare(context):
    return bare_model(), *load(context)[1:]


def test_without_layers_to_read_the_method_that_is_told_is_the_one_that_was_fitted():
    """With taps the best method is another; this model has none."""
    found = ccvr.flower.calibrate(grid_of(2, load_bare), bare_model(), EXAMPLE, taps="auto")
    assert (found.statistics.source.taps, found.statistics.kind) == ((), "full")
    best = best_method(found.statistics)
    assert found.method == best.partition(",")[0] == "ccvr-converged"
    assert same_tensors(found.model, ccvr.calibrate(bare_model(), found.statistics, best))
    assert same_tensors(found.model, ccvr.flower.calibrate(grid_of(2, load_bare), bare_model(), EXAMPLE).model)
    assert not same_tensors(found.model, ccvr.calibrate(bare_model(), found.statistics, "lda,shrinkage=oas"))


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal", "means"])
def test_with_layers_to_read_the_best_method_for_the_kind_that_reads_them(kind):
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, kind=kind, taps="1")
    assert (found.statistics.source.taps, found.statistics.kind) == (("1",), kind)
    assert found.method == best_method(found.statistics).partition(",")[0]
    x = batches_of(7)[0][0]
    assert torch.equal(found.model(x), ccvr.calibrate(small_model(), found.statistics)(x))


def test_without_a_method_and_a_kind_statistics_are_full():
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, taps="1")
    assert (found.statistics.kind, found.method) == ("full", "lda")


def test_a_method_of_the_users_own():
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "tests.flower.small:Nearest", kind="means")
    assert (found.statistics.kind, found.method) == ("means", "tests.flower.small:Nearest")
    torch.testing.assert_close(
        found.model.state_dict(), ccvr.calibrate(small_model(), found.statistics, "ncm").state_dict()
    )


@pytest.mark.parametrize("method", [None, "lda,shrinkage=oas", "lda,shrinkage=oas,kind=tests.flower.small:bounded"])
def test_a_kind_of_the_users_own_is_used_as_what_it_stands_for(method):
    kind = "tests.flower.small:bounded"
    found = ccvr.flower.calibrate(grid_of(2, trust=True), small_model(), EXAMPLE, method, kind=kind)
    assert (found.method, found.statistics.kind) == ("lda", kind)
    blobs = [ccvr.collect(small_model(), batches_of(k), num_classes=4, kind=kind) for k in range(2)]
    torch.testing.assert_close(found.statistics.total, ccvr.merge(blobs).total)
    assert same_tensors(found.model, ccvr.calibrate(small_model(), found.statistics))


def test_the_model_is_left_alone_and_the_arrays_fit_it():
    model, before = small_model(), small_model()
    found = ccvr.flower.calibrate(grid_of(2), model, EXAMPLE, "lda")
    assert same_tensors(model, before)
    assert not same_tensors(found.model, before)
    before.load_state_dict(found.arrays.to_torch_state_dict())
    assert same_tensors(found.model, before)


def test_a_validation_takes_the_head_that_wins():
    found = ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, "lda", validate=True)
    assert found.method == found.selection.name == "lda"
    held_out = [{n: ccvr.score(m, batches_of(k, part=1), 4) for n, m in both(found).items()} for k in range(3)]
    assert found.selection.recall == ccvr.select(both(found), held_out).recall
    assert "chosen: lda" in str(found)


def both(found):
    return {"uncalibrated": small_model(), "lda": found.model}


class Several(torch.nn.Module):
    """A model that returns more than its head's scores."""

    def __init__(self):
        super().__init__()
        self.body = small_model()[:4]
        self.first, self.second = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4, bias=False)

    def forward(self, x):
        z = self.body(x)
        return self.first(z), self.second(z)


def several():
    torch.manual_seed(0)
    return Several()


def load_several(context):
    return several(), *load(context)[1:]


def test_a_validation_of_a_model_that_returns_several_things():
    """What counts are the scores of the head that is named."""
    found = ccvr.flower.calibrate(
        grid_of(2, load_several), several(), EXAMPLE, "lda", head="second", validate=True, quorum=1.0
    )
    total = ccvr.ClassCounts.zeros(4)
    for x, y in [batch for k in range(2) for batch in batches_of(k, part=1)]:
        total += scoring.count(found.model(x)[1].detach(), y)
    assert found.method == "lda"
    assert found.selection.recall["lda"] == pytest.approx(sum(total.recall) / 4)


def test_a_head_without_a_bias_gets_one():
    found = ccvr.flower.calibrate(grid_of(2, load_several), several(), EXAMPLE, "lda", head="second")
    assert found.arrays.keys() - several().state_dict().keys() == {"second.bias"}


def test_the_argument_is_named_where_the_head_is_ambiguous():
    with pytest.raises(ModelError, match=r'several things, with the heads first, second .* head="path" in a call'):
        ccvr.flower.calibrate(grid_of(2, load_several), several(), EXAMPLE, "lda")


class Standardising(torch.nn.Sequential):
    def forward(self, x):
        return super().forward((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


def test_an_example_without_finite_features_is_no_example():
    def standardising(context):
        return Standardising(*small_model()), *load(context)[1:]

    with pytest.raises(StatisticsError, match=r"^the example does not serve: .* Or give inputs like the clients'"):
        ccvr.flower.calibrate(grid_of(2, standardising), standardising_model(), EXAMPLE, "lda")
    found = ccvr.flower.calibrate(grid_of(2, standardising), standardising_model(), batches_of(5)[0][0], "lda")
    assert found.absent == {}


def standardising_model():
    return Standardising(*small_model())


class KeepsMore(torch.nn.Sequential):
    def get_extra_state(self):
        return {"steps": 3}

    def set_extra_state(self, state):
        pass


def test_a_model_that_keeps_more_than_tensors_is_refused():
    grid = grid_of(2)
    for ask in (
        lambda model: ccvr.flower.calibrate(grid, model, EXAMPLE, "lda"),
        lambda model: ccvr.collect(model, batches_of(0), num_classes=4),
    ):
        with pytest.raises(ModelError, match=r'the model keeps a dict as "_extra_state", and only tensors'):
            ask(KeepsMore(*small_model()))
    assert grid.sent == []


def test_a_kind_beside_a_method_is_the_methods():
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", kind="full")
    assert found.statistics.kind == "full"


def test_a_validation_keeps_a_head_that_is_good_already():
    """A head that lda made of all clients cannot be beaten by lda of one client's few samples."""
    good = ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, "lda").model

    def few(context):
        return small_model(), [(x[:9], y[:9]) for x, y in batches_of(0)[:1]], batches_of(0, part=1)

    found = ccvr.flower.calibrate(grid_of(1, few, min_count=0), good, EXAMPLE, "lda", min_count=0, validate=True)
    assert found.method == found.selection.name == "uncalibrated"
    assert found.model is good


def test_who_holds_nothing_out_says_nothing():
    def without(context):
        return load(context)[:2] if context.node_id == 100 else load(context)

    found = ccvr.flower.calibrate(grid_of(2, without), small_model(), EXAMPLE, "lda", validate=True)
    assert found.absent == {}


def test_a_validation_that_comes_to_nothing_loses_nothing():
    """The trained model stays, and the statistics are there for another try."""

    def without(context):
        return load(context)[:2]

    def no_scores(message, context, call_next):
        return fail(message) if message.metadata.message_type == f"query.{SCORES}" else call_next(message, context)

    trained = small_model()
    for grid, why in (
        (grid_of(2, without), "no client held out samples"),
        (grid_of(2, mods=[no_scores]), "0 of 2 clients answered the query for scores"),
    ):
        found = ccvr.flower.calibrate(grid, trained, EXAMPLE, "lda", validate=True)
        assert found.model is trained
        assert found.method == "uncalibrated"
        assert why in found.undecided
        assert found.undecided.startswith("lda was not judged: ")
        assert f"the trained model stays, for {found.undecided}" in str(found)
        again = ccvr.calibrate(trained, found.statistics, "lda")
        assert same_tensors(again, ccvr.flower.calibrate(grid, trained, EXAMPLE, "lda").model)


def test_few_held_out_samples_are_withheld():
    """Whatever the server asks: how one sample scores would be told head by head."""

    def few(context):
        model, batches, ((x, y), *_) = load(context)
        return model, batches, [(x[:17], y[:17])]  # five of class 0, four of the others

    def counts(min_count):
        grid = grid_of(1, few, min_count=min_count)
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", min_count=0, validate=True)
        answer = grid.app(grid.sent[-1], grid.contexts[100])
        _, tensors = tensors_from_bytes(blob_of(answer.content, "counts"), format=COUNTS)
        assert (tensors["correct/lda"] <= tensors["total/lda"]).all()
        return tensors["total/lda"].tolist()

    assert counts(4) == [5, 4, 4, 4]
    assert counts(5) == [5, 0, 0, 0]
    assert counts(6) == [0, 0, 0, 0]


def test_how_many_were_asked_is_told():
    assert str(ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda")).endswith("2 clients; missing: nobody")


def test_a_model_that_flower_has_no_arrays_for():
    found = replace(ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda"), model=small_model().bfloat16())
    with pytest.raises(FederationError, match=r"Flower has no arrays for this model .* Use its tensors: \.model\."):
        _ = found.arrays


def test_one_answer_is_in_memory_at_a_time(monkeypatch):
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 60.0)  # or those of a busy machine arrive side by side
    alive: list[weakref.ref] = []
    most = []

    def watched(message, context, call_next):
        gc.collect()
        most.append(sum(each() is not None for each in alive))
        reply = call_next(message, context)
        alive.append(weakref.ref(reply.content["ccvr.blobs"]["statistics"]))
        return reply

    grid = grid_of(6, mods=[watched])
    ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    assert max(most) <= 1  # the one that has just been folded, until the next is here
    assert len(alive) == 6
    assert all(len(numbers) == 1 for numbers in grid.pulled)


@pytest.mark.filterwarnings("ignore:nobody has samples")
@pytest.mark.parametrize("method", ["ncm", "tests.flower.small:Nearest"])
def test_a_clients_own_min_count_wins(method):
    """The larger of what the client withholds by itself and what the server lets it withhold.

    Also for a method of the user's own that has no option for it.
    """

    def uneven(context):
        model, ((x, y), *_), held_out = load(context)  # 13 or 12 of each class
        return model, [(x, y), (x[y == 0], y[y == 0])], held_out

    for own, asked, count in ((21, 0, [52, 0, 0, 0]), (0, 21, [52, 0, 0, 0]), (0, 0, [52, 26, 24, 24])):
        grid = grid_of(2, uneven, min_count=own)
        found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, method, min_count=asked)
        assert found.statistics.count.tolist() == count
        assert int(found.statistics.withheld) == 126 - sum(count)


# --- whom it names ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.sets(st.integers(0, 5)), st.sampled_from([0.01, 0.25, 0.5, 0.75, 1.0]))
def test_quorum(number, failing, quorum):
    """It succeeds if and only if enough answer; either way it names exactly those who did not."""
    failing = {100 + k for k in failing if k < number}
    grid = grid_of(number, mods=[misbehaving(*failing, how=fail)])
    needed = max(1, math.ceil(quorum * number))
    if number - len(failing) >= needed:
        found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "ncm", quorum=quorum)
        assert found.absent.keys() == failing
        assert int(found.statistics.count.sum()) == 80 * (number - len(failing))
        assert all(f"client {node}" in str(found) for node in failing)
    else:
        with pytest.raises(FederationError) as error:
            ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "ncm", quorum=quorum)
        said = str(error.value)
        assert f"{number - len(failing)} of {number} clients answered" in said
        assert f"{needed} are needed" in said
        named = [node for node in failing if f"client {node} (RuntimeError: out of luck)" in said]
        assert len(named) == min(len(failing), 5)
        assert "\n" not in said


def test_a_client_without_samples_is_named_and_not_missed():
    def some(context):
        model, batches, held_out = load(context)
        return model, [] if context.node_id == 101 else batches, held_out

    found = ccvr.flower.calibrate(grid_of(2, some), small_model(), EXAMPLE, "lda", quorum=1.0)
    assert found.without_samples == (101,)
    assert found.absent == {}
    assert "without samples: 101" in str(found)
    assert int(found.statistics.count.sum()) == 80
    with pytest.raises(StatisticsError, match="no statistics to merge"):
        ccvr.flower.calibrate(grid_of(1, lambda c: (small_model(), [])), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize("rows", [0, 3])
def test_a_client_that_sends_nothing_of_its_samples_is_named(rows):
    """Because its batches are empty, or all of its classes are too small."""

    def some(context):
        model, batches, held_out = load(context)
        return model, [(x[:rows], y[:rows]) for x, y in batches] if context.node_id == 101 else batches, held_out

    found = ccvr.flower.calibrate(grid_of(2, some), small_model(), EXAMPLE, "lda", quorum=1.0)
    assert found.without_samples == (101,)
    assert int(found.statistics.withheld) == 2 * rows


def test_batches_that_are_no_pairs_are_told():
    def dicts(part, context):
        loaded = list(load(context))
        loaded[part] = [{"image": x, "label": y} for x, y in loaded[part]]
        return loaded

    def asked(part):
        return ccvr.flower.calibrate(grid_of(2, partial(dicts, part)), small_model(), EXAMPLE, "lda", validate=True)

    with pytest.raises(FederationError, match=r"expected batches of two tensors \(inputs, labels\), got dict"):
        asked(1)
    assert "expected batches of two tensors (inputs, labels), got dict" in asked(2).undecided


def test_labels_of_any_whole_type():
    def short(context):
        model, *parts = load(context)
        return model, *([(x, y.to(torch.int32)) for x, y in part] for part in parts)

    assert ccvr.flower.calibrate(grid_of(2, short), small_model(), EXAMPLE, "lda", validate=True).absent == {}


def test_a_client_with_another_model_is_named_with_its_reason():
    def other(context):
        model, *rest = load(context)
        return (torch.nn.Linear(5, 4) if context.node_id == 100 else model), *rest

    found = ccvr.flower.calibrate(grid_of(3, other), small_model(), EXAMPLE, "lda")
    assert list(found.absent) == [100]
    assert "does not take the server's tensors" in found.absent[100]


def honest(kind="pooled"):
    return ccvr.collect(small_model(), batches_of(0), num_classes=4, kind=kind)


def of_more_classes():
    z, y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4
    return ccvr.statistics_of(z, y, 9, kind="pooled", source=honest().source)


def other_backbone():
    model = small_model()
    with torch.no_grad():
        model[0].weight += 1
    return ccvr.collect(model, batches_of(0), num_classes=4, kind="pooled").to_bytes()


def with_array(array):
    return RecordDict({"ccvr.blobs": ArrayRecord({"statistics": array}), "ccvr.settings": ConfigRecord({})})


HOSTILE = {
    "noise": pack({"statistics": b"\x80\x04" * 999}),
    "cut": pack({"statistics": honest().to_bytes()[:-7]}),
    "another kind": pack({"statistics": honest(kind="full").to_bytes()}),
    "another backbone": pack({"statistics": other_backbone()}),
    "more classes": pack({"statistics": of_more_classes().to_bytes()}),
    "nothing": RecordDict(),
    "other records": RecordDict({"ccvr.blobs": ConfigRecord({"statistics": b"x"})}),
    "a numpy array": with_array(Array(torch.zeros(3).numpy())),
    "empty as text": RecordDict({"ccvr.settings": ConfigRecord({"empty": "yes"})}),
    "a long complaint": pack({}, error="x" * 10**6),
    "a complaint that moves the cursor": pack({}, error="lies\x1b[2K\n\rand more"),
    "several clients": pack({"statistics": ccvr.merge([honest(), honest()]).to_bytes()}),
    "a shape of too much nothing": pack({"statistics": overflowing(FORMAT, "mean")}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_changes_nothing_for_the_others(name):
    """Also where it comes first: the server knows what to expect."""
    mod = misbehaving(100, how=lambda message: Message(HOSTILE[name], reply_to=message))
    found = ccvr.flower.calibrate(grid_of(3, mods=[mod]), small_model(), EXAMPLE, "lda")
    assert list(found.absent) == [100]
    assert 0 < len(found.absent[100].removeprefix(f"{QUESTION}: ")) <= 300
    assert found.absent[100].isprintable()
    blobs = [ccvr.collect(small_model(), batches_of(k), num_classes=4, kind="pooled").to_bytes() for k in (1, 2)]
    assert same_tensors(found.model, ccvr.calibrate(small_model(), ccvr.merge(blobs), "lda"))


def counts_of(num_classes, *heads):
    """Zeros, as an honest client writes them that has nothing to score on."""
    zeros, kinds = torch.zeros(num_classes, dtype=torch.int64), ("correct", "total")
    return tensors_to_bytes({f"{kind}/{head}": zeros for kind in kinds for head in heads}, format=COUNTS)


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"no counts", "these bytes are not counts"),
        (overflowing(COUNTS, "total/lda"), "these bytes are not counts"),
        (counts_of(3, "uncalibrated", "lda"), "counts of lda, uncalibrated, which is not what was asked for"),
        (counts_of(4, "uncalibrated", "lda", "mine"), "counts of lda, mine, uncalibrated, which is not what was asked"),
    ],
)
def test_hostile_counts_are_left_out(blob, reason):
    def lying(message, context, call_next):
        reply = call_next(message, context)
        if context.node_id == 100 and message.metadata.message_type == "query.ccvr_scores":
            return Message(pack({"counts": blob}), reply_to=message)
        return reply

    found = ccvr.flower.calibrate(grid_of(3, mods=[lying]), small_model(), EXAMPLE, "lda", validate=True)
    assert list(found.absent) == [100]
    assert found.absent[100].startswith(f"the query for scores: {reason}")
    assert found.method == "lda"


def test_who_is_missing_twice_is_named_with_both_reasons():
    def twice(message, context, call_next):
        if context.node_id == 100:
            raise RuntimeError(asked_in(message).kind)
        return call_next(message, context)

    found = ccvr.flower.calibrate(grid_of(3, mods=[twice]), small_model(), EXAMPLE, "kernel,num_features=20")
    assert found.absent == {
        100: "the query for diagonal statistics: RuntimeError: diagonal; "
        "the query for kernel statistics: RuntimeError: kernel"
    }


def altering(blob, format, how):
    """A mod that lets node 100 change its tensors on the way."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_id != 100 or blob not in reply.content["ccvr.blobs"]:
            return reply
        header, tensors = tensors_from_bytes(blob_of(reply.content, blob), format=format)
        how(tensors)
        return Message(pack({blob: resealed(header, tensors)}), reply_to=message)

    return mod


def resealed(header, tensors):
    """The bytes of a client that does not tell the truth, with the checksum that belongs to them."""
    if "checksum" not in header:
        return tensors_to_bytes(tensors, **header)
    return with_checksum(tensors, **{name: value for name, value in header.items() if name != "checksum"})


def count_all(number):
    def how(tensors):
        for name in tensors:
            if name.startswith(("count", "correct/", "total/")):
                tensors[name].fill_(number)

    return how


@pytest.mark.parametrize(("blob", "format"), [("statistics", FORMAT), ("counts", "ccvr-counts/1")])
@pytest.mark.parametrize(("number", "said"), [(10**9 + 1, "1,000,000,000 samples"), (21, "it counts 21 samples of")])
def test_nobody_outvotes_the_others(blob, format, number, said):
    """Each has 20 samples of each class; more than anybody may have, or than the user allows, is refused."""
    grid = grid_of(3, mods=[altering(blob, format, count_all(number))])
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "ncm", validate=True, max_count=20)
    assert list(found.absent) == [100]
    assert said in found.absent[100]
    allowed = ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, "ncm", validate=True, max_count=20)
    assert allowed.absent == {}


def test_a_client_cannot_make_a_projection_that_the_others_cannot_use():
    """The largest means and deviations that are read, of by far the most samples."""

    def how(tensors):
        tensors["count"].fill_(10**9)
        tensors["mean"][::2], tensors["mean"][1::2] = 7e5, -7e5
        if "scatter" in tensors and tensors["scatter"].shape == tensors["mean"].shape:
            tensors["scatter"] = torch.full_like(tensors["scatter"], 5e11 * 10**9)

    grid = grid_of(3, mods=[altering("statistics", FORMAT, how)])
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "kernel,num_features=20")
    assert found.statistics.projection.std.max() > 8e5
    assert found.absent.keys() <= {100}


# --- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"), [(None, "one NoneType"), ((1,), "1 things"), ((1, 2, 3, 4), "4 things"), ("ab", "one str")]
)
def test_what_load_gives_is_checked(given, said):
    with pytest.raises(FederationError, match=rf"this client's load\(\) gives {said}; let it give its model"):
        ccvr.flower.calibrate(grid_of(1, lambda context: given), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize(
    ("method", "options", "error", "said"),
    [
        ("oracle", {}, CalibrationError, "oracle needs raw features"),
        ("ccrv", {}, CcvrError, 'Did you mean "ccvr"'),
        (None, {"kind": "ful"}, CcvrError, "ful"),
        ("lda,kind=means", {}, CcvrError, "means"),
        ("lda", {"head": "0.weight"}, ModelError, "0.weight"),
        ("lda", {"kind": "nonsense"}, CcvrError, "nonsense"),
        (
            "lda",
            {"kind": "diagonal"},
            SpecError,
            'kind is "diagonal", which this method cannot use. It can use: pooled',
        ),
        ("kernel", {"kind": "full"}, SpecError, 'kind is "full"; kernel can use: kernel'),
        ("tests.flower.small:Nearest", {"kind": "full"}, SpecError, 'kind is "full"; .*Nearest can use: means'),
        ("tests.flower.small:Nearest", {"kind": "pooled"}, SpecError, 'kind is "pooled"; .*Nearest can use: means'),
        ("oracle", {"kind": "full"}, CalibrationError, "oracle needs raw features"),
        (None, {"kind": "tests.flower.small:alone"}, CalibrationError, 'the best for "tests.flower.small:alone"'),
        ("lda", {"kind": "tests.flower.small:alone"}, SpecError, 'kind is "tests.flower.small:alone"'),
        *((name, {"taps": "auto"}, SpecError, f'taps is "auto"; {name} reads the last') for name in DRAWING),
        ("tests.flower.small:Nearest", {"taps": "1"}, SpecError, 'taps is "1"; .*Nearest reads the last layer alone'),
        ("ccvr,taps=auto", {}, SpecError, 'ccvr has no option "taps"'),
        *(("lda", {"quorum": value}, CcvrError, "quorum is") for value in (0, -1, 1.5, math.nan, math.inf)),
        *(("lda", {"timeout": value}, CcvrError, "timeout is") for value in (0, -1, math.nan, math.inf, 1e300)),
        *(("lda", {"num_clients": value}, CcvrError, "num_clients is") for value in (0, -1, 1.5)),
        ("lda", {"max_count": 0}, CcvrError, "max_count is 0"),
        *(("lda", {"min_count": value}, CcvrError, "min_count is") for value in (-1, 1.5)),
    ],
)
def test_mistakes_are_found_before_anybody_is_asked(method, options, error, said):
    grid = grid_of(2)
    with pytest.raises(error, match=said):
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, method, **options)
    assert grid.sent == []


def test_old_apps_cannot_be_asked():
    with pytest.raises(ValueError, match="client_fn"):
        ccvr.flower.register(ClientApp(client_fn=lambda context: None), load)


@pytest.mark.parametrize("value", [-1, 2.5, True, None, "8"])
def test_a_client_s_own_least_count_is_a_number(value):
    with pytest.raises(CcvrError, match=rf"min_count is {value}; give a whole number from 0 to"):
        ccvr.flower.register(ClientApp(), load, min_count=value)


@pytest.mark.parametrize("around", [torch.inference_mode, lambda: torch.autocast("cpu")], ids=["inference", "autocast"])
def test_what_is_set_around_the_stage_changes_no_bit(around):
    expected = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", validate=True)
    with around():
        found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", validate=True)
    assert same_tensors(found.model, expected.model)
    assert str(found) == str(expected)
