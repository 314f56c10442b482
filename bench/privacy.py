"""What secure aggregation costs: a client beside collecting its statistics, the server with clients that drop out.

    python -m bench.privacy --json
    python -m bench.privacy --clients 10 100 --dropouts 0 0.2

Statistics: pooled, of 500 images a client, simple-cnn (256 features, 10 classes) with random weights. Seconds are
of the processor, in one thread. Clients drop out before they send masked sums, which costs the server most.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

import ccvr
from ccvr.models.simple_cnn import simple_cnn
from ccvr.privacy.messages import Phase

IMAGES, BATCH = 500, 100


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def collecting(repeats: int) -> tuple[float, ccvr.ClassStatistics]:
    """Seconds of `ccvr.collect` on one client, and what it gives."""
    torch.manual_seed(0)
    model = simple_cnn((3, 32, 32), 10)
    images, labels = torch.randn(IMAGES, 3, 32, 32), torch.randint(10, (IMAGES,))
    batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
    runs = [seconds(lambda: ccvr.collect(model, batches, num_classes=10, kind="pooled")) for _ in range(repeats + 1)]
    return median(each for each, _ in runs[1:]), runs[0][1]


def session(num_clients: int, dropouts: float, part: ccvr.ClassStatistics) -> dict[str, Any]:
    """One whole session: every client has the same statistics, and its own keys."""
    threshold = num_clients - round(num_clients * max(1.5 * dropouts, 0.15))
    settings = ccvr.secure.Settings(num_clients, IMAGES, 64.0, threshold=threshold, max_colluders=num_clients // 20)
    making = [seconds(partial(ccvr.secure.Client, settings, index, part)) for index in range(num_clients)]
    clients, client_seconds = [client for _, client in making], [each for each, _ in making]
    sent, received, server_seconds = [0] * num_clients, [0] * num_clients, 0.0
    server = ccvr.secure.Server(settings, like=part)
    spent, messages = seconds(server.start)
    server_seconds += spent
    for phase in Phase:
        staying = [index for index in messages if phase != Phase.SUMS or index >= num_clients * dropouts]
        for index in staying:
            spent, answer = seconds(partial(clients[index].answer, messages[index]))
            client_seconds[index] += spent
            sent[index] += len(answer)
            received[index] += len(messages[index])
            server_seconds += seconds(partial(server.receive, answer))[0]
        spent, messages = seconds(server.advance)
        server_seconds += spent
    return {
        "clients": num_clients,
        "dropouts": dropouts,
        "threshold": threshold,
        "neighbours": settings.neighbourhoods.num_neighbours,
        "shares_needed": settings.neighbourhoods.threshold,
        "client_ms": round(1000 * median(client_seconds[index] for index in server.clients), 1),
        "client_bytes_sent": round(median(sent[index] for index in server.clients)),
        "client_bytes_received": round(median(received[index] for index in server.clients)),
        "server_s": round(server_seconds, 2),
        "relative_error": relative_error(server, part),
    }


def relative_error(server: ccvr.secure.Server, part: ccvr.ClassStatistics) -> float:
    plain = len(server.clients) * part.second
    return float((server.total.second - plain).abs().max() / plain.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.1])
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    collect_seconds, part = collecting(5)
    plain_bytes = len(part.to_bytes())
    rows = [session(number, dropouts, part) for number in chosen.clients for dropouts in chosen.dropouts]
    for row in rows:
        row["times_collecting"] = round(row["client_ms"] / 1000 / collect_seconds, 2)
        row["times_plain_bytes"] = round(row["client_bytes_sent"] / plain_bytes, 2)
    found = {"collect_ms": round(1000 * collect_seconds, 1), "plain_bytes": plain_bytes, "sessions": rows}
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print(f"collecting: {found['collect_ms']} ms, {plain_bytes:,} bytes")
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
