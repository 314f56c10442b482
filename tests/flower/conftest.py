import pytest


@pytest.fixture
def trusted(monkeypatch):
    """Clients import the code that a server's spec names."""
    monkeypatch.setenv("CCVR_TRUST", "1")
