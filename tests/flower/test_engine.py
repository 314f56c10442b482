"""Our own runs over Flower: the same bits as in this process, whoever is missing named, nothing lost."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from torch import nn

from ccvr.algorithms.algorithm import Algorithm
from ccvr.algorithms.messages import Client, GlobalState, LocalMetrics, LocalResult
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import ALGORITHMS as TABLE
from ccvr.algorithms.table import algorithm_of
from ccvr.calibration.select import select
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import CalibrationError, FederationError, RunError, SpecError, StatisticsError
from ccvr.core.run import RunFolder
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.absent_clients import keep_absent
from ccvr.experiment.engine import LocalEngine, OpenRun
from ccvr.experiment.events import ClientsAbsent, RoundDone
from ccvr.experiment.finished_run import open_finished_run
from ccvr.experiment.load import read_head
from ccvr.experiment.pipeline import resume, run, start
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import CheckpointSpec, FlowerSpec, Spec
from ccvr.experiment.statistics_cache import StatisticsCache
from ccvr.flower.client_app import NodeStates
from ccvr.flower.client_app import app as client_app
from ccvr.flower.engine import FlowerEngine
from ccvr.flower.messages import blob_of, pack
from ccvr.flower.results import RESULT, result_bytes, result_from_bytes, sent_bytes, sent_from_bytes
from ccvr.models.build import ModelSpec
from ccvr.models.scoring import ClassCounts
from ccvr.models.state import buffers_of, num_bytes, parameters_of
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes, with_checksum
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from ccvr.statistics.wire import FORMAT
from ccvr.training.checkpoint import read_checkpoint
from tests.flower.loopback import Loopback
from tests.flower.small import overflowing

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("trusted")]

ABSENT = "there is not one SuperNode that says it is this client"
TINY = Spec(
    threads=1,
    workers=1,
    partition=PartitionSpec(num_clients=3, alpha=0.5),
    training=TrainingSpec(rounds=2, local_epochs=1, step="torch"),  # kernels would take longer to compile
    calibration=CalibrationSpec(methods=("lda",)),
)
ALGORITHMS = {
    **{name: {"algorithm": name} for name in TABLE},
    "fedprox": {"algorithm": "fedprox,mu=0.1"},
    "fedavgm": {"algorithm": "fedavgm,momentum=0.5"},
    "scaffold": {"algorithm": "scaffold", "server": "fedadam", "client_fraction": 0.67},
    "fednova": {"algorithm": "fednova,mu=0.1"},
    "feddyn": {"algorithm": "feddyn", "client_fraction": 0.67},
    "fedsam": {"algorithm": "fedsam", "server": "fedexp"},
    "feddf": {"algorithm": "feddf,steps=30"},
    "fedma": {"algorithm": "fedma", "rounds": 3},
    "fedrep": {"algorithm": "fedrep", "local_epochs": 2},
    "kernels": {"step": "halide"},
    "clsnorm": {"clsnorm": True},
    "clsprox": {"clsprox": 0.1},
    "some": {"algorithm": "moon", "rounds": 4, "client_fraction": 0.67},
}


def perceptron(shape, num_classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, num_classes)
    )


def normalised(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, num_classes))


MODELS = {"pfnm": f"{__name__}:perceptron", "fedbn": f"{__name__}:normalised"}
"""Networks of algorithms that ask for others: one without convolutions, one with normalisation."""


def with_training(**changes) -> Spec:
    training = replace(TINY.training, **changes)
    unlabelled = "0.1" if algorithm_of(training).needs_unlabelled else ""
    model = ModelSpec(MODELS.get(training.algorithm, "auto"))
    return replace(TINY, model=model, training=training, data=replace(TINY.data, unlabelled=unlabelled))


def on_flower(spec: Spec, path, grid: Loopback | None = None, *, simulated=True):
    """A run whose clients are behind a grid."""
    grid = grid or Loopback(client_app, spec.partition.num_clients)
    return list(start(spec, path, engine=lambda setup: FlowerEngine.connect(grid, setup, simulated=simulated)))


def last_state(path, round=2):
    return read_checkpoint(RunFolder(path).checkpoint(round))


def furthest(a, b):
    """The largest relative difference between two models."""
    return max(((a[n] - b[n]).norm() / b[n].norm().clamp(min=1e-12)).item() for n in b if b[n].is_floating_point())


# --- the same as in this process --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_ends_in_the_same_model(name, tmp_path):
    spec = with_training(**ALGORITHMS[name])
    run(spec, tmp_path / "here")
    on_flower(spec, tmp_path / "flower")
    here, there = (last_state(tmp_path / each, spec.training.rounds) for each in ("here", "flower"))
    assert furthest(there.parameters | there.buffers, here.parameters | here.buffers) <= 1e-5
    assert there.client_rounds == here.client_rounds
    assert same(there.parameters, here.parameters)  # in one process: the bits


def test_clients_that_share_samples_end_in_the_same_model(tmp_path):
    spec = replace(TINY, data=DataSpec(shared=0.05), training=replace(TINY.training, algorithm="fedir"))
    here = run(spec, tmp_path / "here")
    *_, finished = on_flower(spec, tmp_path / "flower")
    assert finished.results["shared"] == here["shared"] == {"samples": 72, "bytes": 3 * 72 * (64 + 8)}
    assert same(last_state(tmp_path / "flower").parameters, last_state(tmp_path / "here").parameters)
    assert finished.results["calibrations"]["lda"]["bytes"] == here["calibrations"]["lda"]["bytes"]


def files_of(path):
    """All files of a run; a projection is named after the statistics behind it, which travel in float32."""
    return sorted(re.sub(r"auto_\w{12}", "auto", str(each.relative_to(path))) for each in path.rglob("*"))


def who_trained(path):
    return [[client["client"] for client in record["clients"]] for record in RunFolder(path).read_rounds()]


def test_the_run_folder_is_the_same(tmp_path):
    spec = replace(
        TINY,
        data=DataSpec(validation=0.2),
        calibration=CalibrationSpec(
            methods=("ccvr,num_virtual=20,epochs=1", "kernel,num_features=50", "ridge,taps=auto", "oracle,epochs=1"),
            deploy="select",
        ),
    )
    here = run(spec, tmp_path / "here")
    *_, finished = on_flower(spec, tmp_path / "flower")
    there = finished.results
    assert files_of(tmp_path / "here") == files_of(tmp_path / "flower")
    for each in (here, there):
        for row in each["calibrations"].values():
            del row["seconds"]
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=0.5)  # statistics travel in float32
    assert there.keys() == here.keys()
    assert there["calibrations"] == here["calibrations"]
    assert there["selection"]["recall"] == pytest.approx(here["selection"]["recall"], abs=0.5)
    assert who_trained(tmp_path / "here") == who_trained(tmp_path / "flower")


def test_a_run_that_was_stopped_goes_on(tmp_path):
    spec = with_training(rounds=3)
    grid = Loopback(client_app, 3)
    events = start(spec, tmp_path / "run", engine=lambda setup: FlowerEngine.connect(grid, setup))
    for event in events:
        if getattr(event, "round", 0) == 2:
            break
    events.close()
    grid = Loopback(client_app, 3)  # a new run of Flower's
    list(resume(RunFolder(tmp_path / "run"), engine=lambda setup: FlowerEngine.connect(grid, setup)))
    trained = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert [message.content["ccvr.settings"]["round"] for message in trained] == [3, 3, 3]
    run(spec, tmp_path / "here")
    assert same(last_state(tmp_path / "run", 3).parameters, last_state(tmp_path / "here", 3).parameters)


class LastFirst(Loopback):
    """Of the clients that are asked together, the last is ready first."""

    def pull_messages(self, message_ids):
        ready = max(self._waiting, key=int) in message_ids or len(self.pulled) > 20 * len(self.sent)
        if not ready:
            self.pulled.append(list(message_ids))
            return []
        return super().pull_messages(message_ids)


def test_results_are_folded_in_the_cohorts_order(monkeypatch):
    """Largest first, whoever is ready first: a sum of floats depends on its order."""
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.001)
    setup = prepare(TINY)
    engine = FlowerEngine.connect(LastFirst(client_app, 3), setup)
    clients = sorted(LocalEngine(setup).clients(), key=lambda client: (-len(client.indices), client.id))
    sent = replace(small_state(), broadcast={})
    assert [result.client for result in engine.train(clients, sent, {}, round=1)] == [client.id for client in clients]
    requests = Request("means")
    model = setup.fresh_model()
    counts = [int(each.count.sum()) for each in engine.statistics(model, requests)]
    assert counts == [len(setup.kept.shards[k]) for k in (2, 1, 0)]  # statistics as they come


# --- states -----------------------------------------------------------------------------------------------------------


def test_states_are_in_the_nodes_state_alone(tmp_path):
    grid = Loopback(client_app, 3)
    on_flower(with_training(algorithm="moon"), tmp_path / "run", grid)
    assert not (tmp_path / "run" / "memories").exists()
    assert all("ccvr-memory/1/2" in context.state for context in grid.contexts.values())
    assert all("memory" not in name for message in grid.sent for name in message.content.get("ccvr.blobs", {}))


def test_a_state_is_read_as_it_was_written_and_the_one_that_the_server_knows_stays():
    states = NodeStates(RecordDict(), last=3)
    kept = {n: {"w": torch.full((2, 3), float(n)), "n": torch.tensor(n)} for n in (1, 3, 7, 10)}
    for number, state in kept.items():
        states.write(0, number, state)
    for number in (3, 10):
        assert all(torch.equal(states.read(0, number)[name], kept[number][name]) for name in ("w", "n"))
    for number in (1, 7, 8):
        with pytest.raises(RunError, match=f"client 0 has no state of round {number}"):
            states.read(0, number)


def test_a_client_whose_results_are_lost_goes_on_with_the_state_that_the_server_knows(tmp_path):
    def lost(message):
        client_app(message, grid.contexts[101])
        return crashed(message)

    grid = Loopback(Faulty({(1, "train", number): lost for number in (2, 3, 4)}), 3)
    spec = replace(with_training(algorithm="moon", rounds=5), flower=FlowerSpec(quorum=0.5))
    missing = on_flower(spec, tmp_path / "run", grid)[-1].results["missing"]
    assert missing == {f"round {number}": {"1": "its process died"} for number in (2, 3, 4)}
    assert sorted(grid.contexts[101].state) == ["ccvr-memory/1/1", "ccvr-memory/1/5"]


def test_states_that_are_lost_are_reported(tmp_path):
    """A new run of Flower's has no state of the one before."""
    grid = Loopback(client_app, 3)
    events = start(
        with_training(algorithm="moon"), tmp_path / "run", engine=lambda setup: FlowerEngine.connect(grid, setup)
    )
    for event in events:
        if getattr(event, "round", 0) == 1:
            break
    events.close()
    again = Loopback(client_app, 3)
    with pytest.raises(FederationError, match=r"0 of 3 clients answered round 2.*has no state of round 1"):
        list(resume(RunFolder(tmp_path / "run"), engine=lambda setup: FlowerEngine.connect(again, setup)))
    assert last_state(tmp_path / "run", 1).round == 1  # the trained model is still there


