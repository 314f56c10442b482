"""Statistics of before, whose scatter travels as a triangle: they are read, and what cannot be is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import read_header
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source
from ccvr.statistics.wire import BEFORE

FOLDER = Path(__file__).parent / "format_2"
KINDS = ["full", "pooled", "diagonal", "means", "kernel"]
PROJECTION = Projection(torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 2.0]).double(), 5, 0.5, 7)


def samples(kind: str) -> tuple[Tensor, Tensor]:
    """What the files are of."""
    z = torch.randn(30, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64).abs()
    z[:, 1] = 0
    return (z.clamp(max=1) if kind == "kernel" else z), torch.arange(30) % 3


def collected(kind: str, rows: Tensor) -> ClassStatistics:
    z, y = samples(kind)
    source = Source(model="abc", head="fc", taps=("conv",))
    if kind != "kernel":
        return statistics_of(z[rows], y[rows], 4, kind=kind, source=source)
    source = replace(source, projection=PROJECTION.digest)
    return statistics_of(z[rows], y[rows], 4, kind=kind, source=source, projection=PROJECTION)


def agree(found: ClassStatistics, expected: ClassStatistics, tolerance: float) -> None:
    for name in ("count", "clients", "withheld"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.second, expected.second, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_s_statistics_are_read(kind):
    found = ClassStatistics.from_bytes((FOLDER / f"{kind}.safetensors").read_bytes())
    few = (samples(kind)[1] < 2).nonzero().flatten()[:7]
    expected = collected(kind, few)
    agree(found, expected, 1e-6)
    agree(merge([found, expected]), expected + expected, 1e-6)
    assert found.projection == (PROJECTION if kind == "kernel" else None)
    agree(ClassStatistics.from_bytes(found.to_bytes()), expected, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_statistics_are_read(kind):
    found = ClassStatistics.from_bytes((FOLDER / f"{kind}-merged.safetensors").read_bytes())
    expected = merge(collected(kind, torch.arange(30) % 4 == k) for k in range(4))
    agree(found, expected, 1e-11)


def forged(kind: str, scatter: Tensor, **changes: object) -> bytes:
    blob = (FOLDER / f"{kind}.safetensors").read_bytes()
    header, _ = read_header(blob, format=BEFORE)
    return save(load(blob) | {"scatter": scatter}, {"ccvr": json.dumps(header | changes)})


def triangle(matrix: Tensor) -> Tensor:
    return matrix[*torch.triu_indices(5, 5)]


INDEFINITE = torch.tensor([[1.0, 2, 0, 0, 0], [2, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("kind", "scatter", "reason"),
    [
        ("full", torch.stack([triangle(torch.eye(5))] * 2), "of too many directions"),
        ("full", torch.stack([triangle(-torch.eye(5))] * 2), "indefinite"),
        ("full", torch.stack([triangle(INDEFINITE)] * 2), "indefinite"),
        ("pooled", triangle(INDEFINITE).unsqueeze(0), "indefinite"),
        ("diagonal", -torch.ones(2, 5), "indefinite"),
        ("full", torch.full((2, 15), torch.inf), "is not finite"),
        ("full", torch.full((2, 15), 1e30), "is as large as "),
        ("full", torch.zeros(2, 14), r"scatter of shape \[2, 14\]"),
        ("kernel", 5 * triangle(torch.eye(5)).unsqueeze(0), "the root mean square of a feature is"),
    ],
)
def test_scatters_that_no_samples_have_are_refused(kind, scatter, reason):
    with pytest.raises(StatisticsError, match=reason):
        ClassStatistics.from_bytes(forged(kind, scatter))


def test_the_new_format_is_not_taken_for_the_old_one():
    """One bit tells them apart, and the old one has no checksum."""
    blob = collected("diagonal", torch.arange(9)).to_bytes()
    with pytest.raises(StatisticsError, match="a checksum in a format without"):
        ClassStatistics.from_bytes(blob.replace(b"ccvr-statistics/3", b"ccvr-statistics/2"))
