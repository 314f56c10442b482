"""Downloads from a real server on this computer, whole and interrupted."""

import errno
import gzip
import json
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ccvr.core.errors import DataError
from ccvr.data.catalogue import check, load
from ccvr.data.digests import digest
from ccvr.data.download import Progress, download

ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass
class Server:
    """What the server has, how it behaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"one"'
    ranges: bool = True
    cut_after: int | None = None
    rest: int | None = None  # of how many bytes a range is at most
    shift: int = 0  # by how much the range sent differs from the one asked for
    asked: list[dict[str, str | None]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # status codes

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://").removesuffix("/mirror")


class Handler(BaseHTTPRequestHandler):
    behaviour: Server

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.behaviour
        server.asked.append({name: self.headers.get(name) for name in ("Range", "If-Range")})
        raw = server.files.get(self.path.removeprefix("/mirror/"))
        if raw is None:
            self.answer(404, b"")
            return
        start = self.start()
        if start and start >= len(raw):
            self.answer(416, b"", f"bytes */{len(raw)}")
        elif start:
            start += self.behaviour.shift
            part = raw[start:][: self.behaviour.rest]
            self.answer(206, part, f"bytes {start}-{start + len(part) - 1}/{len(raw)}")
        else:
            self.answer(200, raw)

    def start(self) -> int:
        """Where the client may go on: only if the server can, and the file is the one that the client knows."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        same = self.headers.get("If-Range") == self.behaviour.etag
        return int(match[1]) if match and same and self.behaviour.ranges else 0

    def answer(self, status: int, body: bytes, span: str = "") -> None:
        self.behaviour.sent.append(status)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.behaviour.etag:
            self.send_header("ETag", self.behaviour.etag)
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(body[: self.behaviour.cut_after])


@pytest.fixture
def server() -> Iterator[Server]:
    behaviour = Server()
    handler = type("BoundHandler", (Handler,), {"behaviour": behaviour})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        behaviour.address = f"http://127.0.0.1:{http.server_address[1]}/mirror"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield behaviour
        http.shutdown()
        thread.join()


@pytest.fixture
def archive(small10, tmp_path, write) -> Path:
    folder = small10.write_binary(tmp_path / "made" / "cifar-10-batches-bin")
    return write.pack(folder, tmp_path / "made" / ARCHIVE)


@pytest.fixture
def name(archive, server, register: Callable[[str, object], str], cifar10_name) -> str:
    """A small cifar10 with a published checksum, which the server has."""
    server.files[ARCHIVE] = archive.read_bytes()
    row = sys.modules["my_data_sets"].cifar10
    return register("cifar10", replace(row, md5={ARCHIVE: digest(archive, "md5")}))


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "root"


def get(name: str, root: Path, server: Server) -> list[Progress]:
    return list(download(name, root, mirror=server.address))


def refused(name: str, root: Path, mirror: str) -> str:
    with pytest.raises(DataError) as caught:
        list(download(name, root, mirror=mirror))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_fresh(name, root, server):
    size = len(server.files[ARCHIVE])
    steps = get(name, root, server)
    assert steps[0] == Progress(ARCHIVE, 0, size)
    assert steps[-1] == Progress(ARCHIVE, size, size)
    assert names_in(root / "cifar10") == [ARCHIVE]
    assert check(name, root).files[0].status == "verified"


def test_what_is_there_and_right_is_not_downloaded_again(name, root, server):
    get(name, root, server)
    assert get(name, root, server) == []
    assert len(server.asked) == 1


def test_what_was_unpacked_elsewhere_is_not_downloaded(name, root, server, small10):
    small10.write_python(root / "cifar-10-batches-py")
    assert get(name, root, server) == []
    assert server.asked == []


def interrupt(name: str, root: Path, server: Server, after: int) -> str:
    server.cut_after = after
    message = refused(name, root, server.address)
    server.cut_after = None
    return message


def test_an_interrupted_download_goes_on(name, root, server):
    size = len(server.files[ARCHIVE])
    assert interrupt(name, root, server, 1000) == (
        f"the connection to {server.host} broke after 1000 of {size} bytes of {ARCHIVE}. "
        "Run the command again; it goes on from there."
    )
    assert names_in(root / "cifar10") == [f"{ARCHIVE}.part", f"{ARCHIVE}.part.json"]
    assert get(name, root, server)[0] == Progress(ARCHIVE, 1000, size)
    assert server.asked[1] == {"Range": "bytes=1000-", "If-Range": '"one"'}
    assert server.sent == [200, 206]
    assert names_in(root / "cifar10") == [ARCHIVE]
    assert len(load(name, root).train) == 20


