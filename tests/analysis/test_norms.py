import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccvr.analysis.norms import lean, row_norms, spread
from ccvr.core.errors import AnalysisError

WEIGHT = torch.tensor([[3.0, 4.0], [0.0, -1.0], [5.0, 12.0]])


def test_norms_of_rows() -> None:
    found = row_norms(torch.nn.Parameter(WEIGHT))
    assert found.tolist() == [5, 1, 13]
    assert found.dtype == torch.float64
    assert not found.requires_grad


def test_spread_is_deviation_over_mean() -> None:
    mean = 19 / 3
    expected = math.sqrt(((5 - mean) ** 2 + (1 - mean) ** 2 + (13 - mean) ** 2) / 3) / mean
    assert spread(row_norms(WEIGHT)) == pytest.approx(expected)


@given(st.floats(0.01, 100))
def test_spread_does_not_depend_on_the_scale(scale: float) -> None:
    norms = row_norms(WEIGHT)
    assert spread(scale * norms) == pytest.approx(spread(norms))
    assert spread(torch.full((4,), scale, dtype=torch.float64)) == pytest.approx(0, abs=1e-12)


def test_lean_is_numpys_correlation() -> None:
    rng = np.random.default_rng(0)
    norms, counts = rng.random((3, 6)), rng.integers(0, 100, (3, 6))
    expected = [np.corrcoef(*rows)[0, 1] for rows in zip(norms, counts, strict=True)]
    assert lean(torch.tensor(norms), torch.tensor(counts)).tolist() == pytest.approx(expected)


def test_lean_of_known_cases() -> None:
    counts = torch.tensor([[0, 5, 10], [0, 5, 10], [7, 7, 7], [0, 5, 10]])
    norms = torch.tensor([[1.0, 1.5, 2.0], [2.0, 1.5, 1.0], [1.0, 2.0, 3.0], [1.5, 1.5, 1.5]])
    found = lean(norms, counts)
    assert found[:2].tolist() == pytest.approx([1, -1])
    assert found[2:].isnan().all(), "nothing to lean towards, or nothing that leans"


def test_other_shapes_are_refused() -> None:
    with pytest.raises(AnalysisError, match=r"shape \[3\]"):
        row_norms(torch.zeros(3))
    with pytest.raises(AnalysisError, match=r"\[2, 3\] and \[3, 2\]"):
        lean(torch.zeros(2, 3), torch.zeros(3, 2))
