"""An app for tests: stages and runs, one after the other, over a real Flower, with clients that fail on demand.

The test leaves ``cases.json`` in a folder; what came of each case is in NAME.json of the same folder. A case has a
name, ``faults`` {client: [message type, what it does]}, and one of ``stage`` (arguments of ccvr.flower.calibrate),
``crowd`` (how many clients share the nodes) and ``run`` (a spec as TOML). Large models have a ``width``.
"""

import json
import os
import resource
import time
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid
from torch import nn

import ccvr.flower
from ccvr.core.errors import CcvrError
from ccvr.experiment.pipeline import start
from ccvr.experiment.spec import from_toml
from ccvr.flower.client_app import app as run_client
from ccvr.flower.engine import FlowerEngine
from ccvr.flower.federation import Federation, connected
from ccvr.flower.messages import pack
from ccvr.flower.questions import ask_statistics, expected, state_bytes
from ccvr.statistics.merge import merge
from ccvr.statistics.request import Request
from tests.flower.small import EXAMPLE, app_of, load, small_model

# --- large statistics -------------------------------------------------------------------------------------------------

CLASSES, PER_CLASS = 100, 12


def large_model(width: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, CLASSES))


def large_batches(client: int):
    rng = torch.Generator().manual_seed(client)
    y = torch.arange(PER_CLASS * CLASSES) % CLASSES
    return [(torch.randn(len(y), 8, generator=rng) + y.unsqueeze(1) / CLASSES, y)]


def load_of(case):
    if "width" not in case:
        return load
    return lambda context: (large_model(case["width"]), large_batches(int(context.node_config["partition-id"])))


def model_of(case) -> tuple[nn.Module, torch.Tensor]:
    return (large_model(case["width"]), torch.zeros(2, 8)) if "width" in case else (small_model(), EXAMPLE)


# --- clients ----------------------------------------------------------------------------------------------------------


def fail(message: Message) -> Message:
    raise RuntimeError("out of luck")


def die(message: Message) -> Message:
    os._exit(1)


def lie(message: Message) -> Message:
    return Message(pack({"statistics": b"\x80\x04" * 10**6, "result": b"none"}), reply_to=message)


def sleep(message: Message, released: Path) -> Message:
    """Nothing until the test says that it has seen enough."""
    while not released.exists():
        time.sleep(0.2)
    raise RuntimeError("too late")


class Trial(ClientApp):
    """Our own clients, or those of the stage; whoever is in faults.json does what it says instead."""

    def __call__(self, message: Message, context: Context) -> Message:
        scratch = Path(str(context.run_config["scratch"]))
        case = json.loads((scratch / "now.json").read_text())
        kind, deed = case["faults"].get(str(context.node_config["partition-id"]), ("", ""))
        if message.metadata.message_type == kind:
            if deed == "sleep":
                return sleep(message, scratch / f"{case['name']}.json")
            if deed == "nothing":
                return app_of(lambda context: (model_of(case)[0], [], []))(message, context)
            return {"fail": fail, "die": die, "lie": lie}[deed](message)
        if "run" in case:
            return run_client(message, context)
        return app_of(load_of(case))(message, context)


client = Trial()
server = ServerApp()


# --- the server -------------------------------------------------------------------------------------------------------


@server.main()
def main(grid: Grid, context: Context) -> None:
    scratch = Path(str(context.run_config["scratch"]))
    for case in json.loads((scratch / "cases.json").read_text()):
        (scratch / "now.json").write_text(json.dumps(case))
        try:
            found = run(grid, scratch, case) if "run" in case else (crowd if "crowd" in case else stage)(grid, case)
        except CcvrError as error:
            found = {"error": type(error).__name__, "text": str(error)}
        part = scratch / "part.json"
        part.write_text(json.dumps({**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        part.replace(scratch / f"{case['name']}.json")


def run(grid: Grid, scratch: Path, case) -> dict:
    spec, simulated = from_toml(case["run"], trust=True), isinstance(grid, InMemoryGrid)
    events = start(
        spec, scratch / case["name"], engine=lambda setup: FlowerEngine.connect(grid, setup, simulated=simulated)
    )
    return {"results": list(events)[-1].results}


def crowd(grid: Grid, case) -> dict:
    """The statistics of more clients than there are nodes, merged as the stage does."""
    model, example = model_of(case)
    nodes = connected(grid, case["nodes"], 600)
    federation = Federation(grid, {client: nodes[client % len(nodes)] for client in range(case["crowd"])})
    owned = dict.fromkeys(federation.nodes, torch.full((CLASSES,), PER_CLASS))
    like = expected(model, example, "2", Request())
    found = merge(ask_statistics(federation, state_bytes(model.state_dict()), Request(), like, owned))
    return {"samples": int(found.count.sum()), "bytes": found.num_bytes}


def stage(grid: Grid, case) -> dict:
    model, example = model_of(case)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = ccvr.flower.calibrate(grid, model, example, **case["stage"])
    return {
        "text": str(found),
        "missing": {str(node): reason for node, reason in found.absent.items()},
        "without_samples": len(found.without_samples),
        "absent": found.unconnected,
        "samples": int(found.statistics.count.sum()),
        "bytes": found.statistics.num_bytes,
        "head": [t.tolist() for name, t in found.model.state_dict().items() if name.startswith("4.")],
        "untouched": all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items()),
    }
