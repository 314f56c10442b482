"""What passes between `ccvr run` and a run on Flower: events as lines, a spec as settings, Flower's last words."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict

import ccvr
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import FederationError, LinkFailed, RunError, RunInUse, SpecError
from ccvr.experiment.events import ClientsAbsent, ClientScored, Finished, HeadScored, Noted, RoundDone, Started
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import FlowerSpec, Spec, to_toml
from ccvr.flower.launch import BUNDLE, MAX_WORDS, _address, _last_words, launch
from ccvr.flower.log_protocol import ERRORS, EVENTS, as_json, event_of, in_words
from ccvr.flower.server_app import OWN, flag_of, spec_of

pytestmark = pytest.mark.flower

TOKEN = "ccvr-fedcba9876543210"
EXAMPLES = [
    Noted("step: halide"),
    Started(0, 2, [[1, 2], [3, 4]], ["a", "b"]),
    RoundDone(round=1, rounds=2, accuracy=None, test_loss=None, loss=0.5, samples=10, seconds=0.1),
    RoundDone(round=2, rounds=2, accuracy=55.5, test_loss=1.5, loss=0.5, samples=10, seconds=0.1),
    HeadScored("ccvr", 80.0, 1.5, ["a"]),
    ClientScored("prior", 3, 10),
    ClientsAbsent("round 1", {"3": "its process died"}),
    Finished({"accuracy": {"ccvr": 80.0}}),
]


def test_every_event_has_an_example():
    assert {type(event).__name__ for event in EXAMPLES} == set(EVENTS)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_events_arrive_as_they_left(event):
    assert event_of(f"{TOKEN} {as_json(event)}\n", TOKEN) == event
    assert event_of(f"{TOKEN} {as_json(event)}WARNING :   from another thread\n", TOKEN) == event
    assert event_of(f"a print without its end{TOKEN} {as_json(event)}\n", TOKEN) == event
    assert "\n" not in in_words(event, Path("runs/x"))


@pytest.mark.parametrize(
    "line",
    [
        "INFO :      Starting Flower Simulation",
        "my ccvr: client starts",
        "(ClientAppActor pid=3) ccvr: training on gpu",
        "INFO: opened /data/ccvr: x",
        "ccvr: {}",
        "ccvr: [1]",
        'ccvr: {"event": "Finished", "results": {}}',
        'ccvr-0123456789abcdef {"event": "Finished", "results": {}}',  # another run's
        ' {"event": "Finished", "results": {}}',
        TOKEN,
        f"{TOKEN} ",
        f"{TOKEN} what is no JSON",
        f"{TOKEN} {{}}",
        f"{TOKEN} []",
        f"{TOKEN} [1]",
        f"{TOKEN} 7",
        f"{TOKEN} null",
        f'{TOKEN} "error"',
        f'{TOKEN} {{"error": []}}',
        f'{TOKEN} {{"error": "RunError"}}',
        f'{TOKEN} {{"event": "Unheard"}}',
        f'{TOKEN} {{"event": []}}',
        f'{TOKEN} {{"event": "Finished"}}',
        f'{TOKEN} {{"event": "Finished", "results": {{}}, "more": 1}}',
        f'{TOKEN} {{"event": "Finished", "results": ',
    ],
)
def test_what_others_print_is_no_event(line):
    assert event_of(f"{line}\n", TOKEN) is None
    assert event_of(f"{line}\n", "") is None  # a run that has none


@pytest.mark.parametrize("kind", [*ERRORS.values()], ids=lambda kind: kind.__name__)
def test_errors_arrive_as_they_left(kind):
    error = kind("the fact, the value. The remedy.")
    found = event_of(f"{TOKEN} {as_json(error)}\n", TOKEN)
    assert type(found) is kind
    assert str(found) == str(error)
    assert in_words(error, Path()) == f"{kind.__name__}: the fact, the value. The remedy."


def test_errors_below_errors_are_known():
    assert {FederationError, LinkFailed, RunError, RunInUse} <= set(ERRORS.values())


def test_an_error_of_another_version_is_an_error():
    found = event_of(f"{TOKEN} " + json.dumps({"error": "UnheardOf", "text": "new"}), TOKEN)
    assert type(found) is FederationError
    assert str(found) == "new"


# --- specs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [Spec(seed=3), *PRESETS.values()], ids=lambda spec: spec.name)
def test_a_spec_arrives_as_it_left(spec):
    assert spec_of({"spec": to_toml(spec), "training.rounds": ""}) == replace(spec, engine="flower")


@pytest.mark.parametrize("value", ["false", "", 0, "true"])
def test_a_text_is_no_flag(value):
    """Every text is true, and a run would be replaced that was to stay."""
    with pytest.raises(SpecError, match=f'overwrite is "{value}". Give true or false, without quotes'):
        flag_of({"overwrite": value}, "overwrite")
    assert flag_of({"overwrite": True}, "overwrite") is True


def test_a_preset_with_changes():
    config = {
        "spec": "cifar10-a0.1-fedavg",
        **dict.fromkeys(set(OWN) - {"spec", "trust"}, "no field of the spec"),
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
    [
        ({"training.round": 3}, 'no field "training.round"'),
        ({"seed": "one"}, "seed is 'one'; give a whole number"),
        ({"calibration.methods": 5}, "calibration.methods is 5"),
    ],
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


# --- what is refused before anything is started -----------------------------------------------------------------------

REMOTE = Spec(engine="flower", calibration=CalibrationSpec(methods=("lda",)))
LOCAL = {
    "none": None,
    "address": '[superlink.local]\naddress = ":local:"\n',
    "memory": '[superlink.local]\naddress = ":local-in-memory:"\n',
    "options": "[superlink.local]\noptions.num-supernodes = 10\n",
}


@pytest.fixture
def no_programs(monkeypatch):
    def refuse(*command, **_):
        raise AssertionError(f"started: {command}")

    monkeypatch.setattr("subprocess.Popen", refuse)


@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize("config", LOCAL)
def test_flowers_own_simulation_is_no_superlink(config, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    if LOCAL[config] is not None:
        (tmp_path / "config.toml").write_text(LOCAL[config])
    with pytest.raises(SpecError, match=r'flower.superlink is "local", for which Flower starts a SuperLink'):
        next(launch(replace(REMOTE, flower=FlowerSpec(superlink="local")), tmp_path / "run"))


@pytest.mark.parametrize("config", ['[superlink.local]\naddress = "127.0.0.1:9"\n', "damaged = ", "superlink = 1"])
def test_what_else_is_in_the_configuration_flower_judges(config, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(config)
    assert not _address("local").startswith(":local")


@pytest.mark.usefixtures("no_programs")
def test_a_folder_in_the_way_is_found_at_once(tmp_path):
    (tmp_path / "spec.toml").write_text(to_toml(Spec()))
    with pytest.raises(RunError, match="holds a run already"):
        next(launch(REMOTE, tmp_path))


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
    long = _last_words([f"ValueError: {'number ' * 100}and out\n"])
    assert long.startswith("… number number")
    assert long.endswith("number and out.")
    assert len(long) <= MAX_WORDS + 3
