import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccvr.core.errors import SpecError
from ccvr.models.transform import KINDS, FeatureTransform

powers = st.floats(0, 1, exclude_min=True)
numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1)


def by_hand(kind: str, power: float, z: float) -> float:
    if kind == "none":
        return z
    if kind == "tukey":
        return max(z, 0.0) ** power
    return math.copysign(abs(z) ** power, z) if z else 0.0


@given(st.sampled_from(KINDS), powers, numbers)
def test_the_formulas(kind: str, power: float, values: list[float]) -> None:
    z = torch.tensor(values, dtype=torch.float64)
    expected = torch.tensor([by_hand(kind, power, value) for value in values], dtype=torch.float64)
    assert torch.allclose(FeatureTransform(kind, power)(z), expected, rtol=1e-9, atol=0)
    assert z.tolist() == values


@given(st.sampled_from(KINDS[1:]), powers)
def test_the_text_form_is_exact(kind: str, power: float) -> None:
    transform = FeatureTransform(kind, power)
    assert FeatureTransform.parse(str(transform)) == transform


@pytest.mark.parametrize(
    ("text", "transform", "shown"),
    [
        ("none", FeatureTransform(), "none"),
        ("tukey", FeatureTransform("tukey", 0.5), "tukey:0.5"),
        ("tukey:0.5", FeatureTransform("tukey", 0.5), "tukey:0.5"),
        ("signed-tukey:1", FeatureTransform("signed-tukey", 1.0), "signed-tukey:1.0"),
        ("tukey:2.5e-1", FeatureTransform("tukey", 0.25), "tukey:0.25"),
    ],
)
def test_text_forms(text: str, transform: FeatureTransform, shown: str) -> None:
    assert FeatureTransform.parse(text) == transform
    assert str(transform) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tukee", 'no feature transform "tukee". Did you mean "tukey"? Known: none, signed-tukey, tukey.'),
        ("", 'no feature transform "". Known: none, signed-tukey, tukey.'),
        ("tukey:half", 'feature transform "tukey:half" has the power "half"; give a number: tukey:0.5.'),
        ("tukey:0", "the power of a feature transform is 0.0; give a number above 0, at most 1."),
        ("tukey:1.5", "the power of a feature transform is 1.5; give a number above 0, at most 1."),
        ("tukey:-1", "the power of a feature transform is -1.0; give a number above 0, at most 1."),
        ("tukey:nan", "the power of a feature transform is nan; give a number above 0, at most 1."),
    ],
)
def test_wrong_texts(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        FeatureTransform.parse(text)
    assert str(caught.value) == message
