"""Asking many: room, time, silence, and a SuperLink that fails or is gone."""

import functools
import logging
import threading
import time

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    inflate_object_from_contents,
    validate_object_content,
)
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

import ccvr
import ccvr.flower
from ccvr.core.errors import FederationError
from ccvr.flower.exchange import PATIENCE
from ccvr.flower.federation import Federation, needed_of
from ccvr.flower.launch import free_port
from ccvr.flower.messages import pack
from ccvr.flower.questions import state_bytes
from ccvr.statistics.moments import ClassStatistics
from tests.flower.loopback import Loopback
from tests.flower.small import EXAMPLE, app_of, batches_of, fail, grid_of, misbehaving, small_model

pytestmark = pytest.mark.flower

QUESTION = "the query for pooled statistics"


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
    """Others are asked in time, although the first two never answer."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    found = ccvr.flower.calibrate(grid_of(6, silent=[100, 101]), small_model(), EXAMPLE, "lda", timeout=3)
    assert found.absent.keys() == {100, 101}
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
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.01)
    found = ccvr.flower.calibrate(grid_of(60, silent=silent), small_model(), EXAMPLE, "lda", timeout=2.0, quorum=0.01)
    assert found.absent.keys() == set(silent)


def test_slow_clients_do_not_all_wait_at_the_superlink(monkeypatch):
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.01)
    grid = SlowLink(app_of(), 60)
    assert ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=60).absent == {}
    assert most_at_once(grid) <= 2


def test_a_time_that_is_too_short_loses_only_whom_it_must(monkeypatch):
    """The link has time for a third of them. Many more are asked: nobody knows why others do not answer."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.01)
    monkeypatch.setattr(SlowLink, "seconds", 0.15)
    grid = SlowLink(app_of(), 60)
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=3.0, quorum=0.01)
    assert len(grid.sent) >= 45
    assert len(found.absent) <= 50
    assert len(found.absent) + int(found.statistics.count.sum()) // 80 == 60


class EachSlow(Loopback):
    """Each answers so many seconds after it was asked, or at once."""

    def __init__(self, number, seconds, silent=()):
        super().__init__(app_of(), number, silent=silent)
        self.seconds, self.there = seconds, {}

    def push_messages(self, messages):
        numbers = super().push_messages(messages)
        for number, message in zip(numbers, messages, strict=True):
            self.there[number] = time.monotonic() + self.seconds.get(message.metadata.dst_node_id, 0.0)
        return numbers

    def pull_messages(self, message_ids):
        return super().pull_messages([each for each in message_ids if self.there[each] <= time.monotonic()])


