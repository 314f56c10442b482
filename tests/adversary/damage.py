"""Seeded damage to files: what disks, transfers, editors and people with bad intentions leave behind."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ESCAPE = "\x1b]0;taken\x07\x1b[31m"
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 1e308, -1e308, 10**18, 10**30, 10**400, float("nan"), float("inf"), 0.5),
    *("", "x", ESCAPE, "a\nb\x00c\ud800", "=cmd|' /C calc'!A0", "../../../etc/passwd", "猫" * 5000, "1e400"),
    *([], {}, [[]], [1, "two", None], {"a": {"b": []}}, {"": 1}),
)
"""Values in place of others."""
Damage = Callable[[Path, random.Random], None]


def nested(depth: int) -> Any:
    """Lists in lists."""
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


# --- of bytes ---------------------------------------------------------------------------------------------------------


def truncate(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def flip_bits(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 30)) if content else 0):
        # Headers and short files are where structure is.
        place = rng.randrange(min(len(content), rng.choice((64, 2000, len(content)))))
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def overwrite(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content) + 1)
    junk = rng.choice((b"\x00" * 50, b"\xff\xfe" * 20, rng.randbytes(40), b'"\x1b[2J', b"\n\n", b"," * 30, b"[" * 40))
    content[place : place + len(junk)] = junk
    path.write_bytes(content)


def repeat(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() * rng.choice((2, 3)))


def grow(path: Path, rng: random.Random) -> None:
    """A file with a hole: long, and it takes no room."""
    os.truncate(path, path.stat().st_size + rng.choice((1, 10**6, 10**10)))


def replace(path: Path, rng: random.Random) -> None:
    contents = (
        *(b"", b"\x00" * 100, b"\xff" * 9, b"null", b"[]", b"{}", b"[1]", b'"text"', b"1e999", b"\n" * 1000),
        *(b"[" * 200_000, b'{"a":' * 100_000, b"[" + b"[]," * 2_000_000, b'{"a":[' + b"{}," * 1_000_000),
        *(b"1" * 5000, b"a = " + b"[" * 100_000, b"[" + b"a." * 50_000 + b"a]\n", b'{"round": 1}\n' * 300_000),
        *((2**62).to_bytes(8, "little") + b"{}", (10**7).to_bytes(8, "little") + b"{" * 100),
    )
    path.write_bytes(rng.choice(contents))


# --- of kinds of files ------------------------------------------------------------------------------------------------


def fifo(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(rng.choice((path, path.parent, Path("/dev/zero"), Path("/dev/null"), Path("nowhere"))))


def missing(path: Path, rng: random.Random) -> None:
    path.unlink()


def swapped(path: Path, rng: random.Random) -> None:
    """Another file of the run in its place."""
    runs = (each for each in path.parents if (each / "spec.toml").exists() or (each / "comparison.json").exists())
    run = next(runs, path.parent)
    others = sorted(each for each in run.rglob("*") if each.is_file() and each != path)
    if others:
        shutil.copy(rng.choice(others), path)


# --- of values --------------------------------------------------------------------------------------------------------


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in JSON."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def changed(content: Any, rng: random.Random) -> Any:
    """JSON in which a few values at random paths are others, or gone, or under another key."""
    for _ in range(rng.choice((1, 1, 2))):
        every = list(places(content))
        path = rng.choice(every)
        if not path:
            content = rng.choice(STRANGE)
            continue
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        match rng.randrange(5):
            case 0:
                del inner[path[-1]]
            case 1 if isinstance(inner, dict):
                inner[rng.choice(("", "new", ESCAPE, "=1+1", "a\nb", "\ud800"))] = inner.pop(path[-1])
            case 2:
                inner[path[-1]] = nested(rng.choice((3, 60, 300)))
            case _:
                inner[path[-1]] = rng.choice(STRANGE)
    return content


def change_json(path: Path, rng: random.Random) -> None:
    path.write_text(json.dumps(changed(json.loads(path.read_text()), rng)))


def change_line(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    number = rng.randrange(len(lines))
    lines[number] = json.dumps(changed(json.loads(lines[number]), rng))
    path.write_text("".join(f"{line}\n" for line in lines))


def change_toml(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    number = rng.choice([place for place, line in enumerate(lines) if " = " in line])
    values = (
        "0",
        "-1",
        "1e308",
        "nan",
        "inf",
        "true",
        '""',
        '"x"',
        '"\\u001b[31m"',
        "[]",
        "[1, 2]",
        '["ccvr", "x"]',
        "{}",
    )
    values += (
        "9999999999",
        "10000",
        "1979-05-27",
        '"folder:/proc"',
        '"\\u0000"',
        "{a = {b = 1}}",
        "0.0000001",
        "2",
        "0.5",
    )
    name = lines[number].partition(" = ")[0]
    lines[number] = f"{rng.choice((name, name, name, name, 'strange'))} = {rng.choice(values)}"
    path.write_text("\n".join(lines))


def change_header(path: Path, rng: random.Random) -> None:
    """Another value in the header of a safetensors file, or in ours inside it; the tensors stay."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    ours = header.get("__metadata__", {})
    if "ccvr" in ours and rng.random() < 0.7:
        ours["ccvr"] = json.dumps(changed(json.loads(ours["ccvr"]), rng))
    else:
        header = changed(header, rng)
    made = json.dumps(header).encode()
    path.write_bytes(len(made).to_bytes(8, "little") + made + tensors)


OF_ANY: tuple[Damage, ...] = (
    truncate,
    flip_bits,
    overwrite,
    repeat,
    grow,
    replace,
    fifo,
    folder,
    link,
    missing,
    swapped,
)
OF_VALUES: dict[str, Damage] = {
    ".json": change_json,
    ".jsonl": change_line,
    ".toml": change_toml,
    ".safetensors": change_header,
}


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in one way; the way's name."""
    of_values = OF_VALUES.get(path.suffix)
    way = of_values if of_values and rng.random() < 0.6 else rng.choice(OF_ANY)
    way(path, rng)
    return way.__name__
