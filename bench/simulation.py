"""Our simulation beside bare steps, Flower, pfl-research and the tutorial's way, and at many clients.

Every side is a script in bench/peers, started once, that runs a round when it is told to. The sides of a comparison
take turns, so that a busy machine slows all alike; a figure is the median over the turns of the ratio within a turn. A
round is one local epoch of FedAvg over 50,000 images of CIFAR-10's shape, 10 clients by Dirichlet 0.1 unless said, two
workers. Ours runs on compiled kernels, the others on torch's step, which is what their users have.

    pip install -e ".[fast,flower,bench]"
    python -m bench.simulation [--json] [--repeats 5] [--only of_bare,of_limit,flower_10,flower_100,pfl,…]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.workload import SAYS, TRAINING, WORKERS

Times = dict[str, list[float]]
Figures = dict[str, float]
PFL = ("torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}", "-m", "bench.peers.pfl_research")
ROOT = Path(__file__).parent.parent
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),  # Ray's processes look for the workload
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 would let any other process go first
}
CLAIMS = {
    "of_bare": ">= 2.0",
    "of_bare_augmented": ">= 1.9",
    "of_limit": ">= 0.5",
    "over_flower_10": ">= 1.9",
    "over_flower_100": ">= 2.2",
    "overhead_over_flower_10": ">= 5",
    "overhead_over_flower_100": ">= 5",
    "over_pfl": ">= 1.9",
    "over_pfl_keeping": ">= 1.9",
    "scaling_1000": "<= 1.5",
}
BATCH = TRAINING.batch_size
NOISE = 0.01
"""Part of a round below which an overhead cannot be told from nothing here."""


class Side:
    """A peer, waiting for its turn."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
        )
        self.complaints: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        self.hear()
        self.round()  # warm up

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaints = [*self.complaints[-20:], line]

    def hear(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(SAYS):
                return line.removeprefix(SAYS).strip()
        raise SystemExit(f"{' '.join(self.process.args)} ended:\n{''.join(self.complaints)}")  # type: ignore[arg-type]

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.hear())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@contextmanager
def sides(**commands: Sequence[str]) -> Iterator[dict[str, Side]]:
    with ExitStack() as stack:
        started = {}
        for name, command in commands.items():
            print(f"starting {name} …", file=sys.stderr)
            started[name] = side = Side(*command)
            stack.callback(side.close)
        yield started


def take_turns(repeats: int, **commands: Sequence[str]) -> Times:
    with sides(**commands) as started:
        return turns(started, repeats)


def turns(started: dict[str, Side], repeats: int) -> Times:
    """One round of each side in every turn; another side begins each time, since some leave work behind."""
    times: Times = {name: [] for name in started}
    names = list(started)
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(started[name].round())
    return times


def ratio(times: Times, above: str, below: str) -> float:
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def seconds(times: Times) -> Figures:
    return {f"seconds_{name}": statistics.median(values) for name, values in times.items()}


def ours(*arguments: str) -> tuple[str, ...]:
    return ("bench.peers.ours", *arguments)


def of_bare(repeats: int) -> Figures:
    setting = ("dirichlet", "10")
    times = take_turns(
        repeats, bare=("bench.peers.bare", "eager"), ours=ours(*setting), augmented=ours(*setting, "--augment")
    )
    return {"of_bare": ratio(times, "bare", "ours"), "of_bare_augmented": ratio(times, "bare", "augmented")} | seconds(
        times
    )


def of_limit(repeats: int) -> Figures:
    """Operations of a step a second over those of matrix products, one thread each."""
    times = take_turns(4 * repeats, step=("bench.peers.limit", "step"), product=("bench.peers.limit", "product"))
    return {"of_limit": ratio(times, "product", "step")} | seconds(times)


