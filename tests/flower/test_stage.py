"""The stage for any app: what it gives, whom it names, what it refuses."""

import functools
import gc
import logging
import math
import threading
import time
import types
import weakref
from dataclasses import dataclass

import flwr.client.mod
import httpx
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid
from hypothesis import given
from hypothesis import strategies as st

import ccvr
import ccvr.flower
from ccvr.calibration.table import CALIBRATORS
from ccvr.core.errors import CalibrationError, CcvrError, FederationError, ModelError, StatisticsError
from ccvr.flower.federation import Federation
from ccvr.flower.launch import free_port
from ccvr.flower.messages import blob_of, pack
from ccvr.flower.questions import COUNTS, state_bytes
from ccvr.models import scoring
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.wire import FORMAT
from tests.flower.loopback import Loopback
from tests.flower.small import EXAMPLE, app_of, batches_of, grid_of, load, overflowing, small_model

pytestmark = pytest.mark.flower

QUESTION = "the query for pooled statistics"


def same_tensors(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- what it gives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name, row in CALIBRATORS.items() if not row.raw and name != "kernel"])
def test_it_is_the_library_with_a_network_between(method):
    """Every calibrator gives what ``ccvr.calibrate`` gives from the same clients' bytes."""
    options = {"ccvr": ",num_virtual=20,epochs=1", "ccvr-converged": ",num_virtual=20"}.get(method, "")
    model = small_model()
    found = ccvr.flower.calibrate(grid_of(3), model, EXAMPLE, method + options, seed=5)
    kind = CALIBRATORS[method].kinds[0]
    blobs = [ccvr.collect(model, batches_of(k), num_classes=4, kind=kind).to_bytes() for k in range(3)]
    expected = ccvr.calibrate(model, ccvr.merge(blobs), method + options, seed=5)
    assert same_tensors(found.model, expected)
    assert found.missing == {}
    assert found.method == method


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal", "means"])
def test_without_a_method_the_best_for_the_kind(kind):
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, kind=kind)
    assert found.statistics.kind == kind
    blobs = [ccvr.collect(small_model(), batches_of(k), num_classes=4, kind=kind).to_bytes() for k in range(2)]
    assert same_tensors(found.model, ccvr.calibrate(small_model(), ccvr.merge(blobs)))


def test_kernel_takes_two_exchanges():
    grid = grid_of(3)
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "kernel,num_features=50")
    settings = [message.content["ccvr.settings"] for message in grid.sent]
    assert [each["kind"] for each in settings] == ["diagonal"] * 3 + ["kernel"] * 3
    assert {each.get("taps") for each in settings} == {"+".join(found.statistics.source.taps)} != {""}
    assert found.statistics.num_features == 50
    test = batches_of(9)
    assert ccvr.score(found.model, test, 4).accuracy > ccvr.score(small_model(), test, 4).accuracy + 20


def test_taps_are_those_that_the_server_chose():
    found = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", taps="1")
    assert found.statistics.source.taps == ("1",)
    assert found.statistics.num_features == 8 + 6


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
    assert found.missing == {}


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
    assert found.missing == {}
    with pytest.raises(CalibrationError, match="no client held out"):
        ccvr.flower.calibrate(grid_of(1, without), small_model(), EXAMPLE, "lda", validate=True)


def test_one_answer_is_in_memory_at_a_time():
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
def test_a_clients_own_min_count_wins():
    """The larger of what the client withholds by itself and what the server lets it withhold."""

    def uneven(context):
        model, ((x, y), *_), held_out = load(context)  # 13 or 12 of each class
        return model, [(x, y), (x[y == 0], y[y == 0])], held_out

    for own, asked, count in ((21, 0, [52, 0, 0, 0]), (0, 21, [52, 0, 0, 0]), (0, 0, [52, 26, 24, 24])):
        grid = grid_of(2, uneven, min_count=own)
        found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "ncm", min_count=asked)
        assert found.statistics.count.tolist() == count
        assert int(found.statistics.withheld) == 126 - sum(count)


def most_at_once(grid):
    """How many questions were open at the same time, at most."""
    return max(grid.open)


