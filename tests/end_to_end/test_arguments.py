"""Arguments that cannot be: one line of ours for each, at every public function of the library."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import ccvr


def network(width: int = 6) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 4))


MODEL = network()
Y = torch.arange(40) % 4
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
BATCHES = [(X, Y)]
TOTAL = ccvr.collect(MODEL, BATCHES, num_classes=4)
COUNTS = {"uncalibrated": ccvr.ClassCounts(torch.tensor([2, 5]), torch.tensor([9, 9]))}
NAN = math.nan
ANYTHING = (None, "text", b"bytes", 3, 2.5, NAN, [], {}, object(), X)
COUNTS_THAT_CANNOT_BE = (NAN, math.inf, -5, -1, 2.5, 8.0, True, None, "8", 10**12, X)
SEEDS = (NAN, 2.5, "7", None, -1, 2**80, X)

WRONG: dict[str, tuple[Callable[..., object], dict[str, object], dict[str, tuple[object, ...]]]] = {
    "collect": (
        ccvr.collect,
        {"model": MODEL, "batches": BATCHES, "num_classes": 4},
        {
            "model": (*ANYTHING, nn.Linear, network().to("meta"), network(5)),
            "batches": (
                *(None, "text", 3, [], iter([]), [None], [(X,)], [X], [(X, Y), (X, Y, Y)], object()),
                *([(X.to("meta"), Y)], [(X, Y.to("meta"))], [(X[:3], Y)], [(X, Y.float())], [(X, Y + 1)], [(X, Y - 1)]),
                *([(X * NAN, Y)], [({}, Y)], [({"x": 3}, Y)], [(X, Y), (X[:, :5], Y)]),
            ),
            "num_classes": (0, -1, NAN, 4.0, "4", None, True, 10**12),
            "kind": (3, None, "", "ful", "kernel", b"full", X),
            "transform": (3, None, "tuk", "tukey:9", "tukey:nan", X),
            "head": (3, "nowhere", "1", X),
            "taps": (3, "nowhere", ["nowhere"], [3], "2", X),
            "min_count": COUNTS_THAT_CANNOT_BE,
            "projection": (3, "text", X, TOTAL),
            "rng": (3, "text", torch.Generator()),
        },
    ),
    "statistics_of": (
        ccvr.statistics_of,
        {"z": X, "y": Y},
        {
            "z": (None, [[1.0]], X.numpy(), X[0], X[:3], X * NAN, X.to("meta"), "text"),
            "y": (None, [1], Y.numpy(), Y[:3], Y.float(), Y - 1, Y.to("meta"), Y.view(4, 10), "text"),
            "num_classes": (0, -1, NAN, 3, 4.0, "4", 10**12),
            "kind": (3, None, "ful"),
            "model": (3, "text"),
            "min_count": COUNTS_THAT_CANNOT_BE,
        },
    ),
    "random_features": (
        ccvr.random_features,
        {"first": TOTAL},
        {
            "first": ANYTHING,
            "num_features": (0, -1, NAN, 2.5, "5", None, True, 10**15),
            "bandwidth": (0, -1, NAN, math.inf, "5", None, X),
            "seed": SEEDS,
        },
    ),
    "merge": (ccvr.merge, {"parts": [TOTAL]}, {"parts": ([], [None], ["text"], [b""], [X])}),
    "calibrate": (
        ccvr.calibrate,
        {"model": MODEL, "statistics": TOTAL},
        {
            "model": (*ANYTHING, nn.Linear, network().to("meta"), network(5), nn.Linear(6, 4)),
            "statistics": ANYTHING,
            "method": (3, "ccv", b"ccvr", "ccvr,num_virtual=nan", "lda,min_count=-1", "ccvr,epochs", "oracle", X),
            "seed": SEEDS[:4],
        },
    ),
    "forecast": (
        ccvr.forecast,
        {"model": MODEL, "statistics": TOTAL, "method": "lda"},
        {
            "model": ANYTHING,
            "statistics": ANYTHING,
            "num_draws": (0, -1, NAN, 2.5, "5", None, 10**15),
            "seed": SEEDS[:4],
        },
    ),
    "select": (
        ccvr.select,
        {"candidates": {"uncalibrated": 1}, "counts": [COUNTS]},
        {
            "candidates": (None, 3, [], {}, "text"),
            "counts": (None, 3, [], [None], [{}], [{"uncalibrated": 3}], ["text"]),
            "original": ("nobody", 3),
        },
    ),
    "personalise": (
        ccvr.personalise,
        {"model": MODEL, "counts": [1, 2, 3, 4]},
        {
            "model": (*ANYTHING, network().to("meta")),
            "counts": (None, "text", [], [1, 2], [NAN] * 4, [-1] * 4, [0.5] * 4, torch.zeros(4, device="meta"), {}),
            "prior": (None, "text", [1, 2], [0] * 4),
            "smoothing": (0, -1, NAN, "1", None),
            "head": ("nowhere", "0", 3),
        },
    ),
    "score": (
        ccvr.score,
        {"model": MODEL, "batches": BATCHES, "num_classes": 4},
        {
            "model": (*ANYTHING, network(5)),
            "batches": (None, 3, [None], [(X,)], [(X, Y + 1)]),
            "num_classes": (0, 5, "4"),
        },
    ),
}
CASES = [
    pytest.param(door, name, value, id=f"{door}-{name}-{number}")
    for door, (_, _, wrong) in WRONG.items()
    for name, values in wrong.items()
    for number, value in enumerate(values)
]


@pytest.mark.parametrize(("door", "name", "value"), CASES)
def test_an_argument_that_cannot_be_is_one_line(door: str, name: str, value: object) -> None:
    function, arguments, _ = WRONG[door]
    with pytest.raises(ccvr.CcvrError) as caught:
        function(**{**arguments, name: value})
    said = str(caught.value)
    assert said.isprintable()
    assert 20 < len(said) < 700


def test_errors_are_exported() -> None:
    """What users catch has a public name."""
    assert ccvr.CcvrError is ccvr.errors.CcvrError
    with pytest.raises(ccvr.errors.StatisticsError):
        ccvr.merge([])
