import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ccvr.algorithms.messages import GlobalState
from ccvr.algorithms.objectives import LocalObjective
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import ALGORITHMS
from ccvr.core.errors import RunError, SpecError, TrainingError
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model
from ccvr.models.state import Scratch, buffers_of, parameters_of
from ccvr.training.checkpoint import checkpoint_bytes, named_states, read_checkpoint
from ccvr.training.client_state import ClientStates
from ccvr.training.local import train_client
from ccvr.training.rounds import ServerPart, draw_cohorts, federate, first_state
from tests.algorithms.small import Using

SPEC = TrainingSpec(rounds=3, local_epochs=1, batch_size=4, lr=0.05)


def norm_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 3))
    return split_model(layers, Normalize([0.4], [0.3]), torch.zeros(2, 1, 2, 3, dtype=torch.uint8))


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@given(st.integers(1, 40), st.floats(0.01, 1), st.integers(1, 9), st.integers(0, 5))
def test_cohorts_are_sorted_distinct_and_keep_their_prefix(num_clients, fraction, rounds, seed):
    spec = replace(SPEC, client_fraction=fraction, rounds=rounds)
    cohorts = draw_cohorts(num_clients, spec, seed=seed)
    assert len(cohorts) == rounds
    for cohort in cohorts:
        assert len(cohort) == max(1, round(fraction * num_clients))
        assert (np.diff(cohort) > 0).all()
        assert cohort[0] >= 0
        assert cohort[-1] < num_clients
    longer = draw_cohorts(num_clients, replace(spec, rounds=rounds + 3), seed=seed)
    assert all((a == b).all() for a, b in zip(cohorts, longer, strict=False))


def test_cohorts_do_not_depend_on_the_algorithm():
    spec = replace(SPEC, client_fraction=0.3)
    for algorithm in ("fedprox", "moon"):
        ours = draw_cohorts(20, replace(spec, algorithm=algorithm), seed=3)
        assert np.array_equal(ours, draw_cohorts(20, spec, seed=3))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_training_ends_in_the_same_bits(algorithm, clients, tmp_path):
    spec = replace(SPEC, algorithm=algorithm, client_fraction=0.7, rounds=4, local_epochs=2)
    states, pixels = ClientStates(tmp_path / "memories"), ServerPart(clients[0].data.samples.first(12))
    whole = list(federate(norm_model(), clients, spec, seed=2, states=states, server=pixels))
    for state in whole[:-1]:
        path = tmp_path / "checkpoint.safetensors"
        path.write_bytes(checkpoint_bytes(state, {}))
        more = {"states": states, "resume": read_checkpoint(path), "server": pixels}
        rest = list(federate(norm_model(), clients, spec, seed=2, **more))
        assert [later.round for later in rest] == list(range(state.round + 1, 5))
        assert same(rest[-1].parameters, whole[-1].parameters)
        assert same(rest[-1].buffers, whole[-1].buffers)
        assert same(rest[-1].server, whole[-1].server)
        assert rest[-1].client_rounds == whole[-1].client_rounds


def test_training_leaves_the_global_generator_alone_and_does_not_read_it(clients, tmp_path):
    finals = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        *_, last = federate(norm_model(), clients, SPEC, seed=0, states=ClientStates(tmp_path))
        assert torch.equal(before, torch.random.get_rng_state())
        finals.append(last.parameters)
    assert same(*finals)


def test_another_seed_trains_otherwise(clients, tmp_path):
    finals = [list(federate(norm_model(), clients, SPEC, seed=s, states=ClientStates(tmp_path)))[-1] for s in (0, 1)]
    assert not same(finals[0].parameters, finals[1].parameters)


def test_buffers_are_averaged_by_examples_and_counters_keep_the_maximum(clients, tmp_path):
    spec = replace(SPEC, rounds=1)
    alone = {}
    for client in clients:
        renamed = replace(client, id=0)
        (state,) = federate(norm_model(), [renamed], spec, seed=0, states=ClientStates(tmp_path))
        alone[client.id] = state.buffers
    # Alone, every client draws from the stream of client 0; so let each keep that stream in the cohort, too.
    cohort = [replace(client, id=0) for client in clients]
    (merged,) = federate(norm_model(), cohort, spec, seed=0, states=ClientStates(tmp_path))
    total = sum(len(client.indices) for client in clients)
    name = "backbone.model.2.running_mean"
    expected = sum(len(c.indices) / total * alone[c.id][name].double() for c in clients)
    torch.testing.assert_close(merged.buffers[name].double(), expected, rtol=0, atol=1e-7)
    counter = "backbone.model.2.num_batches_tracked"
    assert merged.buffers[counter] == max(buffers[counter] for buffers in alone.values())
    (largest,) = federate(norm_model(), cohort, replace(spec, buffers="largest"), seed=0, states=ClientStates(tmp_path))
    assert torch.equal(largest.buffers[name], alone[2][name])


def test_normalisation_constants_survive_averaging(clients, tmp_path):
    *_, last = federate(norm_model(), clients, SPEC, seed=0, states=ClientStates(tmp_path))
    assert torch.equal(last.buffers["normalize.scale"], norm_model().normalize.scale)