def test_large_statistics_do_not_all_wait_at_the_superlink(monkeypatch):
    """As many clients are asked as fit; the next when one has answered."""
    size = ccvr.collect(small_model(), batches_of(0), num_classes=4, kind="pooled").num_bytes
    for room, most in ((10 * size, 6), (3 * size, 3), (1, 2)):
        monkeypatch.setattr("ccvr.flower.questions.ROOM", room)
        grid = grid_of(6)
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=10**6)
        assert most_at_once(grid) == most
        assert len(grid.sent) == 6


def test_silent_clients_hold_nobody_up(monkeypatch):
    """Others are asked after a quarter of the time, although the first two never answer."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    found = ccvr.flower.calibrate(grid_of(6, silent=[100, 101]), small_model(), EXAMPLE, "lda", timeout=3)
    assert found.missing.keys() == {100, 101}
    assert int(found.statistics.count.sum()) == 4 * 80


class SlowLink(Loopback):
    """Answers come one by one, ``seconds`` after each other."""

    seconds, free = 0.05, 0.0

    def push_messages(self, messages):
        numbers = super().push_messages(messages)
        for number in numbers:
            self.free = max(self.free, time.monotonic()) + self.seconds
            self.there = {**getattr(self, "there", {}), number: self.free}
        return numbers

    def pull_messages(self, message_ids):
        return super().pull_messages([each for each in message_ids if self.there[each] <= time.monotonic()])


@pytest.mark.parametrize("silent", [range(100, 108), range(101, 160, 3), range(100, 150)])
def test_many_silent_clients_hold_nobody_up(silent, monkeypatch):
    """Also where there are many times as many as are asked at once."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.federation.INTERVAL", 0.01)
    found = ccvr.flower.calibrate(grid_of(60, silent=silent), small_model(), EXAMPLE, "lda", timeout=2.0, quorum=0.01)
    assert found.missing.keys() == set(silent)


