"""Names of code in files: where a file names a module that is not ccvr's, and whether it may be imported.

A run folder is data until a name in it is imported, as in ``data.name = "package.module:name"``. So a reader of a
name from a file asks here first. A name that the user typed, or wrote in Python, is the user's own wish.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ccvr.core.errors import UntrustedCode
from ccvr.core.tables import CODE_NAME

Trust = bool | frozenset[str]
"""Which names may be imported: all, none, or these."""

FOLDER = "folder:"
DATA_FIELDS = ("data.name", "data.unlabelled")
"""Fields of a spec in which ``folder:PATH`` is a folder of images."""
PLACES = ("data.root", "flower.superlink")
"""Fields of a spec that no table reads."""


def code_names(content: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """All names of code in parsed TOML or JSON.

    Args:
        content: texts in mappings and lists, of any depth. A name counts wherever it stands in a text, so that options
            (``lda,kind=mine:noisy``) are found, too; also in a key, because keys may become options.
        where: the dotted name of the content, for errors.

    Returns:
        Pairs: the dotted name of the field, and ``package.module:name``.

    Example:
        >>> list(code_names({"data": {"name": "mine:digits"}}))
        [('data.name', 'mine:digits')]
    """
    level = [(where, content)]
    while level:
        at, value = level.pop()
        if isinstance(value, Mapping):
            level += [(f"{at}.{key}" if at else str(key), each) for key, each in value.items()]
            yield from ((at, found) for key in value for found in CODE_NAME.findall(str(key)))
        elif isinstance(value, list | tuple):
            level += [(at, each) for each in value]
        elif isinstance(value, str) and not _is_place(at, value):
            yield from ((at, found) for found in CODE_NAME.findall(value))


def _is_place(where: str, text: str) -> bool:
    return where in PLACES or (where in DATA_FIELDS and text.startswith(FOLDER))


def typed_names(*texts: str) -> frozenset[str]:
    """The names in what a user typed: these may be imported."""
    return frozenset(name for _, name in code_names(texts))


REMEDY = "Add --trust (in Python trust=True) if you trust the author of the file"


def require_trust(content: Any, source: Path | str, trust: Trust, *, remedy: str = REMEDY) -> None:
    """Refuse names of code in what was read from a file.

    Args:
        content: parsed TOML or JSON.
        source: the file, for the error.
        trust: what may be imported.
        remedy: what the error asks for.

    Raises:
        UntrustedCode: the content has a name that may not be imported. Nothing was imported.
    """
    if trust is True:
        return
    allowed = trust or frozenset()
    for where, name in sorted(code_names(content)):
        if name not in allowed:
            raise UntrustedCode(
                f'{source} names code that is not part of ccvr: {where} is "{name}", which would import and run '
                f"{name.partition(':')[0]}. {remedy}."
            )
