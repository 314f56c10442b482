"""Flower's own simulation: Ray, its FedAvg, our local loop, data in memory, one thread a client, two clients at a time.

python -m bench.peers.flower {dirichlet,iid} CLIENTS
"""

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import ray
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from bench import workload


class Timed(FedAvg):
    """FedAvg that starts a round when it is told to, and tells how long it took."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        if not sys.stdin.readline():
            ray.shutdown()
            os._exit(0)
        self.started = time.perf_counter()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
        result = super().aggregate_train(*args, **kwargs)
        workload.say(time.perf_counter() - self.started)
        return result


def apps(kind: str, num_clients: int) -> tuple[ServerApp, ClientApp]:
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        received, number = message.content["arrays"].to_torch_state_dict(), int(context.node_config["partition-id"])
        result = workload.train_locally(kind, num_clients, number, received, message.content["config"]["server-round"])
        metrics = MetricRecord({"num-examples": result.num_examples, "loss": result.metrics.loss})
        content = RecordDict({"arrays": ArrayRecord(result.parameters), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=num_clients)
        workload.say("ready")
        strategy.start(grid=grid, initial_arrays=ArrayRecord(workload.start().parameters), num_rounds=1000)

    return server_app, client_app


def main() -> None:
    kind, num_clients = sys.argv[1], int(sys.argv[2])
    server_app, client_app = apps(kind, num_clients)
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
        "init_args": {"num_cpus": workload.WORKERS, "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=num_clients, backend_config=resources)


if __name__ == "__main__":
    main()