def test_slow_clients_hold_nobody_up(monkeypatch):
    """Each needs a sixth of the time, and two are asked at once: one after the other the time would not do."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.01)
    grid = EachSlow(30, dict.fromkeys(range(100, 130), 0.5))
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=3.0, quorum=0.01)
    assert len(grid.sent) == 30
    assert int(found.statistics.count.sum()) // 80 >= 15
    assert most_at_once(grid) <= 12


def test_uploads_hold_nobody_up(monkeypatch):
    """A look at what is being sent lasts until all of it is there; others are asked and read meanwhile."""
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 1.5)

    class Uploading(EachSlow):
        def pull_messages(self, message_ids):
            time.sleep(max(0.0, self.there[message_ids[0]] - time.monotonic()))
            return super().pull_messages(message_ids)

    grid = Uploading(30, dict.fromkeys(range(100, 130), 1.0))
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=6.0, quorum=0.01)
    assert len(grid.sent) == 30
    assert len(found.absent) <= 10


def test_a_slow_client_makes_silent_ones_keep_no_places(monkeypatch):
    monkeypatch.setattr("ccvr.flower.questions.ROOM", 1)
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.01)
    grid = EachSlow(20, {100: 0.7}, silent=range(101, 108))
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=2.0)
    assert found.absent.keys() == set(range(101, 108))


def test_what_the_server_computes_is_not_the_clients_time(monkeypatch):
    """All have answered at once, and folding takes longer than anybody is waited for."""
    read = ClassStatistics.from_bytes

    def slow(*arguments, **options):
        time.sleep(0.3)
        return read(*arguments, **options)

    monkeypatch.setattr(ClassStatistics, "from_bytes", slow)
    for room in (10**9, 1):
        monkeypatch.setattr("ccvr.flower.questions.ROOM", room)
        monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 1.0)
        found = ccvr.flower.calibrate(grid_of(8), small_model(), EXAMPLE, "lda", timeout=1.0)
        assert found.absent == {}


def test_a_silent_client_is_waited_for_until_the_time_is_over():
    found = ccvr.flower.calibrate(grid_of(3, silent=[101]), small_model(), EXAMPLE, "lda", timeout=0.5)
    assert found.absent == {101: f"{QUESTION}: no answer within 0.5 seconds"}
    with pytest.raises(
        FederationError, match=r"1 of 3 clients .* client 101 \(no answer within 0.5 seconds\), client 102"
    ):
        ccvr.flower.calibrate(grid_of(3, silent=[101, 102]), small_model(), EXAMPLE, "lda", timeout=0.5)


def test_an_answer_that_never_arrives_whole_does_not_hold_up_the_stage(monkeypatch):
    """Flower waits for hours for the chunks of an announced answer; the others have their turn meanwhile."""
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.5)
    is_over = threading.Event()

    class Stuck(Loopback):
        def pull_messages(self, message_ids):
            if self._waiting[message_ids[0]].metadata.dst_node_id != 100:
                return super().pull_messages(message_ids)
            is_over.wait(60)
            return []

    found = ccvr.flower.calibrate(Stuck(app_of(), 3), small_model(), EXAMPLE, "lda", timeout=2.0)
    is_over.set()
    assert found.absent == {100: f"{QUESTION}: its answer was still on the way when the time was over"}
    assert int(found.statistics.count.sum()) == 160


class Hanging(Loopback):
    """Whose answer of some never comes whole; from the first look on nothing else comes either, if it is ``cut``."""

    def __init__(self, number, stuck, *, cut=False):
        super().__init__(app_of(), number)
        self.stuck, self.cut, self.is_cut, self.is_over = set(stuck), cut, False, threading.Event()

    def get_node_ids(self):
        if self.is_cut:
            self.is_over.wait()
        return super().get_node_ids()

    def pull_messages(self, message_ids):
        self.is_cut |= self.cut
        if self.is_cut or self._waiting[message_ids[0]].metadata.dst_node_id in self.stuck:
            self.is_over.wait()
            return []
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("stuck", [range(100, 140, 2), range(100, 125)])
def test_many_answers_that_never_arrive_whole_lose_nobody_else_and_have_short_turns(stuck, monkeypatch):
    """Also where they come first: the others have answered long before, and are read behind them."""
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.75)
    grid, started = Hanging(40, stuck), time.monotonic()
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=0.5, quorum=0.1)
    assert time.monotonic() - started < 12, "the time, turns of a third of the patience for three at once, patience"
    grid.is_over.set()
    assert found.absent.keys() == set(stuck)


def asked_in_order(grid, number):
    """Who answered, and who is missing why."""
    federation = Federation(grid, {k: 100 + k for k in range(number)}, 0.5, 1.0)
    blobs = {"state": state_bytes(small_model().state_dict())}
    contents = {k: pack(blobs, head="4", num_classes=4) for k in range(number)}
    read = list(federation.ask("it", "query.ccvr_scores", contents, lambda client, _: client, in_order=True))
    return read, federation.absent["it"]


def test_in_order_answers_that_never_arrive_whole_lose_nobody_behind_them(monkeypatch):
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.75)
    grid = Hanging(20, range(100, 106))
    read, missing = asked_in_order(grid, 20)
    grid.is_over.set()
    assert read == list(range(6, 20))
    assert missing == dict.fromkeys(range(6), "its answer was still on the way when the time was over")


def test_a_link_that_is_cut_is_found_in_no_more_time_for_many_clients(monkeypatch):
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.3)
    monkeypatch.setattr("ccvr.flower.superlink.LIMIT", 0.3)
    grid, started = Hanging(60, (), cut=True), time.monotonic()
    with pytest.raises(FederationError, match=r"^the SuperLink does not answer \(nothing for 0\.3 seconds\)"):
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=60.0)
    assert time.monotonic() - started < 15, "and long before the time is over"
    grid.is_over.set()


def test_a_superlink_that_fails_is_there(monkeypatch):
    """While an answer is on its way it is asked for its nodes, and anything that it says is a sign of life."""
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.3)
    grid = Hanging(3, [100])
    asked = iter([[100, 101, 102]])

    def busy():
        if (nodes := next(asked, None)) is None:
            raise LOCKED
        return nodes

    grid.get_node_ids = busy
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=1.0)
    grid.is_over.set()
    assert found.absent == {100: f"{QUESTION}: its answer was still on the way when the time was over"}


@pytest.mark.parametrize("times", [1, 10**6])
def test_a_superlink_that_fails_to_name_its_nodes_is_asked_again(times):
    grid, left = grid_of(2), iter([LOCKED] * times)

    def busy():
        if (error := next(left, None)) is not None:
            raise error
        return [100, 101]

    grid.get_node_ids = busy
    if times == 1:
        assert ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=60).absent == {}
    else:
        with pytest.raises(FederationError, match=r"^the SuperLink failed \(500 Internal Server Error\)"):
            ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=0.5)


@pytest.mark.parametrize("how", [Error(0, "\n"), Error(0), pack({}, error="\x1b")], ids=["line", "none", "setting"])
def test_a_failure_without_a_reason_is_no_silence(how):
    mod = misbehaving(100, how=lambda message: Message(how, reply_to=message))
    found = ccvr.flower.calibrate(grid_of(2, mods=[mod]), small_model(), EXAMPLE, "lda")
    assert found.absent == {100: f"{QUESTION}: it failed"}


def test_an_empty_answer_is_told_from_none():
    mod = misbehaving(100, how=lambda message: Message(RecordDict(), reply_to=message))
    found = ccvr.flower.calibrate(grid_of(2, mods=[mod]), small_model(), EXAMPLE, "lda")
    assert found.absent == {100: f'{QUESTION}: a message without the bytes "statistics"'}


def test_a_slow_answer_is_taken_when_it_is_there(monkeypatch):
    """Also where it takes longer than the others wait for it."""
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.1)

    class Slow(Loopback):
        def pull_messages(self, message_ids):
            if self._waiting[message_ids[0]].metadata.dst_node_id == 100:
                time.sleep(1)
            return super().pull_messages(message_ids)

    found = ccvr.flower.calibrate(Slow(app_of(), 3), small_model(), EXAMPLE, "lda", timeout=60.0)
    assert found.absent == {}
    assert int(found.statistics.count.sum()) == 240


def test_answers_that_wait_behind_a_silent_client_are_read(monkeypatch):
    """In the order in which they were asked; reading takes longer than anybody has patience for all of them."""
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.5)

    one_at_a_time = threading.Lock()

    class Slow(Loopback):
        def pull_messages(self, message_ids):
            assert one_at_a_time.acquire(blocking=False), "they would slow each other down, and fill the memory"
            time.sleep(0.1)
            one_at_a_time.release()
            return super().pull_messages(message_ids)

    read, missing = asked_in_order(Slow(app_of(), 10, silent=[100]), 10)
    assert read == list(range(1, 10))
    assert missing == {0: "no answer within 1 seconds"}


@pytest.mark.parametrize("timeout", [1e-9, 0.01])
def test_however_short_the_time_everybody_is_asked_once(timeout):
    assert ccvr.flower.calibrate(grid_of(3), small_model(), EXAMPLE, "lda", timeout=timeout).absent == {}


def test_sending_takes_time_too(monkeypatch):
    """A link that takes each message slowly does not make the exchange as long as it likes."""

    class SlowToTake(Loopback):
        def push_messages(self, messages):
            time.sleep(0.2)
            return super().push_messages(messages)

    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.5)
    grid, begun = SlowToTake(app_of(), 60), time.monotonic()
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=0.5, quorum=0.01)
    assert time.monotonic() - begun < 8
    assert len(grid.sent) <= 6
    assert 53 <= len(found.absent) < 60
    assert "not asked within 0.5 seconds" in found.absent[159]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("number", [6, 9])
def test_answers_that_are_there_are_read_however_long_sending_took(number, in_order, monkeypatch):
    """Sending alone takes the time, and for nine all patience as well; each answer is longer on its way than a look."""

    class Slow(Loopback):
        def push_messages(self, messages):
            time.sleep(0.3)
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            time.sleep(0.4)
            return super().pull_messages(message_ids)

    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 1.0)
    grid = Slow(app_of(), number, silent=[100])
    federation = Federation(grid, {k: 100 + k for k in range(number)}, 0.01, 1.0)
    content = pack({"state": state_bytes(small_model().state_dict())}, head="4", num_classes=4)
    contents = dict.fromkeys(range(number), content)
    read = list(federation.ask("it", "query.ccvr_scores", contents, lambda client, _: client, in_order=in_order))
    lost = {client: reason for client, reason in federation.absent["it"].items() if client}
    assert len(read) >= 3
    assert {*read, *lost} == {*range(1, number)}
    assert all("not asked within" in reason or "could not be sent" in reason for reason in lost.values())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_message_that_is_never_taken(is_there, monkeypatch):
    """Where the SuperLink is gone, that is said soon; where it is there, the message's receiver is missing."""
    for_ever = threading.Event()

    class NeverTakes(Loopback):
        asked = 0

        def push_messages(self, messages):
            for_ever.wait()

        def get_node_ids(self):
            self.asked += 1
            if self.asked > 1 and not is_there:
                for_ever.wait()
            return super().get_node_ids()

    monkeypatch.setattr("ccvr.flower.superlink.LOOK", 0.1)
    monkeypatch.setattr("ccvr.flower.superlink.LIMIT", 0.3)
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.5)
    why = "0 of 1 clients .*could not be sent in time" if is_there else "the SuperLink does not answer"
    begun = time.monotonic()
    try:
        with pytest.raises(FederationError, match=why):
            ccvr.flower.calibrate(NeverTakes(app_of(), 1), small_model(), EXAMPLE, "lda", timeout=1.0)
    finally:
        for_ever.set()
    assert is_there or time.monotonic() - begun < 1.4


