"""Frozen dataclasses from plain mappings and back: how a spec is read from TOML and written to it."""

import dataclasses
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ccvr.core.errors import SpecError
from ccvr.core.tables import suggestion

T = TypeVar("T")


def build(cls: type[T], mapping: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from a mapping; an unknown key or a value of the wrong type is an error that names the field."""
    hints = get_type_hints(cls)
    for key in mapping:
        if key not in hints:
            raise SpecError(f'no field "{where}{key}".{suggestion(key, hints)}')
    return cls(**{key: _convert(hints[key], value, f"{where}{key}") for key, value in mapping.items()})


def require_finite(value: Any, where: str = "") -> None:
    """Refuse infinities and NaN in any field of a dataclass, and of the dataclasses in it."""
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item):
            require_finite(item, f"{where}{field.name}.")
        elif isinstance(item, float) and not math.isfinite(item):
            raise SpecError(f"{where}{field.name} is {item}; give a finite number.")


def plain(value: Any) -> Any:
    """The inverse of ``build``: mappings, lists and scalars only, without what is None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(item) for name, item in pairs.items() if item is not None}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def flat(mapping: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by dotted name: ``{"training.lr": 0.01, …}``."""
    leaves: dict[str, Any] = {}
    for key, value in mapping.items():
        leaves |= flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return leaves


def hint_of(cls: type[Any], name: str) -> Any:
    """The type of a field by its dotted name, as in training.lr; an unknown one is an error that suggests another."""
    here: Any = cls
    for part in name.split("."):
        hints = get_type_hints(here) if dataclasses.is_dataclass(here) and isinstance(here, type) else {}
        if part not in hints:
            raise SpecError(f'no field "{name}".{suggestion(name, names_of(cls))}')
        here = hints[part]
    if dataclasses.is_dataclass(here):
        raise SpecError(f'"{name}" is a section. Give one of its fields: {", ".join(names_of(here, f"{name}."))}.')
    return here


def names_of(cls: Any, where: str = "") -> list[str]:
    """The dotted names of all fields of a dataclass, and of the dataclasses in it."""
    found = []
    for name, hint in get_type_hints(cls).items():
        found += names_of(hint, f"{where}{name}.") if dataclasses.is_dataclass(hint) else [f"{where}{name}"]
    return found


def with_field(value: T, name: str, new: Any) -> T:
    """A copy of a frozen dataclass in which the field with this dotted name is another."""
    first, _, rest = name.partition(".")
    inner = with_field(getattr(value, first), rest, new) if rest else new
    changed: T = dataclasses.replace(cast(Any, value), **{first: inner})
    return changed


def parse(hint: Any, text: str, where: str) -> Any:
    """A field's value from its text, as on a command line."""
    hint = _present(hint)
    if hint is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if hint is kind:
            try:
                return kind(text)
            except ValueError as error:
                raise SpecError(f'{where} is "{text}"; give {_describe(hint)}.') from error
    return _convert(hint, text, where)


def name_and_number(text: str, what: str, number: str, example: str) -> tuple[str, float | None]:
    """``name:number`` or ``name`` alone, as in tukey:0.5."""
    name, _, value = text.partition(":")
    try:
        return name, float(value) if value else None
    except ValueError as error:
        raise SpecError(f'{what} "{text}" has the {number} "{value}"; give a number: {example}.') from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    hint = _present(hint)
    origin, options = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return build(hint, value, f"{where}.")
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(options[0], item, where) for item in value)
    if origin is Literal and value in options:
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and isinstance(value, bool) == (hint is bool):
        return value
    raise SpecError(f"{where} is {value!r}; give {_describe(hint)}.")


def _present(hint: Any) -> Any:
    """``T`` of ``T | None``."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(option for option in get_args(hint) if option is not type(None))


def _describe(hint: Any) -> str:
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, options))
    if origin is tuple:
        return "a list"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return names.get(hint, "a table of fields")
