"""Hostile contents of Flower's messages, made from honest ones: by structure, by header, by tensor and by byte."""

import json
import math
import struct
from collections.abc import Callable, Iterator
from functools import wraps
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ccvr.flower.messages import BLOBS, ERROR, SETTINGS, STYPE, array_of

TEXTS = (
    *("", "x", "x" * 10**6, "lies\x1b[2K\n\rand more", "\ud800", "\x00", "‮gnol", "a\nb\nc" * 1000, "nan", "1e400"),
    *("../../etc/passwd", "shutil:rmtree", "[" * 200_000, "=" * 50_000),
)
NUMBERS = (0, -1, 1, 5, 999_999, 2**31, 2**62, 10**15, -(10**15), 0.5, 1e308, math.nan, math.inf, True, False)
ODD: tuple[Any, ...] = (*TEXTS, *NUMBERS, 10**400, None, [], {}, [[]], {"a": {}}, ["x"] * 1000)
"""What a header in JSON may hold."""


def hostile(honest: RecordDict, rng: Random) -> tuple[RecordDict, str]:
    """An honest content with one thing wrong, or a thing that is nothing like it; and which way was taken."""
    way = rng.choice(WAYS)
    return way(honest, rng), way.__name__


# --- records ----------------------------------------------------------------------------------------------------------


def copied(honest: RecordDict) -> RecordDict:
    found = RecordDict()
    for name, record in honest.items():
        found[name] = type(record)(dict(record))
    return found


def setting(rng: Random) -> Any:
    """A value of a type that Flower lets through."""
    value = rng.choice([*TEXTS, *NUMBERS])
    return rng.choice([value, b"bytes", [1, 2], ["a", "b"], [0.5], value])


def nothing(honest: RecordDict, rng: Random) -> RecordDict:
    return RecordDict()


def other_records(honest: RecordDict, rng: Random) -> RecordDict:
    """Records of other types under our names."""
    others = ConfigRecord({"statistics": "x"}), MetricRecord({"statistics": 1}), ArrayRecord()
    return RecordDict({BLOBS: rng.choice(others), SETTINGS: rng.choice(others)})


def settings_changed(honest: RecordDict, rng: Random) -> RecordDict:
    found = copied(honest)
    names = [*found.config_records.get(SETTINGS, {}), ERROR, "empty", "client", "round", "last", "num_classes", "head"]
    settings = {**found.config_records.get(SETTINGS, {}), rng.choice(names): setting(rng)}
    found[SETTINGS] = ConfigRecord(settings)
    return found


def complaint(honest: RecordDict, rng: Random) -> RecordDict:
    return RecordDict({SETTINGS: ConfigRecord({ERROR: setting(rng)})})


def arrays_changed(honest: RecordDict, rng: Random) -> RecordDict:
    """Arrays that lie about their type and shape, are missing, or are too many."""
    found, (name, data) = copied(honest), a_blob(honest, rng)
    arrays = dict(found.array_records.get(BLOBS, {}))
    lying = Array(
        rng.choice(["uint8", "float64", "\x1b[2K", "object"]),
        rng.choice([(0,), (2**62, 2**62), (-1,), ()]),
        STYPE,
        data,
    )
    match rng.randrange(5):
        case 0:
            arrays[name] = lying
        case 1:
            arrays[name] = Array(np.zeros(3))
        case 2:
            arrays.pop(name, None)
        case 3:
            arrays |= {f"{text[:100]}{number}": lying for number in range(300) for text in ("x\x1b", "head/")}
        case _:
            arrays[name] = Array("uint8", (len(data),), rng.choice(["numpy.ndarray", "", "\x1b"]), data)
    found[BLOBS] = ArrayRecord(arrays)
    return found


# --- bytes ------------------------------------------------------------------------------------------------------------


def a_blob(honest: RecordDict, rng: Random) -> tuple[str, bytes]:
    arrays = dict(honest.array_records.get(BLOBS, {}))
    name = rng.choice(sorted(arrays)) if arrays else "statistics"
    return name, arrays[name].data if arrays else b""


def with_blob(change: Callable[[bytes, Random], bytes]) -> Callable[[RecordDict, Random], RecordDict]:
    @wraps(change)
    def changed(honest: RecordDict, rng: Random) -> RecordDict:
        found, (name, data) = copied(honest), a_blob(honest, rng)
        found[BLOBS] = ArrayRecord({**found.array_records.get(BLOBS, {}), name: array_of(change(data, rng))})
        return found

    return changed


