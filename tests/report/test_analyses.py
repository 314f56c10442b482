"""Analyses that cannot be shown are named before anything is drawn."""

from typing import Any

import numpy as np
import pytest

from ccvr.core.arrays import arrays_to_bytes
from ccvr.core.errors import RunError
from ccvr.report.analyses import ABOUT, misfit
from ccvr.report.runs import RunFiles
from tests.report.conftest import MakeRun, analyses


def test_what_analyses_leave_fits() -> None:
    for name, found in analyses().items():
        assert misfit(name, found, 3) is None
    assert set(analyses()) == set(ABOUT)


@pytest.mark.parametrize(
    ("name", "arrays", "about", "fact"),
    [
        ("confusion", {"confusion": None}, {}, 'there is no array "confusion"'),
        ("confusion", {"confusion": np.ones((3, 3, 4), int)}, {}, "confusion is int64 [3, 3, 4], not H × C × C"),
        ("confusion", {"confusion": -np.ones((3, 3, 3), int)}, {}, "confusion has values from -1 to -1"),
        ("confusion", {}, {"heads": ["a", 1, "b"]}, "heads[1] is 1, not text"),
        ("norms", {"norms": np.ones((3, 3), "U1")}, {}, "norms is <U1 [3, 3], not numbers of the kind real"),
        ("norms", {"lean": np.ones(2)}, {}, "lean is float64 [2], not R"),
        ("norms", {"norms": np.full((3, 3), np.inf)}, {}, "norms has values that are not finite, or too large"),
        ("cka", {}, {"mean": [1.0]}, "mean is not a number for each of its layers"),
        ("cka", {"cka": np.ones((3, 2))}, {}, "cka is float64 [3, 2], not L × K × K"),
        ("cka", {}, {"clients": [0]}, "cka is float64 [3, 2, 2], not L × K × K"),
        ("separability", {"classes": np.array([0, 1, 3])}, {}, "classes has values from 0 to 3, not from 0 to 2"),
        ("separability", {}, {"gains": {"a": "b"}}, "gains['a'] is 'b', not a finite number"),
        ("tsne", {"points": np.full((50, 2), np.nan)}, {}, "points has values that are not finite, or too large"),
        ("tsne", {"truth": np.full(50, -1)}, {}, "truth has values from -1 to -1, not from 0 to 2"),
        ("inversion", {}, {"numbers": [1, 1]}, "numbers are not 1 to 16 different ones"),
        ("inversion", {}, {"class": 3}, "class is 3, and there are 3 classes"),
        ("inversion", {"originals_1": np.ones((2, 3, 4))}, {}, "originals_1 is float64 [2, 3, 4], not S_1"),
    ],
)
def test_what_does_not_fit_is_named(
    name: str, arrays: dict[str, Any], about: dict[str, Any], fact: str, make_run: MakeRun
) -> None:
    own, words = analyses()[name]
    changed = {key: value for key, value in {**own, **arrays}.items() if value is not None}
    found = misfit(name, (changed, {**words, **about}), 3)
    assert found is not None
    assert found.startswith(fact)
    if not any(array.dtype.kind == "U" for array in changed.values()):
        path = make_run()
        (path / "analysis" / f"{name}.safetensors").write_bytes(arrays_to_bytes(changed, {**words, **about}))
        with pytest.raises(RunError) as error:
            RunFiles.read(path)
        assert str(error.value).endswith("Delete it and run `ccvr analyze` again.")
        assert fact in str(error.value)


def test_arrays_of_other_names_are_not_read(make_run: MakeRun) -> None:
    path = make_run()
    (path / "analysis" / "other.safetensors").write_bytes(b"no arrays")
    assert set(RunFiles.read(path).analyses) == set(ABOUT)