@dataclass(frozen=True)
class OwnHead(Algorithm):
    """Each client keeps a head."""

    def is_private(self, name):
        return name.startswith("head.")


def stopped_run(path, is_moment):
    """A run with private heads over Flower that ends after its last round, at the first event of a sort."""
    spec = replace(with_training(algorithm=f"{__name__}:OwnHead", rounds=1), data=DataSpec(validation=0.2))
    grid = Loopback(client_app, 3)
    events = start(spec, path, engine=lambda setup: FlowerEngine.connect(grid, setup))
    next(event for event in events if is_moment(event))
    events.close()
    return spec


def test_personal_scores_outlive_the_states_of_the_clients(tmp_path):
    spec = stopped_run(tmp_path / "run", lambda event: "each client's own model" in getattr(event, "text", ""))
    again = Loopback(client_app, 3)
    *_, finished = resume(
        RunFolder(tmp_path / "run", trust=True), engine=lambda setup: FlowerEngine.connect(again, setup)
    )
    here = run(spec, tmp_path / "here")
    assert finished.results["personal"] == here["personal"]
    assert files_of(tmp_path / "run") == [each for each in files_of(tmp_path / "here") if "memories" not in each]


def test_a_run_that_ended_before_its_personal_scores_says_why_it_has_none(tmp_path):
    stopped_run(tmp_path / "run", lambda event: isinstance(event, RoundDone))
    again = Loopback(client_app, 3)
    with pytest.raises(FederationError) as error:
        list(resume(RunFolder(tmp_path / "run", trust=True), engine=lambda setup: FlowerEngine.connect(again, setup)))
    assert "0 of 3 clients answered the query for personal scores" in str(error.value)
    assert "client 0 has no state of round 1: Flower keeps it as long as its own run lasts" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "results.json").exists()


