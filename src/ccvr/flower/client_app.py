"""A client of our own runs, as Flower starts it on every node: client k is the node with ``partition-id`` k."""

import os
import sys
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ccvr.algorithms.messages import Client
from ccvr.core.errors import FederationError, RunError
from ccvr.core.machine import keep_freed_memory
from ccvr.data.batches import in_order
from ccvr.experiment.engine import LocalEngine, client_moments
from ccvr.experiment.setup import Setup, prepare
from ccvr.experiment.spec import from_toml
from ccvr.flower.client import answering
from ccvr.flower.messages import array_of, blob_of, pack, setting_of
from ccvr.flower.questions import (
    HELLO,
    MOMENTS,
    OWN,
    PERSONAL,
    SCORES,
    STATISTICS,
    TRUST_REMEDY,
    answer_moments,
    answer_scores,
    answer_statistics,
    counts_answer,
    load_state,
    trusts_server,
)
from ccvr.flower.results import result_bytes, sent_from_bytes
from ccvr.models.scoring import class_counts
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, Tensors
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from ccvr.training.client_state import ClientStates
from ccvr.training.trainer import OneByOne, scratch_of

STATE = "ccvr-memory/1"
"""Format of a client's state as bytes, and the beginning of its names in the node's state."""

app = ClientApp()


class NodeStates(ClientStates):
    """States of one client in its node, as long as Flower's run lasts; the server knows the state of round ``last``."""

    def __init__(self, records: RecordDict, last: int) -> None:
        self.records, self.last = records, last

    def read(self, client: int, round: int) -> Tensors:
        record = self.records.array_records.get(f"{STATE}/{round}")
        if record is None:
            raise RunError(
                f"client {client} has no state of round {round}: Flower keeps it as long as its own run lasts. "
                "Start a new run; algorithms without client states can be resumed."
            )
        return tensors_from_bytes(record["memory"].data, format=STATE)[1]

    def write(self, client: int, round: int, state: Tensors) -> None:
        """Keep a state. The one of round ``last`` stays, in case the server never gets what was trained with it."""
        rounds = [int(name.rpartition("/")[2]) for name in self.records.array_records if name.startswith(f"{STATE}/")]
        for before in rounds:
            if before < round and before != self.last:
                del self.records[f"{STATE}/{before}"]
        self.records[f"{STATE}/{round}"] = ArrayRecord({"memory": array_of(tensors_to_bytes(state, format=STATE))})


@dataclass(frozen=True)
class Home:
    """What a process keeps from one message to the next."""

    setup: Setup
    clients: list[Client]
    scratch: Scratch[SplitModel]


@lru_cache(maxsize=1)
def _home(spec: str) -> Home:
    sys.path.append(os.getcwd())  # package.module:name may lie here; last, so that it shadows nothing
    keep_freed_memory()
    setup = prepare(from_toml(spec, "the server's spec", trust=trusts_server(), remedy=TRUST_REMEDY))
    torch.set_num_threads(setup.spec.threads)
    return Home(setup, LocalEngine(setup).clients(), scratch_of(setup.fresh_model(), setup.spec.training))


def home_of(message: Message) -> Home:
    return _home(setting_of(message.content, "spec", str))


def number_of(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if type(number) is not int:
        raise FederationError(f'partition-id is {number!r}. Start the SuperNode with --node-config "partition-id=0 …".')
    return number


@app.query(HELLO)
@answering
def hello(message: Message, context: Context) -> RecordDict:
    return pack({}, client=number_of(context))


@app.train()
@answering
def train(message: Message, context: Context) -> RecordDict:
    home, content = home_of(message), message.content
    spec, last = home.setup.spec, setting_of(content, "last", int)
    trainer = OneByOne(home.scratch, spec.training, spec.seed, NodeStates(context.state, last))
    client, sent = home.clients[number_of(context)], sent_from_bytes(blob_of(content, "sent"))
    result = trainer.train_one(client, sent, last or None, round=setting_of(content, "round", int))
    return pack({"result": result_bytes(result)})


@app.query(STATISTICS)
@answering
def statistics(message: Message, context: Context) -> RecordDict:
    home = home_of(message)
    own = home.setup.kept.shards[number_of(context)]
    samples = in_order(home.setup.dataset.train, own)
    return answer_statistics(home.scratch.model, samples, message.content, trust=trusts_server())


@app.query(MOMENTS)
@answering
def moments(message: Message, context: Context) -> RecordDict:
    home, round = home_of(message), setting_of(message.content, "round", int)
    load_state(home.scratch.model, blob_of(message.content, "state"))
    return answer_moments(client_moments(home.scratch.model, home.setup, number_of(context), round=round))


@app.query(SCORES)
@answering
def scores(message: Message, context: Context) -> RecordDict:
    home = home_of(message)
    held_out = home.setup.held_out.shards[number_of(context)]
    return answer_scores(home.scratch.model, in_order(home.setup.dataset.train, held_out), message.content)


@app.query(PERSONAL)
@answering
def personal(message: Message, context: Context) -> RecordDict:
    home, content = home_of(message), message.content
    spec, dataset, last = home.setup.spec, home.setup.dataset, setting_of(content, "last", int)
    trainer = OneByOne(home.scratch, spec.training, spec.seed, NodeStates(context.state, last))
    client, sent = home.clients[number_of(context)], sent_from_bytes(blob_of(content, "sent"))
    model = trainer.own_model(client, sent, last or None, round=setting_of(content, "round", int))
    return counts_answer({OWN: class_counts(model, in_order(dataset.test), dataset.num_classes)})
