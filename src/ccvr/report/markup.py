"""Pieces of HTML; all text of a run is escaped here."""

import json
from html import escape
from typing import Any

from ccvr.report.groups import Spread
from ccvr.report.text import plain, shown

DASH = "–"


def as_text(value: object) -> str:
    """Anything that comes from a run, as text of the page."""
    return escape(plain(value))


def as_name(value: object, most: int = 80) -> str:
    """A name from a run; its direction does not spread to what stands around it."""
    return f"<bdi>{as_text(shown(value, most))}</bdi>"


def as_setting(value: Any) -> str:
    """A value of a spec."""
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return as_name(DASH if value in (None, "") else words, 2000)


def number_cell(text: str, value: float) -> str:
    return f'<td class="n" data-value="{value!r}">{text}</td>'


def spread_cell(spread: Spread | None, sign: str = "") -> str:
    return number_cell(DASH, -1e9) if spread is None else number_cell(spread.text(sign), spread.mean)


def headline_number(spread: Spread, name: str, sign: str = "", unit: str = " %") -> str:
    return f'<span data-name="{name}" data-value="{spread.mean!r}">{spread.text(sign)}{unit}</span>'