# --- who is missing ---------------------------------------------------------------------------------------------------


class Faulty(ClientApp):
    """The clients of our runs, of which some fail at some messages: (client, message type, round or 0) → reply."""

    def __init__(self, faults):
        super().__init__()
        self.faults = faults

    def __call__(self, message, context):
        kind = message.metadata.message_type
        number = message.content.get("ccvr.settings", {}).get("round", 0)
        fault = self.faults.get((context.node_config["partition-id"], kind, number))
        return fault(message) if fault else client_app(message, context)


def crashed(message):
    return Message(Error(ErrorCode.CLIENT_APP_CRASHED, "ClientApp stopped responding."), reply_to=message)


def lying(message):
    blobs = {"result": overflowing(RESULT, "payload/x"), "statistics": b"none"}
    return Message(pack(blobs), reply_to=message)


def test_a_client_that_dies_in_training_ends_the_run_with_one_line(tmp_path):
    grid = Loopback(Faulty({(1, "train", 2): crashed}), 3)
    with pytest.raises(FederationError) as error:
        on_flower(TINY, tmp_path / "run", grid)
    said = "2 of 3 clients answered round 2, where 3 are needed. Missing: client 1 (its process died)."
    assert str(error.value).startswith(said)
    assert last_state(tmp_path / "run", 1).round == 1
    healthy = Loopback(client_app, 3)
    list(resume(RunFolder(tmp_path / "run"), engine=lambda setup: FlowerEngine.connect(healthy, setup)))
    run(TINY, tmp_path / "here")
    assert same(last_state(tmp_path / "run").parameters, last_state(tmp_path / "here").parameters)


