"""Hostile answers to the server's questions, and hostile questions to a client, through the code that reads them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp

import ccvr
from ccvr.algorithms.messages import Client
from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import MAX_MESSAGE, FederationError
from ccvr.data.batches import TrainingSamples
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.events import ClientsAbsent
from ccvr.experiment.setup import Setup, prepare
from ccvr.experiment.spec import FlowerSpec, Spec
from ccvr.flower.client_app import app as run_client
from ccvr.flower.engine import FlowerEngine
from ccvr.flower.federation import Federation
from ccvr.flower.log_protocol import in_words
from ccvr.flower.messages import ERROR, SETTINGS
from ccvr.flower.superlink import MAX_LETTERS
from ccvr.models.build import ModelSpec
from ccvr.models.heads import copy_head
from ccvr.statistics.request import Request
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import first_state, sent_state
from tests.adversary.flower_contents import TEXTS, hostile
from tests.flower.loopback import Loopback
from tests.flower.small import EXAMPLE, app_of, small_model

pytestmark = pytest.mark.flower

HONEST, LIARS = 4, 20
NUMBER = HONEST + LIARS
SPEC = Spec(
    threads=1,
    workers=1,
    data=DataSpec(validation=0.2),
    model=ModelSpec("tests.flower.test_engine:normalised"),
    partition=PartitionSpec(num_clients=NUMBER, alpha=100.0, min_size=20),
    training=TrainingSpec(rounds=1, local_epochs=1, step="torch", algorithm="fedper"),
    calibration=CalibrationSpec(methods=("lda",)),
    flower=FlowerSpec(quorum=HONEST / NUMBER),
)
MOST_SECONDS, MOST_BYTES = 2.0, 200 * 2**20


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.001)


@pytest.fixture(autouse=True)
def clients_that_trust_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec names a model of the tests."""
    monkeypatch.setenv("CCVR_TRUST", "1")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """The peak is no more than 200 MB above the start."""
    refs, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not refs.exists():
        pytest.skip("no peak of memory can be read here")

    def field(name: str) -> int:
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(name))

    refs.write_text("5")  # the peak is now what is used
    before = field("VmRSS")
    yield
    assert field("VmHWM") - before <= MOST_BYTES


def is_short_line(text: str, most: int = MAX_LETTERS) -> bool:
    return text.isprintable() and 0 < len(text) <= most


class Lying(Loopback):
    """Nodes from HONEST on make their answers from honest ones; what they did is in ``lies``."""

    def __init__(self, app: ClientApp, rng: Random) -> None:
        super().__init__(app, NUMBER)
        self.rng, self.truth, self.lies = rng, dict[tuple[str, int], RecordDict](), dict[int, str]()
        self.mistakes: list[Exception] = []

    def _answer(self, message: Message) -> Message:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if node < 100 + HONEST:
            return super()._answer(message)
        if (kind, node) not in self.truth:
            self.truth[kind, node] = super()._answer(message).content
        if self.rng.random() < 0.1:
            self.lies[node - 100] = "error"
            return Message(Error(self.rng.randrange(300), self.rng.choice(TEXTS)), reply_to=message)
        try:
            content, self.lies[node - 100] = hostile(self.truth[kind, node], self.rng)
        except Exception as error:  # Flower would take it for the client's
            self.mistakes.append(error)
            raise
        return Message(content, reply_to=message)

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        liar = [message for message in found if message.metadata.src_node_id >= 100 + HONEST]
        if liar and self.rng.random() < 0.1:
            self.lies[liar[0].metadata.src_node_id - 100] = "unreadable"
            raise self.rng.choice([ValueError, RuntimeError, KeyError])(self.rng.choice(TEXTS))
        return found * self.rng.choice([1, 1, 2]) if liar else found


class Timed(Federation):
    """Measures the CPU time that the look at each answer takes."""

    seconds: list[float] = []  # noqa: RUF012 - of all

    def ask(self, question, message_type, contents, read, **options):
        def timed(client, answer):
            began = time.thread_time()
            try:
                return read(client, answer)
            finally:
                self.seconds.append(time.thread_time() - began)

        return super().ask(question, message_type, contents, timed, **options)


BLATANT = {"nothing", "other_records", "complaint", "junk", "error", "unreadable"}


def require_named(federation: Federation, lies: dict[int, str]) -> None:
    """Liars are absent with a short line, as far as nothing true can be made of what they did; the others are not."""
    ((question, absent),) = federation.absent.items()
    assert set(absent) <= set(lies), absent
    assert {client for client, lie in lies.items() if lie in BLATANT} <= set(absent)
    assert [reason for reason in absent.values() if not is_short_line(reason)] == []
    assert in_words(ClientsAbsent(question, absent), Path()).isprintable()
    assert max(Timed.seconds) <= MOST_SECONDS


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(SPEC)


