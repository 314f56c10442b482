"""Runs → one HTML page that needs nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from ccvr.core.run import RunFolder
from ccvr.report.blocks import accuracies, card, contents, how_to_repeat, own_code, own_models, section, what_was_run
from ccvr.report.figure_set import Drawn, inlined
from ccvr.report.groups import group
from ccvr.report.markup import as_text
from ccvr.report.runs import RunFiles, made_from


def page(runs: Sequence[RunFiles], drawn: Sequence[Drawn]) -> str:
    """The whole page; the same runs give the same bytes."""
    groups = group(runs)
    title = f"{groups[0].name}: before and after calibration" if len(groups) == 1 else f"{len(runs)} runs compared"
    sections = list(dict.fromkeys(each.row.section for each in drawn))
    drawings = inlined(drawn)
    body = "\n".join(
        [
            '<a class="skip" href="#main">Skip to the content</a>',
            f"<header><h1>{as_text(title)}</h1>",
            '<p class="faint">Test accuracy of a federated classifier, before and after its head was calibrated '
            f"(CCVR). {len(runs)} {'run' if len(runs) == 1 else 'runs'}, {len(drawn)} figures.</p></header>",
            '<main id="main" tabindex="-1">',
            own_code(runs),
            f'<div class="cards">{"".join(map(card, groups))}</div>',
            contents(drawn, sections),
            accuracies(groups),
            own_models(groups),
            what_was_run(groups),
            *(section(name, [each for each in drawn if each.row.section == name], drawings) for name in sections),
            how_to_repeat(runs),
            "</main>",
        ]
    )
    return document(title, body, mark([each.folder for each in runs]))


def mark(runs: Sequence[RunFolder]) -> str:
    """What a page says in its head about the files that it was made from."""
    return f'<meta name="made-from" content="{made_from(runs)}">'


def is_current(path: Path, run: RunFolder) -> bool:
    """Whether the page at a path was made from the files that the run has now."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return mark([run]).encode() in file.read(4096)


def document(title: str, body: str, more: str = "") -> str:
    """A page around its body, with its style and script in itself and a policy that forbids all requests.

    ``more`` stands in its head.
    """
    style, script = _part("page.css"), _part("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src-elem {_hash(style)}; style-src-attr 'unsafe-inline'; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"{more}\n"
        f"<title>{as_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _part(name: str) -> str:
    return files("ccvr.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
