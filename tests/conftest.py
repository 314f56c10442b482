"""Before anything imports torch: one thread a process, for tests run side by side and threads that wait spin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

from ccvr.data.sources.rows import SOURCES  # noqa: E402

TOGETHER = (
    *(f"tests/flower/test_{name}.py" for name in ("simulation", "deployment", "slow")),
    *(f"tests/end_to_end/test_{name}.py" for name in ("docs", "report_page", "resume", "run_folder")),
    *(f"tests/experiment/test_{name}.py" for name in ("analyze", "log", "tune")),
    "tests/reproduction/test_work.py",
    "tests/report/test_page.py",
)
"""Files whose tests share what takes long to start or to make: with several workers, each of them runs in one."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling  # now: without xdist nobody calls this

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((path for path in TOGETHER if nodeid.startswith(path)), nodeid)

    return Together(config, log)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory):
    """The folder of the real CIFAR-10 and CIFAR-100: $CCVR_DATA, or unpacked from ../shared/data; else a skip."""
    own = Path(os.environ.get("CCVR_DATA", "nowhere"))
    if all(SOURCES[name].find(own) for name in ("cifar10", "cifar100")):
        return own
    unpack = Path(__file__).parents[2] / "shared" / "data" / "unpack"
    if not unpack.is_file():
        pytest.skip("no real images: neither in $CCVR_DATA nor in ../shared/data")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, unpack, folder], check=True, capture_output=True)
    return folder