def questions(setup: Setup) -> dict[str, Callable[[FlowerEngine], Iterator[object]]]:
    """All that a run asks its clients, after no round."""
    model = setup.fresh_model()
    state = first_state(model, NUMBER, SPEC.training)
    data = TrainingSamples(setup.dataset.train)
    cohort = [Client(number, data, shard) for number, shard in enumerate(setup.trained_on)]
    sent = sent_state(state, SPEC.training, setup.fresh_model())
    heads = {"uncalibrated": model.head, "zero": copy_head(model.head, start="zero")}
    kinds = ("full", "pooled", "diagonal", "means")
    return {
        **{kind: lambda engine, kind=kind: engine.statistics(model, Request(kind)) for kind in kinds},
        "train": lambda engine: engine.train(cohort, sent, {}, round=1),
        "moments": lambda engine: engine.moments(model, list(range(NUMBER)), round=1),
        "scores": lambda engine: engine.score(model, heads),
        "personal": lambda engine: engine.personal_scores(state, states=ClientStates(Path())),
    }


NODES = {k: 100 + k for k in range(NUMBER)}


def storm(setup: Setup, rng: Random) -> int:
    """Ask everything once; how many hostile answers came."""
    grid, number = Lying(run_client, rng), 0
    for ask in questions(setup).values():
        grid.lies, grid.truth, federation = {}, {}, Timed(grid, NODES, HONEST / NUMBER, 600.0)
        found = list(ask(FlowerEngine(setup, federation, simulated=False)))
        assert grid.mistakes == []
        require_named(federation, grid.lies)
        (absent,) = federation.absent.values()
        assert len(found) + len(absent) + len(federation.without_samples) >= NUMBER
        number += len(grid.lies)
    return number


def test_too_many_liars_are_one_line(setup: Setup) -> None:
    """The quorum counts answers that were read."""
    for name, ask in questions(setup).items():
        grid = Lying(run_client, Random(7))
        federation = Timed(grid, NODES, 1.0, 600.0)
        found = []
        with pytest.raises(FederationError) as caught:
            found.extend(ask(FlowerEngine(setup, federation, simulated=False)))
        said = str(caught.value)
        assert is_short_line(said, 2100), name
        assert f"of {NUMBER} clients answered" in said
        assert f"{NUMBER - len(next(iter(federation.absent.values())))} of" in said


def test_no_answer_spoils_a_run(setup: Setup) -> None:
    assert storm(setup, Random(2)) >= 150


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_of_many_answers_none_spoils_a_run(setup: Setup, seed: int) -> None:
    assert storm(setup, Random(100 + seed)) >= 150


def test_nodes_that_lie_about_who_they_are(setup: Setup) -> None:
    """Two that claim the same client are neither; what else a node says is no client."""
    for seed in range(5):
        grid = Lying(run_client, Random(seed))
        engine = FlowerEngine.connect(grid, setup)
        assert grid.mistakes == []
        told = {k: node for k, node in engine.federation.nodes.items() if node is not None}
        assert {k: 100 + k for k in range(HONEST)}.items() <= told.items() or any(
            lie == "settings_changed" for lie in grid.lies.values()
        )
        assert set(told.values()) <= set(grid.contexts)


@pytest.mark.parametrize("method", ["lda", "kernel,num_features=20"])
def test_no_answer_spoils_a_stage(method: str) -> None:
    grid = Lying(app_of(), Random(3))
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, method, validate=True, quorum=HONEST / NUMBER)
    assert grid.mistakes == []
    assert not set(found.absent) & {100 + k for k in range(HONEST)}
    assert [reason for reason in found.absent.values() if not is_short_line(reason, 4 * MAX_LETTERS)] == []
    assert all(is_short_line(line, 30_000) for line in str(found).split("\n"))
    assert found.statistics.count.sum() >= HONEST * 80
    assert all(tensor.isfinite().all() for tensor in found.model.state_dict().values())


# --- questions --------------------------------------------------------------------------------------------------------


def asked_of(app: ClientApp, ask: Callable[[Loopback], object]) -> list[Message]:
    """The messages that an honest server sends."""
    grid = Loopback(app, NUMBER)
    ask(grid)
    return [message for message in grid.sent if message.metadata.dst_node_id == 100]


def asked_by_a_run(setup: Setup) -> list[Message]:
    def ask(grid: Loopback) -> None:
        engine = FlowerEngine.connect(grid, setup)
        for question in questions(setup).values():
            list(question(engine))

    return asked_of(run_client, ask)


def asked_by_a_stage() -> list[Message]:
    return asked_of(
        app_of(),
        lambda grid: ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "kernel,num_features=20", validate=True),
    )


def question_storm(app: ClientApp, asked: list[Message], rng: Random, number: int) -> None:
    """Changed questions to one client: an answer, or its refusal in one line."""
    context = Loopback(app, NUMBER).contexts[100]
    for _ in range(number):
        message = rng.choice(asked)
        content, way = hostile(message.content, rng)
        began = time.thread_time()
        reply = app(Message(content, 100, message.metadata.message_type), context)
        assert time.thread_time() - began <= MOST_SECONDS, way
        said = reply.content.config_records[SETTINGS].get(ERROR)
        assert said is None or is_short_line(said, MAX_MESSAGE + 3), (way, said)


def test_no_question_breaks_a_client_of_a_run(setup: Setup) -> None:
    question_storm(run_client, asked_by_a_run(setup), Random(5), 100)


def test_no_question_breaks_a_client_of_a_stage() -> None:
    question_storm(app_of(), asked_by_a_stage(), Random(6), 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_of_many_questions_none_breaks_a_client(setup: Setup, seed: int) -> None:
    question_storm(run_client, asked_by_a_run(setup), Random(400 + seed), 300)
    question_storm(app_of(), asked_by_a_stage(), Random(500 + seed), 300)