@pytest.mark.parametrize(("timeout", "most", "missing"), [(60, 2, 0), (1.0, 8, 20)])
def test_slow_clients_do_not_all_wait_at_the_superlink(timeout, most, missing, monkeypatch):
    """Not even where the time is too short for them: then the last ones are not asked, and named."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.federation.INTERVAL", 0.01)
    grid = SlowLink(app_of(), 60)
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=timeout, quorum=0.01)
    assert most_at_once(grid) <= most
    assert len(found.missing) >= missing
    assert len(found.missing) + int(found.statistics.count.sum()) // 80 == 60
    assert ("not asked within" in str(found)) == bool(missing)


def test_what_the_server_computes_is_not_the_clients_time(monkeypatch):
    """All have answered at once, and folding takes longer than anybody is waited for."""
    read = ClassStatistics.from_bytes

    def slow(*arguments, **options):
        time.sleep(0.2)
        return read(*arguments, **options)

    monkeypatch.setattr(ClassStatistics, "from_bytes", slow)
    for room in (10**9, 1):
        monkeypatch.setattr("ccvr.flower.questions.ROOM", room)
        monkeypatch.setattr("ccvr.flower.federation.PATIENCE", 0.2)
        found = ccvr.flower.calibrate(grid_of(8), small_model(), EXAMPLE, "lda", timeout=0.6)
        assert found.missing == {}


# --- whom it names ----------------------------------------------------------------------------------------------------


def misbehaving(*nodes, how):
    """A mod that lets some nodes answer as ``how(message)`` says."""

    def mod(message, context, call_next):
        return how(message) if context.node_id in nodes else call_next(message, context)

    return mod


def fail(message):
    raise RuntimeError("out of luck\nand more lines")


@given(st.integers(1, 6), st.sets(st.integers(0, 5)), st.sampled_from([0.01, 0.25, 0.5, 0.75, 1.0]))
def test_quorum(number, failing, quorum):
    """It succeeds if and only if enough answer; either way it names exactly those who did not."""
    failing = {100 + k for k in failing if k < number}
    grid = grid_of(number, mods=[misbehaving(*failing, how=fail)])
    needed = max(1, math.ceil(quorum * number))
    if number - len(failing) >= needed:
        found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "ncm", quorum=quorum)
        assert found.missing.keys() == failing
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


def test_a_silent_client_is_waited_for_until_the_time_is_over():
    found = ccvr.flower.calibrate(grid_of(3, silent=[101]), small_model(), EXAMPLE, "lda", timeout=0.5)
    assert found.missing == {101: f"{QUESTION}: no answer within 0.5 seconds"}
    with pytest.raises(
        FederationError, match=r"1 of 3 clients .* client 101 \(no answer within 0.5 seconds\), client 102"
    ):
        ccvr.flower.calibrate(grid_of(3, silent=[101, 102]), small_model(), EXAMPLE, "lda", timeout=0.5)


def test_an_answer_that_never_arrives_whole_does_not_hold_up_the_stage(monkeypatch):
    """Flower waits for hours for the chunks of an announced answer; the others have their turn meanwhile."""
    monkeypatch.setattr("ccvr.flower.federation.PATIENCE", 0.5)
    is_over = threading.Event()

    class Stuck(Loopback):
        def pull_messages(self, message_ids):
            if self._waiting[message_ids[0]].metadata.dst_node_id != 100:
                return super().pull_messages(message_ids)
            is_over.wait(60)
            return []

    found = ccvr.flower.calibrate(Stuck(app_of(), 3), small_model(), EXAMPLE, "lda", timeout=2.0)
    is_over.set()
    assert found.missing == {100: f"{QUESTION}: its answer was still on the way when the time was over"}
    assert int(found.statistics.count.sum()) == 160


def test_a_slow_answer_is_taken_when_it_is_there(monkeypatch):
    """Also where it takes longer than the others wait for it."""
    monkeypatch.setattr("ccvr.flower.federation.PATIENCE", 0.1)

    class Slow(Loopback):
        def pull_messages(self, message_ids):
            if self._waiting[message_ids[0]].metadata.dst_node_id == 100:
                time.sleep(1)
            return super().pull_messages(message_ids)

    found = ccvr.flower.calibrate(Slow(app_of(), 3), small_model(), EXAMPLE, "lda", timeout=60.0)
    assert found.missing == {}
    assert int(found.statistics.count.sum()) == 240


def test_answers_that_wait_behind_a_silent_client_are_read(monkeypatch):
    """In the order in which they were asked; reading takes longer than anybody has patience for all of them."""
    monkeypatch.setattr("ccvr.flower.federation.PATIENCE", 0.5)

    class Slow(Loopback):
        def pull_messages(self, message_ids):
            time.sleep(0.2)
            return super().pull_messages(message_ids)

    federation = Federation(Slow(app_of(), 10, silent=[100]), {k: 100 + k for k in range(10)}, 0.5, 1.0)
    blobs = {"state": state_bytes(small_model().state_dict())}
    contents = {k: pack(blobs, head="4", num_classes=4) for k in range(10)}
    read = list(federation.ask("it", "query.ccvr_scores", contents, lambda client, _: client, in_order=True))
    assert read == list(range(1, 10))
    assert federation.missing == {"it": {0: "no answer within 1 seconds"}}


@pytest.mark.parametrize("timeout", [1e-9, 0.01])
def test_however_short_the_time_everybody_is_asked_once(timeout):
    assert ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, "lda", timeout=timeout).missing == {}


def test_too_few_clients_are_connected():
    with pytest.raises(FederationError, match=r"2 of 3 clients connected within 0\.3 seconds"):
        ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", num_clients=3, timeout=0.3, quorum=1.0)


def test_who_is_not_connected_is_counted_by_the_quorum_and_told():
    ask = functools.partial(ccvr.flower.calibrate, model=small_model(), example=EXAMPLE, method="lda", timeout=0.3)
    found = ask(grid_of(2), num_clients=4)
    assert found.absent == 2
    assert found.missing == {}
    assert str(found).endswith("missing: 2 not connected")
    with pytest.raises(FederationError, match=r"^1 of 4 clients answered .* 2 are needed\. .*, 2 not connected\."):
        ask(grid_of(2, mods=[misbehaving(100, how=fail)]), num_clients=4)
    assert ask(grid_of(3), num_clients=2).absent == 0


def test_a_client_without_samples_is_named_and_not_missed():
    def some(context):
        model, batches, held_out = load(context)
        return model, [] if context.node_id == 101 else batches, held_out

    found = ccvr.flower.calibrate(grid_of(2, some), small_model(), EXAMPLE, "lda", quorum=1.0)
    assert found.without_samples == (101,)
    assert found.missing == {}
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


@pytest.mark.parametrize("part", [1, 2])
def test_batches_that_are_no_pairs_are_told(part):
    def dicts(context):
        loaded = list(load(context))
        loaded[part] = [{"image": x, "label": y} for x, y in loaded[part]]
        return loaded

    with pytest.raises(FederationError, match=r"a batch is no pair of tensors \(inputs, labels\)"):
        ccvr.flower.calibrate(grid_of(2, dicts), small_model(), EXAMPLE, "lda", validate=True)


def test_labels_of_any_whole_type():
    def short(context):
        model, *parts = load(context)
        return model, *([(x, y.to(torch.int32)) for x, y in part] for part in parts)

    assert ccvr.flower.calibrate(grid_of(2, short), small_model(), EXAMPLE, "lda", validate=True).missing == {}


def test_a_client_with_another_model_is_named_with_its_reason():
    def other(context):
        model, *rest = load(context)
        return (torch.nn.Linear(5, 4) if context.node_id == 100 else model), *rest

    found = ccvr.flower.calibrate(grid_of(3, other), small_model(), EXAMPLE, "lda")
    assert list(found.missing) == [100]
    assert "does not take the server's tensors" in found.missing[100]


def honest(num_classes=4, kind="pooled"):
    return ccvr.collect(small_model(), batches_of(0), num_classes=num_classes, kind=kind)


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
    "more classes": pack({"statistics": honest(num_classes=9).to_bytes()}),
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
    assert list(found.missing) == [100]
    assert 0 < len(found.missing[100].removeprefix(f"{QUESTION}: ")) <= 300
    assert found.missing[100].isprintable()
    blobs = [ccvr.collect(small_model(), batches_of(k), num_classes=4, kind="pooled").to_bytes() for k in (1, 2)]
    assert same_tensors(found.model, ccvr.calibrate(small_model(), ccvr.merge(blobs), "lda"))


@pytest.mark.parametrize(
    ("garbage", "error"), [(b"Message  3\0\xff\xff\xff", "DecodeError"), (b"Message  0\0", "IndexError")]
)
def test_a_message_that_flower_cannot_read_is_its_senders_problem(garbage, error):
    """As it comes from the network: the SuperLink takes these objects, and Flower's own reader raises over them."""

    class Broken(Loopback):
        def pull_messages(self, message_ids):
            if self._waiting[message_ids[0]].metadata.dst_node_id != 100:
                return super().pull_messages(message_ids)
            validate_object_content(garbage)
            return [inflate_object_from_contents("it", {"it": garbage})]

    found = ccvr.flower.calibrate(Broken(app_of(), 2), small_model(), EXAMPLE, "lda")
    assert found.missing == {100: f"{QUESTION}: its message cannot be read ({error})"}


