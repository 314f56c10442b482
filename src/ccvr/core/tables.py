"""Tables of named rows: the one way in which a name in a spec becomes code."""

import difflib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ccvr.core.errors import UnknownName

Row = TypeVar("Row")

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
CODE_NAME = re.compile(f"{_DOTTED}:{_DOTTED}")
"""``package.module:name``. Nothing else is imported, so texts without a match in them name no code."""


class Table(Mapping[str, Row]):
    """Rows by name; ``package.module:name`` reaches a row of the user's own, unless the table is closed.

    A missing name is an error that suggests the nearest known one.
    """

    def __init__(self, kind: str, rows: Mapping[str, Row], *, closed: bool = False) -> None:
        self.kind = kind
        self.closed = closed
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Row:
        if name in self._rows:
            return self._rows[name]
        if ":" in name and not self.closed:
            row: Row = import_object(self.kind, name)
            return row
        raise UnknownName(f'no {self.kind} "{name}".{suggestion(name, self._rows)}')

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error about a wrong name: the nearest known name, then all of them."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    return (f' Did you mean "{nearest[0]}"?' if nearest else "") + f" Known: {', '.join(names)}."


def import_object(kind: str, path: str) -> Any:
    """The object at ``package.module:name``."""
    module_name, _, attribute = path.partition(":")
    if not CODE_NAME.fullmatch(path):
        raise UnknownName(f'{kind} "{path}" is neither a name of ours nor package.module:name.')
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module of the user's may raise anything
        raise UnknownName(
            f'{kind} "{path}" cannot be imported ({error}). Give package.module:name of something that Python finds.'
        ) from error
    return found
