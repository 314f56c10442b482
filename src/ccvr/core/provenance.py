"""Where numbers come from: versions, commit, hardware, command."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("ccvr", "torch", "numpy", "safetensors", "scikit-learn", "flwr", "halide")


def provenance(seed: int) -> dict[str, Any]:
    """The facts that are needed to repeat a run."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "seed": seed,
        "commit": source_commit(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def source_commit() -> str | None:
    """The commit of this source tree, with ``+changes`` where the package was edited; None outside our checkouts."""
    package = Path(__file__).resolve().parents[1]
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "ccvr" != package:
        return None
    commit = _git(package, "rev-parse", "HEAD")
    return commit if commit is None or not _git(package, "status", "--porcelain", ".") else f"{commit}+changes"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
