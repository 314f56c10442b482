"""Command lines from dataclasses, with one-line errors."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

import tyro

from ccvr.core.errors import UsageError
from ccvr.core.trust import Trust, typed_names

Arguments = TypeVar("Arguments")


def parse(
    kind: type[Arguments], argv: Sequence[str], *, prog: str, default: Arguments | None = None, about: str | None = None
) -> Arguments:
    """The arguments of a subcommand. tyro draws a box around a mistake; here it becomes one line."""
    box = io.StringIO()
    asks_help = not {"-h", "--help"}.isdisjoint(argv)
    try:
        with contextlib.redirect_stderr(box), contextlib.nullcontext() if asks_help else _wide_and_plain(box):
            switches = (tyro.conf.FlagCreatePairsOff,)
            found = tyro.cli(kind, args=argv, prog=prog, default=default, description=about, config=switches)
            return cast(Arguments, found)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{_in_one_line(box.getvalue())} See `{prog} --help`.") from None


def trust_of(argv: Sequence[str]) -> Trust:
    """What a command line lets files import: everything with ``--trust``, else the names that stand in it."""
    return "--trust" in argv or typed_names(*argv)


@contextlib.contextmanager
def _wide_and_plain(box: io.StringIO) -> Iterator[None]:
    """Keep the terminal out of the box: tyro asks it for its width and breaks words there, and for its encoding."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        with contextlib.redirect_stdout(box):
            yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _in_one_line(box: str) -> str:
    """What is wrong, and the nearest option where tyro names one: the parts of its box are divided by rules."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    fact, *details = [part for part in re.split(r"[─-]{5,}", " ".join(lines)) if part.strip()]
    meant = next((re.search(r"Perhaps you meant:\s+(--[\w.-]+)", part) for part in details), None)
    return " ".join(fact.split()).rstrip(".") + "." + (f" Did you mean {meant[1]}?" if meant else "")
