"""Options of calibration: defaults are sound, impossible values are refused wherever options are made."""

import dataclasses

import pytest

from ccvr.calibration.spec import CalibrationOptions, CalibrationSpec
from ccvr.core.errors import SpecError

NOT_BELOW_ONE = ("num_virtual", "epochs", "batch_size", "per_class", "num_features", "iterations")
NOT_BELOW_ZERO = ("momentum", "weight_decay", "l2", "ridge", "min_count")
ABOVE_ZERO = ("lr", "bandwidth")


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
        assert getattr(CalibrationOptions(**{name: good}), name) == good
        with pytest.raises(SpecError) as refused:
            CalibrationOptions(**{name: bad})
        assert str(refused.value) == f"calibration.{name} is {bad}; give {least}."


@pytest.mark.parametrize("name", [*NOT_BELOW_ZERO, *ABOVE_ZERO])
def test_what_is_no_number(name):
    with pytest.raises(SpecError, match=rf"calibration\.{name} is nan"):
        CalibrationOptions(**{name: float("nan")})


def test_every_number_has_a_range():
    """A contract over the fields: a new number is checked, but for the seed, which may be any."""
    numbers = {f.name for f in dataclasses.fields(CalibrationOptions) if type(f.default) in (int, float)}
    assert numbers == {*NOT_BELOW_ONE, *NOT_BELOW_ZERO, *ABOVE_ZERO}


@pytest.mark.parametrize(
    ("options", "fact"),
    [({"transform": "tuckey"}, 'no feature transform "tuckey"'), ({"shrinkage": "some"}, 'no shrinkage "some"')],
)
def test_names_that_are_none(options, fact):
    for make in (CalibrationOptions, CalibrationSpec):
        with pytest.raises(SpecError, match=fact):
            make(**options)