def test_with_a_quorum_the_others_go_on_and_the_missing_are_named(tmp_path):
    spec = replace(TINY, flower=FlowerSpec(quorum=0.6))
    faults = {(1, "train", 2): crashed, (0, "train", 1): lying, (2, "query.ccvr_statistics", 0): lying}
    events = on_flower(spec, tmp_path / "run", Loopback(Faulty(faults), 3))
    named = {event.question: event.clients for event in events if isinstance(event, ClientsAbsent)}
    assert "Stride calculation overflowed" in named["round 1"]["0"]
    assert named["round 2"] == {"1": "its process died"}
    assert list(named["the query for pooled statistics"]) == ["2"]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["missing"] == named
    assert [sorted(each) for each in who_trained(tmp_path / "run")] == [[1, 2], [0, 2]]


def test_the_trained_model_survives_a_query_that_fails(tmp_path):
    faults = {(k, "query.ccvr_statistics", 0): lying for k in range(3)}
    with pytest.raises(FederationError, match="0 of 3 clients answered the query for pooled statistics"):
        on_flower(TINY, tmp_path / "run", Loopback(Faulty(faults), 3))
    assert last_state(tmp_path / "run").round == 2
    assert (tmp_path / "run" / "heads" / "uncalibrated.safetensors").is_file()


def test_a_silent_client_in_training(tmp_path):
    spec = replace(TINY, flower=FlowerSpec(quorum=0.5, timeout=1.0))
    grid = Loopback(client_app, 3)
    setup = prepare(spec)
    engine = FlowerEngine.connect(grid, setup)
    grid.silent = {101}
    events = list(start(spec, tmp_path / "run", engine=lambda setup: engine))
    assert next(e.clients for e in events if isinstance(e, ClientsAbsent)) == {"1": "no answer within 1 seconds"}


def altered(message_type, blob, format, how):
    """The answer of a client that changes its header and tensors on the way."""

    def fault(message):
        number = message.metadata.dst_node_id - 100
        reply = client_app(message, Loopback(client_app, 3).contexts[100 + number])
        header, tensors = tensors_from_bytes(blob_of(reply.content, blob), format=format)
        how(header, tensors)
        sealed = with_checksum if header.pop("checksum", None) else tensors_to_bytes
        return Message(pack({blob: sealed(tensors, **header)}), reply_to=message)

    return {(1, message_type, 0): fault}


def one_more(tensors, name):
    """A sample more of the class of which there are most."""
    tensors[name][tensors[name].argmax()] += 1


def withhold(header, tensors):
    header["withheld"] = 1


STATISTICS, SCORES = "query.ccvr_statistics", "query.ccvr_scores"
SUMS, COUNTS = (STATISTICS, "statistics", FORMAT), (SCORES, "counts", "ccvr-counts/1")
OVERCOUNTED = {
    "absurd": (*SUMS, lambda header, tensors: tensors["count"].fill_(10**12), "more than 1,000,000,000"),
    "one": (*SUMS, lambda header, tensors: one_more(tensors, "count"), r"it counts \d+ samples of class \d and"),
    "withheld": (*SUMS, withhold, "it withholds 1 samples and has at most 0 more"),
    "scores": (*COUNTS, lambda header, tensors: one_more(tensors, "total/head"), r"it counts \d+ samples of class \d"),
}


@pytest.mark.parametrize("case", OVERCOUNTED)
def test_nobody_counts_more_than_it_was_dealt(case, tmp_path):
    """The run knows who has what; a client that claims more is left out, and the others' sum is as without it."""
    message_type, *where, how, said = OVERCOUNTED[case]
    spec = replace(TINY, flower=FlowerSpec(quorum=0.6), data=DataSpec(validation=0.2))
    setup = prepare(spec)
    engine = FlowerEngine.connect(Loopback(Faulty(altered(message_type, *where, how)), 3), setup)
    model = setup.fresh_model()
    if message_type == STATISTICS:
        merged = StatisticsCache(OpenRun(RunFolder(tmp_path), setup, engine, model)).merged(Request("means"))
        found, dealt = merged.count, setup.kept
    else:
        scored = (counts["head"] for counts in engine.score(model, {"head": model.head}))
        found, dealt = sum(scored, start=ClassCounts.zeros(10)).total, setup.held_out
    ((who, why),) = (each for silent in engine.absent().values() for each in silent.items())
    assert who == 1
    assert re.search(said, why)
    counts = dealt.label_counts(setup.dataset.train.labels.numpy(), 10)
    assert found.tolist() == (counts[0] + counts[2]).tolist()


