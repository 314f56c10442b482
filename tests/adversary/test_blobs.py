"""Hostile bytes are refused in a line, without foreign errors, and what passes moves a mean no further than stated.

Each attack is a process of its own, whose peak memory is a measure.
"""

import json
import subprocess
import sys

import pytest

from tests.adversary import blobs


@pytest.mark.parametrize(
    ("seed", "number"), [(1, 600), *(pytest.param(seed, 5000, marks=pytest.mark.slow) for seed in range(2, 7))]
)
def test_hostile_bytes_do_no_harm(seed, number):
    done = subprocess.run(
        [sys.executable, blobs.__file__, str(seed), str(number)], check=True, capture_output=True, timeout=1200
    )
    found = json.loads(done.stdout)
    assert found["foreign"] == []
    assert found["unprintable"] == []
    assert found["accepted"] >= number // 100, "else the attack never reached what is behind the checks"
    assert found["refused"] >= number // 2
    assert found["shift"] <= 1
    assert found["megabytes"] <= 200
    assert found["seconds"] <= 2
