"""The commands that make a run again."""

import shlex
from typing import Any

from ccvr.report.runs import RunFiles

COME_WITH_THE_RUN = ("confusion", "norms", "separability")
"""Analyses that a run or a calibration ends with by itself."""
AGAINST = "cka-against"


def commands(run: RunFiles) -> list[str]:
    """As they were given: the run, every calibration after it; then what looks into it. RUN is the run's folder."""
    said = [_words(run.provenance) or "ccvr run RUN/spec.toml"]
    later = run.provenance.get("calibrated")
    said += [_words(each) for each in later if isinstance(each, dict)] if isinstance(later, list) else []
    return [*filter(None, said), *_analyze(run)]


def _words(found: dict[str, Any]) -> str:
    command = found.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


def _analyze(run: RunFiles) -> list[str]:
    names = [name for name in run.analyses if name != AGAINST]
    if set(names) <= set(COME_WITH_THE_RUN):
        return []
    words = ["ccvr", "analyze", "RUN", "--only", *names]
    if AGAINST in run.analyses:
        words += ["--against", str(run.analyses[AGAINST][1].get("run", "OTHER"))]
    if "tsne" in run.analyses:
        words += ["--points", str(len(run.analyses["tsne"][0]["points"]))]
    return [shlex.join(words)]
