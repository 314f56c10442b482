"""The worked algorithms of docs/extending.md end in the same model in this process and over Flower."""

import importlib
import itertools
from dataclasses import replace

import pytest
import torch

from ccvr.core.errors import SpecError
from ccvr.core.run import RunFolder
from ccvr.data.spec import DataSpec
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.pipeline import run
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import read_spec
from ccvr.flower.client_app import app as client_app
from ccvr.flower.engine import FlowerEngine
from ccvr.statistics.request import Request
from tests.end_to_end.test_extending import code
from tests.flower.loopback import Loopback
from tests.flower.test_engine import TINY, last_state, on_flower

pytestmark = pytest.mark.flower

DATA = DataSpec(validation=0.2, unlabelled="0.1")
SECTIONS = {
    "All of it": ("Scaffold", {"momentum": 0.0}),
    "What stays with a client": ("FedPer", {}),
    "What a server learns": ("Distilled,steps=5", {}),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the code of a section as a module, and names it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CCVR_TRUST", "1")

    def write(section):
        name = f"extending_{'_'.join(section.lower().split())}"
        (tmp_path / f"{name}.py").write_text(code(section))
        importlib.invalidate_caches()
        return name

    return write


@pytest.mark.parametrize("section", SECTIONS)
def test_both_engines_end_in_the_same_model(section, module, tmp_path):
    (name, options) = SECTIONS[section]
    training = replace(TINY.training, algorithm=f"{module(section)}:{name}", step="torch", **options)
    spec = replace(TINY, data=DATA, training=training)
    here = run(spec, tmp_path / "here")
    *_, finished = on_flower(spec, tmp_path / "flower")
    mine, theirs = last_state(tmp_path / "here"), last_state(tmp_path / "flower")
    for group in ("parameters", "buffers", "server"):
        a, b = getattr(mine, group), getattr(theirs, group)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), group
    assert mine.client_rounds == theirs.client_rounds
    assert finished.results.get("personal") == here.get("personal")
    assert ("personal" in here) == (section == "What stays with a client")


MORE = """
from ccvr.data.catalogue import load

loads = []

def more(root):
    loads.append(1)
    return load("digits", root)
"""


@pytest.mark.parametrize("simulated", [True, False])
def test_clients_do_not_load_what_the_server_learns_from(simulated, module, tmp_path):
    """Another data set's unlabelled samples are read once, by the server; the clients need not have them."""
    (tmp_path / f"more_{simulated}.py").write_text(MORE)
    training = replace(TINY.training, algorithm=f"{module('What a server learns')}:Distilled,steps=1", rounds=1)
    data = DataSpec(unlabelled=f"more_{simulated}:more")
    on_flower(replace(TINY, data=data, training=training), tmp_path / "flower", simulated=simulated)
    assert importlib.import_module(f"more_{simulated}").loads == [1]
    assert read_spec(RunFolder(tmp_path / "flower").spec, trust=True).data == data


def test_a_client_draws_noise_that_the_server_cannot_compute(module):
    """On Flower no two answers have the same noise, and none has that of the local run, whose seed the server knows."""
    request = Request(kind=f"{module('A kind of statistics')}:noisy")
    setup = prepare(TINY)
    model = setup.fresh_model()
    over_flower = FlowerEngine.connect(Loopback(client_app, len(setup.kept)), setup, simulated=True)
    here, *there = (list(each.statistics(model, request)) for each in (LocalEngine(setup), over_flower, over_flower))
    answers = [each.total for each in [*here, *there[0], *there[1]]]
    assert len(answers) == 3 * len(setup.kept)
    for one, two in itertools.combinations(answers, 2):
        assert (one - two).abs().mean() > 0.1


def test_a_server_that_has_nothing_to_learn_from_is_refused_at_once(module, tmp_path):
    algorithm = f"{module('What a server learns')}:Distilled"
    spec = replace(TINY, training=replace(TINY.training, algorithm=algorithm))
    with pytest.raises(SpecError, match=r"learns from unlabelled samples, and there are none. Set data.unlabelled"):
        run(spec, tmp_path / "run")
    assert not (tmp_path / "run").exists()
