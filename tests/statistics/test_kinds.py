"""Kinds of statistics: a user's own, with noise, travels and calibrates; what bytes name is never imported."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import ccvr
from ccvr.calibration.closed_forms import Lda
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import StatisticsError
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.pipeline import run
from ccvr.experiment.setup import prepare
from ccvr.models.tensor_file import tensors_from_bytes, with_checksum
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.kinds import KINDS, Kind, find_kind, stands_for
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from tests.end_to_end.tiny import TINY

MODULE = """
import torch
from ccvr.statistics.kinds import Pooled

class Noisy(Pooled):
    description = "Pooled sums of bounded features, with noise."
    stands_for = "pooled"
    exact = False

    def __init__(self, scale):
        self.scale = scale

    def prepare(self, z):
        return z * (2.0 / z.norm(dim=1, keepdim=True)).clamp(max=1)

    def finish(self, statistics, *, rng):
        noise = torch.from_numpy(rng.standard_normal(statistics.second.shape))
        statistics.second.add_(self.scale * (noise + noise.T))
        statistics.count.sub_(4)
        return statistics

noisy = Noisy(5)
without_noise = Noisy(0)
function = print
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_kinds.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_kinds:noisy"
    sys.modules.pop("my_kinds", None)


def features(per_class=20):
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(3 * per_class) % 3
    return 3 * torch.randn(3, 4, generator=rng)[y] + torch.randn(len(y), 4, generator=rng), y


def test_a_noisy_kind_of_the_users_own(mine):
    z, y = features()
    rng = np.random.default_rng(3)
    one, two = (statistics_of(z[part], y[part], 3, kind=mine, rng=rng) for part in (slice(0, 30), slice(30, None)))
    exact = statistics_of(z * (2.0 / z.norm(dim=1, keepdim=True)).clamp(max=1), y, 3, kind="pooled")
    total = one + two
    torch.testing.assert_close(total.total, exact.total)
    assert total.count.tolist() == [12, 12, 12], "what finish made of it"
    assert not torch.equal(total.second, exact.second)
    assert stands_for(mine) == "pooled"
    head = ccvr.calibration.calibrator.fit_head(Lda(shrinkage="fixed:0.9"), None, total, seed=0)
    assert head.weight.isfinite().all()


def test_noisy_statistics_travel_though_no_samples_have_them(mine):
    z, y = features(per_class=2)
    noisy = statistics_of(z, y, 3, kind=mine, rng=np.random.default_rng(3))
    assert (noisy.count < 0).all()
    blob = noisy.to_bytes(dtype=torch.float64)
    found = ClassStatistics.from_bytes(blob, like=noisy)
    torch.testing.assert_close(found.second, noisy.second)
    torch.testing.assert_close(found.total, noisy.total)
    assert torch.equal(found.count, noisy.count)


def test_exact_statistics_with_such_numbers_are_refused(mine):
    noisy = statistics_of(*features(per_class=2), 3, kind=mine)
    header, tensors = tensors_from_bytes(noisy.to_bytes(), format="ccvr-statistics/3")
    del header["checksum"]
    factor = {"factor": torch.zeros(0)}
    forged = with_checksum({**tensors, **factor}, **(header | {"kind": "diagonal"}))
    with pytest.raises(StatisticsError, match="3 of 3 classes with scatter of shape"):
        ClassStatistics.from_bytes(forged)
    tensors.pop("scatter")
    forged = with_checksum(tensors | factor, **(header | {"kind": "pooled"}))
    with pytest.raises(StatisticsError, match="a count that cannot be"):
        ClassStatistics.from_bytes(forged)


def test_what_bytes_name_is_not_imported(mine):
    blob = statistics_of(*features(), 3, kind=mine).to_bytes()
    sys.modules.pop("my_kinds")
    with pytest.raises(StatisticsError, match="unknown kind 'my_kinds:noisy'"):
        ClassStatistics.from_bytes(blob)
    assert "my_kinds" not in sys.modules


def test_what_is_no_kind(mine):
    for name, message in {
        "ful": 'no kind of statistics "ful". Did you mean "full"?',
        "my_kinds:function": "no Kind",
    }.items():
        with pytest.raises(StatisticsError) as refused:
            find_kind(name)
        assert message in str(refused.value)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_says_what_it_is(name):
    assert isinstance(KINDS[name], Kind)
    assert KINDS[name].description.endswith(".")


def test_a_kind_goes_by_its_name():
    with pytest.raises(StatisticsError, match=r"is a Kind; give its name, your own as package.module:name"):
        statistics_of(*features(), 3, kind=Kind())


def test_the_noise_is_the_generators(mine):
    """Equal seeds give equal noise. Without a generator no two clients, and no two answers of one, have the same."""
    seconds = [statistics_of(*features(), 3, kind=mine, rng=np.random.default_rng(seed)).second for seed in (5, 5, 6)]
    assert torch.equal(seconds[0], seconds[1])
    assert not torch.equal(seconds[0], seconds[2])
    model = torch.nn.Linear(4, 3)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    found = [ccvr.collect(model, [features()], num_classes=3, kind=mine).second]
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    found.append(ccvr.collect(model, [features()], num_classes=3, kind=mine).second)
    assert not torch.equal(*found)
    again = [ccvr.collect(model, [features()], num_classes=3, kind=mine, rng=np.random.default_rng(5)) for _ in "12"]
    assert torch.equal(again[0].second, again[1].second)


def noise_of(spec, request):
    """What each client of a run adds to its sums."""
    engine = LocalEngine(prepare(spec))
    model, exact = engine.setup.fresh_model(), replace(request, kind="my_kinds:without_noise")
    both = (engine.statistics(model, each) for each in (request, exact))
    return torch.stack([noisy.second - plain.second for noisy, plain in zip(*both, strict=True)])


def test_a_run_repeats_its_noise(mine):
    """The same bits again; other noise for another client, another seed and another request."""
    noise = noise_of(TINY, Request(kind=mine))
    assert torch.equal(noise, noise_of(TINY, Request(kind=mine)))
    others = [noise.roll(1, 0), noise_of(replace(TINY, seed=TINY.seed + 1), Request(kind=mine))]
    others += [noise_of(TINY, Request(kind=mine, min_count=1))]
    for other in others:
        assert ((noise - other).abs().mean((1, 2)) > 5).all()


def test_a_run_asks_for_a_kind_of_the_users_own_once(mine, tmp_path):
    methods = (f"lda,kind={mine},shrinkage=fixed:0.9", f"lda,kind={mine},shrinkage=fixed:0.9,label=again")
    spec = replace(TINY, calibration=CalibrationSpec(methods=methods))
    accuracy = run(replace(spec, training=replace(TINY.training, rounds=1)), tmp_path / "run")["accuracy"]
    assert accuracy["lda"] == accuracy["again"]
