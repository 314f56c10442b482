import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import find_algorithm
from ccvr.calibration.methods import parse_calibration
from ccvr.core.errors import SpecError
from ccvr.core.fields import build, flat, hint_of, names_of, parse, plain, with_field
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import Spec, from_toml, to_toml


@dataclass(frozen=True)
class Oven:
    degrees: float = 180.0
    fan: bool = False
    mode: Literal["top", "bottom"] = "top"


@dataclass(frozen=True)
class Recipe:
    name: str = "bread"
    loaves: int = 1
    oven: Oven = field(default_factory=Oven)
    steps: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    book: Path | None = None
    page: int | None = None


paths = st.text(min_size=1).filter(lambda text: "\0" not in text).map(Path)
ovens = st.builds(Oven, st.floats(allow_nan=False), st.booleans(), st.sampled_from(["top", "bottom"]))
recipes = st.builds(
    Recipe,
    st.text(),
    st.integers(),
    ovens,
    st.lists(st.text()).map(tuple),
    st.lists(st.floats(allow_nan=False)).map(tuple),
    st.none() | paths,
    st.none() | st.integers(),
)


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return type(value) in (str, int, float, bool)


@given(recipes)
def test_build_inverts_plain(recipe: Recipe) -> None:
    mapping = plain(recipe)
    assert is_plain(mapping)
    assert build(Recipe, mapping) == recipe


def test_absent_fields_take_their_defaults() -> None:
    assert build(Recipe, {"oven": {"fan": True}}) == Recipe(oven=Oven(fan=True))
    assert build(Recipe, {}) == Recipe()


def test_what_is_none_is_left_out() -> None:
    assert plain(Recipe()) == {
        "name": "bread",
        "loaves": 1,
        "oven": {"degrees": 180.0, "fan": False, "mode": "top"},
        "steps": [],
        "times": [],
    }


