"""Methods that own their options: made from a text, written as one, and described by their own source."""

import sys
from dataclasses import FrozenInstanceError, dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.algorithms.table import ALGORITHMS
from ccvr.calibration.table import CALIBRATORS
from ccvr.core.errors import SpecError, UnknownName
from ccvr.core.methods import Option, build_method, make, option_names, options_of, text_of
from ccvr.core.tables import Table


@dataclass(frozen=True, kw_only=True)
class Dish:
    """What all dishes have."""

    served: ClassVar[str] = "hot"
    """No option."""

    salt: float = 0.5
    """Grams of salt."""
    cook: str | None = None
    """Who
    cooks."""


@dataclass(frozen=True, kw_only=True)
class Sauce:
    thick: bool = False
    """Whether a spoon stands in it."""


@dataclass(frozen=True, kw_only=True)
class Soup(Dish):
    """A dish."""


@dataclass(frozen=True, kw_only=True)
class Pasta(Dish, Sauce):
    """A dish with a sauce."""

    salt: float = 10.0
    """Grams of salt, most of it for the water."""
    minutes: int = 8
    shape: Literal["long", "short"] = "long"
    """How it is held."""
    name: str = ""

    def __post_init__(self) -> None:
        if self.minutes < 1:
            raise SpecError(f"minutes is {self.minutes}; give at least 1.")


@dataclass(frozen=True, kw_only=True)
class Stew(Dish):
    hours: float
    herbs: tuple[str, ...] = field(default_factory=tuple)


class Leftovers:
    pass


DISHES: Table[type[Dish]] = Table("dish", {"soup": Soup, "pasta": Pasta, "stew": Stew})


def dish(text: str) -> Dish:
    return make(DISHES, Dish, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("soup", Soup()),
        ("soup,salt=2", Soup(salt=2.0)),
        ("soup,cook=ann", Soup(cook="ann")),
        ("soup,cook=", Soup(cook="")),
        ("soup,cook=a=b", Soup(cook="a=b")),
        ("pasta", Pasta(salt=10.0)),
        ("pasta,thick=true,shape=short,minutes=9", Pasta(thick=True, shape="short", minutes=9)),
        ("stew,hours=2", Stew(hours=2.0)),
    ],
)
def test_a_method_from_a_text(text: str, expected: Dish) -> None:
    found = dish(text)
    assert found == expected
    assert type(found) is type(expected)
    assert [type(getattr(found, name)) for name in option_names(type(found))] == [
        type(getattr(expected, name)) for name in option_names(type(found))
    ]
    with pytest.raises(FrozenInstanceError):
        found.salt = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soup,sald=1", 'soup has no option "sald". Did you mean "salt"? Known: cook, salt.'),
        ("soup,", 'soup has no option "". Known: cook, salt.'),
        ("soup,served=cold", 'soup has no option "served". Known: cook, salt.'),
        ("soup,salt=1,salt=1", 'soup gives the option "salt" twice. Leave one out.'),
        ("soup,salt", 'soup: salt is ""; give a number.'),
        ("soup,salt=much", 'soup: salt is "much"; give a number.'),
        ("soup,salt=inf", "soup: salt is inf; give a finite number."),
        ("soup,salt=nan", "soup: salt is nan; give a finite number."),
        ("pasta,minutes=2.5", 'pasta: minutes is "2.5"; give a whole number.'),
        ("pasta,thick=1", "pasta: thick is '1'; give true or false."),
        ("pasta,shape=round", "pasta: shape is 'round'; give one of long, short."),
        ("pasta,minutes=0", "minutes is 0; give at least 1."),
        ("stew", 'stew needs the option "hours". Give it: stew,hours=….'),
    ],
)
def test_options_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        dish(text)
    assert str(refused.value) == message


def test_a_method_without_options_says_so() -> None:
    empty: Table[Any] = Table("plate", {"plate": make_dataclass("Plate", [], frozen=True)})
    with pytest.raises(SpecError, match=r'^plate has no option "salt"\. It has none\.$'):
        make(empty, object, "plate,salt=1")


def test_an_unknown_method_suggests_another() -> None:
    with pytest.raises(UnknownName) as refused:
        dish("pasto,minutes=3")
    assert str(refused.value) == 'no dish "pasto". Did you mean "pasta"? Known: pasta, soup, stew.'


def test_defaults_are_for_what_the_text_leaves_open() -> None:
    defaults = {"salt": 3.0, "hours": 1.0}
    assert build_method(Stew, {"salt": "4"}, "stew", defaults) == Stew(salt=4.0, hours=1.0)
    assert build_method(Stew, {"hours": "4"}, "stew", defaults) == Stew(salt=3.0, hours=4.0)


