"""What stands before a model: moments of pixels and of numbers, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ccvr.core.errors import ModelError
from ccvr.models.preprocess import PREPROCESSES, Normalize, channel_moments, fit_preprocess, preprocess_name


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), "pixels"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), "none"),
        (torch.zeros(2, 1, 4, 4), "none"),
        (torch.zeros(2, 5, dtype=torch.int64), "none"),
        ({"ids": torch.zeros(2, 5, dtype=torch.int64)}, "none"),
    ],
)
def test_auto_goes_by_the_inputs(inputs, name):
    assert preprocess_name("auto", inputs) == name
    assert isinstance(fit_preprocess("auto", inputs), Normalize if name == "pixels" else nn.Identity)


def test_standardized_numbers_have_mean_0_and_deviation_1():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0, 0.0]) + 7
    found = fit_preprocess("standardize", x)(x).double()
    assert found.mean(0).abs().max() < 1e-5
    assert (found.std(0, correction=0)[:2] - 1).abs().max() < 1e-5
    assert torch.equal(found[:, 2], torch.zeros(50).double()), "a number that never changes"


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("pixels", torch.zeros(2, 3), "preprocess is pixels, but inputs are float32 [2, 3]; give uint8 [N, C, H, W]."),
        (
            "standardize",
            torch.zeros(2, 3).long(),
            "preprocess is standardize, but inputs are int64 [2, 3]; give one float tensor.",
        ),
    ],
)
def test_inputs_that_do_not_suit(name, inputs, message):
    with pytest.raises(ModelError) as refused:
        fit_preprocess(name, inputs)
    assert str(refused.value) == message


def test_one_s_own_that_fails_is_one_line(monkeypatch):
    monkeypatch.setitem(PREPROCESSES._rows, "mine", lambda: nn.Identity())
    with pytest.raises(ModelError, match=r'^preprocess "mine" failed on float32 \[2, 3\] \(TypeError: .*\).$'):
        fit_preprocess("mine", torch.zeros(2, 3))


def test_one_s_own_must_be_a_module(monkeypatch):
    monkeypatch.setitem(PREPROCESSES._rows, "mine", lambda inputs: 3)
    with pytest.raises(ModelError, match=r'preprocess "mine" returned int; it must return a torch.nn.Module.'):
        fit_preprocess("mine", torch.zeros(2, 3))


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_channel_moments_are_numpy_s(n, channels, height, width, seed):
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.integers(0, 257, 2).tolist())
    pixels = rng.integers(low, max(high, low + 1), (n, channels, height, width)).astype(np.uint8)
    mean, std = channel_moments(torch.from_numpy(pixels))
    assert mean.dtype == std.dtype == torch.float64
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(std, np.maximum(scaled.std((0, 2, 3)), 1 / 255), rtol=0, atol=1e-13)


def test_channels_are_kept_apart():
    pixels = torch.tensor([0, 100, 255], dtype=torch.uint8).view(1, 3, 1, 1).repeat(5, 1, 4, 4)
    pixels[0, 1] = 200
    mean, std = channel_moments(pixels)
    np.testing.assert_allclose(mean, [0, 120 / 255, 1], atol=1e-14)
    np.testing.assert_allclose(std, [1 / 255, 40 / 255, 1 / 255], atol=1e-14)  # a constant channel: one level


def test_channel_moments_do_not_depend_on_the_number_of_threads():
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3000, 3, 16, 16), dtype=np.uint8))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(torch.stack(channel_moments(pixels)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
