"""What passes between `ccvr run` and a run on Flower: events as lines, a spec as settings, Flower's last words."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict

import ccvr
from ccvr.core import errors
from ccvr.core.errors import CcvrError, SpecError
from ccvr.experiment.events import ClientsMissing, Finished, HeadScored, RoundDone, Started
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import Spec, to_toml
from ccvr.flower.launch import BUNDLE, _last_words
from ccvr.flower.lines import EVENTS, MARK, as_json, event_of, in_words
from ccvr.flower.server_app import OWN, spec_of

pytestmark = pytest.mark.flower

EXAMPLES = [
    Started(0, 2, [[1, 2], [3, 4]], ["a", "b"]),
    RoundDone(round=1, rounds=2, accuracy=None, test_loss=None, loss=0.5, samples=10, seconds=0.1),
    RoundDone(round=2, rounds=2, accuracy=55.5, test_loss=1.5, loss=0.5, samples=10, seconds=0.1),
    HeadScored("ccvr", 80.0, 1.5, ["a"]),
    ClientsMissing("round 1", {"3": "its process died"}),
    Finished({"accuracy": {"ccvr": 80.0}}),
]


def test_every_event_has_an_example():
    assert {type(event).__name__ for event in EXAMPLES} == set(EVENTS)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_events_arrive_as_they_left(event):
    assert event_of(f"{MARK}{as_json(event)}\n") == event
    assert event_of(f"{MARK}{as_json(event)}WARNING :   from another thread\n") == event
    assert "\n" not in in_words(event, Path("runs/x"))


def test_flowers_own_lines_are_no_events():
    assert event_of("INFO :      Starting Flower Simulation\n") is None


@pytest.mark.parametrize("kind", CcvrError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_errors_arrive_as_they_left(kind):
    error = kind("the fact, the value. The remedy.")
    with pytest.raises(kind, match="the fact, the value") as found:
        event_of(f"{MARK}{as_json(error)}\n")
    assert type(found.value) is kind
    assert in_words(error, Path()) == f"{kind.__name__}: the fact, the value. The remedy."


def test_an_error_of_another_version_is_an_error():
    with pytest.raises(errors.FederationError, match="new"):
        event_of(MARK + json.dumps({"error": "UnheardOf", "text": "new"}))


# --- specs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [Spec(seed=3), *PRESETS.values()], ids=lambda spec: spec.name)
def test_a_spec_arrives_as_it_left(spec):
    assert spec_of({"spec": to_toml(spec), "training.rounds": ""}) == replace(spec, engine="flower")


def test_a_preset_with_changes():
    config = {
        "spec": "cifar10-a0.1-fedavg",
        **dict.fromkeys(set(OWN) - {"spec"}, "no field of the spec"),
        "seed": 7,
        "training.rounds": 3,
        "partition.num-clients": 4,
        "calibration.methods": "ccvr lda,shrinkage=oas",
        "data.name": "",
    }
    spec = spec_of(config)
    assert (spec.seed, spec.training.rounds, spec.partition.num_clients) == (7, 3, 4)
    assert spec.calibration.methods == ("ccvr", "lda,shrinkage=oas")
    assert spec.data.name == "cifar10"


@pytest.mark.parametrize(
    ("config", "said"),
    [({"training.round": 3}, 'no field "training.round"'), ({"seed": "one"}, "seed is 'one'; give a whole number")],
)
def test_mistakes_in_settings(config, said):
    with pytest.raises(SpecError, match=said):
        spec_of({"spec": "digits-a0.1-fedavg", **config})


def test_the_bundles_settings_are_the_default_run():
    config = flatten_dict(tomllib.loads((BUNDLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    assert spec_of(config) == Spec(engine="flower")
    assert set(OWN) <= config.keys()


def test_python_cannot_start_flower(tmp_path):
    with pytest.raises(SpecError, match="only the command starts"):
        ccvr.run(Spec(engine="flower"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- what Flower says when it fails -----------------------------------------------------------------------------------


def test_last_words():
    box = [
        "╭─ Error ───────────────────────────────╮\n",
        "│ SuperLink connection 'x' not found in │\n",
        "│ the Flower configuration file.        │\n",
        "╰───────────────────────────────────────╯\n",
    ]
    assert _last_words(box) == "Error SuperLink connection 'x' not found in the Flower configuration file."
    log = ["\x1b[91mERROR \x1b[0m:     ServerApp raised an exception\n", "Traceback\n", "INFO :   bye\n"]
    assert _last_words(log) == "ServerApp raised an exception."
    raised = [*log[:2], "OSError: AF_UNIX path length\n", "RuntimeError: stopping\n", "ERROR :     Exit Code: 700\n"]
    assert _last_words(raised) == "OSError: AF_UNIX path length."