@pytest.mark.parametrize("error", [ConnectionError("no route"), httpx.ConnectError("no route")])
@pytest.mark.parametrize("call", ["get_node_ids", "push_messages", "pull_messages"])
def test_a_network_that_fails_is_nobodys_fault(call, error, monkeypatch):
    def down(*_):
        raise error

    monkeypatch.setattr(Loopback, call, down)
    with pytest.raises(FederationError, match=r"^the SuperLink does not answer \(no route\)\. Bring it back"):
        ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda")


class Leaving(Loopback):
    """From the first such call on the SuperLink is gone: Flower's own grid, and nobody listens."""

    def __init__(self, call):
        super().__init__(app_of(), 2)
        self.last, self.is_gone = call, False
        self.flowers = HttpGrid(f"127.0.0.1:{free_port()}", insecure=True, token="none")
        self.flowers.set_run(Run.create_empty(1))

    def _now(self, call):
        self.is_gone |= call == self.last
        return self.flowers if self.is_gone else super()

    def get_node_ids(self):
        return self._now("get_node_ids").get_node_ids()

    def push_messages(self, messages):
        return self._now("push_messages").push_messages(messages)

    def pull_messages(self, message_ids):
        return self._now("pull_messages").pull_messages(message_ids)


@pytest.mark.parametrize("call", ["get_node_ids", "push_messages", "pull_messages"])
def test_a_superlink_that_is_gone_is_given_up(call, monkeypatch):
    """Flower itself tries for ever; not so after this test, where it would disturb others."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    grid = Leaving(call)
    monkeypatch.setattr("ccvr.flower.link.LIMIT", 1.0)
    monkeypatch.setattr("ccvr.flower.federation.PATIENCE", 0.5)
    with pytest.raises(FederationError, match=r"^the SuperLink does not answer \(nothing for 1(\.5)? seconds\)"):
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=1.0)
    grid.flowers._retry_invoker.max_time = 0.0


@pytest.mark.parametrize("blob", [b"no counts", overflowing(COUNTS, "total/lda")])
def test_hostile_counts_are_left_out(blob):
    def lying(message, context, call_next):
        reply = call_next(message, context)
        if context.node_id == 100 and message.metadata.message_type == "query.ccvr_scores":
            return Message(pack({"counts": blob}), reply_to=message)
        return reply

    found = ccvr.flower.calibrate(grid_of(3, mods=[lying]), small_model(), EXAMPLE, "lda", validate=True)
    assert list(found.missing) == [100]
    assert found.missing[100].startswith("the query for scores: these bytes are no counts")
    assert found.method == "lda"


def test_a_long_error_of_flowers_takes_no_time():
    """Hours, if what it says were searched as it came."""
    how = lambda message: Message(Error(0, "<class '" + "a" * 10**7), reply_to=message)  # noqa: E731
    found = ccvr.flower.calibrate(grid_of(3, mods=[misbehaving(100, how=how)]), small_model(), EXAMPLE, "lda")
    assert found.missing.keys() == {100}


def test_who_is_missing_twice_is_named_with_both_reasons():
    def twice(message, context, call_next):
        if context.node_id == 100:
            raise RuntimeError(message.content["ccvr.settings"]["kind"])
        return call_next(message, context)

    found = ccvr.flower.calibrate(grid_of(3, mods=[twice]), small_model(), EXAMPLE, "kernel,num_features=20")
    assert found.missing == {
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
        del header["format"]
        how(tensors)
        return Message(pack({blob: tensors_to_bytes(tensors, format=format, **header)}), reply_to=message)

    return mod


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
    assert list(found.missing) == [100]
    assert said in found.missing[100]
    allowed = ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, "ncm", validate=True, max_count=20)
    assert allowed.missing == {}


def test_a_client_cannot_make_a_projection_that_the_others_cannot_use():
    """The largest means and deviations that are read, of by far the most samples."""

    def how(tensors):
        tensors["count"].fill_(10**9)
        tensors["mean"][::2], tensors["mean"][1::2] = 1e9, -1e9
        if "scatter" in tensors and tensors["scatter"].shape == tensors["mean"].shape:
            tensors["scatter"] = torch.full_like(tensors["scatter"], 1e27)

    grid = grid_of(3, mods=[altering("statistics", FORMAT, how)])
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "kernel,num_features=20")
    assert found.statistics.projection.std.max() > 1e9
    assert found.missing.keys() <= {100}


# --- what it refuses --------------------------------------------------------------------------------------------------


def wrapped(mod):
    def inner(message, context, call_next):
        return mod(message, context, call_next)

    return inner


@dataclass(slots=True)
class Slotted:
    mod: object

    def __call__(self, message, context, call_next):
        return self.mod(message, context, call_next)


def wrapped_as_a_default(message, context, call_next, mod=secaggplus_mod):
    return mod(message, context, call_next)


def named(message, context, call_next):
    return next(secaggplus_mod(message, context, call_next) for _ in range(1))


def named_in_a_module(message, context, call_next):
    return flwr.client.mod.secaggplus_mod(message, context, call_next)


def imported_when_it_runs(message, context, call_next):
    from flwr.client.mod import secaggplus_mod as mask

    return mask(message, context, call_next)


def elsewhere(function):
    """The function in a module that has not imported the mod itself."""
    return types.FunctionType(function.__code__, {"flwr": flwr, "__name__": "elsewhere"})


def by_another_function(message, context, call_next):
    return named(message, context, call_next)


class Holds:
    def __init__(self, mods):
        self.mods = {"train": mods}

    def __call__(self, message, context, call_next):
        return self.mods["train"][0](message, context, call_next)


class Names:
    def __call__(self, message, context, call_next):
        return self.masked(message, context, call_next)

    @staticmethod
    def masked(message, context, call_next):
        return secaggplus_mod(message, context, call_next)


class NamesLikeItsParent(Names):
    pass


MASKS = {
    "the mod": secaggplus_mod,
    "partial": functools.partial(secaggplus_mod),
    "partial of a partial": functools.partial(functools.partial(wrapped(secaggplus_mod))),
    "argument of a partial": functools.partial(wrapped_as_a_default, mod=secaggplus_mod),
    "closure": wrapped(wrapped(secaggplus_mod)),
    "default": wrapped_as_a_default,
    "global name": named,
    "name in a module": elsewhere(named_in_a_module),
    "import": elsewhere(imported_when_it_runs),
    "function that names it": by_another_function,
    "attribute": Holds([secaggplus_mod]),
    "slot": Slotted(secaggplus_mod),
    "bound method": Holds([secaggplus_mod]).__call__,
    "class": Names(),
    "parent class": NamesLikeItsParent(),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("where", ["app", "train"])
def test_statistics_must_not_look_protected(name, where):
    """Flower's secure aggregation covers training alone; a client that uses it refuses, and the server reads why."""
    app = app_of(mods=[MASKS[name]] if where == "app" else None)

    @app.train(mods=[MASKS[name]] if where == "train" else None)
    def train(message, context):
        raise NotImplementedError

    with pytest.raises(FederationError, match=r"masks its training with secaggplus_mod.*register\(…, unmasked=True\)"):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


