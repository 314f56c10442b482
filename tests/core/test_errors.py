import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import ccvr
from ccvr.core import errors
from ccvr.core.errors import CcvrError, UnknownName


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