OWN = """
from dataclasses import dataclass
from tests.core.test_methods import Dish, Leftovers

@dataclass(frozen=True, kw_only=True)
class Pie(Dish):
    crust: int = 2
    \"\"\"Layers of crust.\"\"\"

@dataclass(frozen=True)
class Cake:
    sugar: int = 2

class Box(Leftovers):
    pass

class Undecorated(Pie):
    sugar: int = 2

@dataclass(frozen=True)
class Named(Pie):
    label: str = ""

def pie(salt):
    return Pie(salt=salt)
"""


def test_a_class_of_the_user_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_dishes.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        pie = dish("my_dishes:Pie,crust=3,salt=1")
        assert (type(pie).__name__, pie.salt) == ("Pie", 1.0)
        assert options_of(type(pie))[-1] == Option("crust", "2", "Layers of crust.")
        with pytest.raises(SpecError, match=r'^my_dishes:Pie has no option "sugar"\. Known: cook, crust, salt\.$'):
            dish("my_dishes:Pie,sugar=3")
        for name in ("Cake", "Box", "pie"):
            with pytest.raises(SpecError) as refused:
                dish(f"my_dishes:{name}")
            assert str(refused.value) == (
                f'dish "my_dishes:{name}" is not a dataclass derived from Dish. Write it so (docs/extending.md).'
            )
        with pytest.raises(
            SpecError, match=r"has sugar, which is not one of its options: Undecorated is not decorated"
        ):
            dish("my_dishes:Undecorated")
        with pytest.raises(SpecError, match=r'has an option "label", which is reserved\. Give it another name\.'):
            dish("my_dishes:Named")
    finally:
        sys.modules.pop("my_dishes", None)


# --- as text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "soup"),
        ({"salt": 1.0}, "soup,salt=1"),
        ({"salt": 1e-5, "cook": "ann"}, "soup,salt=1e-05,cook=ann"),
        ({"salt": None, "cook": ""}, "soup,cook="),
        ({"thick": True, "minutes": 3}, "soup,thick=True,minutes=3"),
    ],
)
def test_a_method_as_text(options: dict[str, Any], text: str) -> None:
    assert text_of("soup", options) == text


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(1),
    st.booleans(),
    st.sampled_from(["long", "short"]),
    st.none() | st.text().filter(lambda text: "," not in text),
)
def test_a_text_is_read_as_what_it_was_written_from(
    salt: float, minutes: int, thick: bool, shape: str, cook: str | None
) -> None:
    options = {"salt": salt, "minutes": minutes, "thick": thick, "shape": shape, "cook": cook}
    assert dish(text_of("pasta", options)) == Pasta(**options)  # type: ignore[arg-type]


# --- what a method says of its options --------------------------------------------------------------------------------


def test_options_are_described_by_the_sentences_below_them() -> None:
    assert options_of(Soup) == [Option("salt", "0.5", "Grams of salt."), Option("cook", "none", "Who cooks.")]


def test_options_of_a_class_are_those_of_its_bases_and_its_own() -> None:
    """A field that a class gives anew has its default and its sentence from there."""
    assert options_of(Pasta) == [
        Option("thick", "False", "Whether a spoon stands in it."),
        Option("salt", "10.0", "Grams of salt, most of it for the water."),
        Option("cook", "none", "Who cooks."),
        Option("minutes", "8", ""),
        Option("shape", "long", "How it is held."),
        Option("name", "none", ""),
    ]
    assert option_names(Pasta) == [option.name for option in options_of(Pasta)]


def test_an_option_without_a_default_shows_none() -> None:
    assert [(option.name, option.default) for option in options_of(Stew)] == [
        ("salt", "0.5"),
        ("cook", "none"),
        ("hours", ""),
        ("herbs", ""),
    ]


def test_a_class_that_no_file_has_is_described_without_sentences() -> None:
    made = make_dataclass("Made", [("salt", float, 0.5)], frozen=True)
    assert options_of(made) == [Option("salt", "0.5", "")]


@pytest.mark.parametrize("name", [*CALIBRATORS, *ALGORITHMS])
def test_every_option_of_ours_has_a_sentence(name: str) -> None:
    cls = CALIBRATORS[name] if name in CALIBRATORS else ALGORITHMS[name]
    assert [option.name for option in options_of(cls) if not option.about.endswith(".")] == []
    assert cls.__doc__


def test_what_ccvr_converged_says_of_itself() -> None:
    """Of its own fields, and of those that it has from three classes above it."""
    said = {option.name: (option.default, option.about) for option in options_of(CALIBRATORS["ccvr-converged"])}
    assert said["seed"] == ("none", "Seed of the draws; without it the run's.")
    assert said["kind"] == ("none", "Kind of the statistics; without it the best that the method can use.")
    assert said["num_virtual"] == ("2000", "Virtual features per class (the paper's M_c).")
    assert said["matched"] == ("True", "Whether draws have the very mean and covariance of their class.")
    assert said["iterations"] == ("300", "Most steps of L-BFGS.")