def junk(data: bytes, rng: Random) -> bytes:
    header = b'{"__metadata__":{"ccvr":"' + b"[" * 100_000 + b'"}}'
    endless = struct.pack("<Q", 2**63), struct.pack("<Q", 10**7 - 1) + b"[" * 10**5
    deep = struct.pack("<Q", len(header)) + header
    return rng.choice([b"", b"{", rng.randbytes(1000), *endless, deep, data[8:], data * 2])


def bytes_changed(data: bytes, rng: Random) -> bytes:
    """Flipped bits, a cut, a part twice."""
    changed = bytearray(data)
    if not changed:
        return b"\x00"
    for _ in range(rng.choice([1, 1, 8, 100])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    start, end = sorted((rng.randrange(len(changed)), rng.randrange(len(changed))))
    return bytes(rng.choice([changed, changed[:start], changed[start:], changed[:end] + changed[start:]]))


def parts_of(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The entries of a safetensors file, with our header as a mapping, and the numbers behind them."""
    try:
        length = int.from_bytes(data[:8], "little")
        entries = json.loads(data[8 : 8 + length])
        entries["__metadata__"] = {"ccvr": json.loads(entries["__metadata__"]["ccvr"])}
        return entries, data[8 + length :]
    except (ValueError, KeyError, TypeError):
        return None


def whole(entries: dict[str, Any], numbers: bytes) -> bytes:
    metadata = entries.get("__metadata__", {})
    if isinstance(metadata, dict):
        metadata = {name: json.dumps(value) for name, value in metadata.items()}
    header = json.dumps({**entries, "__metadata__": metadata}).encode()
    return struct.pack("<Q", len(header)) + header + numbers


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something in nested mappings and lists could be replaced."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield (*path, key)
        yield from places(item, (*path, key))


def header_changed(data: bytes, rng: Random) -> bytes:
    """Another value in the header, a missing one, or one under a forged name."""
    found = parts_of(data)
    if found is None:
        return b"{}"
    entries, numbers = found
    *way, last = rng.choice(sorted(places(entries), key=repr))
    target = entries
    for step in way:
        target = target[step]
    match rng.randrange(4):
        case 0 if isinstance(target, dict):
            del target[last]
        case 1 if isinstance(target, dict):
            target[rng.choice(TEXTS)] = target.pop(last)
        case _:
            target[last] = rng.choice(ODD)
    return whole(entries, numbers)


def numbers_changed(data: bytes, rng: Random) -> bytes:
    """NaN, infinities, huge and negative numbers in one tensor."""
    found = parts_of(data)
    tensors = [] if found is None else [entry for name, entry in found[0].items() if name != "__metadata__"]
    tensors = [entry for entry in tensors if entry["data_offsets"][1] - entry["data_offsets"][0] >= 8]
    if found is None or not tensors:
        return b"\xff" * 100
    entries, numbers = found[0], bytearray(found[1])
    entry = rng.choice(tensors)
    start, end = entry["data_offsets"]
    kind = {"F64": "<d", "F32": "<f", "I64": "<q"}.get(entry["dtype"], "<B")
    values = {
        "<d": (math.nan, math.inf, -1e300, 1e12, -1.0),
        "<f": (math.nan, -math.inf, 1e38, 1e12, -1.0),
        "<q": (-1, 2**62, -(2**62), 10**12, 10**9 + 1),
    }.get(kind, (255,))
    one = struct.pack(kind, rng.choice(values))
    if rng.random() < 0.5:
        numbers[start:end] = (one * (end - start))[: end - start]
    else:
        place = start + rng.randrange((end - start) // len(one)) * len(one)
        numbers[place : place + len(one)] = one
    return whole(entries, bytes(numbers))


WAYS: tuple[Callable[[RecordDict, Random], RecordDict], ...] = (
    nothing,
    other_records,
    settings_changed,
    complaint,
    arrays_changed,
    with_blob(junk),
    *[with_blob(bytes_changed)] * 2,
    *[with_blob(header_changed)] * 4,
    *[with_blob(numbers_changed)] * 3,
)
