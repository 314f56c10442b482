"""Whether values have the types that a TypedDict states."""

import json
from typing import Any, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.core.schema import Count, Percent, Real, mistyped


class Inner(TypedDict):
    number: Count
    share: NotRequired[Percent | None]


class Outer(TypedDict):
    name: str
    items: list[Inner]
    by_name: NotRequired[dict[str, list[float]]]
    either: NotRequired[str | int | None]
    anything: NotRequired[Any]


GOOD: dict[str, Any] = {"name": "a", "items": [{"number": 1, "share": None}, {"number": 2, "share": 50}]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"by_name": {"x": [1, 2.5]}},
        {"either": 3},
        {"either": None},
        {"anything": {"deep": [1, {"a": None}]}},
        {"of a later version": [1]},
    ],
)
def test_what_fits(more: dict[str, Any]) -> None:
    assert mistyped({**GOOD, **more}, Outer) is None


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ([], "its content is a list, not an object"),
        ({"items": []}, 'its content has no "name"'),
        ({**GOOD, "name": 1}, "name is 1, not text"),
        ({**GOOD, "items": [{}]}, 'items[0] has no "number"'),
        ({**GOOD, "items": [{"number": -1}]}, "items[0]['number'] is -1, not between 0 and 4.61169e+18"),
        ({**GOOD, "items": [{"number": True}]}, "items[0]['number'] is True, not a whole number"),
        ({**GOOD, "items": [{"number": 1.0}]}, "items[0]['number'] is 1.0, not a whole number"),
        ({**GOOD, "items": [{"number": 1, "share": 101}]}, "items[0]['share'] is 101, not between -1e-06 and 100"),
        ({**GOOD, "by_name": {"x": [1, None]}}, "by_name['x'][1] is None, not a finite number"),
        ({**GOOD, "by_name": {"x": [float("nan")]}}, "by_name['x'][0] is nan, not a finite number"),
        ({**GOOD, "either": []}, "either is a list, not text"),
        ({**GOOD, "anything": {"a": [0, float("inf")]}}, "anything['a'][1] is inf, not a finite number"),
        ({**GOOD, "anything": 10**30}, f"anything is 1{'0' * 30}, not a whole number of 64 bits"),
        ({**GOOD, "later\nkey": 2**63}, "['later\\nkey'] is 9223372036854775808, not a whole number of 64 bits"),
    ],
)
def test_the_first_place_that_does_not_fit_is_named(value: Any, fact: str) -> None:
    assert mistyped(value, Outer) == fact


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_no_value_raises_and_what_fits_can_be_written(value: Any) -> None:
    for hint in (Outer, Inner, list[Real], dict[str, str | None], Any):
        fact = mistyped(value, hint)
        assert fact is None or isinstance(fact, str)
    if mistyped(value, Any) is None:
        json.dumps(value, allow_nan=False)
