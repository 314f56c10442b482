"""The finished ones of the runs that a command names."""

from collections.abc import Sequence
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.core.run import RunFolder
from ccvr.core.terminal import say
from ccvr.core.trust import Trust


def finished_runs(paths: Sequence[Path], command: str, *, trust: Trust = False) -> list[RunFolder]:
    """Return the finished runs, each once. Unfinished ones are reported and skipped."""
    named: dict[Path, Path] = {}
    for path in paths:
        named.setdefault(path.resolve(), path)
    folders = [RunFolder.open(path, trust=trust) for path in named.values()]
    if not folders:
        raise RunError(f"no run named. Give run folders: ccvr {command} runs/*")
    finished = [folder for folder in folders if folder.results.is_file()]
    for folder in folders:
        if folder not in finished:
            say(f"{folder.path} is not finished: go on with `ccvr resume {folder.path}`.", error=True)
    if not finished:
        raise RunError("none of these runs is finished.")
    return finished