def test_a_client_at_the_edge_of_what_is_read_does_not_end_the_run(tmp_path):
    """Its numbers may come out of the sum a rounding above the limit; the sum is used all the same."""
    setup = prepare(TINY)
    request, model = Request("means"), setup.fresh_model()
    engine = FlowerEngine.connect(Loopback(client_app, 3), setup)
    honest = merge(engine.statistics(model, request))

    class Edge(FlowerEngine):
        def statistics(self, model, request):
            total = honest.count.unsqueeze(1) * torch.full_like(honest.total, 1.0001e6)
            counts = (honest.clients, honest.withheld)
            yield ClassStatistics.of_sums(honest.kind, honest.source, honest.count, total, honest.second, *counts)

    found = StatisticsCache(OpenRun(RunFolder(tmp_path), setup, Edge(setup, engine.federation, True), model)).merged(
        request
    )
    assert found.mean[honest.count > 0].min() > 1e6
    with pytest.raises(StatisticsError, match="a mean is as large as"):
        ClassStatistics.from_bytes(found.to_bytes())


class OtherOrders(Loopback):
    """Clients that answer each question for scores in another order: the first one there is last in the next."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked, self.answered = {}, set()

    def push_messages(self, messages):
        messages = list(messages)
        numbers = super().push_messages(messages)
        for message, number in zip(messages, numbers, strict=True):
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if kind == SCORES:
                question = sum(1 for other, _ in self.asked.values() if other == node)
                self.asked[number] = node, question
        return numbers

    def pull_messages(self, message_ids):
        (number,) = message_ids
        if number in self.asked:
            node, question = self.asked[number]
            nodes = list(self.contexts)
            order = nodes[question % len(nodes) :] + nodes[: question % len(nodes)]
            if any((earlier, question) not in self.answered for earlier in order[: order.index(node)]):
                return []
            self.answered.add((node, question))
        return super().pull_messages(message_ids)


SELECTING = replace(
    TINY,
    data=DataSpec(validation=0.2),
    flower=FlowerSpec(quorum=0.6),
    calibration=CalibrationSpec(methods=("lda", "ncm"), deploy="select"),
)


def selection_of(path, clients):
    """What some clients say of a run's heads, asked in this process."""
    done = open_finished_run(RunFolder(path))
    heads = {label: read_head(done.folder.head(label)) for label in ("uncalibrated", "lda", "ncm")}
    answers = list(done.engine.score(done.model, heads))
    return select(heads, [answers[client] for client in clients])


def test_heads_are_compared_client_by_client_in_whatever_order_they_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.001)
    grid = OtherOrders(client_app, 3)
    *_, finished = on_flower(SELECTING, tmp_path / "run", grid)
    assert len(grid.answered) == 3 * 4  # by itself each head, then all together
    found = selection_of(tmp_path / "run", [0, 1, 2])
    assert finished.results["selection"] == {"recall": found.recall, "standard_error": found.error}
    assert finished.results["deployed"] == found.name
    assert "missing" not in finished.results


class Once(ClientApp):
    """The clients of our runs; each of (client, message type, how often it was asked before) fails."""

    def __init__(self, *faults):
        super().__init__()
        self.faults, self.asked = faults, Counter()

    def __call__(self, message, context):
        who = context.node_config["partition-id"], message.metadata.message_type
        before = self.asked[who]
        self.asked[who] += 1
        return crashed(message) if (*who, before) in self.faults else client_app(message, context)


@pytest.mark.parametrize("when", [0, 1, 3])
def test_a_client_that_misses_one_score_is_left_out_of_that_and_named(when, tmp_path):
    events = on_flower(SELECTING, tmp_path / "run", Loopback(Once((1, SCORES, when)), 3))
    heads = ["uncalibrated", "lda", "ncm", "uncalibrated, lda, ncm"][when]
    missing = {f"the query for scores of {heads}": {"1": "its process died"}}
    assert {event.question: event.clients for event in events if isinstance(event, ClientsAbsent)} == missing
    assert json.loads((tmp_path / "run" / "results.json").read_text())["missing"] == missing
    found = selection_of(tmp_path / "run", [0, 2] if when == 3 else [0, 1, 2])
    assert events[-1].results["selection"]["recall"] == found.recall


