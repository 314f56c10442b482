import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ccvr.core import machine
from ccvr.core.machine import cores, keep_freed_memory


class TestCores:
    @pytest.mark.parametrize(
        ("allowed", "quota", "expected"),
        [
            (8, None, 8),
            (8, "max 100000", 8),
            (8, "200000 100000", 2),
            (8, "250000 100000", 3),
            (8, "5000 100000", 1),
            (1, "400000 100000", 1),
            (8, "", 8),
            (8, "200000 100000 7", 8),
        ],
    )
    def test_a_container_may_have_fewer(
        self, allowed: int, quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if quota is not None:
            (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(machine, "CGROUPS", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
        assert cores() == expected

    @pytest.mark.parametrize("level", ["a.slice", "a.slice/run.service"])
    def test_a_group_within_a_group(self, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "groups" / "a.slice" / "run.service").mkdir(parents=True)
        (tmp_path / "groups" / level / "cpu.max").write_text("300000 100000\n")
        (tmp_path / "ours").write_text("0::/a.slice/run.service\n")
        monkeypatch.setattr(machine, "CGROUPS", tmp_path / "groups")
        monkeypatch.setattr(machine, "OURS", tmp_path / "ours")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        assert cores() == 3

    @pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 2)])
    def test_groups_of_the_first_version(
        self, quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
        (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
        monkeypatch.setattr(machine, "CGROUPS", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        assert cores() == expected

    def test_where_nobody_can_say(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "CGROUPS", tmp_path)
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        assert cores() == 1


class TestKeepFreedMemory:
    @pytest.mark.parametrize("error", [OSError, TypeError])
    def test_no_c_library_to_ask(self, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(name: object) -> None:
            raise error("no such library")

        monkeypatch.setattr(ctypes, "CDLL", fails)
        keep_freed_memory()

    def test_a_c_library_without_mallopt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
        keep_freed_memory()

    @pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc is what can be told")
    def test_a_process_that_keeps_it_asks_the_system_no_more(self) -> None:
        assert page_faults(keeping=True) < page_faults(keeping=False) / 4


# Many arrays of 4 MB at a time, as a step has many tensors: one by one, glibc would keep them by itself.
SCRIPT = """
import sys
from resource import RUSAGE_SELF, getrusage
import numpy as np
from ccvr.core.machine import keep_freed_memory

def step():
    arrays = [np.ones(2**19) for _ in range(16)]

if sys.argv[1] == "True":
    keep_freed_memory()
for _ in range(3):
    step()
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, keeping: bool) -> int:
    command = [sys.executable, "-c", SCRIPT, str(keeping)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