def test_a_caller_that_stops_halfway_can_go_on(name, root, server):
    steps = download(name, root, mirror=server.address)
    next(steps)
    next(steps)
    steps.close()
    get(name, root, server)
    assert names_in(root / "cifar10") == [ARCHIVE]


def test_a_server_without_ranges_sends_all_again(name, root, server):
    interrupt(name, root, server, 1000)
    server.ranges = False
    assert get(name, root, server)[0].done == 0
    assert server.sent == [200, 200]
    assert check(name, root).files[0].status == "verified"


def test_a_file_that_changed_meanwhile_is_not_glued_together(name, root, server):
    whole = server.files[ARCHIVE]
    server.files[ARCHIVE] = b"?" * len(whole)
    interrupt(name, root, server, 1000)
    server.files[ARCHIVE], server.etag = whole, '"two"'
    get(name, root, server)
    assert server.sent == [200, 200]
    assert check(name, root).files[0].status == "verified"


def test_a_range_shorter_than_the_rest_is_not_the_end(name, root, server):
    interrupt(name, root, server, 1000)
    server.rest = 500
    assert "broke after 1500 of " in refused(name, root, server.address)
    server.rest = None
    get(name, root, server)
    assert check(name, root).files[0].status == "verified"


def test_a_range_that_was_not_asked_for_is_not_taken(name, root, server):
    interrupt(name, root, server, 1000)
    server.shift = -7
    get(name, root, server)
    assert server.sent == [200, 206, 200]
    assert check(name, root).files[0].status == "verified"


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_version_to_ask_for_all_is_sent_again(name, root, server, etag):
    server.etag = etag
    interrupt(name, root, server, 1000)
    get(name, root, server)
    assert server.asked[1] == {"Range": None, "If-Range": None}
    assert names_in(root / "cifar10") == [ARCHIVE]


def test_a_part_from_another_address_is_not_continued(name, root, server):
    interrupt(name, root, server, 1000)
    list(download(name, root, mirror=f"{server.address}/"))  # the same
    (root / "cifar10" / ARCHIVE).unlink()
    interrupt(name, root, server, 1000)
    tag = root / "cifar10" / f"{ARCHIVE}.part.json"
    tag.write_text(json.dumps(json.loads(tag.read_text()) | {"url": "http://example.org/x"}))
    get(name, root, server)
    assert server.sent == [200, 206, 200, 200]


@pytest.mark.parametrize("tag", ["", "[]", "{}", "{"])
def test_a_damaged_tag_means_to_begin_again(name, root, server, tag):
    interrupt(name, root, server, 1000)
    (root / "cifar10" / f"{ARCHIVE}.part.json").write_text(tag)
    get(name, root, server)
    assert server.sent == [200, 200]


def test_a_part_that_is_already_whole_is_accepted(name, root, server):
    interrupt(name, root, server, 1000)
    (root / "cifar10" / f"{ARCHIVE}.part").write_bytes(server.files[ARCHIVE])
    size = len(server.files[ARCHIVE])
    assert get(name, root, server) == [Progress(ARCHIVE, size, size)]
    assert server.sent == [200, 416]
    assert names_in(root / "cifar10") == [ARCHIVE]


def test_a_part_that_is_too_long_is_thrown_away(name, root, server):
    interrupt(name, root, server, 1000)
    (root / "cifar10" / f"{ARCHIVE}.part").write_bytes(server.files[ARCHIVE] + b"more")
    get(name, root, server)
    assert server.sent == [200, 416, 200]
    assert check(name, root).files[0].status == "verified"


def test_a_wrong_checksum_leaves_nothing_behind(name, root, server):
    right = digest(root.parent / "made" / ARCHIVE, "md5")
    server.files[ARCHIVE] = b"hello"
    assert refused(name, root, server.address) == (
        f"{root}/cifar10/{ARCHIVE}.part has MD5 5d41402abc4b2a76b9719d911017c592, published is {right}. "
        "It was deleted; run the command again."
    )
    assert names_in(root / "cifar10") == []


def test_a_damaged_archive_is_replaced(name, root, server):
    (root / "cifar10").mkdir(parents=True)
    (root / "cifar10" / ARCHIVE).write_bytes(b"damaged")
    get(name, root, server)
    assert check(name, root).files[0].status == "verified"


def test_damaged_unpacked_files_in_the_way_are_an_error(name, root, server, small10):
    folder = small10.write_binary(root / "cifar10" / "cifar-10-batches-bin")
    (folder / "test_batch.bin").unlink()
    assert refused(name, root, server.address) == (
        f"{folder}/test_batch.bin is missing. Replace it with the official file, or move {folder} away and run "
        "`ccvr data get cifar10`."
    )
    assert server.asked == []


