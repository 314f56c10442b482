"""Run folders with made-up numbers, as reports are tested with."""

from tests.report.conftest import make_run

__all__ = ["make_run"]
