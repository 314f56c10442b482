"""What `merge(…, refused=print)` prints of hostile bytes: one short line that any terminal takes."""

import io

import pytest
import torch

import ccvr
from ccvr.models.tensor_file import read_header, tensors_from_bytes, tensors_to_bytes
from ccvr.statistics.source import Source
from ccvr.statistics.wire import FORMAT

TEXTS = {
    "escape codes": "head\x1b[2K\x1b[31m\r",
    "a lone surrogate": "\ud800",
    "lines": "a\nb\u2028c",
    "right to left": "\u202eabc",
    "a megabyte": "x" * 10**6,
    "a megabyte of escapes": "\x1b" * 10**6,
    "nothing": "",
}
Z, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
GOOD = ccvr.statistics_of(Z, Y, source=Source("m", "head", ("tap",)))
BLOB = GOOD.to_bytes()
HEADER, _ = read_header(BLOB, format=FORMAT)
NAMES = sorted(HEADER)


def printed(error: object) -> str:
    """What a strict terminal shows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    print(error, file=stream)
    stream.flush()
    return stream.buffer.getvalue().decode()


def forged(name: str, value: object) -> bytes:
    _, tensors = tensors_from_bytes(BLOB, format=FORMAT)
    header = {key: item for key, item in {**HEADER, name: value}.items() if key != "format"}
    return tensors_to_bytes(tensors, format=str(value) if name == "format" else FORMAT, **header)


@pytest.mark.parametrize("like", [None, GOOD], ids=["first", "like"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_forged_text_in_a_header_is_one_short_line(name: str, text: str, like: ccvr.ClassStatistics | None) -> None:
    value = [TEXTS[text]] if name == "taps" else TEXTS[text]
    said: list[str] = []
    total = ccvr.merge([BLOB, forged(name, value), BLOB], like=like, refused=lambda error: said.append(printed(error)))
    assert torch.equal(total.count, 2 * GOOD.count)
    (line,) = said
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert 20 < len(line) <= 2_010


@pytest.mark.parametrize("text", TEXTS)
def test_a_forged_name_of_a_tensor_is_one_short_line(text: str) -> None:
    header, tensors = tensors_from_bytes(BLOB, format=FORMAT)
    own = {key: item for key, item in header.items() if key != "format"}
    name = TEXTS[text].encode("utf-8", "ignore").decode() or "empty"  # a tensor's name is UTF-8
    blob, said = tensors_to_bytes({**tensors, name: torch.zeros(1)}, format=FORMAT, **own), list[str]()
    ccvr.merge([BLOB, blob], refused=lambda error: said.append(printed(error)))
    (line,) = said
    assert line[:-1].isprintable()
    assert len(line) <= 2_010
