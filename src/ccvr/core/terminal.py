"""The one way to the terminal: what a name from a file or a client holds can neither steer it nor add a line."""

import sys

from ccvr.core.errors import printable

MAX_LINE = 100_000
"""Letters of a line of output."""
MAX_CELL = 500
"""Letters of a cell of a table."""


def say(*lines: object, error: bool = False) -> None:
    r"""Print each argument as one line.

    Args:
        lines: what is printed; other objects than text are shown as ``str`` does.
        error: print to stderr, where everything goes that is not the result of a command.

    Example:
        >>> say("head \x1b[31m", "accuracy 67.6 %")
        head \x1b[31m
        accuracy 67.6 %
    """
    for line in lines:
        print(printable(line, MAX_LINE), file=sys.stderr if error else sys.stdout, flush=True)


def cell(value: object) -> str:
    """A value as one line of a table's cell."""
    return printable(value, MAX_CELL)