def test_nobody_who_is_missing_is_forgotten(tmp_path):
    """Two questions of the same kind, of which each client misses one."""
    methods = ("ridge,min_count=3,label=few", "ridge")
    spec = replace(TINY, flower=FlowerSpec(quorum=0.5), calibration=CalibrationSpec(methods=methods))
    app = Once((1, STATISTICS, 0), (2, STATISTICS, 1))
    events = on_flower(spec, tmp_path / "run", Loopback(app, 3))
    missing = {
        "the query for pooled statistics (from-3)": {"1": "its process died"},
        "the query for pooled statistics": {"2": "its process died"},
    }
    assert {event.question: event.clients for event in events if isinstance(event, ClientsAbsent)} == missing
    assert events[-1].results["missing"] == missing


def test_a_question_that_is_asked_twice_keeps_all_who_missed_it():
    grid = Loopback(Once((0, STATISTICS, 0), (1, STATISTICS, 1)), 3)
    setup = prepare(replace(TINY, flower=FlowerSpec(quorum=0.6)))
    engine = FlowerEngine.connect(grid, setup)
    for _ in range(2):
        assert len(list(engine.statistics(setup.fresh_model(), Request("means")))) == 2  # a quorum each time
    assert list(engine.absent()["the query for means statistics"]) == [0, 1]


def test_those_who_were_missing_before_a_resume_are_in_the_results(tmp_path):
    """Of rounds and statistics that the run has; a round that is trained again counts as it went then."""
    spec = replace(
        with_training(rounds=4),
        flower=FlowerSpec(quorum=0.5),
        checkpoint=CheckpointSpec(every=2),
        data=DataSpec(validation=0.2),
    )
    folder = RunFolder(tmp_path / "run")

    def connect(app):
        return lambda setup: FlowerEngine.connect(Loopback(app, 3), setup)

    events = start(spec, folder.path, engine=connect(Once((0, "train", 1), (1, "train", 2))))
    for event in events:
        if getattr(event, "round", 0) == 3:
            break
    events.close()
    broken = Once((2, STATISTICS, 0), *((k, SCORES, 1) for k in range(3)))
    with pytest.raises(FederationError, match="the query for scores of lda"):
        list(resume(folder, engine=connect(broken)))
    *_, finished = resume(folder, engine=connect(client_app))
    died = "its process died"
    assert finished.results["missing"] == {"round 2": {"0": died}, "the query for pooled statistics": {"2": died}}
    assert json.loads(folder.results.read_text())["missing"] == finished.results["missing"]
    folder.absent.write_text("[]")
    with pytest.raises(RunError, match=r"missing.json is damaged"):
        keep_absent(OpenRun(folder, None, LocalEngine(None), None))


# --- who is there -----------------------------------------------------------------------------------------------------


class Arriving(Loopback):
    """One more node at each look."""

    looks = 0

    def get_node_ids(self):
        self.looks += 1
        return super().get_node_ids()[: self.looks]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.01)
    monkeypatch.setattr("ccvr.flower.exchange.PATIENCE", 0.1)


HALF = replace(TINY, flower=FlowerSpec(quorum=0.5, timeout=1.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["gone", "silent"])
def test_a_quorum_of_connected_clients_is_enough(fault, tmp_path):
    grid = Loopback(client_app, 3)
    if fault == "gone":
        del grid.contexts[102]
    else:
        grid.silent = {102}
    events = on_flower(HALF, tmp_path / "run", grid)
    missing = {event.question: event.clients for event in events if isinstance(event, ClientsAbsent)}
    assert list(missing) == ["round 1", "round 2", "the query for pooled statistics"]
    assert all(clients == {"2": ABSENT} for clients in missing.values())
    assert who_trained(tmp_path / "run") == [[0, 1], [0, 1]] or who_trained(tmp_path / "run") == [[1, 0], [1, 0]]


@pytest.mark.usefixtures("impatient")
def test_a_run_goes_on_without_a_client_that_is_lost_for_good(tmp_path):
    with pytest.raises(FederationError, match="0 of 3 clients answered round 2"):
        on_flower(HALF, tmp_path / "run", Loopback(Faulty({(k, "train", 2): crashed for k in range(3)}), 3))
    grid = Loopback(client_app, 3)
    del grid.contexts[100]
    *_, finished = resume(RunFolder(tmp_path / "run"), engine=lambda setup: FlowerEngine.connect(grid, setup))
    assert list(finished.results["missing"]["round 2"]) == ["0"]


def test_latecomers_are_waited_for(monkeypatch):
    monkeypatch.setattr("ccvr.flower.exchange.INTERVAL", 0.001)
    engine = FlowerEngine.connect(Arriving(client_app, 3), prepare(HALF))
    assert engine.federation.nodes == {0: 100, 1: 101, 2: 102}


@pytest.mark.usefixtures("impatient")
def test_fewer_connected_than_the_quorum():
    grid = Loopback(client_app, 1)
    with pytest.raises(FederationError, match="1 of 3 clients connected within 1 seconds, where 2 are needed"):
        FlowerEngine.connect(grid, prepare(HALF))
    grid = Loopback(client_app, 3, silent=[101, 102])
    with pytest.raises(FederationError, match="1 of 3 clients answered which client it is, where 2 are needed"):
        FlowerEngine.connect(grid, prepare(HALF))


def test_a_folder_in_the_way_is_found_before_clients_are_waited_for(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letters.txt").write_text("dear")
    with pytest.raises(RunError, match="exists and is not a run"):
        list(start(TINY, tmp_path / "run", engine=lambda setup: pytest.fail("clients were asked")))


# --- which client is which --------------------------------------------------------------------------------------------


def test_clients_are_told_apart_by_their_partition():
    grid = Loopback(client_app, 3)
    for context, number in zip(grid.contexts.values(), (2, 0, 1), strict=True):
        context.node_config["partition-id"] = number
    engine = FlowerEngine.connect(grid, prepare(TINY))
    assert engine.federation.nodes == {2: 100, 0: 101, 1: 102}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 1, 1), r"two SuperNodes are client 1\. Give .* none is client 2"),
        ((0, 1, 5), r'none is client 2. Start one with --node-config "partition-id=2 num-partitions=3"'),
        ((0, 1, "a"), r"2 of 3 clients answered which client it is.*partition-id is 'a'"),
    ],
)
def test_partitions_that_do_not_fit(numbers, said):
    grid = Loopback(client_app, 3)
    for context, number in zip(grid.contexts.values(), numbers, strict=True):
        context.node_config["partition-id"] = number
    with pytest.raises(FederationError, match=said):
        FlowerEngine.connect(grid, prepare(TINY))


