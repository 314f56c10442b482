"""A server names code, and a client imports it only where its own machine says so."""

import sys
from dataclasses import replace

import pytest

import ccvr.flower
from ccvr.core.errors import FederationError, UntrustedCode
from ccvr.experiment.spec import to_toml
from ccvr.flower import client_app
from ccvr.flower.server_app import spec_of
from tests.flower.small import EXAMPLE, grid_of, small_model
from tests.flower.test_engine import TINY

pytestmark = pytest.mark.flower

KIND = """
import pathlib
from ccvr.statistics.kinds import Pooled

class Mine(Pooled):
    stands_for = "pooled"

mine = Mine()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported."""
    (tmp_path / "kind_of_the_server.py").write_text(KIND)
    monkeypatch.syspath_prepend(tmp_path)
    yield "kind_of_the_server"
    sys.modules.pop("kind_of_the_server", None)


def refused(module):
    grid = grid_of(2)
    kind = f"{module}:mine"
    with pytest.raises(FederationError) as caught:
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda", kind=kind)
    return str(caught.value)


def test_a_kind_that_the_server_names(module, monkeypatch):
    error = refused(module)
    assert f'the server\'s question names code that is not part of ccvr: kind is "{module}:mine"' in error
    assert "start its SuperNode with CCVR_TRUST=1, or its app with register(…, trust=True)" in error
    found = ccvr.flower.calibrate(grid_of(2, trust=True), small_model(), EXAMPLE, "lda", kind=f"{module}:mine")
    assert found.statistics.kind == f"{module}:mine"
    monkeypatch.setenv("CCVR_TRUST", "1")
    again = ccvr.flower.calibrate(grid_of(2), small_model(), EXAMPLE, "lda", kind=f"{module}:mine")
    assert again.statistics.kind == f"{module}:mine"


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_a_spec_that_the_server_sends(module, value, monkeypatch):
    monkeypatch.setenv("CCVR_TRUST", value)
    text = to_toml(replace(TINY, data=replace(TINY.data, name=f"{module}:mine")))
    with pytest.raises(UntrustedCode, match=r"^the server's spec names code .* start its SuperNode with CCVR_TRUST=1"):
        client_app._home.__wrapped__(text)
    assert module not in sys.modules


def test_the_user_who_starts_a_run_names_code_for_the_server(module):
    config = {"spec": to_toml(replace(TINY, data=replace(TINY.data, name=f"{module}:mine"))), "trust": False}
    assert spec_of(config).data.name == f"{module}:mine"


def test_a_file_on_the_servers_machine_needs_trust(module, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(to_toml(replace(TINY, data=replace(TINY.data, name=f"{module}:mine"))))
    with pytest.raises(UntrustedCode):
        spec_of({"spec": str(path), "trust": False})
    assert spec_of({"spec": str(path), "trust": True}).data.name == f"{module}:mine"
