"""Write what results/ says into docs/reproduction.md.

    python bench/reproduction.py

A block of the page begins with a command in a comment, ``<!-- ccvr reproduce … -->``, and ends with ``<!-- end -->``;
what stands between is replaced by what the command prints from the records alone. A test keeps the page up to date.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from ccvr.cli.main import dispatch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction.md"
BLOCK = re.compile(r"(<!-- ccvr (reproduce .+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def printed(command: str) -> str:
    """What a command prints; no run folders take part."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        dispatch([*shlex.split(command), "--results", str(ROOT / "results"), "--out", str(ROOT / "no-cells")])
    return output.getvalue().strip()


def refreshed(page: str) -> str:
    return BLOCK.sub(lambda block: f"{block[1]}\n{printed(block[2])}\n\n{block[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
