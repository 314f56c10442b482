"""Kinds of statistics: a user's own, with noise, travels and calibrates; what bytes name is never imported."""

import sys
from dataclasses import replace

import pytest
import torch

import ccvr
from ccvr.calibration.closed_forms import Lda
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import StatisticsError
from ccvr.experiment.pipeline import run
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.kinds import KINDS, Kind, find_kind, stands_for
from ccvr.statistics.moments import ClassStatistics
from tests.end_to_end.tiny import TINY

MODULE = """
import torch
from ccvr.statistics.kinds import Pooled

class Noisy(Pooled):
    description = "Pooled sums of bounded features, with noise."
    stands_for = "pooled"
    exact = False
    rng = torch.Generator().manual_seed(3)

    def prepare(self, z):
        return z * (2.0 / z.norm(dim=1, keepdim=True)).clamp(max=1)

    def finish(self, statistics):
        noise = torch.randn(statistics.second.shape, generator=self.rng, dtype=torch.float64)
        statistics.second.add_(5 * (noise + noise.T))
        statistics.count.sub_(4)
        return statistics

noisy = Noisy()
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
    one, two = (statistics_of(z[part], y[part], 3, kind=mine) for part in (slice(0, 30), slice(30, None)))
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
    noisy = statistics_of(z, y, 3, kind=mine)
    assert (noisy.count < 0).all()
    blob = noisy.to_bytes(dtype=torch.float64)
    found = ClassStatistics.from_bytes(blob, like=noisy)
    torch.testing.assert_close(found.second, noisy.second)
    torch.testing.assert_close(found.total, noisy.total)
    assert torch.equal(found.count, noisy.count)


def test_exact_statistics_with_such_numbers_are_refused(mine):
    noisy = statistics_of(*features(per_class=2), 3, kind=mine)
    header, tensors = tensors_from_bytes(noisy.to_bytes(), format="ccvr-statistics/2")
    header["kind"] = "pooled"
    forged = tensors_to_bytes(tensors, **header)
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


def test_a_run_asks_for_a_kind_of_the_users_own_once(mine, tmp_path):
    methods = (f"lda,kind={mine},shrinkage=fixed:0.9", f"lda,kind={mine},shrinkage=fixed:0.9,label=again")
    spec = replace(TINY, calibration=CalibrationSpec(methods=methods))
    accuracy = run(replace(spec, training=replace(TINY.training, rounds=1)), tmp_path / "run")["accuracy"]
    assert accuracy["lda"] == accuracy["again"]
