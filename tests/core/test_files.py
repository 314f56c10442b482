"""Files of anybody are read with bounds."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ccvr.core.files import MAX_DEPTH, MAX_VALUES, own_file, parse_json, parse_toml, read_bytes, read_text
from ccvr.core.run import RunFolder, write_atomically


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a FIFO"), (os.mkdir, "a folder"), (bind, "a socket")],
)
def test_what_is_no_file_is_refused_without_waiting(
    make: Callable[[Path], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x")
    with pytest.raises(ValueError, match=f"it is {kind}, not a file"):
        read_bytes(tmp_path / "x", 10)


def test_a_device_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="it is a device, not a file"):
        read_bytes(tmp_path / "x", 10)


def test_a_file_behind_a_link_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link", 5) == b"12345"
    with pytest.raises(ValueError, match="it has 5 bytes; at most 4 are read"):
        read_bytes(tmp_path / "link", 4)


def test_text_is_in_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes("ü".encode("latin1"))
    with pytest.raises(ValueError, match="utf-8"):
        read_text(tmp_path / "x")


@pytest.mark.parametrize("parse", [parse_json, lambda text: parse_toml(f"a = {text}")])
def test_depth_has_a_bound(parse: Callable[[str], object]) -> None:
    assert parse("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(ValueError, match="deeper than 50 levels"):
            parse("[" * depth + "]" * depth)


def test_depth_without_brackets_has_a_bound() -> None:
    with pytest.raises(ValueError, match="deeper than 50 levels"):
        parse_toml(f"[{'a.' * 2_000}a]")


@pytest.mark.parametrize("text", ["[" + "[]," * 300_000 + "[]]", '{"a":[' + "1," * MAX_VALUES + "1]}"])
def test_values_are_counted_before_they_are_made(text: str) -> None:
    with pytest.raises(ValueError, match="more than 200,000 lists and objects, or 1,000,000 values"):
        parse_json(text)


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    """A run folder of somebody else could name any file of the user's."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    for name in (".lock", ".results.json.part", "rounds.jsonl"):
        (folder.path / name).symlink_to(victim)
    for write in (
        lambda: folder.locked().__enter__(),
        lambda: write_atomically(folder.results, b"new"),
        lambda: folder.append_round({"round": 1}),
    ):
        with pytest.raises(Exception, match="cannot be written"):
            write()
    assert victim.read_text() == "mine"


def test_a_fifo_is_not_waited_for_by_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(OSError, match="No such device"):
        open(tmp_path / "x", "w", opener=own_file).close()
