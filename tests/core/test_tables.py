import sys
from pathlib import Path

import pytest

from ccvr.core.errors import UnknownName
from ccvr.core.tables import Table, suggestion

FRUIT = Table("fruit", {"apple": 1, "pear": 2, "cherry": 3})


def test_a_table_is_a_mapping_of_its_rows() -> None:
    assert dict(FRUIT) == {"apple": 1, "pear": 2, "cherry": 3}
    assert len(FRUIT) == 3
    assert FRUIT["pear"] == 2
    assert "pear" in FRUIT
    assert "plum" not in FRUIT
    assert FRUIT.get("plum") is None
    assert FRUIT.get("plum", 7) == 7


def test_rows_are_copied_from_what_the_table_was_made_of() -> None:
    rows = {"apple": 1}
    table = Table("fruit", rows)
    rows["pear"] = 2
    assert list(table) == ["apple"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("appel", 'no fruit "appel". Did you mean "apple"? Known: apple, cherry, pear.'),
        ("xyz", 'no fruit "xyz". Known: apple, cherry, pear.'),
        ("", 'no fruit "". Known: apple, cherry, pear.'),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UnknownName) as caught:
        FRUIT[name]
    assert str(caught.value) == message


def test_a_suggestion_lists_names_in_order() -> None:
    assert suggestion("b", iter(["c", "a"])) == " Known: a, c."


def test_a_path_reaches_a_row_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_orchard.py").write_text("class Trees:\n    plum = 'a plum'\nfig = 'a fig'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert FRUIT["my_orchard:fig"] == "a fig"
    assert FRUIT["my_orchard:Trees.plum"] == "a plum"
    assert "my_orchard:fig" in FRUIT
    assert "my_orchard:grape" not in FRUIT
    del sys.modules["my_orchard"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("os.no_such_part:x", "No module named 'os.no_such_part'; 'os' is not a package"),
        ("os:no_such_name", "module 'os' has no attribute 'no_such_name'"),
        ("broken_orchard:x", "invalid syntax (broken_orchard.py, line 2)"),
        ("raising_orchard:x", "the frost came"),
    ],
)
def test_a_path_that_cannot_be_imported(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_orchard.py").write_text("x = 1\nx = = 2\n")
    (tmp_path / "raising_orchard.py").write_text("raise RuntimeError('the frost came')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownName) as caught:
        FRUIT[path]
    assert str(caught.value) == (
        f'fruit "{path}" cannot be imported ({reason}). Give package.module:name of something that Python finds.'
    )


@pytest.mark.parametrize(
    "path", ["os:", ":x", ".relative:x", "os:path:join", "evil-orchard:x", "os: path", "evil_orchard:0.5"]
)
def test_only_a_name_of_code_is_imported(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("evil-orchard.py", "evil_orchard.py"):
        (tmp_path / name).write_text("raise AssertionError('this must not run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownName) as caught:
        FRUIT[path]
    assert str(caught.value) == f'fruit "{path}" is neither a name of ours nor package.module:name.'


def test_a_closed_table_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_orchard.py").write_text("raise AssertionError('this must not run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = Table("tool", {"saw": 1}, closed=True)
    with pytest.raises(UnknownName, match=r'^no tool "evil_orchard:x"\. Known: saw\.$'):
        table["evil_orchard:x"]