def over_flower(repeats: int, kind: str, number: str) -> Figures:
    """Whole rounds; and, for what each adds to the steps, rounds of one batch a client, whose steps drown less."""
    whole = {f"ours_{number}": ours(kind, number), f"flower_{number}": ("bench.peers.flower", kind, number)}
    times = take_turns(repeats, **whole)
    batch = f"{kind}/{BATCH}"
    short = {
        f"loop_{number}_short": ("bench.peers.bare", "loop", batch, number, "halide"),
        f"ours_{number}_short": ours(batch, number),
        f"torch_loop_{number}_short": ("bench.peers.bare", "loop", batch, number, "torch"),
        f"flower_{number}_short": ("bench.peers.flower", batch, number),
    }
    brief = take_turns(4 * repeats, **short)
    loop, mine, torch_loop, theirs = (statistics.median(values) for values in brief.values())
    if mine - loop < NOISE * loop:
        print(f"ours adds {mine - loop:.4f} s to {loop:.4f} s: counted as {NOISE:.0%} of them", file=sys.stderr)
    return {
        f"over_flower_{number}": ratio(times, f"flower_{number}", f"ours_{number}"),
        f"overhead_over_flower_{number}": (theirs - torch_loop) / max(mine - loop, NOISE * loop),
    } | seconds(times | brief)


def over_pfl(repeats: int) -> Figures:
    setting = ("dirichlet", "10")
    times = take_turns(
        repeats, ours_beside_pfl=ours(*setting), pfl=(*PFL, *setting), pfl_keeping=(*PFL, *setting, "--keep")
    )
    mine = "ours_beside_pfl"
    return {"over_pfl": ratio(times, "pfl", mine), "over_pfl_keeping": ratio(times, "pfl_keeping", mine)} | seconds(
        times
    )


def over_quickstart(repeats: int) -> Figures:
    setting = ("dirichlet", "10")
    times = take_turns(repeats, ours_beside_quickstart=ours(*setting), quickstart=("bench.peers.quickstart", *setting))
    times["quickstart"] = [10 * value for value in times["quickstart"]]  # it trains on a tenth of the images
    return {"over_quickstart": ratio(times, "quickstart", "ours_beside_quickstart")} | seconds(times)


def scaling(repeats: int) -> Figures:
    """All clients every round. ``moon`` and ``scaffold`` have 10,000; one in a hundred trains, and remembers."""
    few, many = ("10", "100", "1000"), ("10", "10000")
    remembering = {
        name: ours("iid", "10000", "--algorithm", name, "--fraction", "0.01", "--augment")
        for name in ("moon", "scaffold")
    }
    ratios, peaks, times = {}, {}, dict[str, list[float]]()
    for numbers, more, count in ((few, {}, 2 * repeats), (many, remembering, repeats)):
        with sides(**{f"iid_{number}": ours("iid", number) for number in numbers}, **more) as started:
            found = turns(started, count)
            peaks |= {f"peak_gb_{name}": peak_memory(side.process.pid) / 1e9 for name, side in started.items()}
        ratios |= {f"scaling_{number}": ratio(found, f"iid_{number}", "iid_10") for number in numbers[1:]}
        times = found | times
    return ratios | seconds(times) | peaks


def peak_memory(pid: int) -> int:
    """What a process and its children hold, a page that several share once; and how much more each had at its peak."""
    lines = [
        line for name in ("smaps_rollup", "status") for line in Path(f"/proc/{pid}/{name}").read_text().split("\n")
    ]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = 1024 * (kilobytes["Pss"] + kilobytes["VmHWM"] - kilobytes["VmRSS"])
    return own + sum(peak_memory(int(child)) for child in children)


PARTS: dict[str, Callable[[int], Figures]] = {
    "of_bare": of_bare,
    "of_limit": of_limit,
    "flower_10": lambda repeats: over_flower(repeats, "dirichlet", "10"),
    "flower_100": lambda repeats: over_flower(repeats, "iid", "100"),
    "pfl": over_pfl,
    "quickstart": over_quickstart,
    "scaling": scaling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="turns, at least 5")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if arguments.repeats < 5 or not set(chosen) <= set(PARTS):
        parser.error(f"give at least 5 repeats, and parts of {', '.join(PARTS)}")
    found: dict[str, Any] = {}
    for name in chosen:
        figures = PARTS[name](arguments.repeats)
        print({key: round(value, 3) for key, value in figures.items()}, file=sys.stderr)
        found |= figures
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        claim = f"  (claimed: {CLAIMS[name]})" if name in CLAIMS else ""
        print(f"{name:<32} {value:8.2f}{claim}")


if __name__ == "__main__":
    main()
