"""Hostile statistics, projections and requests, drawn from a seed.

Four ways: bytes that were cut, flipped or exchanged; the same with a checksum that belongs to them, so that what lies
behind it is reached; headers and tensors that were changed and sealed again; and statistics whose every number was
chosen to be large.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ccvr.core.errors import MAX_MESSAGE, StatisticsError
from ccvr.models.random_features import FORMAT as PROJECTION_FORMAT
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import _checksum, tensors_from_bytes, tensors_to_bytes, with_checksum
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.limits import FACTOR
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import FORMAT as REQUEST_FORMAT
from ccvr.statistics.request import Request
from ccvr.statistics.source import Source
from ccvr.statistics.wire import FORMAT

C, D = 5, 8
PROJECTION = Projection(torch.linspace(-1, 1, 6).double(), torch.linspace(1, 2, 6).double(), D, 0.5, 7)


def honest(kind: str, number: int, transform: str = "none") -> ClassStatistics:
    """What a client of ours has, of few samples or of many."""
    rng = torch.Generator().manual_seed(number)
    y = torch.randint(C, (6 + 15 * number,), generator=rng)
    z = (torch.randn(len(y), D, generator=rng) + y.unsqueeze(1)).abs()
    source = Source("abc", "fc", ("conv",), transform)
    if kind != "kernel":
        return statistics_of(z, y, C, kind=kind, source=source)
    source = replace(source, projection=PROJECTION.digest)
    return statistics_of(z.cos(), y, C, kind=kind, source=source, projection=PROJECTION)


ODD = [
    0,
    1,
    -1,
    2,
    5.9,
    1e400,
    -1e400,
    float("nan"),
    10**30,
    2**63,
    -(2**63),
    10**6,
    10**9,
    True,
    None,
    "",
    "5",
    [],
    {},
]
ODD += ["x" * 5000, "\ud800\x1b[31m", ["a"] * 2000, [[[]]], "tukey:0.5", "kernel", "means", "full", "os:system"]
LARGE = [0.0, -1.0, 1.0, 1e3, -1e5, 1e9, 1e18, -1e30, 1e300, float("inf"), float("nan"), 5e-324]
COUNTS = [0, 1, -1, 2, 8, 10**6, 10**9, 10**9 + 1, 10**15, 2**62, 2**63 - 1, -(2**63)]


def flipped(blob: bytes, rng: np.random.Generator) -> bytes:
    """Bits flipped, bytes exchanged, cut or repeated."""
    altered = bytearray(blob)
    for _ in range(rng.integers(1, 5)):
        altered[rng.integers(len(altered))] ^= 1 << int(rng.integers(8))
    match rng.integers(4):
        case 0:
            del altered[rng.integers(len(altered)) :]
        case 1:
            start = int(rng.integers(len(altered)))
            altered[start : start + 8] = rng.bytes(8)
    return bytes(altered)


def sealed(blob: bytes) -> bytes:
    """The same bytes with a checksum that belongs to them, where there is room for one."""
    start = blob.find(b'checksum\\": \\"')
    if start < 0:
        return blob
    start += len(b'checksum\\": \\"')
    return blob[:start] + _checksum(blob, start).encode() + blob[start + 64 :]


def changed(blob: bytes, format: str, rng: np.random.Generator) -> bytes:
    """Fields of the header and numbers or shapes of tensors replaced, and sealed again."""
    header, tensors = tensors_from_bytes(blob, format=format)
    has_checksum = header.pop("checksum", None) is not None
    for _ in range(rng.integers(0, 3)):
        header[str(rng.choice(sorted(header)))] = ODD[rng.integers(len(ODD))]
    for _ in range(rng.integers(0, 4)):
        if tensors:
            name = str(rng.choice(sorted(tensors)))
            tensors[name] = _tensor(tensors[name], rng)
    header["format"] = header.get("format") if rng.integers(20) == 0 else format
    return (with_checksum if has_checksum else tensors_to_bytes)(tensors, **header)


def _tensor(tensor: Tensor, rng: np.random.Generator) -> Tensor:
    numbers = COUNTS if tensor.dtype == torch.int64 else LARGE
    value = torch.tensor(numbers[rng.integers(len(numbers))]).to(tensor.dtype)
    match rng.integers(8):
        case 0:
            return tensor.flatten()[: rng.integers(tensor.numel() + 1)]
        case 1:
            return tensor.to([torch.float16, torch.int32, torch.bool, torch.float64][rng.integers(4)])
        case 2:
            return tensor.unsqueeze(0)
        case 3:
            return value.expand(tensor.shape).clone()
        case 4 if tensor.is_floating_point():
            return tensor * value
        case 5:
            return tensor.repeat(2, *[1] * (tensor.dim() - 1)) if tensor.dim() else tensor
        case _:
            altered = tensor.clone()
            if altered.numel():
                altered.view(-1)[rng.integers(altered.numel())] = value
            return altered


def largest(kind: str, rng: np.random.Generator, transform: str) -> bytes:
    """Sound in form, and with the largest numbers that may pass: means, spreads and counts of any size."""
    present = int(rng.integers(1, C + 1))
    width = int(rng.choice([D, D, D, D, D + 1, 1000]))
    num_classes = int(rng.choice([C, C, C, C, 200, 10**6]))
    count = torch.from_numpy(rng.choice([1, 2, 8, 100, 10**9], present))
    tensors = {"classes": torch.arange(present), "count": count}
    scale = 10.0 ** rng.uniform(-3, 12)
    tensors["mean"] = torch.from_numpy(scale * rng.standard_normal((present, width)))
    if rng.integers(2):
        tensors["clients"] = torch.from_numpy(rng.choice([1, 2, 10**6], present)).clamp(max=count)
    row = KINDS[kind]
    if row.factored:
        freedom = ((tensors.get("clients", torch.ones_like(count)) if kind == "means" else count) - 1).clamp(min=0)
        ranks = (freedom if row.by_class else freedom.sum(0, keepdim=True)).clamp(max=width).tolist()
        length = sum(rank * width - rank * (rank - 1) // 2 for rank in ranks)
        tensors["factor"] = torch.from_numpy(10.0 ** rng.uniform(-3, 12) * rng.standard_normal(length))
    else:
        tensors["scatter"] = torch.from_numpy(10.0 ** rng.uniform(-3, 24) * rng.random((present, width)))
    header = {"kind": kind, "num_classes": num_classes, "num_features": width, "withheld": int(rng.choice(COUNTS[:7]))}
    header |= {"model": "abc", "head": "fc", "taps": ["conv"], "transform": transform}
    if kind == "kernel":
        tensors |= {"projection_mean": PROJECTION.mean, "projection_std": PROJECTION.std}
        header |= {"projection": PROJECTION.digest, "bandwidth": 0.5, "seed": 7}
    return with_checksum(tensors, format=FORMAT, **header)


def nested(rng: np.random.Generator) -> bytes:
    """Headers alone: deep, long, or of shapes that no file has."""
    text = [
        b"[" * 10**5,
        b'{"__metadata__": {"ccvr": "' + b"\\u0000" * 10**5 + b'"}}',
        json.dumps({"__metadata__": {"ccvr": json.dumps({"format": FORMAT, "kind": "full"})}}).encode(),
        b"[" + b"[]," * 3 * 10**5 + b"[]]",
        rng.bytes(int(rng.integers(1000))),
    ][rng.integers(5)]
    return len(text).to_bytes(8, "little") + text


def blobs(seed: int, number: int) -> Iterator[tuple[str, str, bytes]]:
    """``number`` hostile statistics, projections and requests: what each pretends to be, the kind, the bytes."""
    rng = np.random.default_rng(seed)
    good = {kind: [honest(kind, k).to_bytes() for k in range(4)] for kind in KINDS}
    asked = {"projection": PROJECTION.to_bytes(), "request": Request("kernel", projection=PROJECTION).to_bytes()}
    formats = {"projection": PROJECTION_FORMAT, "request": REQUEST_FORMAT}
    for _ in range(number):
        kind = str(rng.choice(sorted(KINDS)))
        what = str(rng.choice(["statistics"] * 8 + ["projection", "request"]))
        blob = good[kind][rng.integers(4)] if what == "statistics" else asked[what]
        match rng.integers(10):
            case 0:
                blob = flipped(blob, rng)
            case 1 | 2 | 3:
                blob = sealed(flipped(blob, rng))
            case 4:
                blob = nested(rng)
            case 5 | 6 if what == "statistics":
                blob = largest(kind, rng, str(rng.choice(["none", "tukey:0.5"])))
            case _:
                blob = changed(blob, formats.get(what, FORMAT), rng)
        yield what, kind, blob


def shift(base: ClassStatistics, like: ClassStatistics, blob: bytes) -> float:
    """How far a blob moves a class mean, over the stated bound; its error where it is refused.

    Of n samples beside N others it is n / (n + N) (FACTOR · the largest norm of ``like`` + the norm of the mean).
    """
    merged = merge([base, blob], like=like)
    moved = (merged.mean - base.mean).norm(dim=1)
    share = (merged.count - base.count) / merged.count.clamp(min=1)
    norm = (like.second_moments().sum(1)).max().sqrt()
    bound = share * (FACTOR * norm + base.mean.norm(dim=1))
    assert merged.total.isfinite().all()
    assert merged.second.isfinite().all()
    return float((moved / bound.clamp(min=1e-300)).nan_to_num(0).max())


def attack(seed: int, number: int) -> dict[str, object]:
    """Read so many hostile blobs, and say what came of it."""
    others = {kind: merge(honest(kind, k) for k in range(4)) for kind in KINDS}
    own = {kind: honest(kind, 2) for kind in KINDS}
    found = {"accepted": 0, "shift": 0.0, "seconds": 0.0, "foreign": [], "unprintable": [], "refused": 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, kind, blob in blobs(seed, number):
        started = time.process_time()
        try:
            if what == "statistics":
                ClassStatistics.from_bytes(blob)  # whatever the server expects
                found["shift"] = max(found["shift"], shift(others[kind], own[kind], blob))
            else:
                (Projection if what == "projection" else Request).from_bytes(blob)
            found["accepted"] += 1
        except StatisticsError as error:
            found["refused"] += 1
            if not str(error).isprintable() or len(str(error)) > MAX_MESSAGE + 10:
                found["unprintable"].append(ascii(error)[:200])
        except Exception as error:
            found["foreign"].append(f"{what} {kind} {ascii(error)[:200]}")
        found["seconds"] = max(found["seconds"], time.process_time() - started)
    found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(attack(int(sys.argv[1]), int(sys.argv[2]))))
