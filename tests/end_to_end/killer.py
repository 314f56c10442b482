"""Run a spec to its end while killing it at random moments:  python killer.py SPEC.toml RUN KILLS SEED

The imports happen once; each attempt is a fork, so that the kills fall on the work and not on the imports.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from ccvr.core.run import RunFolder
from ccvr.experiment import pipeline
from ccvr.experiment.spec import read_spec


def attempt(spec_path: Path, run: Path) -> None:
    folder = RunFolder(run)
    if folder.spec.is_file():
        list(pipeline.resume(folder))
    else:
        list(pipeline.start(read_spec(spec_path), run))


def await_round(run: Path, number: int) -> None:
    """Until as many rounds are on record: kills fall into the training, however fast it is."""
    record, ends = RunFolder(run).rounds, time.monotonic() + 60
    while time.monotonic() < ends and len(record.read_bytes().splitlines() if record.is_file() else []) < number:
        time.sleep(0.005)


def main(spec_path: str, run: str, kills: str, seed: str) -> None:
    rng = random.Random(int(seed))
    killed = 0
    for _ in range(50 * int(kills)):
        child = os.fork()
        if child == 0:
            attempt(Path(spec_path), Path(run))
            os._exit(0)
        if killed < int(kills):
            await_round(Path(run), min(killed + 1, 3) if killed < 3 else 0)
            time.sleep(rng.uniform(0.0, 0.1 if killed < 3 else 1.0))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) != 0:
            sys.exit(f"the attempt after {killed} kills failed")
        else:
            break
    print(killed)


main(*sys.argv[1:])
