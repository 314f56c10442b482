"""How kernels are cut for a processor."""

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.kernels.machine import FMA_IN_FLIGHT, Machine, is_installed, this_machine

AVX2, AVX512 = Machine("", 8, 16), Machine("", 16, 32)


@given(number=st.integers(1, 300), sums=st.integers(1, 11), machine=st.sampled_from([AVX2, AVX512]))
def test_what_is_worked_on_together_fits_into_the_registers(number, sums, machine):
    group = machine.at_once(number, sums)
    assert 1 <= group <= number
    assert group * sums <= machine.registers * 3 // 4 or group == 1


@pytest.mark.parametrize(
    ("machine", "number", "sums", "group"),
    [
        (AVX2, 6, 2, 6),  # the paper's first convolution: one group of all channels
        (AVX2, 16, 2, 4),  # its second: four whole groups, not three with a rest
        (AVX2, 7, 2, 4),
        (AVX512, 16, 2, 8),
        (AVX512, 6, 2, 6),
    ],
)
def test_groups_are_large_and_waste_little(machine, number, sums, group):
    assert machine.at_once(number, sums) == group
    assert group * sums >= FMA_IN_FLIGHT


def test_this_machine_is_known():
    machine = this_machine()
    assert machine.lanes in (4, 8, 16)
    assert machine.registers in (16, 32)
    assert machine is this_machine()


def test_the_extra_is_looked_for(monkeypatch):
    assert is_installed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not is_installed.__wrapped__()