@pytest.mark.parametrize("place", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-py"])
def test_damaged_files_that_are_not_in_the_way_are_left_alone(name, root, server, small10, place):
    folder = root / place
    small10.write_python(folder) if place.endswith("py") else small10.write_binary(folder)
    next(folder.glob("test_batch*")).unlink()
    get(name, root, server)
    assert len(load(name, root).train) == 20
    assert folder.exists()


def test_not_on_the_server(name, root, server):
    server.files.clear()
    assert refused(name, root, server.address) == (
        f"{server.host} answered 404 Not Found for {server.address}/{ARCHIVE}. "
        f"Get {ARCHIVE} in another way and put it into {root}/cifar10."
    )


def test_no_server(name, root):
    assert refused(name, root, "http://127.0.0.1:9") == (
        f"cannot reach 127.0.0.1:9 ([Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}). "
        "Check the network, or: "
        f"Get {ARCHIVE} in another way and put it into {root}/cifar10."
    )


def test_no_such_host(name, root):
    message = refused(name, root, "http://no-such-host.invalid/x")
    assert message.startswith("cannot reach no-such-host.invalid (")


def test_a_server_that_speaks_no_http(name, root):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def talk() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10000)
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        assert refused(name, root, f"http://127.0.0.1:{port}").startswith(f"cannot reach 127.0.0.1:{port} (220 mail")
        thread.join()


@pytest.mark.parametrize("mirror", ["file:///etc", "ftp://host", "host/folder", "http://", "http://[", "http://a:b"])
def test_a_mirror_that_is_no_web_address(name, root, mirror):
    assert refused(name, root, mirror) == (
        f'the mirror "{mirror}" is not a web address. Give one like https://example.org/folder.'
    )


def test_a_folder_that_cannot_be_written(name, root, server):
    root.write_text("a file in the place of the folder")
    assert refused(name, root, server.address) == (
        f"cannot write into {root}/cifar10 (Not a directory). Free some space or name another folder."
    )


def test_too_little_space(name, root, server, monkeypatch):
    size, usage = len(server.files[ARCHIVE]), shutil.disk_usage(root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    assert refused(name, root, server.address) == (
        f"{ARCHIVE} needs {size} more bytes, but {root}/cifar10 has 10 left. "
        "Free some space, or name another folder with $CCVR_DATA."
    )


def test_without_a_published_checksum_the_first_one_is_recorded(cinic_name, root, server, tmp_path, write):
    packed = write.pack(write.cinic(tmp_path / "made"), tmp_path / "CINIC-10.tar.gz", name=".")
    server.files[packed.name] = packed.read_bytes()
    get(cinic_name, root, server)
    record = json.loads((root / "cinic10" / "CINIC-10.tar.gz.sha256.json").read_text())
    assert record["sha256"] == digest(packed, "sha256")
    assert check(cinic_name, root).files[0].status == f"unverified (recorded {record['recorded']})"
    assert get(cinic_name, root, server) == []

    (root / "cinic10" / packed.name).unlink()
    server.files[packed.name] += b"\0"
    assert (
        f"but {record['sha256']} was recorded on {record['recorded']}. It was deleted; run the command again, or "
        in (refused(cinic_name, root, server.address))
    )
    assert names_in(root / "cinic10") == ["CINIC-10.tar.gz.sha256.json"]


def test_of_several_files_only_the_wrong_ones_are_downloaded(register, mnist_name, root, server, tmp_path, write):
    made = write.mnist(tmp_path / "made", write.small_mnist)
    server.files |= {f"{file.name}.gz": gzip.compress(file.read_bytes()) for file in made.iterdir()}
    (root / "mnist").mkdir(parents=True)
    for file, raw in server.files.items():
        (root / "mnist" / file).write_bytes(raw)
    md5 = {file: digest(root / "mnist" / file, "md5") for file in server.files}
    name = register("mnist", replace(sys.modules["my_data_sets"].mnist, md5=md5))
    assert get(name, root, server) == []
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(b"?")
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert {step.file for step in get(name, root, server)} == {"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}
    assert {file.status for file in check(name, root).files} == {"verified"}


def test_what_has_no_address(register, tmp_path):
    for name, message in {
        "digits": "digits comes with scikit-learn; there is nothing to download.",
        f"folder:{tmp_path}": f'"folder:{tmp_path}" is your own; there is no address to download it from.',
        register("mine", print): '"my_data_sets:mine" is your own; there is no address to download it from.',
    }.items():
        with pytest.raises(DataError) as caught:
            download(name, tmp_path)
        assert str(caught.value) == message
