import subprocess
import sys

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.primitives import CHUNK, KeyPair, add_mask, combine, derive, open_sealed, seal, split


@pytest.mark.parametrize("length", [0, 1, 7, CHUNK // 8, CHUNK // 8 + 1])
def test_a_mask_is_the_chacha20_stream_and_comes_off_again(length):
    """The oracle is another library's ChaCha20."""
    key, before = bytes(range(32)), np.arange(length, dtype=np.uint64)
    vector = before.copy()
    add_mask(vector, key)
    stream = ChaCha20.new(key=key, nonce=bytes(8)).encrypt(bytes(8 * length))
    assert np.array_equal(vector - before, np.frombuffer(stream, "<u8"))
    add_mask(vector, key, sign=-1)
    assert np.array_equal(vector, before)


def test_agreement_is_mutual_and_depends_on_salt_and_purpose():
    one, other = KeyPair(b"1" * 32), KeyPair(b"2" * 32)
    assert one.agree(other.public, b"s", b"p") == other.agree(one.public, b"s", b"p")
    keys = {one.agree(other.public, salt, purpose) for salt in (b"s", b"t") for purpose in (b"p", b"q")}
    assert len(keys) == 4
    assert len({derive(b"x" * 16, b"s", b"p"), derive(b"y" * 16, b"s", b"p")}) == 2
    with pytest.raises(SecureAggregationError, match="not one of X25519"):
        one.agree(b"short", b"", b"")


def test_what_was_sealed_opens_with_its_key_and_header_only():
    sealed = seal(b"k" * 32, b"message", b"header")
    assert open_sealed(b"k" * 32, sealed, b"header") == b"message"
    assert open_sealed(b"l" * 32, sealed, b"header") is None
    assert open_sealed(b"k" * 32, sealed, b"Header") is None
    assert open_sealed(b"k" * 32, sealed[:-1], b"header") is None
    assert open_sealed(b"k" * 32, b"", b"header") is None


def test_any_shares_of_the_threshold_give_the_secret_and_fewer_do_not():
    shares = list(enumerate(split(b"secret" + bytes(10), 5, 3), 1))
    for chosen in ([0, 1, 2], [4, 2, 0], [1, 3, 4]):
        assert combine([shares[place] for place in chosen]) == b"secret" + bytes(10)
    assert combine(shares[:2]) != b"secret" + bytes(10)


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_without_the_extra_one_line_says_what_to_install():
    found = run(
        "import sys; sys.modules['cryptography'] = None\n"
        "import ccvr\n"
        "try: ccvr.secure\n"
        "except ccvr.core.errors.CcvrError as error: print(type(error).__name__, error)"
    )
    assert found == (
        "SecureAggregationError secure aggregation needs cryptography and pycryptodome. "
        'Install them: pip install "ccvr[privacy]".\n'
    )


def test_the_rest_of_the_library_does_not_import_cryptography():
    assert (
        run(
            "import sys, ccvr\n"
            "ccvr.collect, ccvr.calibrate, ccvr.merge\n"
            "print(sorted({'cryptography', 'Crypto'} & set(sys.modules)))"
        )
        == "[]\n"
    )