def test_one_that_claims_to_be_another_ends_no_run_that_can_do_without_both(tmp_path):
    grid = Loopback(client_app, 5)
    grid.contexts[104].node_config["partition-id"] = 0
    spec = replace(HALF, partition=replace(HALF.partition, num_clients=4))
    missing = on_flower(spec, tmp_path / "run", grid)[-1].results["missing"]
    assert {"round 1": {"0": ABSENT}}.items() <= missing.items()


def test_more_nodes_than_clients_do_no_harm():
    grid = Loopback(client_app, 5)
    engine = FlowerEngine.connect(grid, prepare(TINY))
    assert list(engine.federation.nodes) == [0, 1, 2]


def test_no_oracle_in_a_federation(tmp_path):
    spec = replace(TINY, calibration=CalibrationSpec(methods=("lda", "oracle,epochs=1")))
    with pytest.raises(SpecError, match="oracles need raw features"):
        on_flower(spec, tmp_path / "run", simulated=False)
    assert not (tmp_path / "run").exists()
    engine = FlowerEngine.connect(Loopback(client_app, 3), prepare(TINY))
    with pytest.raises(CalibrationError, match="oracles need raw features"):
        engine.features(prepare(TINY).fresh_model())


def test_a_folder_on_the_servers_disk_is_nothing_to_clients(tmp_path):
    """In a federation each machine knows where its own data lies; in a simulation it is the same machine."""
    spec = replace(TINY, data=DataSpec(root=tmp_path))
    for simulated in (True, False):
        engine = FlowerEngine.connect(Loopback(client_app, 3), prepare(spec), simulated=simulated)
        assert (str(tmp_path) in engine._spec) == simulated


# --- results on their way ---------------------------------------------------------------------------------------------


def small_state():
    model = prepare(TINY).fresh_model()
    return GlobalState(parameters_of(model), buffers_of(model), {"extra": torch.arange(3)})


def client_of(number=4):
    setup = prepare(TINY)
    return Client(1, LocalEngine(setup).clients()[0].data, setup.kept.shards[0][:number])


def metrics_of(state, loss=0.5, seconds=0.1):
    """The server counts the rest by itself."""
    norms = state.parameters["head.weight"].double().square().sum(1).sqrt()
    size = num_bytes(state.parameters, state.buffers)
    return LocalMetrics(loss, pytest.approx(norms.tolist()), size + num_bytes(state.broadcast), size + 8, seconds)


def result_of(state, loss=0.5, seconds=0.1, **changes):
    metrics = metrics_of(state, loss, seconds)
    result = LocalResult(
        1, state.parameters, state.buffers, 4, 7, {"delta": torch.ones(2)}, {}, metrics, has_state=True
    )
    return replace(result, **changes)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def test_states_and_results_arrive_as_they_left():
    state = small_state()
    state = replace(state, broadcast={"half": torch.ones(2, dtype=torch.bfloat16), **state.broadcast})
    found = sent_from_bytes(sent_bytes(state))
    assert all(same(getattr(found, each), getattr(state, each)) for each in ("parameters", "buffers", "broadcast"))
    result = result_of(state)
    back = result_from_bytes(result_bytes(result), client_of(), state)
    assert all(same(getattr(back, each), getattr(result, each)) for each in ("parameters", "buffers", "payload"))
    assert replace(back, parameters={}, buffers={}, payload={}) == replace(
        result, parameters={}, buffers={}, payload={}
    )


