"""Algorithms that change the local loss, against ``plain_losses.py`` (float64, 1e-9), and what each promises."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ccvr.algorithms.features import Decorrelated
from ccvr.algorithms.labels import ImportanceWeighted
from ccvr.algorithms.objectives import LocalContext, Outcome, Step
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import find_algorithm
from ccvr.core.errors import SpecError, TrainingError
from ccvr.core.seeds import stream
from ccvr.data.batches import epoch
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import draw_cohorts, federate, first_state, sent_state
from tests.algorithms import plain_losses as plain
from tests.algorithms.small import NUM_CLASSES, small_model

BASE = TrainingSpec(rounds=4, local_epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3)
OPTIONS = {
    "fedir": "fedir",
    "fedlc": f"fedlc,tau={plain.TAU}",
    "fedrs": f"fedrs,alpha={plain.ALPHA}",
    "fedntd": f"fedntd,beta={plain.BETA},tau={plain.TAU}",
    "feddecorr": f"feddecorr,beta={plain.BETA}",
    "fedbabu": "fedbabu",
}
RULES = {name: getattr(plain, name, plain.fedavg) for name in OPTIONS}
NAMES = {"backbone.model.1.weight": "W1", "backbone.model.1.bias": "b1", "head.weight": "W2", "head.bias": "b2"}
SEED = 5


@pytest.fixture(scope="module")
def lacking(clients):
    """The three clients; the first lacks class 2, the last class 0."""
    without = {0: 2, 2: 0}
    labels = clients[0].data.samples.labels.numpy()
    found = [replace(each, indices=each.indices[labels[each.indices] != without.get(each.id, -1)]) for each in clients]
    counts = [np.bincount(labels[each.indices], minlength=NUM_CLASSES) for each in found]
    assert [int((own == 0).sum()) for own in counts] == [1, 0, 1]
    return found


def counts_of(client):
    return np.bincount(client.data.samples.labels.numpy()[client.indices], minlength=NUM_CLASSES)


def trained(clients, spec, folder, model=None):
    return list(federate(model or small_model(), clients, spec, seed=SEED, states=ClientStates(folder)))


def named(tensors):
    return {NAMES[name]: value for name, value in tensors.items()}


@pytest.mark.parametrize("fraction", [1.0, 0.6], ids=["all", "some"])
@pytest.mark.parametrize("server", ["", "fedavgm,momentum=0.3"], ids=["alone", "under fedavgm"])
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_plain_implementation(name, server, fraction, lacking, tmp_path):
    spec = replace(BASE, algorithm=OPTIONS[name], server=server, client_fraction=fraction)
    model = small_model()
    start = named({name: value.detach().clone() for name, value in model.named_parameters()})

    def batches_of(client, number):
        rng, own = stream(SEED, "batches", client=client, round=number), lacking[client]
        for _ in range(spec.local_epochs):
            for crops, labels in epoch(own.data, own.indices, spec.batch_size, rng=rng):
                yield small_model().normalize(crops.images).flatten(1), labels

    labels = [client.data.samples.labels.numpy()[client.indices] for client in lacking]
    cohorts = [cohort.tolist() for cohort in draw_cohorts(len(lacking), spec, seed=SEED)]
    frozen = ("W2", "b2") if name == "fedbabu" else ()
    momentum = 0.3 if server else 0.0
    expected = list(
        plain.federate(start, labels, batches_of, cohorts, RULES[name], spec, frozen=frozen, server_momentum=momentum)
    )
    found = [named(state.parameters) for state in trained(lacking, spec, tmp_path, model)]
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        for key, tensor in theirs.items():
            torch.testing.assert_close(ours[key], tensor, rtol=0, atol=1e-9)


def test_every_rule_differs_from_fedavg_and_from_the_others(lacking, tmp_path):
    finals = {
        name: trained(lacking, replace(BASE, algorithm=text), tmp_path)[-1].parameters["backbone.model.1.weight"]
        for name, text in {"fedavg": "fedavg", **OPTIONS}.items()
    }
    weights = list(finals.values())
    for index, first in enumerate(weights):
        assert all((first - second).abs().max() > 1e-4 for second in weights[index + 1 :])


@pytest.mark.parametrize("text", ["fedrs,alpha=1", "fedntd,beta=0", "feddecorr,beta=0"])
def test_without_its_weight_it_is_fedavg(text, lacking, tmp_path):
    mine, theirs = (trained(lacking, replace(BASE, algorithm=each), tmp_path)[-1] for each in (text, "fedavg"))
    for name, tensor in theirs.parameters.items():
        torch.testing.assert_close(mine.parameters[name], tensor, rtol=0, atol=1e-12)


def test_fedlc_without_shift_is_fedavg_where_no_class_is_lacking(clients, tmp_path):
    assert all(counts_of(client).all() for client in clients)
    mine, theirs = (trained(clients, replace(BASE, algorithm=each), tmp_path)[-1] for each in ("fedlc,tau=0", "fedavg"))
    for name, tensor in theirs.parameters.items():
        torch.testing.assert_close(mine.parameters[name], tensor, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("text", "moves"), [("fedlc", False), ("fedrs,alpha=0", False), ("fedavg", True)])
def test_rows_of_classes_that_a_client_lacks(text, moves, lacking, tmp_path):
    alone = [replace(lacking[0], id=0)]
    spec = replace(BASE, algorithm=text, weight_decay=0.0)
    before = small_model().head.weight.detach()
    after = trained(alone, spec, tmp_path)[-1].parameters["head.weight"]
    assert torch.equal(after[2], before[2]) is not moves
    assert not torch.equal(after[0], before[0])


class TestFedIR:
    def test_the_server_adds_each_client_s_counts_once(self, lacking, tmp_path):
        spec = replace(BASE, algorithm="fedir", client_fraction=0.6)
        cohorts = draw_cohorts(len(lacking), spec, seed=SEED)
        seen: set[int] = set()
        for state, cohort in zip(trained(lacking, spec, tmp_path), cohorts, strict=True):
            seen |= set(cohort.tolist())
            assert state.server["counts"].tolist() == sum(counts_of(lacking[k]) for k in seen).tolist()
            assert state.server["heard"].tolist() == [int(k in seen) for k in range(3)]
        assert len(seen) == 3 < sum(map(len, cohorts)), "some took part again"

    def test_clients_receive_the_sums_alone_and_both_ways_are_billed(self, lacking, tmp_path):
        spec = replace(BASE, algorithm="fedir")
        state = trained(lacking, spec, tmp_path)[-1]
        sent = sent_state(state, spec, small_model())
        assert {name: tensor.tolist() for name, tensor in sent.broadcast.items()} == {
            "counts": sum(map(counts_of, lacking)).tolist()
        }
        billed = {(each.metrics.bytes_up, each.metrics.bytes_down) for each in state.clients}
        assert billed == {(sent.model_bytes + 8 * NUM_CLASSES,) * 2}

    @pytest.mark.parametrize("payload", [{}, {"counts": [3, 2, 1]}, {"counts": [9, -1, -1]}, {"counts": [3, 4]}])
    def test_counts_that_cannot_be(self, payload, lacking, tmp_path, monkeypatch):
        made = {name: torch.tensor(counts) for name, counts in payload.items()}
        monkeypatch.setattr(ImportanceWeighted, "finish", lambda *_: Outcome(payload=made))
        alone = [replace(lacking[1], id=0, indices=lacking[1].indices[:7])]
        with pytest.raises(TrainingError, match=r"client 0 sent label counts that are not those of its 7 samples\."):
            trained(alone, replace(BASE, algorithm="fedir"), tmp_path)

    def test_the_first_round_is_fedavg(self, lacking, tmp_path):
        mine, theirs = (trained(lacking, replace(BASE, algorithm=each), tmp_path) for each in ("fedir", "fedavg"))
        for round, same in ((0, True), (1, False)):
            pairs = [(mine[round].parameters[n], tensor) for n, tensor in theirs[round].parameters.items()]
            assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs) is same

    def test_a_class_that_the_server_has_not_heard_of_still_counts(self, lacking, tmp_path):
        """One client alone has class 0: with weight 0, a batch of that class would have the loss 0 / 0."""
        labels = lacking[0].data.samples.labels.numpy()
        only = replace(lacking[0], id=0, indices=lacking[0].indices[labels[lacking[0].indices] == 0])
        others = replace(lacking[1], id=1, indices=lacking[1].indices[labels[lacking[1].indices] != 0])
        spec = replace(BASE, algorithm="fedir", client_fraction=0.5, rounds=6, batch_size=1)
        cohorts = [cohort.tolist() for cohort in draw_cohorts(2, spec, seed=SEED)]
        first = cohorts.index([0])
        assert first > 0, "the other client comes first"
        states = trained([only, others], spec, tmp_path)
        assert states[first - 1].server["counts"][0] == 0
        assert not torch.equal(states[first].parameters["head.weight"], states[first - 1].parameters["head.weight"])


class TestFedDecorr:
    def objective(self, beta=1.0):
        spec = TrainingSpec()
        model = small_model()
        sent = sent_state(first_state(model, 1, spec), spec, model)
        labels, indices = torch.zeros(1, dtype=torch.int64), np.zeros(1, np.int64)
        return Decorrelated(LocalContext(model, sent.tensors, {}, {}, labels, indices, spec, list), beta=beta)

    def loss(self, z, beta=1.0):
        labels = torch.zeros(len(z), dtype=torch.int64)
        return self.objective(beta).loss(Step(z, z, labels, z, z))

    def test_it_is_the_mean_squared_correlation(self):
        z = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = (np.corrcoef(z.numpy(), rowvar=False) ** 2).mean()
        assert self.loss(z, 3.0).item() == pytest.approx(3 * expected, rel=1e-6)

    def test_a_feature_that_is_constant_has_no_gradient(self):
        z = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        z[:, 1] = 0.0
        z.requires_grad_()
        self.loss(z).backward()
        assert z.grad.isfinite().all()
        assert not z.grad[:, 1].any()
        assert z.grad[:, 0].any()

    def test_a_single_sample_adds_nothing(self):
        assert self.loss(torch.randn(1, 4)) == 0.0


def test_fedbabu_leaves_the_head_as_it_was(lacking, tmp_path):
    spec = replace(BASE, algorithm="fedbabu")
    start = small_model().state_dict()
    end = trained(lacking, spec, tmp_path)[-1].parameters
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(end[name], start[name], rtol=0, atol=1e-15)
    assert not torch.equal(end["backbone.model.1.weight"], start["backbone.model.1.weight"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedlc,tau=-1", "tau is -1.0; give at least 0."),
        ("fedrs,alpha=1.5", "fedrs: alpha is 1.5; give a number from 0 to 1."),
        ("fedrs,alpha=nan", "fedrs: alpha is nan; give a number from 0 to 1."),
        ("fedntd,beta=-1", "beta is -1.0; give at least 0."),
        ("fedntd,tau=0", "fedntd: tau is 0.0; give a number above 0."),
        ("feddecorr,beta=-0.1", "beta is -0.1; give at least 0."),
        ("fedir,tau=1", 'fedir has no option "tau". It has none.'),
        ("fedbabu,lr=1", 'fedbabu has no option "lr". It has none.'),
    ],
)
def test_options_that_cannot_be(text, message):
    with pytest.raises(SpecError) as error:
        find_algorithm(text)
    assert str(error.value) == message