def test_a_whole_number_is_a_number() -> None:
    oven = build(Oven, {"degrees": 200})
    assert oven.degrees == 200.0
    assert isinstance(oven.degrees, float)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"lofes": 2}, 'no field "lofes". Did you mean "loaves"? Known: book, loaves, name, oven, page, steps, times.'),
        ({"oven": {"degree": 2}}, 'no field "oven.degree". Did you mean "degrees"? Known: degrees, fan, mode.'),
        ({"loaves": True}, "loaves is True; give a whole number."),
        ({"loaves": 1.0}, "loaves is 1.0; give a whole number."),
        ({"loaves": "1"}, "loaves is '1'; give a whole number."),
        ({"page": "1"}, "page is '1'; give a whole number."),
        ({"oven": {"degrees": False}}, "oven.degrees is False; give a number."),
        ({"oven": {"degrees": "hot"}}, "oven.degrees is 'hot'; give a number."),
        ({"oven": {"fan": 1}}, "oven.fan is 1; give true or false."),
        ({"oven": {"mode": "grill"}}, "oven.mode is 'grill'; give one of top, bottom."),
        ({"oven": {"mode": ["top"]}}, "oven.mode is ['top']; give one of top, bottom."),
        ({"oven": 3}, "oven is 3; give a table of fields."),
        ({"name": 3}, "name is 3; give text."),
        ({"name": ["a\nb"]}, "name is ['a\\nb']; give text."),
        ({"book": 3}, "book is 3; give a path."),
        ({"steps": "knead"}, "steps is 'knead'; give a list."),
        ({"steps": ["knead", 3]}, "steps is 3; give text."),
        ({"times": [1, True]}, "times is True; give a number."),
    ],
)
def test_a_wrong_mapping_is_an_error_that_names_the_field(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build(Recipe, mapping)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "-3", -3),
        (int | None, "5", 5),
        (float, "1e-3", 0.001),
        (float | None, "2", 2.0),
        (bool, "True", True),
        (bool, "false", False),
        (bool | None, "true", True),
        (str, "5", "5"),
        (Path | None, "a/b", Path("a/b")),
        (Literal["equal", "proportional"], "equal", "equal"),
    ],
)
def test_a_value_from_its_text(hint: Any, text: str, value: Any) -> None:
    found = parse(hint, text, "field")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "message"),
    [
        (int, "2.5", 'oven.x is "2.5"; give a whole number.'),
        (int | None, "two", 'oven.x is "two"; give a whole number.'),
        (float, "", 'oven.x is ""; give a number.'),
        (bool, "1", "oven.x is '1'; give true or false."),
        (Literal["a", "b"], "c", "oven.x is 'c'; give one of a, b."),
    ],
)
def test_a_text_that_is_no_value(hint: Any, text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(hint, text, "oven.x")
    assert str(caught.value) == message


unit = st.floats(0, 1, exclude_max=True)
positive = st.floats(1e-9, 1e9)
specs = st.builds(
    lambda seed, device, name, root, validation, augment, num_clients, training, methods, deploy: replace(
        Spec(seed=seed, device=device),
        data=replace(Spec().data, name=name, root=root, validation=validation, augment=augment),
        partition=replace(Spec().partition, num_clients=num_clients),
        training=replace(Spec().training, **training),
        calibration=replace(Spec().calibration, methods=methods, deploy=deploy),
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["cpu", "cuda"]),
    st.text(),
    st.none() | paths,
    unit,
    st.none() | st.booleans(),
    st.integers(1, 10**9),
    st.fixed_dictionaries(
        {
            "lr": positive,
            "momentum": unit,
            "algorithm": st.text() | positive.map("fedprox,mu={}".format),
            "clsnorm": st.booleans(),
            "buffers": st.sampled_from(["average", "largest"]),
        }
    ),
    st.lists(st.text()).map(tuple),
    st.text(),
)


@given(specs)
def test_a_spec_survives_toml(spec: Spec) -> None:
    assert from_toml(to_toml(spec), trust=True) == spec


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_toml(name: str) -> None:
    assert from_toml(to_toml(PRESETS[name])) == PRESETS[name]


def leaves(cls: type, where: str = "") -> list[str]:
    hints = get_type_hints(cls)
    found = []
    for row in fields(cls):
        kind = hints[row.name]
        inner = isinstance(kind, type) and is_dataclass(kind)
        found += leaves(kind, f"{where}{row.name}.") if inner else [f"{where}{row.name}"]
    return found


@pytest.mark.parametrize("path", leaves(Spec))
def test_every_field_of_a_spec_is_checked_for_its_type(path: str) -> None:
    mapping: dict[str, Any] = {path.rpartition(".")[2]: {"a": "table"}}
    for section in reversed(path.split(".")[:-1]):
        mapping = {section: mapping}
    with pytest.raises(SpecError) as caught:
        build(Spec, mapping)
    assert str(caught.value).startswith(f"{path} is {{'a': 'table'}}; give ")


def test_a_spec_that_is_no_toml() -> None:
    with pytest.raises(SpecError, match=r"^spec is not valid TOML: "):
        from_toml("seed = ")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_field_is_infinite(value):
    with pytest.raises(SpecError, match=r"^training\.weight_decay is .*; give a finite number\.$|at least 0"):
        Spec(training=TrainingSpec(weight_decay=value))
    with pytest.raises(SpecError, match=r"give a finite number|at least 0|above 0"):
        parse_calibration(f"ccvr,lr={value}")
    with pytest.raises(SpecError, match=r"give a finite number|at least 0"):
        find_algorithm(f"fedprox,mu={value}")


# --- fields by their dotted names -------------------------------------------------------------------------------------


def test_every_field_has_a_name_and_a_type() -> None:
    assert names_of(Recipe) == [
        *("name", "loaves", "oven.degrees", "oven.fan", "oven.mode", "steps", "times", "book", "page"),
    ]
    assert [hint_of(Recipe, name) for name in ("oven.degrees", "loaves", "page")] == [float, int, int | None]


@pytest.mark.parametrize("name", ["oven.degree", "ovn.degrees", "name.length", "", "oven.", "oven.fan.speed"])
def test_a_name_that_no_field_has(name: str) -> None:
    with pytest.raises(SpecError, match=rf'^no field "{name}"\.'):
        hint_of(Recipe, name)


def test_a_section_is_no_field() -> None:
    with pytest.raises(
        SpecError, match=r'^"oven" is a section\. Give one of its fields: oven\.degrees, oven\.fan, oven\.m'
    ):
        hint_of(Recipe, "oven")


@given(recipes, st.floats(allow_nan=False))
def test_one_field_is_changed_and_no_other(recipe: Recipe, degrees: float) -> None:
    changed = with_field(recipe, "oven.degrees", degrees)
    assert changed.oven.degrees == degrees
    assert with_field(changed, "oven.degrees", recipe.oven.degrees) == recipe


def test_names_are_those_of_a_spec_as_it_is_written() -> None:
    assert set(flat(plain(Spec()))) <= set(names_of(Spec))
