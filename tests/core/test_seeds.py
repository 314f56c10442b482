import os
import subprocess
import sys

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from ccvr.core.seeds import derive_seed, stream

keys = st.tuples(
    st.integers(0, 2**64), st.text(max_size=8), st.integers(0, 10**6), st.integers(0, 10**6)
)  # seed, purpose, client, round


def derived(key: tuple[int, str, int, int]) -> int:
    seed, purpose, client, round = key
    return derive_seed(seed, purpose, client=client, round=round)


@given(keys, keys)
def test_keys_that_differ_anywhere_give_other_seeds(one: tuple, other: tuple) -> None:
    assume(one != other)
    assert derived(one) != derived(other)


@given(keys, st.integers(0, 3), st.integers(1, 9))
def test_a_change_of_one_part_gives_an_unrelated_stream(key: tuple, part: int, change: int) -> None:
    changed = list(key)
    changed[part] = key[part] + (str(change) if part == 1 else change)
    bits = derived(key) ^ derived(tuple(changed))
    assert 4 < bits.bit_count() < 59  # of 63; a fair coin leaves this range with probability 1e-13


@given(keys)
def test_a_seed_fits_what_torch_and_numpy_take(key: tuple) -> None:
    assert 0 <= derived(key) < 2**63


def test_a_stream_is_a_fresh_generator_each_time() -> None:
    first = stream(3, "batches", client=1, round=2)
    first.random(100)
    again = stream(3, "batches", client=1, round=2)
    assert np.array_equal(again.random(4), stream(3, "batches", client=1, round=2).random(4))
    assert not np.array_equal(stream(3, "batches", client=2, round=1).random(4), again.random(4))


def test_a_stream_does_not_touch_the_global_generator() -> None:
    np.random.seed(5)  # noqa: NPY002 - the global state is what is tested
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    stream(5, "batches").random(10)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_streams_are_the_same_in_every_process() -> None:
    script = (
        "from ccvr.core.seeds import derive_seed, stream\n"
        "print(derive_seed(7, 'cohorts', client=3, round=9), stream(7, 'cohorts', client=3, round=9).random())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "random")
    }
    here = f"{derive_seed(7, 'cohorts', client=3, round=9)} {stream(7, 'cohorts', client=3, round=9).random()}\n"
    assert printed == {here}


def test_seeds_stay_what_they_were_in_earlier_versions() -> None:
    assert derive_seed(0, "initialisation") == 1314427688519547074
    assert derive_seed(1, "batches", client=2, round=3) == 3781146422198590647
