"""Secure aggregation over files in a folder: ten clients in processes of their own, two of which vanish."""

import multiprocessing
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from sklearn.datasets import load_digits

import ccvr

SETTINGS = ccvr.secure.Settings(num_clients=10, max_samples=200, bound=20.0)
VANISH = {3: 2, 7: 3}  # client 3 before it sends its masked sums, client 7 before it helps to take masks off


def model_and_samples(owner: int) -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    pixels, labels = (torch.as_tensor(part[owner::11]) for part in load_digits(return_X_y=True))
    return model, [(pixels.float() / 16, labels)]


def collect(owner: int) -> ccvr.ClassStatistics:
    return ccvr.collect(*model_and_samples(owner), num_classes=10, kind="pooled")


def send(message: bytes, path: Path) -> None:
    path.with_suffix(".part").write_bytes(message)
    path.with_suffix(".part").rename(path)  # atomic


def run_client(folder: str, index: int) -> None:
    client = ccvr.secure.Client(SETTINGS, index, collect(index))
    for phase in range(VANISH.get(index, 4)):
        while not (message := Path(folder, f"{phase}-to-{index}")).exists():
            time.sleep(0.01)
        send(client.answer(message.read_bytes()), Path(folder, f"{phase}-from-{index}"))


if __name__ == "__main__":
    (model, test), context = model_and_samples(10), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ccvr.statistics.collect", "ccvr.privacy.secure", "sklearn.datasets"])
    with TemporaryDirectory() as folder:
        processes = [context.Process(target=run_client, args=(folder, index), daemon=True) for index in range(10)]
        for process in processes:
            process.start()
        server = ccvr.secure.Server(SETTINGS, like=collect(10))
        messages, phase = server.start(), 0
        while messages:
            for index in messages:
                send(messages[index], Path(folder, f"{phase}-to-{index}"))
            for index in messages:
                while not (answer := Path(folder, f"{phase}-from-{index}")).exists() and processes[index].is_alive():
                    time.sleep(0.01)  # between machines: until a deadline
                if answer.exists():
                    server.receive(answer.read_bytes())
            messages, phase = server.advance(), phase + 1
    before, after = (ccvr.score(m, test, 10).accuracy for m in (model, ccvr.calibrate(model, server.total)))
    print(f"clients {server.clients}: {before:.1f} % before, {after:.1f} % after calibration. {server.total}")