def test_messages_outlive_the_wait():
    """What is on its way when the time is over can still arrive."""
    grid = grid_of(1)
    ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=7.0)
    assert grid.sent[0].metadata.ttl > 7.0 + PATIENCE


@pytest.mark.parametrize(
    ("number", "quorum", "needed"), [(10, 0.7, 7), (10, 0.71, 8), (3, 0.5, 2), (3, 1e-6, 1), (3, 1.0, 3)]
)
def test_a_quorum_in_clients(number, quorum, needed):
    assert needed_of(number, quorum) == needed


def test_too_few_clients_are_connected():
    with pytest.raises(FederationError, match=r"2 of 3 clients connected within 0\.3 seconds"):
        ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", num_clients=3, timeout=0.3, quorum=1.0)


def test_who_is_not_connected_is_counted_by_the_quorum_and_told():
    ask = functools.partial(ccvr.flower.calibrate, model=small_model(), example=EXAMPLE, method="lda", timeout=0.3)
    found = ask(grid_of(2), num_clients=4)
    assert found.unconnected == 2
    assert found.absent == {}
    assert str(found).endswith("missing: 2 not connected")
    with pytest.raises(FederationError, match=r"^1 of 4 clients answered .* 2 are needed\. .*, 2 not connected\."):
        ask(grid_of(2, mods=[misbehaving(100, how=fail)]), num_clients=4)
    assert ask(grid_of(3), num_clients=2).unconnected == 0


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
    assert found.absent == {100: f"{QUESTION}: its message cannot be read ({error})"}


