"""The engine of our own runs over Flower: the same rounds, statistics and scores, from clients that a grid reaches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from ccvr.algorithms.messages import Client, GlobalState, LocalResult
from ccvr.calibration.methods import parse_calibrations
from ccvr.core.errors import CalibrationError, FederationError, SpecError
from ccvr.data.batches import Batch, TrainingSamples
from ccvr.data.partition import Partition
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.setup import Setup
from ccvr.experiment.spec import Spec, to_toml
from ccvr.flower.federation import Federation, connected, needed_of
from ccvr.flower.messages import blob_of, pack, setting_of
from ccvr.flower.questions import HELLO, ask_moments, ask_personal, ask_scores, ask_statistics, expected, state_bytes
from ccvr.flower.results import result_from_bytes, sent_bytes
from ccvr.models.heads import Head
from ccvr.models.scoring import ClassCounts
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors
from ccvr.models.taps import TappedBackbone
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from ccvr.training.client_state import ClientStates
from ccvr.training.moments import moment_sums
from ccvr.training.rounds import Revise, RoundState, ServerPart, federate, sent_state

NO_ORACLES = "oracles need raw features, which no client of a federation sends. Choose other calibration.methods."


def require_no_oracles(spec: Spec) -> None:
    """Refuse methods that need raw features before the training, not after it."""
    if any(each.method.raw for each in parse_calibrations(spec.calibration)):
        raise SpecError(NO_ORACLES)


@dataclass(frozen=True)
class FlowerEngine:
    """All clients of a run, each behind a node of Flower's. Client k is the node with ``partition-id`` k."""

    setup: Setup
    federation: Federation
    simulated: bool
    """Whether all clients are on this machine, and so is their data."""

    @classmethod
    def connect(cls, grid: Grid, setup: Setup, *, simulated: bool = False) -> "FlowerEngine":
        """Wait for the nodes and ask each which client it is."""
        spec, number = setup.spec.flower, len(setup.kept)
        if not simulated:
            require_no_oracles(setup.spec)
        needed = needed_of(number, spec.quorum)
        nodes = connected(grid, number, spec.timeout, enough=needed)
        unnamed = Federation(grid, {node: node for node in nodes}, needed / len(nodes), spec.timeout)
        contents = dict.fromkeys(nodes, pack({}))
        clients: dict[int, int | None] = {}
        for client, node in unnamed.ask(
            "which client it is", f"query.{HELLO}", contents, lambda node, said: (setting_of(said, "client", int), node)
        ):
            clients[client] = None if client in clients else node  # two nodes that claim the same client: neither is it
        absent = [client for client in range(number) if clients.get(client) is None]
        if number - len(absent) < needed:
            raise FederationError(_why_absent(absent, clients, len(nodes), number))
        federation = Federation(grid, {k: clients.get(k) for k in range(number)}, spec.quorum, spec.timeout)
        return cls(setup, federation, simulated)

    def rounds(
        self, model: SplitModel, *, states: ClientStates, resume: RoundState | None, revise: Revise | None = None
    ) -> Iterator[RoundState]:
        data = TrainingSamples(self.setup.dataset.train)  # not augmented: no client trains here
        clients = [Client(number, data, shard) for number, shard in enumerate(self.setup.trained_on)]
        spec = self.setup.spec
        yield from federate(
            model,
            clients,
            spec.training,
            seed=spec.seed,
            states=states,
            resume=resume,
            trainer=self,
            server=ServerPart(self.setup.unlabelled, revise),
        )

    def train(
        self, cohort: Sequence[Client], sent: GlobalState, client_rounds: Mapping[int, int], *, round: int
    ) -> Iterator[LocalResult]:
        """The results of the clients that answer, in the cohort's order."""
        blobs, clients = {"sent": sent_bytes(sent)}, {client.id: client for client in cohort}
        contents = {k: pack(blobs, spec=self._spec, round=round, last=client_rounds.get(k, 0)) for k in clients}

        def read(client: int, answer: RecordDict) -> LocalResult:
            return result_from_bytes(blob_of(answer, "result"), clients[client], sent)

        return self.federation.ask(f"round {round}", "train", contents, read, in_order=True)

    def statistics(self, model: SplitModel, request: Request) -> Iterator[ClassStatistics]:
        like = expected(model, self.setup.dataset.train.first(2), "head", request)
        owned = self._owned(self.setup.kept)
        about = f" ({', '.join(request.details)})" if request.details else ""
        asked = replace(self.federation, about=about)
        yield from ask_statistics(asked, self._state(model), request, like, owned, spec=self._spec)

    def moments(self, model: SplitModel, clients: Sequence[int], *, round: int) -> Iterator[Tensors]:
        example, shards = self.setup.dataset.train.first(2), self.setup.kept.shards
        pair = moment_sums(model, [Batch(example, torch.zeros(2, dtype=torch.int64))])
        content = pack({"state": state_bytes(model.state_dict())}, spec=self._spec, round=round)
        owned = {client: len(shards[client]) for client in clients}
        one = {name: tensor / 2 for name, tensor in pair.items()}
        yield from ask_moments(self.federation, dict.fromkeys(clients, content), one, owned, round=round)

    def features(self, model: SplitModel) -> tuple[Tensor, Tensor]:
        if not self.simulated:
            raise CalibrationError(NO_ORACLES)
        return LocalEngine(self.setup).features(model)

    def score(self, model: SplitModel, heads: Mapping[str, Head]) -> Iterator[dict[str, ClassCounts]]:
        asked, number = replace(self.federation, about=f" of {', '.join(heads)}"), self.setup.dataset.num_classes
        owned = self._owned(self.setup.held_out)
        yield from ask_scores(asked, self._state(model), "head", heads, number, owned, spec=self._spec)

    def personal_scores(self, state: RoundState, *, states: ClientStates) -> Iterator[tuple[int, ClassCounts]]:
        blobs = {"sent": sent_bytes(sent_state(state, self.setup.spec.training, self.setup.fresh_model()))}
        lasts = {k: state.client_rounds.get(k, 0) for k in self.federation.nodes}
        contents = {k: pack(blobs, spec=self._spec, round=state.round + 1, last=last) for k, last in lasts.items()}
        dataset = self.setup.dataset
        total = torch.bincount(dataset.test.labels.long(), minlength=dataset.num_classes)
        yield from ask_personal(self.federation, contents, dataset.num_classes, dict.fromkeys(lasts, total))

    def absent(self) -> dict[str, dict[int, str]]:
        return self.federation.absent

    def _owned(self, partition: Partition) -> dict[int, Tensor]:
        """How many samples of each class every client owns."""
        dataset = self.setup.dataset
        counts = partition.label_counts(dataset.train.labels.numpy(), dataset.num_classes)
        return dict(enumerate(torch.from_numpy(counts)))

    def _state(self, model: SplitModel) -> bytes:
        """The tensors of the trained model with its first head: heads are sent separately where they matter."""
        backbone = model.backbone.backbone if isinstance(model.backbone, TappedBackbone) else model.backbone
        plain = SplitModel(model.normalize, backbone, self.setup.fresh_model().head)
        return state_bytes(plain.state_dict())

    @cached_property
    def _spec(self) -> str:
        """The spec that clients get: each knows where its data lies, and needs no other data set of the server's."""
        spec, data = self.setup.spec, self.setup.spec.data
        root, unlabelled = data.root if self.simulated else None, data.unlabelled if data.unlabelled_fraction else ""
        return to_toml(replace(spec, data=replace(data, root=root, unlabelled=unlabelled)))


def _why_absent(absent: Sequence[int], clients: Mapping[int, int | None], nodes: int, number: int) -> str:
    doubles = [client for client in absent if client in clients]
    others = [client for client in absent if client not in clients]
    said = [f"two SuperNodes are client {client}. Give each its own partition-id." for client in doubles[:1]]
    if others:
        said.append(
            f"{nodes} SuperNodes are connected, and none is client {', '.join(map(str, others))}. "
            f'Start one with --node-config "partition-id={others[0]} num-partitions={number}".'
        )
    return " ".join(said)
