"""What a client sent before, as digests of its samples: statistics of nearly the same samples give away the others.

A file on the client holds a random key, and for each class the number and a keyed digest of the samples behind each
statistics that were different. It holds no sample and no feature. Who reads it learns the class counts, and can test a
guess at all samples of a class together.
"""

import hashlib
import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccvr.core.caution import warn
from ccvr.core.errors import StatisticsError
from ccvr.core.files import MAX_TEXT, parse_json, read_text
from ccvr.core.run import write_atomically
from ccvr.kernels.inputs import Inputs, tensors_of
from ccvr.models.passes import pair_of

FORMAT = "ccvr-sent/1"
DIGEST, KEY = 16, 32
"""Bytes of a digest, and of the key."""
REMEDY = "Restore it, or delete it and lose what it knows"

Classes = Mapping[int, tuple[int, str]]
"""By class, how many samples and the digest of all of them."""

_alone = threading.RLock()


class DifferencingWarning(UserWarning):
    """Two statistics of a class are of nearly the same samples: their difference gives away the few others."""


@dataclass(frozen=True)
class SentBefore:
    """The file of one client. One process at a time may use it."""

    path: Path
    key: bytes

    @classmethod
    def open(cls, path: Path) -> "SentBefore":
        """The file at a path, which is made where there is none.

        Raises:
            StatisticsError: the file is damaged.
        """
        with _alone:
            key, classes = _read(path) if path.exists() else (secrets.token_bytes(KEY), {})
            if not path.exists():
                _write(path, key, classes)
        return cls(path, key)

    def add(self, now: Classes, *, few: int) -> None:
        """Keep what is about to be sent; warn before that where an earlier one may differ by fewer than ``few``.

        Nothing is kept where the warning is an error.
        """
        with _alone:
            key, before = _read(self.path)
            if key != self.key:
                raise StatisticsError(f"{self.path} was replaced during a collection. {REMEDY}.")
            near = [
                (label, count, then)
                for label, (count, digest) in sorted(now.items())
                if (count, digest) not in before.get(label, [])
                for then, earlier in before.get(label, [])
                if abs(count - then) < few
            ]
            if near:
                label, count, then = near[0]
                more = f", and {len(near) - 1} more" if len(near) > 1 else ""
                warn(
                    f"statistics of {count} samples of class {label} may differ from earlier ones of {then} by fewer "
                    f"than {few} samples{more}: who has both learns those samples' features. Send the earlier ones "
                    "again, or collect from other samples.",
                    DifferencingWarning,
                )
            for label, pair in now.items():
                if pair not in before.setdefault(label, []):
                    before[label].append(pair)
            _write(self.path, key, before)


def _read(path: Path) -> tuple[bytes, dict[int, list[tuple[int, str]]]]:
    try:
        return _parsed(parse_json(read_text(path)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise StatisticsError(f"the history {path} cannot be read ({error}). {REMEDY}.") from error


def _parsed(content: Any) -> tuple[bytes, dict[int, list[tuple[int, str]]]]:
    key = bytes.fromhex(content["key"])
    if content["format"] != FORMAT or len(key) != KEY:
        raise ValueError(f"format {content['format']!r}, a key of {len(key)} bytes")
    return key, {int(label): [_pair(*pair) for pair in pairs] for label, pairs in content["classes"].items()}


def _pair(count: object, digest: object) -> tuple[int, str]:
    if type(count) is not int or not isinstance(digest, str) or len(bytes.fromhex(digest)) != DIGEST:
        raise ValueError("a class with something else than counts and digests")
    return count, digest


def _write(path: Path, key: bytes, classes: Mapping[int, list[tuple[int, str]]]) -> None:
    content = {"format": FORMAT, "key": key.hex(), "classes": {str(label): pairs for label, pairs in classes.items()}}
    text = json.dumps(content).encode()
    if len(text) > MAX_TEXT:
        raise StatisticsError(f"the history {path} is full: it has {len(text):,} bytes. Give another file.")
    write_atomically(path, text, remedy="See to its disk and permissions, or give another history")


@dataclass(frozen=True)
class Samples:
    """Keyed digests of samples as they come, by class."""

    key: bytes
    digests: dict[int, list[bytes]] = field(default_factory=dict)

    def watch(self, batches: Iterable[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
        """Pass batches on."""
        for batch in batches:
            inputs, labels = pair_of(batch)
            for label, digest in zip(labels.flatten().tolist(), self._digests(inputs), strict=False):
                self.digests.setdefault(int(label), []).append(digest)
            yield inputs, labels

    def _digests(self, inputs: Inputs) -> Iterator[bytes]:
        tensors = sorted(tensors_of(inputs).items())
        about = str([(name, str(tensor.dtype), list(tensor.shape[1:])) for name, tensor in tensors]).encode()
        rows = [_bytes_of(tensor) for _, tensor in tensors if len(tensor)]
        for parts in zip(*rows, strict=False):
            yield hashlib.blake2b(about + b"".join(parts), key=self.key, digest_size=DIGEST).digest()

    def classes(self, count: Tensor) -> dict[int, tuple[int, str]]:
        """Of the classes that are sent; ``count`` [C] says which."""
        return {
            label: (len(found), hashlib.blake2b(b"".join(sorted(found)), key=self.key, digest_size=DIGEST).hexdigest())
            for label, found in self.digests.items()
            if count[label]
        }


def _bytes_of(tensor: Tensor) -> list[bytes]:
    rows = (tensor.flatten(1) if tensor.dim() > 1 else tensor.unsqueeze(1)).detach().cpu().contiguous()
    return [row.tobytes() for row in rows.view(torch.uint8).numpy()]
