from pathlib import Path

from ccvr.data.spec import DataSpec


def test_a_spec_with_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert DataSpec("folder:pictures").anchored() == DataSpec(f"folder:{tmp_path}/pictures")
    assert DataSpec("mnist", root=Path("files")).anchored() == DataSpec("mnist", root=tmp_path / "files")
    assert DataSpec("my.folder:data").anchored() == DataSpec("my.folder:data")