def test_the_report_of_a_round(clients, tmp_path):
    first, *_ = federate(norm_model(), clients, SPEC, seed=0, states=ClientStates(tmp_path))
    assert [report.client for report in first.clients] == [2, 1, 0]
    for report in first.clients:
        assert report.num_examples == len(clients[report.client].indices)
        assert report.num_steps == math.ceil(report.num_examples / 4)
        size = sum(t.numel() * t.element_size() for t in norm_model().state_dict().values())
        assert report.metrics.bytes_up == report.metrics.bytes_down == size


def test_states_are_written_per_round_and_swept(clients, tmp_path):
    states = ClientStates(tmp_path)
    spec = replace(SPEC, algorithm="moon", rounds=2)
    *_, last = federate(norm_model(), clients, spec, seed=0, states=states)
    assert last.client_rounds == {0: 2, 1: 2, 2: 2}
    assert len(list(tmp_path.iterdir())) == 6
    states.sweep(last.client_rounds.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"client-{k}-round-2.safetensors" for k in range(3)]


def test_fedavg_keeps_no_client_states(clients, tmp_path):
    *_, last = federate(norm_model(), clients, SPEC, seed=0, states=ClientStates(tmp_path))
    assert last.client_rounds == {}
    assert not list(tmp_path.iterdir())


def test_divergence_is_an_error_that_names_client_and_round(clients, tmp_path):
    spec = replace(SPEC, lr=1e30)
    with pytest.raises(TrainingError, match=r"client \d diverged in round \d: its loss is \w+. Lower the learning"):
        list(federate(norm_model(), clients, spec, seed=0, states=ClientStates(tmp_path)))


def test_the_states_that_a_checkpoint_names_are_read_from_its_first_bytes(clients, tmp_path):
    state = replace(first_state(norm_model(), len(clients), SPEC), client_rounds={3: 7, 11: 2})
    path = tmp_path / "checkpoint.safetensors"
    blob = checkpoint_bytes(state, {})
    path.write_bytes(blob[:-5])  # the tensors are damaged, the header is not
    assert sorted(named_states(path)) == [(3, 7), (11, 2)]
    path.write_bytes(blob[:20])
    with pytest.raises(RunError, match="cannot be read"):
        named_states(path)


def test_a_damaged_checkpoint_is_one_error(clients, tmp_path):
    state, *_ = federate(norm_model(), clients, SPEC, seed=0, states=ClientStates(tmp_path))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(checkpoint_bytes(state, {})[:-5])
    with pytest.raises(RunError, match="cannot be read"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rounds", 0, "training.rounds is 0; give at least 1."),
        ("lr", 0.0, "training.lr is 0.0; give a number above 0."),
        ("lr", math.nan, "training.lr is nan; give a number above 0."),
        ("momentum", 1.0, "training.momentum is 1.0; give a number below 1."),
        ("client_fraction", 0.0, "training.client_fraction is 0.0; give a number above 0, at most 1."),
        ("clsprox", -1.0, "training.clsprox is -1.0; give at least 0."),
    ],
)
def test_impossible_values(field, value, message):
    with pytest.raises(SpecError) as error:
        replace(SPEC, **{field: value})
    assert str(error.value) == message


def test_head_row_norms_are_the_clients_own(clients, tmp_path):
    alone = [clients[1]]
    (state,) = federate(
        norm_model(), [replace(alone[0], id=0)], replace(SPEC, rounds=1), seed=0, states=ClientStates(tmp_path)
    )
    rows = state.parameters["head.weight"].pow(2).sum(1).sqrt()
    torch.testing.assert_close(torch.tensor(state.clients[0].metrics.head_row_norms), rows)


def test_the_received_model_is_in_eval_mode_and_without_gradients(clients):
    seen = []

    class Looking(LocalObjective):
        def loss(self, step):
            anchor = self.context.anchor
            seen.append((any(m.training for m in anchor.modules()), any(p.requires_grad for p in anchor.parameters())))
            return 0.0

    model = norm_model()
    sent = GlobalState(parameters_of(model), buffers_of(model), {})
    train_client(Scratch(model), sent, clients[0], {}, Using(Looking), replace(SPEC, rounds=1), round=1, seed=0)
    assert set(seen) == {(False, False)}


def test_a_last_step_that_ruins_the_weights_is_divergence(clients, tmp_path):
    spec = replace(SPEC, lr=1e40, batch_size=100)
    with pytest.raises(TrainingError, match=r"client 2 diverged in round 1: its loss is \d"):
        list(federate(norm_model(), clients, spec, seed=0, states=ClientStates(tmp_path)))


@pytest.mark.parametrize(("number", "batch_size"), [(1, 4), (9, 1)])
def test_batch_normalisation_of_single_images_is_one_error(clients, tmp_path, number, batch_size):
    client = replace(clients[0], indices=np.arange(number))
    with pytest.raises(TrainingError, match=r"client \d+ trains on single samples .* batch normalisation"):
        list(
            federate(
                norm_model(), [client], replace(SPEC, batch_size=batch_size), seed=0, states=ClientStates(tmp_path)
            )
        )