@pytest.mark.parametrize("error", [ConnectionError("no route"), httpx.ConnectError("no route")])
@pytest.mark.parametrize("call", ["get_node_ids", "push_messages", "pull_messages"])
def test_a_network_that_fails_is_nobodys_fault(call, error, monkeypatch):
    def down(*_):
        raise error

    monkeypatch.setattr(Loopback, call, down)
    with pytest.raises(FederationError, match=r"^the SuperLink does not answer \(no route\)\. Bring it back"):
        ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda")


def broken_for(node, call, error, times=10**6):
    """A grid whose call raises so many times where it is about one node."""
    left = [times]

    class Broken(Loopback):
        def _raise(self, message):
            if message.metadata.dst_node_id == node and left[0]:
                left[0] -= 1
                raise error

        def push_messages(self, messages):
            if call == "push":
                self._raise(messages[0])
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            if call == "pull":
                self._raise(self._waiting[message_ids[0]])
            return super().pull_messages(message_ids)

    return Broken(app_of(), 3)


LOCKED = httpx.HTTPStatusError("locked", request=httpx.Request("POST", "http://x"), response=httpx.Response(500))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("pull", LOCKED, "the SuperLink failed (500 Internal Server Error). Look into its log, then try again"),
        ("push", LOCKED, "the SuperLink failed (500 Internal Server Error). Look into its log, then try again"),
        ("push", ObjectPushError("it", 1, "session"), "the message could not be sent (ObjectPushError)"),
        ("pull", MemoryError(), "its message cannot be read (MemoryError)"),
    ],
)
def test_what_fails_over_one_client_is_not_the_others_loss(call, error, said):
    """A busy database makes a SuperLink fail now and then; one answer may be too large."""
    found = ccvr.flower.calibrate(broken_for(101, call, error), small_model(), EXAMPLE, "lda", timeout=0.5)
    assert found.absent == {101: f"{QUESTION}: {said}"}
    assert int(found.statistics.count.sum()) == 160


def test_a_superlink_that_failed_once_is_asked_again():
    found = ccvr.flower.calibrate(broken_for(101, "pull", LOCKED, times=1), small_model(), EXAMPLE, "lda", timeout=60)
    assert found.absent == {}


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
    monkeypatch.setattr("ccvr.flower.superlink.LIMIT", 1.0)
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.5)
    with pytest.raises(FederationError, match=r"^the SuperLink does not answer \(nothing for 1 seconds\)"):
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", timeout=1.0)
    grid.flowers._retry_invoker.max_time = 0.0


def test_a_long_error_of_flowers_takes_no_time():
    """Hours, if what it says were searched as it came."""
    how = lambda message: Message(Error(0, "<class '" + "a" * 10**7), reply_to=message)  # noqa: E731
    found = ccvr.flower.calibrate(grid_of(3, mods=[misbehaving(100, how=how)]), small_model(), EXAMPLE, "lda")
    assert found.absent.keys() == {100}
