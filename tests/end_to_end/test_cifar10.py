"""The claim about the real CIFAR-10: `ccvr` gains at least five points after ten rounds at alpha 0.1."""

from dataclasses import replace

import pytest

from ccvr.experiment.pipeline import run
from ccvr.experiment.presets import PRESETS


@pytest.mark.slow
def test_ten_rounds_of_the_papers_preset(real_data, tmp_path):
    preset = PRESETS["cifar10-a0.1-fedavg"]
    spec = replace(
        preset,
        seed=0,
        data=replace(preset.data, root=real_data),
        training=replace(preset.training, rounds=10, evaluate_every=10),
    )
    accuracy = run(spec, tmp_path / "run")["accuracy"]
    assert accuracy["ccvr"] >= accuracy["uncalibrated"] + 5
