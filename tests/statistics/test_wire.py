"""Statistics as bytes: they come back, only what is there travels, and damage is told as such."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from ccvr.core.errors import StatisticsError
from ccvr.statistics.moments import ClassStatistics, statistics_of
from ccvr.statistics.wire import FORMAT, class_bytes, from_bytes, scatter, to_bytes

laws = settings(deadline=None)


@st.composite
def statistics(draw: st.DrawFn, num_classes: int = 6) -> ClassStatistics:
    d = draw(st.integers(1, 7))
    labels = torch.tensor(draw(st.lists(st.integers(0, num_classes - 1), max_size=40)), dtype=torch.int64)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    z = rng.uniform(-10, 10, (num_classes, d))[labels.numpy()] + rng.standard_normal((len(labels), d))
    return statistics_of(torch.from_numpy(z), labels, num_classes, transform="tukey:0.5", digest="abc")


def header_of(blob: bytes) -> dict[str, dict[str, object]]:
    """A safetensors header, read by its specification: 8 bytes little-endian length, then JSON."""
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length])


@laws
@given(statistics())
def test_float64_round_trip(sent):
    received = from_bytes(to_bytes(sent, dtype=torch.float64))
    assert (received.transform, received.digest) == ("tukey:0.5", "abc")
    assert torch.equal(received.count, sent.count)
    for name in ("total", "outer"):
        mine, theirs = getattr(sent, name), getattr(received, name)
        assert (mine - theirs).abs().max() <= 1e-12 * mine.abs().max()
    assert torch.equal(received.outer, received.outer.mT)
    # A second trip has nothing left to lose.
    again = from_bytes(to_bytes(received, dtype=torch.float64))
    assert (again.outer - received.outer).abs().max() <= 1e-12 * sent.outer.abs().max()


@laws
@given(statistics())
def test_float32_rounds_the_scatter_alone(sent):
    received = from_bytes(to_bytes(sent))
    assert torch.equal(received.count, sent.count)
    assert (received.total - sent.total).abs().max() <= 1e-12 * sent.total.abs().max()
    # The floor is what 100 times the rounding of Σ z zᵀ itself leaves.
    for mine, theirs, raw in zip(scatter(sent), scatter(received), sent.outer, strict=True):
        assert (mine - theirs).abs().max() <= 1e-6 * mine.abs().max() + 1e-13 * raw.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_merged_blobs_of_many_clients_equal_the_pooled_covariance(dtype, tolerance):
    rng = np.random.default_rng(11)
    y = torch.from_numpy(rng.integers(0, 4, 3000))
    z = rng.uniform(-30, 30, (4, 16))[y.numpy()] + rng.standard_normal((3000, 16)) @ rng.standard_normal((16, 16))
    owners = rng.integers(0, 200, 3000)  # about four samples of a class each, often one or none
    merged = ClassStatistics.zeros(4, 16)
    for k in rng.permutation(200):
        client = statistics_of(torch.from_numpy(z[owners == k]), y[owners == k], 4)
        merged.add_(from_bytes(to_bytes(client, dtype=dtype)))
    for label in range(4):
        rows = z[y.numpy() == label]
        pooled = np.cov(rows, rowvar=False)
        cov = scatter(merged)[label].numpy() / (len(rows) - 1)
        assert merged.count[label] == len(rows)
        assert np.abs(cov - pooled).max() <= tolerance * np.abs(pooled).max()


def test_raw_sums_in_float32_would_not_survive_the_trip():
    """Why the scatter travels and not Σ z zᵀ: the wrong way, written out, loses what the right way keeps."""
    rng = np.random.default_rng(0)
    z = torch.from_numpy(1000 + rng.standard_normal((500, 3)))
    sent = statistics_of(z, torch.zeros(500, dtype=torch.int64), 1)
    pooled = np.cov(z.numpy(), rowvar=False)
    total, outer = sent.total[0].float().double(), sent.outer[0].float().double()
    raw = outer - torch.outer(total, total) / 500
    assert np.abs(raw.numpy() / 499 - pooled).max() > 0.01
    assert np.abs(scatter(from_bytes(to_bytes(sent)))[0].numpy() / 499 - pooled).max() < 1e-6


@laws
@given(statistics())
def test_only_the_classes_that_are_there_travel(sent):
    blob = to_bytes(sent)
    tensors = {name: entry for name, entry in header_of(blob).items() if name != "__metadata__"}
    present = sent.count.nonzero().flatten().tolist()
    assert load(blob)["classes"].tolist() == present
    assert {entry["shape"][0] for entry in tensors.values()} == {len(present)}


@laws
@given(statistics())
def test_class_bytes_are_the_bytes_of_the_tensors(sent):
    blob = to_bytes(sent)
    spans = [entry["data_offsets"] for name, entry in header_of(blob).items() if name != "__metadata__"]
    in_header = sum(end - start for start, end in spans)
    (length,) = struct.unpack("<Q", blob[:8])
    assert in_header == len(blob) - 8 - length == class_bytes(sent.num_features) * int((sent.count > 0).sum())


def test_a_client_without_images_sends_a_header_only():
    received = from_bytes(to_bytes(ClassStatistics.zeros(4, 3, digest="abc")))
    assert (received.num_classes, received.num_features, received.digest) == (4, 3, "abc")
    assert not received.outer.any()


def test_a_class_with_one_sample_has_a_scatter_of_exact_zeros():
    z = torch.tensor([[0.1, 1 / 3, 1e5], [0.0, 0.0, 0.0]], dtype=torch.float64)
    one = statistics_of(z[:1], torch.tensor([1]), 3)
    assert not scatter(one).any()
    assert not load(to_bytes(one))["scatter"].any()
    noisy = ClassStatistics("none", "", one.count, one.total, one.outer + 1e-9)  # as after secure aggregation
    assert not scatter(noisy).any()


# --- damage ---------------------------------------------------------------------------------------------------------

SENT = statistics_of(torch.arange(27.0).view(9, 3) ** 2, torch.tensor([0, 0, 0, 1, 1, 1, 4, 4, 4]), 5, digest="abc")
BLOB = to_bytes(SENT)
TENSORS = load(BLOB)
METADATA = {"format": FORMAT, "transform": "none", "digest": "abc", "num_classes": 5, "num_features": 3}


def foreign(tensors: dict[str, torch.Tensor], metadata: dict[str, object]) -> bytes:
    return save(tensors, {"ccvr": json.dumps(metadata)})


def framed(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@laws
@given(st.integers(0, len(BLOB) - 1))
def test_truncated_bytes(length):
    with pytest.raises(StatisticsError, match=r"these bytes are not class statistics \(.*\)\.$"):
        from_bytes(BLOB[:length])


@laws
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff" * 64)
@example(struct.pack("<Q", 10**5) + b"[" * 10**5)
@example(struct.pack("<Q", 2**63) + b"{}")
def test_random_bytes(blob):
    with pytest.raises(StatisticsError, match="these bytes are not class statistics"):
        from_bytes(blob)


@laws
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
@example([1])
@example({"__metadata__": None})
@example({"__metadata__": "text"})
@example({"__metadata__": {}})
@example({"__metadata__": {"ccvr": FORMAT}})
@example({"__metadata__": {"ccvr": "[]"}})
@example({"__metadata__": {"ccvr": json.dumps({"format": FORMAT})}})
@example({"__metadata__": {"ccvr": json.dumps(METADATA)}})
def test_headers_of_other_files(header):
    with pytest.raises(StatisticsError, match="these bytes are not class statistics"):
        from_bytes(framed(header))


@laws
@given(st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_bytes_are_read_or_refused(changes):
    """A changed digit may pass as another digit; what must not happen is any other error, or numbers out of bounds."""
    altered = bytearray(BLOB)
    for position, value in changes:
        altered[position] = value
    try:
        received = from_bytes(bytes(altered))
    except StatisticsError:
        return
    assert (received.count >= 0).all()
    assert received.total.isfinite().all()


@pytest.mark.parametrize(
    ("tensors", "metadata", "reason"),
    [
        ({}, {"num_classes": "many"}, "invalid literal for int() with base 10: 'many'"),
        ({}, {"num_classes": 4}, "classes [0, 1, 4] of 4"),
        ({}, {"num_features": 2}, "3 classes of 2 features in shapes [[3], [3], [3, 3], [3, 6]]"),
        ({"classes": torch.tensor([0, 1, -1])}, {}, "classes [0, 1, -1] of 5"),
        ({"classes": torch.tensor([0, 1, 1])}, {}, "classes [0, 1, 1] of 5"),
        ({"classes": torch.tensor([0.0, 1.0, 4.0])}, {}, "numbers of the wrong type"),
        ({"mean": TENSORS["mean"].float()}, {}, "numbers of the wrong type"),
        ({"count": torch.tensor([3, 0, 3])}, {}, "a count below 1, or a number that is not finite"),
        ({"mean": TENSORS["mean"] * torch.nan}, {}, "a count below 1, or a number that is not finite"),
        ({"scatter": TENSORS["scatter"] * torch.inf}, {}, "a count below 1, or a number that is not finite"),
    ],
)
def test_what_no_client_of_ours_sends(tensors, metadata, reason):
    with pytest.raises(StatisticsError) as refused:
        from_bytes(foreign(TENSORS | tensors, METADATA | metadata))
    assert str(refused.value) == f"these bytes are not class statistics ({reason})."


def test_a_format_of_another_version():
    with pytest.raises(StatisticsError) as refused:
        from_bytes(foreign(TENSORS, METADATA | {"format": "ccvr-statistics/2"}))
    assert str(refused.value) == (
        "these bytes are not class statistics "
        "(the format is 'ccvr-statistics/2', this version reads 'ccvr-statistics/1')."
    )


@pytest.mark.parametrize("num_classes", [-1, 10**30, float("inf"), None, [5]])
def test_an_absurd_size_is_refused_in_one_line(num_classes):
    nothing = {name: tensor[:0] for name, tensor in TENSORS.items()}
    with pytest.raises(StatisticsError) as refused:
        from_bytes(foreign(nothing, METADATA | {"num_classes": num_classes}))
    assert "\n" not in str(refused.value)
