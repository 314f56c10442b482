"""Methods that own their options: frozen dataclasses, written as ``name[,option=value…]``."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from ccvr.core.errors import SpecError
from ccvr.core.fields import parse, require_finite
from ccvr.core.tables import Table, suggestion

Method = TypeVar("Method")

RESERVED = ("label", "method", "statistics", "absent_classes", "bytes", "seconds")
"""Names that no option may have: they mean something else behind a method and in results.json."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a method: its name, its default as text, and a sentence about it."""

    name: str
    default: str
    about: str


def make(table: Table[type[Method]], base: type[Method], text: str) -> Method:
    """The method that a text names, with its options.

    Args:
        table: the classes by name; ``package.module:name`` reaches a class of the user's own.
        base: what the class must derive from.
        text: ``name`` or ``name,option=value,…``.

    Raises:
        UnknownName: no class has this name.
        SpecError: an option that the class does not have, one that is given twice, or an impossible value.
    """
    name, *pairs = text.split(",")
    cls = find_class(table, base, name)
    return build_method(cls, split_options(name, pairs, option_names(cls)), name)


def split_label(text: str, cls: type[Any], what: str, taken: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The label and the options of ``name[,option=value…][,label=…]``; without a label it is the method's name.

    Args:
        text: the method.
        cls: its class, which has the options.
        what: what is labelled, for errors.
        taken: labels with a meaning of their own.
    """
    name, *pairs = text.split(",")
    options = split_options(name, pairs, [*option_names(cls), "label"])
    label = options.pop("label", name.rpartition(":")[2])
    if not re.fullmatch(r"[\w+-][\w.+-]{0,99}", label) or label in taken:
        raise SpecError(
            f'{what} label "{label}" is not usable; use at most 100 letters, digits and . _ + -, '
            f"not a dot first, not {' or '.join(taken)}."
        )
    return label, options


def require_different(labels: Sequence[str], what: str) -> None:
    """Refuse a label that two methods have."""
    for label in labels:
        if labels.count(label) > 1:
            raise SpecError(f'two {what} are labelled "{label}". Give each its own with label=….')


def find_class(table: Table[type[Method]], base: type[Method], name: str) -> type[Method]:
    """The class of a name; a user's own must derive from ``base`` as a frozen dataclass."""
    cls = table[name]
    if not (isinstance(cls, type) and issubclass(cls, base) and dataclasses.is_dataclass(cls)):
        raise SpecError(
            f'{table.kind} "{name}" is not a dataclass derived from {base.__name__}. Write it so (docs/extending.md).'
        )
    for part in cls.__mro__[: cls.__mro__.index(base)]:
        own = inspect.get_annotations(part).keys() - cls.__dataclass_fields__.keys()
        if own:
            raise SpecError(
                f'{table.kind} "{name}" has {min(own)}, which is not one of its options: {part.__name__} is not '
                "decorated. Write @dataclass(frozen=True) above it."
            )
    if taken := [option for option in option_names(cls) if option in RESERVED]:
        raise SpecError(f'{table.kind} "{name}" has an option "{taken[0]}", which is reserved. Give it another name.')
    return cls


def build_method(
    cls: type[Method], options: Mapping[str, str], name: str, defaults: Mapping[str, Any] | None = None
) -> Method:
    """A method from the texts of its options; ``defaults`` are values of options that have no text."""
    hints = get_type_hints(cls)
    parsed = {key: parse(hints[key], value, f"{name}: {key}") for key, value in options.items()}
    given = {**(defaults or {}), **parsed}
    for key in required_options(cls):
        if key not in given:
            raise SpecError(f'{name} needs the option "{key}". Give it: {name},{key}=….')
    method = cls(**given)
    require_finite(method, f"{name}: ")
    return method


def split_options(name: str, pairs: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """``option=value`` texts by option; only known ones, and each once."""
    options: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in known:
            raise SpecError(f'{name} has no option "{key}".{suggestion(key, known) if known else " It has none."}')
        if key in options:
            raise SpecError(f'{name} gives the option "{key}" twice. Leave one out.')
        options[key] = value
    return options


def option_names(cls: type[Any]) -> list[str]:
    """The options of a class, in the order of its fields."""
    return [field.name for field in dataclasses.fields(cls)]


def required_options(cls: type[Any]) -> list[str]:
    """The options of a class that have no default."""
    missing = dataclasses.MISSING
    return [each.name for each in dataclasses.fields(cls) if each.default is each.default_factory is missing]


def text_of(name: str, options: Mapping[str, Any]) -> str:
    """A method as text; ``options`` that are None are left out."""
    return ",".join([name, *(f"{key}={_text(value)}" for key, value in options.items() if value is not None)])


def _text(value: Any) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def options_of(cls: type[Any]) -> list[Option]:
    """The options of a class with their defaults and the docstrings of their fields."""
    about = _field_docs(cls)
    return [
        Option(field.name, _shown_default(field), " ".join(about.get(field.name, "").split()))
        for field in dataclasses.fields(cls)
    ]


def _shown_default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING:
        return ""
    return "none" if field.default in (None, "") else str(field.default)


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """The string below each field, of the class and of those that it derives from."""
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(part):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        except (OSError, TypeError, SyntaxError):  # a class that was made without a file
            continue
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for field, below in itertools.pairwise(statements):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found
