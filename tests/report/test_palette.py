"""Colours that can be told apart, also by those who do not see all of them."""

import itertools

import numpy as np
import pytest

from ccvr.core.arrays import Array
from ccvr.report.palette import COLOURS, pens

SEEN = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Linear RGB as it looks to readers without one kind of cones (Machado et al. 2009, severity 1)."""
LMS = [[0.4122215, 0.5363325, 0.0514460], [0.2119035, 0.6806995, 0.1073970], [0.0883025, 0.2817188, 0.6299787]]
LAB = [[0.2104543, 0.7936178, -0.0040720], [1.9779985, -2.4285922, 0.4505937], [0.0259040, 0.7827718, -0.8086758]]
"""OKLab (Ottosson 2020): distances are about as large as they look; black and white are 1 apart."""


def linear(colour: str) -> Array:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: str, seen: str) -> Array:
    return np.array(LAB) @ np.cbrt(np.array(LMS) @ np.clip(np.array(SEEN[seen]) @ linear(colour), 0, 1))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((float(linear(each) @ (0.2126, 0.7152, 0.0722)) for each in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_black_and_white_are_one_apart() -> None:
    assert np.linalg.norm(lab("#ffffff", "all") - lab("#000000", "all")) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("seen", SEEN)
def test_colours_stay_apart_for_every_reader(seen: str) -> None:
    assert len(COLOURS) == 10
    for one, other in itertools.combinations(COLOURS, 2):
        assert np.linalg.norm(lab(one, seen) - lab(other, seen)) > 0.11, (one, other)


@pytest.mark.parametrize("paper", ["#ffffff", "#15181c"])
def test_no_colour_drowns_in_the_page(paper: str) -> None:
    assert min(contrast(colour, paper) for colour in COLOURS) > 1.8


def test_pens_differ() -> None:
    some = list(itertools.islice(pens(), 100))
    assert len(set(some)) == 100
