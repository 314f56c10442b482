import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ccvr
from ccvr.core import errors
from ccvr.core.errors import MAX_MESSAGE, CcvrError, UnknownName, printable


def below(cls: type[CcvrError]) -> Iterator[type[CcvrError]]:
    for child in cls.__subclasses__():
        yield child
        yield from below(child)


def test_the_drawn_tree_is_the_tree() -> None:
    for module in pkgutil.walk_packages(ccvr.__path__, "ccvr."):
        if not module.name.startswith("ccvr.flower"):  # an extra that need not be installed
            importlib.import_module(module.name)
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    ours = [cls for cls in below(CcvrError) if cls.__module__.startswith("ccvr.")]
    assert sorted(cls.__name__ for cls in ours) == sorted(drawn)
    assert {cls.__module__ for cls in ours} == {"ccvr.core.errors"}


@pytest.mark.parametrize("cls", list(below(CcvrError)))
def test_a_message_reads_as_it_was_written(cls: type[CcvrError]) -> None:
    assert str(cls('no model "x".')) == 'no model "x".'


def test_an_unknown_name_is_a_missing_key_for_mappings() -> None:
    assert issubclass(UnknownName, KeyError)


@given(st.text(st.characters(codec=None), max_size=50))
def test_a_message_is_one_line_that_any_terminal_and_log_can_take(text: str) -> None:
    shown = str(CcvrError(f"the kind {text} is none."))
    assert shown.isprintable()
    shown.encode("utf-8")  # no lone surrogate
    assert len(shown.splitlines()) == 1


def test_escape_codes_and_lone_surrogates_are_written_out() -> None:
    assert printable("a\x1b[31m b\ud800 c\n\u202e é") == r"a\x1b[31m b\ud800 c\n\u202e é"


def test_of_a_long_text_beginning_and_end_are_kept() -> None:
    shown = printable("fact " + "x" * 10**6 + " remedy")
    assert len(printable("\x1b" * 10**6)) <= MAX_MESSAGE + 3
    assert len(shown) <= MAX_MESSAGE + 3
    assert shown.startswith("fact x")
    assert shown.endswith("x remedy")