def test_what_cannot_be_looked_through_is_not_taken_for_harmless(monkeypatch):
    monkeypatch.setattr("ccvr.flower.masks.MOST_OBJECTS", 10)
    with pytest.raises(FederationError, match=r"lead to more than 10 objects, too many to tell .*unmasked=True"):
        ccvr.flower.calibrate(grid_of(1), small_model(), EXAMPLE, "lda")


def test_a_training_that_was_masked_is_remembered():
    """However the mod was hidden: its keys are in the node's state."""
    grid = grid_of(2)
    grid.contexts[100].state[RECORD_KEY_STATE] = ConfigRecord(SecAggPlusState().to_dict())
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    assert "masks its training with secaggplus_mod" in found.missing[100]


def test_other_mods_do_no_harm():
    """Also where they come from a module that has the masking ones, and hold much."""

    class Counting:
        def __init__(self):
            self.model, self.data, self.names = small_model(), [object() for _ in range(1000)], {"a": self}

        def __call__(self, message, context, call_next):
            return flwr.client.mod.message_size_mod(message, context, call_next)

    app = app_of(mods=[Counting(), wrapped(flwr.client.mod.message_size_mod)])
    assert ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda").missing == {}


def test_a_function_that_calls_itself_hides_no_mask():
    app = app_of()

    def again(message, context):
        return again(message, context)

    app.evaluate()(again)
    app.train(mods=[secaggplus_mod])(again)
    with pytest.raises(FederationError, match="masks its training with secaggplus_mod"):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


