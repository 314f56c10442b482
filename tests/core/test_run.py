import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.core.errors import RunError
from ccvr.core.files import sha256
from ccvr.core.results import empty_results
from ccvr.core.run import RunFolder, write_atomically

posix = pytest.mark.skipif(os.name != "posix", reason="locks and limits are POSIX's")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make_run(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    write_atomically(folder.spec, b"seed = 0\n")
    return folder


class TestWriteAtomically:
    def test_content_and_missing_folders_are_written(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "a" / "b" / "file", b"new")
        assert (tmp_path / "a" / "b" / "file").read_bytes() == b"new"
        assert names_in(tmp_path / "a" / "b") == ["file"]

    def test_old_content_is_replaced(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "file", b"a longer old content")
        write_atomically(tmp_path / "file", b"new")
        assert (tmp_path / "file").read_bytes() == b"new"

    @posix
    def test_whoever_reads_the_old_file_reads_it_to_its_end(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "file", b"old")
        with (tmp_path / "file").open("rb") as reader:
            write_atomically(tmp_path / "file", b"new")
            assert reader.read() == b"old"

    @posix
    def test_a_full_disk_leaves_the_old_content_and_no_remains(self, tmp_path: Path) -> None:
        target = tmp_path / "file"
        target.write_bytes(b"old")
        script = f"""
import resource, signal
from pathlib import Path
from ccvr.core.errors import RunError
from ccvr.core.run import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path({str(target)!r}), b"x" * 5000)
except RunError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == (
            f"{target} cannot be written (File too large). "
            "See to its disk and permissions, then `ccvr resume` the run.\n"
        )
        assert target.read_bytes() == b"old"
        assert names_in(tmp_path) == ["file"]

    @posix
    def test_a_writer_killed_half_way_leaves_the_old_content(self, tmp_path: Path) -> None:
        target = tmp_path / "file"
        target.write_bytes(b"old")
        # The kernel kills the writer when its file passes the limit: after some bytes, before the last.
        script = f"""
import resource, signal
from pathlib import Path
from ccvr.core.run import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_atomically(Path({str(target)!r}), b"x" * 5000)
"""
        done = subprocess.run([sys.executable, "-c", script], check=False)
        assert done.returncode == -signal.SIGXFSZ
        assert target.read_bytes() == b"old"
        write_atomically(target, b"new")  # what the dead writer left is not in the way
        assert target.read_bytes() == b"new"
        assert names_in(tmp_path) == ["file"]

    def test_a_file_where_the_folder_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "in-the-way").write_text("a file")
        with pytest.raises(RunError, match=r"in-the-way/file cannot be written \((File exists|Not a directory)\)"):
            write_atomically(tmp_path / "in-the-way" / "file", b"new")


class TestCreate:
    def test_a_new_folder_with_its_parents(self, tmp_path: Path) -> None:
        assert RunFolder.create(tmp_path / "runs" / "one").path == tmp_path / "runs" / "one"
        assert (tmp_path / "runs" / "one").is_dir()

    def test_an_empty_folder_is_taken(self, tmp_path: Path) -> None:
        RunFolder.create(tmp_path)
        assert names_in(tmp_path) == []

    def test_a_run_is_in_the_way(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        with pytest.raises(RunError) as caught:
            RunFolder.create(run.path)
        assert str(caught.value) == (
            f"{run.path} holds a run already. Continue it with `ccvr resume {run.path}`, "
            "replace it with --overwrite, or choose another --out."
        )
        assert run.spec.read_bytes() == b"seed = 0\n"

    def test_overwrite_deletes_the_run(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        write_atomically(run.checkpoint(1), b"...")
        RunFolder.create(run.path, overwrite=True)
        assert names_in(run.path) == [".lock"]

    @pytest.mark.parametrize("overwrite", [True, False])
    def test_what_is_not_a_run_is_never_deleted(self, tmp_path: Path, overwrite: bool) -> None:
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "1.png").write_text("precious")
        (tmp_path / "thesis").write_text("precious")
        for name in ("photos", "thesis"):
            with pytest.raises(RunError) as caught:
                RunFolder.create(tmp_path / name, overwrite=overwrite)
            assert str(caught.value) == f"{tmp_path / name} exists and is not a run. Choose another --out."
        assert (tmp_path / "photos" / "1.png").read_text() == "precious"
        assert (tmp_path / "thesis").read_text() == "precious"

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("file/run", "Not a directory"), ("x" * 300, "File name too long"), ("nowhere", "File exists")],
    )
    def test_a_folder_that_cannot_be(self, tmp_path: Path, name: str, reason: str) -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "nowhere").symlink_to(tmp_path / "gone" / "gone")
        with pytest.raises(RunError) as caught:
            RunFolder.create(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name} cannot be created ({reason}). Choose another --out."

    def test_a_link_to_a_run_is_not_overwritten(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        (tmp_path / "link").symlink_to(run.path)
        with pytest.raises(RunError, match=r"link is a link to a run, which is not replaced\. Choose another --out\.$"):
            RunFolder.create(tmp_path / "link", overwrite=True)
        assert run.spec.is_file()

    def test_only_a_run_is_opened(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        assert RunFolder.open(run.path) == run
        with pytest.raises(RunError) as caught:
            RunFolder.open(tmp_path)
        assert str(caught.value) == f"{tmp_path} is not a run: it has no spec.toml. Give a folder that `ccvr run` made."


def test_a_file_is_synced_before_its_rename_and_its_folders_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[tuple[str, str]]()

    def called(name: str, path: str) -> None:
        calls.append((name, path.replace(str(tmp_path), "")))

    sync, rename = os.fsync, os.replace

    def synced(number: int) -> None:
        called("sync", os.readlink(f"/proc/self/fd/{number}"))
        sync(number)

    def renamed(source: Path, target: Path) -> None:
        called("rename", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "run" / "heads" / "lda", b"...")
    folders, (part, rename_, folder) = calls[:2], calls[2:]
    assert sorted(folders) == [("sync", ""), ("sync", "/run")], "the new folders are there after a power cut"
    assert (part, rename_) == (("sync", "/run/heads/.lda.part"), ("rename", "/run/heads/.lda.part"))
    assert folder == ("sync", "/run/heads")


def test_files_that_results_json_is_about(tmp_path: Path) -> None:
    run, results = make_run(tmp_path / "run"), empty_results(["a"], 1)
    results["accuracy"] = {"uncalibrated": 1.0, "lda": 2.0}
    assert run.changed_files(results) == [], "results of old versions tell of none"
    write_atomically(run.model, b"model")
    write_atomically(run.head("lda"), b"head")
    results["files"] = {"model.safetensors": sha256(b"model"), "heads/lda.safetensors": sha256(b"head")}
    assert run.changed_files(results) == []
    run.head("lda").write_bytes(b"another")
    assert run.changed_files(results) == [run.head("lda")]
    run.model.unlink()
    assert run.changed_files(results) == [run.model, run.head("lda")]
    with pytest.raises(RunError, match=r"model\.safetensors is not the file that .*`ccvr resume"):
        run.require_unchanged(results)
    results["files"]["../elsewhere"] = sha256(b"")
    assert run.changed_files(results) == [run.model, run.head("lda")], "other files are not read"


@contextmanager
def another_process_locking(path: Path) -> Iterator[subprocess.Popen[str]]:
    script = f"""
import sys
from pathlib import Path
from ccvr.core.run import RunFolder
with RunFolder(Path({str(path)!r})).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


@posix
class TestLock:
    def test_one_writer_at_a_time(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        with another_process_locking(run.path) as process:
            with pytest.raises(RunError) as caught, run.locked():
                pass
            assert str(caught.value) == f"{run.path} is being written by another process. Wait for it to end."
            process.kill()
            process.wait()
            with run.locked():
                pass  # a killed process holds nothing

    def test_a_run_that_is_being_written_is_not_overwritten(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        with another_process_locking(run.path), pytest.raises(RunError, match="is being written by another process"):
            RunFolder.create(run.path, overwrite=True)
        assert run.spec.is_file()

    def test_the_lock_ends_with_its_block_also_after_an_error(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        with pytest.raises(KeyboardInterrupt), run.locked():
            raise KeyboardInterrupt
        with run.locked():
            pass

    def test_an_error_inside_the_block_is_left_as_it_is(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        with pytest.raises(FileNotFoundError), run.locked():
            raise FileNotFoundError("mine")

    def test_a_folder_that_is_gone_cannot_be_locked(self, tmp_path: Path) -> None:
        gone = RunFolder(tmp_path / "gone")
        with pytest.raises(RunError, match=r"\.lock cannot be written \(No such file or directory\)"), gone.locked():
            pass


class TestPaths:
    def test_checkpoints_come_oldest_first(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run")
        assert run.checkpoints() == []
        for number in (10, 9, 100, 1):
            write_atomically(run.checkpoint(number), b"")
        run.checkpoint(5).with_name(".round-000005.safetensors.part").write_bytes(b"torn")
        assert run.checkpoints() == [run.checkpoint(number) for number in (1, 9, 10, 100)]

    def test_no_two_things_share_a_file(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        files = [run.spec, run.provenance, run.partition, run.rounds, run.client_states, run.results, run.model]
        files += [run.checkpoint(1), run.statistics("a"), run.head("a")]
        assert len(set(files)) == len(files)
        assert all(tmp_path in path.parents for path in files)


class TestJson:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        run, content = RunFolder(tmp_path), {"names": ["Käfer", "…"], "x": [1, 2.5, None, True]}
        run.write_json(run.results, content)
        assert run.read_json(run.results) == content
        assert "Käfer" in run.results.read_text(encoding="utf-8")
        assert run.results.read_text(encoding="utf-8").endswith("}\n")

    def test_what_json_cannot_say_is_refused_and_the_old_file_stays(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        run.write_json(run.results, {"x": 1})
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.write_json(run.results, {"x": math.nan})
        assert run.read_json(run.results) == {"x": 1}

    def test_a_missing_file_tells_how_to_get_it(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        with pytest.raises(RunError) as caught:
            run.read_json(run.results)
        assert str(caught.value) == f"{run.results} is missing. Finish the run with `ccvr resume {tmp_path}`."

    @pytest.mark.parametrize("content", [b"", b'{"x": ', b"\xff\xfe"])
    def test_a_damaged_file(self, tmp_path: Path, content: bytes) -> None:
        run = RunFolder(tmp_path)
        run.results.write_bytes(content)
        with pytest.raises(RunError, match=r"results\.json cannot be read \("):
            run.read_json(run.results)


records = st.lists(st.fixed_dictionaries({"loss": st.floats(-1e100, 1e100), "note": st.text()}))


class TestRounds:
    def test_no_round_yet(self, tmp_path: Path) -> None:
        assert RunFolder(tmp_path).read_rounds() == []

    @given(records, st.integers(0, 200))
    def test_a_torn_last_line_is_left_out(
        self, tmp_path_factory: pytest.TempPathFactory, rounds: list[dict], torn: int
    ) -> None:
        run = RunFolder(tmp_path_factory.mktemp("run"))
        for number, record in enumerate(rounds, 1):
            run.append_round({"round": number, **record})
        written = [{"round": number, **record} for number, record in enumerate(rounds, 1)]
        assert run.read_rounds() == written
        line = json.dumps({"round": len(rounds) + 1, "clients": list(range(60))})
        with run.rounds.open("a") as file:
            file.write(line[:torn])
        assert run.read_rounds() == written

    @pytest.mark.parametrize("torn", ["", '{"round": 4, "lo'])
    def test_rounds_after_one_are_forgotten_and_go_on_from_there(self, tmp_path: Path, torn: str) -> None:
        run = RunFolder(tmp_path)
        for number in (1, 2, 3):
            run.append_round({"round": number, "loss": number / 3})
        with run.rounds.open("a") as file:
            file.write(torn)
        run.forget_rounds_after(2)
        run.append_round({"round": 3, "loss": 0.5})
        assert run.read_rounds() == [
            {"round": 1, "loss": 1 / 3},
            {"round": 2, "loss": 2 / 3},
            {"round": 3, "loss": 0.5},
        ]

    def test_a_number_that_json_cannot_say_leaves_no_half_line(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        run.append_round({"round": 1})
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.append_round({"round": 2, "loss": math.inf})
        assert run.rounds.read_text() == '{"round": 1}\n'

    def test_damage_before_the_last_line_is_an_error(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        run.rounds.write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
        with pytest.raises(RunError, match=r"rounds\.jsonl is damaged: line 2: .*\. Restore it, or delete it"):
            run.read_rounds()

    @pytest.mark.parametrize("line", ['{"loss": 1}', '{"round": "two"}', '{"round": true}'])
    def test_a_line_that_is_no_round_is_one_error(self, tmp_path: Path, line: str) -> None:
        run = RunFolder(tmp_path)
        run.rounds.write_text(f'{{"round": 1}}\n{line}\n')
        with pytest.raises(RunError, match=r"rounds\.jsonl is damaged: line 2: .*round.* Restore it, or delete it"):
            run.forget_rounds_after(1)


@pytest.mark.parametrize("label", ["../../victim", "/etc/victim", ".hidden", "", "a/b", "a\n"])
def test_a_label_names_no_file_elsewhere(label, tmp_path):
    with pytest.raises(RunError, match="is no label of a head"):
        RunFolder(tmp_path).head(label)


def test_a_folder_that_is_a_link_is_refused_before_anything_is_written(tmp_path):
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir(), victim.mkdir()
    (run / "memories").symlink_to(victim)
    with pytest.raises(RunError, match="memories is a link to another folder"), RunFolder(run).locked():
        raise AssertionError("it is not written")


def test_hidden_files_of_others_outlive_a_run_that_is_replaced(tmp_path):
    run = tmp_path / "run"
    (run / ".git").mkdir(parents=True)
    for name in ("spec.toml", ".bashrc", ".git/config", ".results.json.part"):
        (run / name).write_text("x")
    RunFolder.create(run, overwrite=True)
    assert sorted(path.name for path in run.iterdir()) == [".bashrc", ".git", ".lock"]
    assert (run / ".git" / "config").is_file()
