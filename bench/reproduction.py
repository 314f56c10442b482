"""Write what results/ says into docs/reproduction.md and docs/algorithms-cifar10.md.

    python bench/reproduction.py

A block of a page begins with a command in a comment, ``<!-- ccvr reproduce … -->``, and ends with ``<!-- end -->``;
what stands between is replaced by what the command prints from the records alone. A test keeps the pages up to date.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from ccvr.cli.main import dispatch

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "reproduction.md", ROOT / "docs" / "algorithms-cifar10.md")
BLOCK = re.compile(r"(<!-- ccvr ((?:reproduce|compare) .+?) -->\n).*?(<!-- end -->)", re.DOTALL)
NO_RUNS = {"reproduce": ("--results", "results", "--out", "no-cells")}
"""By command, options with which no run folders take part."""


def printed(command: str) -> str:
    """What a command prints, run from the root of the project."""
    output, (name, *words) = io.StringIO(), shlex.split(command)
    with contextlib.redirect_stdout(output), contextlib.chdir(ROOT):
        dispatch([name, *words, *NO_RUNS.get(name, ())])
    return output.getvalue().strip()


def refreshed(page: str) -> str:
    return BLOCK.sub(lambda block: f"{block[1]}\n{printed(block[2])}\n\n{block[3]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