def test_who_says_so_may_send_unmasked():
    """And then it is unmasked: the very bytes are in the answer."""
    grid = grid_of(1, mods=[secaggplus_mod], unmasked=True)
    ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    answer = grid.app(grid.sent[0], grid.contexts[100])
    expected = ccvr.collect(small_model(), batches_of(0), num_classes=4, kind="pooled").to_bytes()
    assert answer.content["ccvr.blobs"]["statistics"].data == expected


def test_noise_of_a_mod_is_an_error_and_no_spoilt_statistics():
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    with pytest.raises(FederationError, match="0 of 2 clients answered"):
        ccvr.flower.calibrate(grid_of(2, mods=[mod]), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize(
    ("method", "options", "error", "said"),
    [
        ("oracle", {}, CalibrationError, "oracle needs raw features"),
        ("ccrv", {}, CcvrError, 'Did you mean "ccvr"'),
        (None, {"kind": "ful"}, CcvrError, "ful"),
        ("lda,kind=means", {}, CcvrError, "means"),
        ("lda", {"head": "0.weight"}, ModelError, "0.weight"),
        ("lda", {"kind": "nonsense"}, CcvrError, "nonsense"),
        *(("lda", {"quorum": value}, CcvrError, "quorum is") for value in (0, -1, 1.5, math.nan, math.inf)),
        *(("lda", {"timeout": value}, CcvrError, "timeout is") for value in (0, -1, math.nan, math.inf, 1e300)),
        *(("lda", {"num_clients": value}, CcvrError, "num_clients is") for value in (0, -1, 1.5)),
        ("lda", {"max_count": 0}, CcvrError, "max_count is 0"),
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
