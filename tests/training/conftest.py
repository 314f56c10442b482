from tests.algorithms.conftest import clients

__all__ = ["clients"]
