"""Options of calibrators: defaults are sound, impossible values are refused wherever options are made."""

import dataclasses

import pytest

from ccvr.calibration.table import CALIBRATORS
from ccvr.core.errors import SpecError
from ccvr.core.methods import option_names

NOT_BELOW_ONE = ("num_virtual", "epochs", "batch_size", "per_class", "num_features", "iterations")
NOT_BELOW_ZERO = ("momentum", "weight_decay", "l2", "ridge", "min_count")
ABOVE_ZERO = ("lr", "bandwidth")


def classes_with(name):
    found = [cls for cls in CALIBRATORS.values() if name in option_names(cls)]
    assert found
    return found


@pytest.mark.parametrize(
    ("names", "bad", "good", "least"),
    [
        (NOT_BELOW_ONE, 0, 1, "at least 1"),
        (NOT_BELOW_ZERO, -1, 0, "at least 0"),
        (ABOVE_ZERO, 0, 1, "a number above 0"),
    ],
    ids=["from 1", "from 0", "above 0"],
)
def test_numbers_out_of_range(names, bad, good, least):
    for name in names:
        for cls in classes_with(name):
            assert getattr(cls(**{name: good}), name) == good
            with pytest.raises(SpecError) as refused:
                cls(**{name: bad})
            assert str(refused.value) == f"{name} is {bad}; give {least}."


@pytest.mark.parametrize("name", [*NOT_BELOW_ZERO, *ABOVE_ZERO])
def test_what_is_no_number(name):
    for cls in classes_with(name):
        with pytest.raises(SpecError, match=rf"^{name} is nan"):
            cls(**{name: float("nan")})


def test_every_number_has_a_range():
    """A contract over the fields: a new number is checked, but for the seed, which may be any."""
    fields = [field for cls in CALIBRATORS.values() for field in dataclasses.fields(cls)]
    numbers = {field.name for field in fields if type(field.default) in (int, float)}
    assert numbers == {*NOT_BELOW_ONE, *NOT_BELOW_ZERO, *ABOVE_ZERO}


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [("transform", "tuckey", 'no feature transform "tuckey"'), ("shrinkage", "some", 'no shrinkage "some"')],
)
def test_names_that_are_none(name, value, fact):
    for cls in classes_with(name):
        with pytest.raises(SpecError, match=fact):
            cls(**{name: value})


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_method_cannot_be_changed_and_equals_another_with_the_same_options(name):
    method = CALIBRATORS[name]()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.seed = 3
    assert method == CALIBRATORS[name]() != CALIBRATORS[name](seed=3)
    assert len({method, CALIBRATORS[name](), CALIBRATORS[name](seed=3)}) == 2
