"""Whether values that were read from a file have the types that a TypedDict states, and numbers their bounds."""

import math
import sys
from collections.abc import Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Bounds = tuple[float, float]
Where = tuple[object, ...]
Count = Annotated[int, (0, 2**62)]
"""A number of things."""
Percent = Annotated[float, (-1e-6, 100 + 1e-6)]
"""A share in percent, with some room for rounding."""
Size = Annotated[float, (0.0, 1e100)]
"""A number that is not negative, and not so large that it cannot be drawn."""
Real = Annotated[float, (-1e100, 1e100)]
"""A number that is not so large that it cannot be drawn."""
NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a finite number"}
NAMES |= {list: "a list", dict: "an object"}
MAX_INT = 2**63 - 1


def mistyped(value: Any, hint: Any, where: Where = ()) -> str | None:
    """The first place at which a value does not have its type, as a fact in words; None where all is right.

    Recurses as deep as the type, and where that is ``Any`` as deep as ``parse_json`` lets values be.

    Args:
        value: what ``parse_json`` gave.
        hint: a TypedDict, list[…], dict[str, …], str, bool, int, float, Any, unions of these, and Annotated numbers
            with a pair of bounds.
        where: keys and places that lead to the value in its file.

    Example:
        >>> mistyped({"accuracy": [61.5, "67"]}, dict[str, list[float]])
        "accuracy[1] is '67', not a finite number"
    """
    if _are_numbers((value,), hint):
        return None  # most of what is read; the way below takes several times as long
    kind, options = get_origin(hint) or hint, get_args(hint)
    if kind is NotRequired:
        return mistyped(value, options[0], where)
    if kind is Annotated:
        return mistyped(value, options[0], where) or _outside(value, options[1], where)
    if kind in (Union, UnionType):
        facts = [mistyped(value, each, where) for each in options if each is not NoneType]
        return None if None in facts or (value is None and NoneType in options) else facts[0]
    if kind is Any:
        return _unwritable(value, where)
    typed = _fields(hint) if is_typeddict(hint) else None
    kind = kind if typed is None else dict
    if not _is_kind(value, kind):
        return _said(value, where, NAMES[kind])
    if typed is not None and (absent := hint.__required_keys__ - value.keys()):
        return f'{_shown(where)} has no "{min(absent)}"'
    if kind not in (list, dict):
        return None
    if kind is list and options and _are_numbers(value, options[0]):
        return None
    items = value.items() if kind is dict else enumerate(value)
    hints = ((key, item, options[-1] if typed is None else typed.get(str(key), Any)) for key, item in items)
    return next((fact for key, item, each in hints if (fact := mistyped(item, each, (*where, key)))), None)


def _are_numbers(values: Sequence[Any], hint: Any) -> bool:
    """Whether all are numbers of a kind, within its bounds; False also where they are not to be numbers."""
    kind, low, high = _number(hint)
    return kind is not None and all(_is_kind(each, kind) and low <= each <= high for each in values)


@cache
def _number(hint: Any) -> tuple[Any, float, float]:
    """The kind of number that a hint allows, and its bounds; None where it allows none."""
    options = [each for each in get_args(hint) if get_origin(each) is Annotated]
    if get_origin(hint) in (NotRequired, Union) and options:
        return _number(options[0])
    kind, (low, high) = get_args(hint) if get_origin(hint) is Annotated else (hint, (-math.inf, math.inf))
    return (kind, low, high) if kind in (int, float) else (None, 0, 0)


@cache
def _fields(hint: type[Any]) -> dict[str, Any]:
    return get_type_hints(hint, include_extras=True)


def _is_kind(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and bool(abs(value) <= sys.float_info.max)
    return type(value) is kind and (kind is not int or abs(value) <= MAX_INT)


def _outside(value: Any, bounds: Bounds, where: Where) -> str | None:
    low, high = bounds
    return None if low <= value <= high else _said(value, where, f"between {low:g} and {high:g}")


def _unwritable(value: Any, where: Where) -> str | None:
    """The first place with a value that JSON cannot hold, or with a number that no machine word can."""
    if isinstance(value, float) and not math.isfinite(value):
        return _said(value, where, NAMES[float])
    if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
        return _said(value, where, "a whole number of 64 bits")
    if not isinstance(value, list | dict):
        return None if value is None or type(value) in NAMES else _said(value, where, "a value of JSON")
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return next((fact for key, item in items if (fact := _unwritable(item, (*where, key)))), None)


def _shown(where: Where) -> str:
    """The path of a value; a plain name at the top of a file stands alone."""
    if not where:
        return "its content"
    first, rest = str(where[0]), [f"[{key!r:.60}]" for key in where[1:]]
    return "".join([first if first.isidentifier() else f"[{where[0]!r:.60}]", *rest])


def _said(value: Any, where: Where, wanted: str) -> str:
    shown = NAMES[type(value)] if isinstance(value, list | dict) else repr(value)
    return f"{_shown(where)} is {shown:.60}, not {wanted}"