def spoilt(state, how):
    return {**state.parameters, "head.weight": how(state.parameters["head.weight"])}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (lambda s: {"parameters": spoilt(s, lambda w: w * float("nan"))}, "head.weight is not finite"),
        (lambda s: {"parameters": spoilt(s, lambda w: w[1:])}, "not those of the model"),
        (lambda s: {"parameters": spoilt(s, lambda w: w.double())}, "not those of the model"),
        (lambda s: {"parameters": {}}, "not those of the model"),
        (lambda s: {"buffers": {**s.buffers, "more": torch.ones(1)}}, "not those of the model"),
        (lambda s: {"num_examples": 5}, "it trained on 5 samples; 4 are its own"),
        (lambda s: {"payload": {"delta": torch.tensor([1.0, float("inf")])}}, "delta is not finite"),
        (lambda s: {"parameters": spoilt(s, lambda w: w.sign() * 3e38)}, "head.weight is as large as 3e.38"),
        (lambda s: {"buffers": {name: t + 1e19 for name, t in s.buffers.items()}}, "is as large as 1e.19"),
        (lambda s: {"payload": {"delta": torch.tensor([-2e9])}}, "delta is as large as 2e.09"),
        (lambda s: {"payload": {"delta": torch.tensor([-(2**63)])}}, "delta is as large as 9.22e.18"),
        (lambda s: {"payload": {"delta": torch.tensor([float("nan")]).to(torch.float8_e5m2)}}, "delta is not finite"),
        (lambda s: {"payload": {"delta": torch.tensor([complex(0, float("nan"))])}}, "delta is not finite"),
        (lambda s: {"payload": {"delta": torch.zeros(2_500_001)}}, "it sends 10,000,004 bytes, which is too much"),
        (lambda s: {"num_steps": 0}, "num_steps is 0; it must be a number from 1 to 1e.09"),
        (lambda s: {"num_steps": -7}, "num_steps is -7"),
        (lambda s: {"num_steps": 10**4000}, "num_steps is 10000"),
        (lambda s: {"num_steps": "5"}, "num_steps is 5"),
        (lambda s: {"num_steps": 5.5}, "num_steps is 5.5"),
        (lambda s: {"num_examples": 10**4000}, "it trained on 10000"),
        (lambda s: {"loss": float("nan")}, "loss is nan"),
        (lambda s: {"loss": 1.7e308}, "loss is 1.7e.308"),
        (lambda s: {"loss": True}, "loss is True"),
        (lambda s: {"loss": "x"}, "loss is x"),
        (lambda s: {"seconds": -5.0}, "seconds is -5"),
        (lambda s: {"seconds": float("inf")}, "seconds is inf"),
    ],
)
def test_results_that_do_not_fit_are_refused(changes, said):
    state = small_state()
    with pytest.raises(FederationError, match=said):
        result_from_bytes(result_bytes(result_of(state, **changes(state))), client_of(), state)


def test_constants_of_a_model_may_be_anything():
    """What comes back as it was sent does no harm, a mask of infinities for one; what was changed must be a number."""
    state = small_state()
    state = replace(state, buffers={"mask": torch.tensor([0.0, -math.inf]), "seed": torch.tensor(2**62)})
    found = result_from_bytes(result_bytes(result_of(state)), client_of(), state)
    assert same(found.buffers, state.buffers)
    changed = {**state.buffers, "mask": torch.tensor([1.0, -math.inf])}
    with pytest.raises(FederationError, match="mask is not finite"):
        result_from_bytes(result_bytes(result_of(state, buffers=changed)), client_of(), state)


def test_no_tensors_travel_beside_those_of_a_result():
    state = small_state()
    header, tensors = tensors_from_bytes(result_bytes(result_of(state)), format="ccvr-result/1")
    del header["format"]
    blob = tensors_to_bytes(tensors | {"parametersX": torch.zeros(3)}, format="ccvr-result/1", **header)
    with pytest.raises(FederationError, match="were not asked for"):
        result_from_bytes(blob, client_of(), state)


def test_damaged_results_are_refused():
    state = small_state()
    blob = result_bytes(result_of(state))
    for damaged in (b"", b"x" * 99, blob[:-1], sent_bytes(state), blob.replace(b"num_steps", b"num_stops")):
        with pytest.raises(FederationError):
            result_from_bytes(damaged, client_of(), state)
