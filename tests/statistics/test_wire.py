"""Statistics as bytes: they come back, only what is there travels, and what no client of ours sends is refused."""

import json
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import with_checksum
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.limits import MAX_COUNT
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source
from ccvr.statistics.wire import FORMAT, payload_bytes

laws = settings(deadline=None)
many = settings(deadline=None, max_examples=300)
SOURCE = Source(model="abc", head="fc", taps=("conv1", "conv2"), transform="signed-tukey:0.5")
PROJECTION = Projection(torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 2.0]).double(), 3, 0.5, 7)


@st.composite
def statistics(draw: st.DrawFn, kinds: tuple[str, ...] = ("full", "pooled", "diagonal", "means")) -> ClassStatistics:
    """Statistics of any kind, of features whose scales differ by orders of magnitude, with repeated samples."""
    num_classes, d = 6, draw(st.integers(1, 7))
    labels = torch.tensor(draw(st.lists(st.integers(0, num_classes - 1), max_size=40)), dtype=torch.int64)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** rng.uniform(-draw(st.integers(0, 6)), 2, d)
    z = rng.uniform(-10, 10, (num_classes, d))[labels.numpy()] + rng.standard_normal((len(labels), d))
    z = torch.from_numpy(np.round(z, draw(st.integers(0, 6))) * scale)  # coarse rounding makes equal samples
    return statistics_of(z, labels, num_classes, kind=draw(st.sampled_from(kinds)), source=SOURCE)


def header_of(blob: bytes) -> dict[str, dict[str, object]]:
    """A safetensors header, read by its specification: 8 bytes little-endian length, then JSON."""
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length])


def scatters(sent: ClassStatistics) -> list[torch.Tensor]:
    if not KINDS[sent.kind].by_class:
        return [sent.pooled_scatter()]
    return [sent.scatter(label) for label in range(sent.num_classes)]


@laws
@given(statistics())
def test_float64_round_trip(sent):
    received = ClassStatistics.from_bytes(sent.to_bytes(dtype=torch.float64))
    assert (received.kind, received.source) == (sent.kind, sent.source)
    for name in ("count", "clients", "withheld"):
        assert torch.equal(getattr(received, name), getattr(sent, name))
    for name in ("total", "second"):
        mine, theirs = getattr(sent, name), getattr(received, name)
        assert mine.shape == theirs.shape
        assert not mine.numel() or (mine - theirs).abs().max() <= 1e-12 * mine.abs().max()
    if KINDS[sent.kind].square and sent.second.numel():
        assert torch.equal(received.second, received.second.mT)


@many
@given(statistics())
def test_what_a_client_sends_is_accepted_and_loses_1e_6_at_most(sent):
    received = ClassStatistics.from_bytes(sent.to_bytes())
    assert torch.equal(received.count, sent.count)
    assert (received.total - sent.total).abs().max() <= 1e-12 * sent.total.abs().max()
    # The floor is what 100 times the rounding of Σ z zᵀ itself leaves.
    floor = 1e-13 * sent.second.abs().max() if sent.second.numel() else 0.0
    for mine, theirs in zip(scatters(sent), scatters(received), strict=True):
        assert (mine - theirs).abs().max() <= 1e-6 * mine.abs().max() + floor


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (None, 1e-6)])
def test_merged_blobs_of_many_clients_equal_the_pooled_covariance(dtype, tolerance):
    rng = np.random.default_rng(11)
    y = torch.from_numpy(rng.integers(0, 4, 3000))
    z = rng.uniform(-30, 30, (4, 16))[y.numpy()] + rng.standard_normal((3000, 16)) @ rng.standard_normal((16, 16))
    owners = rng.integers(0, 200, 3000)  # about four samples of a class each, often one or none
    clients = [statistics_of(torch.from_numpy(z[owners == k]), y[owners == k], 4) for k in rng.permutation(200)]
    merged = merge(client.to_bytes(dtype=dtype) for client in clients)
    for label in range(4):
        rows = z[y.numpy() == label]
        pooled = np.cov(rows, rowvar=False)
        assert merged.count[label] == len(rows)
        assert np.abs(merged.covariance(label).numpy() - pooled).max() <= tolerance * np.abs(pooled).max()


def test_raw_sums_in_float32_would_not_survive_the_trip():
    """Why the scatter travels and not Σ z zᵀ: the wrong way, written out, loses what the right way keeps."""
    rng = np.random.default_rng(0)
    z = torch.from_numpy(1000 + rng.standard_normal((500, 3)))
    sent = statistics_of(z, torch.zeros(500, dtype=torch.int64), 1)
    pooled = np.cov(z.numpy(), rowvar=False)
    total, outer = sent.total[0].float().double(), sent.second[0].float().double()
    raw = outer - torch.outer(total, total) / 500
    assert np.abs(raw.numpy() / 499 - pooled).max() > 0.01
    assert np.abs(ClassStatistics.from_bytes(sent.to_bytes()).covariance(0).numpy() - pooled).max() < 1e-6


def test_a_factor_in_float32_is_that_of_a_covariance_always():
    """Eight features carry all the spread of 2,000, from five samples: rounded to float32, W itself would be none."""
    z = np.zeros((5, 2000))
    z[:, :8] = np.random.default_rng(2).standard_normal((5, 8))
    sent = statistics_of(torch.from_numpy(z), torch.zeros(5, dtype=torch.int64), 1)
    assert load(sent.to_bytes())["factor"].dtype == torch.float32
    received = ClassStatistics.from_bytes(sent.to_bytes())
    assert torch.equal(received.count, sent.count)
    exact = sent.scatter(0)
    assert (received.scatter(0) - exact).abs().max() <= 1e-6 * exact.abs().max()


def test_features_below_what_float32_holds_travel_in_float64():
    z = 1e-40 * torch.randn(9, 3, dtype=torch.float64)
    sent = statistics_of(z, torch.zeros(9, dtype=torch.int64), 1)
    assert load(sent.to_bytes())["factor"].dtype == torch.float64
    exact = sent.scatter(0)
    assert (ClassStatistics.from_bytes(sent.to_bytes()).scatter(0) - exact).abs().max() <= 1e-12 * exact.abs().max()


@pytest.mark.parametrize("kind", ["full", "pooled"])
def test_features_that_hardly_vary_pass(kind):
    """What is left of them when the mean is taken away is mostly rounding, and indefinite."""
    rng = np.random.default_rng(3)
    labels = torch.arange(60) % 2
    base, scale = np.linspace(5, 9, 40), np.linspace(1e-5, 2e-5, 40)
    clients = [
        statistics_of(torch.from_numpy(base + rng.standard_normal((60, 1)) * scale), labels, 2, kind=kind)
        for _ in range(3)
    ]
    merged = merge(clients)
    scatter = scatters(merged)[0]
    assert torch.linalg.eigvalsh(scatter).min() < -1e-5 * scatter.trace() / 40, "else this shows nothing"
    received = ClassStatistics.from_bytes(merged.to_bytes())
    assert torch.equal(received.count, merged.count)
    assert torch.linalg.eigvalsh(scatters(received)[0]).min() > -1e-9 * scatter.trace() / 40


@laws
@given(statistics())
def test_only_what_is_there_travels_and_its_size_is_known(sent):
    blob = sent.to_bytes(dtype=torch.float32)
    entries = {name: entry for name, entry in header_of(blob).items() if name != "__metadata__"}
    present = sent.count.nonzero().flatten().tolist()
    assert load(blob)["classes"].tolist() == present
    payload = sum(end - start for start, end in (entry["data_offsets"] for entry in entries.values()))
    (length,) = struct.unpack("<Q", blob[:8])
    assert payload == len(blob) - 8 - length == sent.num_bytes
    assert sent.num_bytes == payload_bytes(sent.kind, sent.count, sent.num_features)
    assert length < 800


def test_sizes_of_the_kinds_at_paper_scale():
    """MobileNetV2 on CIFAR-100, all classes, and 2,000 random features: bytes that one client sends."""
    many = [2000] * 100
    sizes = {kind: payload_bytes(kind, many, 1280) for kind in ("full", "pooled", "diagonal", "means")}
    assert sizes == {"full": 328_961_600, "pooled": 4_304_960, "diagonal": 1_537_600, "means": 1_025_600}
    few = [25] * 100
    sizes = {kind: payload_bytes(kind, few, 1280) for kind in ("full", "pooled", "diagonal", "means")}
    assert sizes == {"full": 13_203_200, "pooled": 4_304_960, "diagonal": 1_537_600, "means": 1_025_600}
    assert payload_bytes("kernel", [200] * 10, 2000) == 8_164_160 - 4 * 10 * 11 // 2


def test_a_client_without_samples_sends_a_header_only():
    received = ClassStatistics.from_bytes(ClassStatistics.zeros(4, 3, source=SOURCE).to_bytes())
    assert (received.num_classes, received.num_features, received.source) == (4, 3, SOURCE)
    assert not received.second.any()


def test_a_class_with_one_sample_has_a_scatter_of_exact_zeros():
    one = statistics_of(torch.tensor([[0.1, 1 / 3, 1e5]]), torch.tensor([1]), 3)
    assert not one.scatter(1).any()
    assert not len(load(one.to_bytes())["factor"])


def test_equal_samples_have_no_scatter():
    z = torch.full((7, 5), 30.1, dtype=torch.float64)
    assert not statistics_of(z, torch.zeros(7, dtype=torch.int64), 1).scatter(0).any()


def test_merged_means_keep_the_spread_among_clients():
    rng = np.random.default_rng(3)
    parts = [
        statistics_of(torch.from_numpy(rng.standard_normal((4, 3)) + k), torch.tensor([0, 0, 1, 1]), 2, kind="means")
        for k in range(5)
    ]
    assert not len(load(parts[0].to_bytes())["factor"])
    merged = merge(part.to_bytes() for part in parts)
    again = ClassStatistics.from_bytes(merged.to_bytes(dtype=torch.float64))
    assert again.clients.tolist() == [5, 5]
    torch.testing.assert_close(again.second, merged.second, rtol=1e-12, atol=1e-12)
    assert merged.scatter(0).trace() > 1


def kernel_statistics() -> ClassStatistics:
    source = replace(SOURCE, projection=PROJECTION.digest)
    z = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).cos()
    return statistics_of(z, torch.arange(9) % 2, 2, kind="kernel", source=source, projection=PROJECTION)


def test_random_features_travel_with_their_statistics():
    received = ClassStatistics.from_bytes(kernel_statistics().to_bytes())
    assert received.projection is not None
    assert received.projection.digest == received.source.projection == PROJECTION.digest


# --- damage ---------------------------------------------------------------------------------------------------------

SENT = statistics_of(
    torch.arange(27.0).view(9, 3) ** 2, torch.tensor([0, 0, 0, 1, 1, 1, 4, 4, 4]), 5, source=Source(model="abc")
)
BLOB = SENT.to_bytes()
TENSORS = load(BLOB)
METADATA = json.loads(header_of(BLOB)["__metadata__"]["ccvr"])


def foreign(tensors: dict[str, torch.Tensor], metadata: dict[str, object]) -> bytes:
    """Bytes with a checksum of their own, as a hostile client would give them."""
    return with_checksum(tensors, **{name: value for name, value in metadata.items() if name != "checksum"})


def framed(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@many
@given(st.integers(0, len(BLOB) - 1))
def test_truncated_bytes(length):
    with pytest.raises(StatisticsError, match=r"these bytes are not class statistics \(.*\)\.$"):
        ClassStatistics.from_bytes(BLOB[:length])


def test_bytes_behind_the_end():
    with pytest.raises(StatisticsError, match="these bytes are not class statistics"):
        ClassStatistics.from_bytes(BLOB + b"x")


@many
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff" * 64)
@example(struct.pack("<Q", 10**5) + b"[" * 10**5)
@example(struct.pack("<Q", 2**63) + b"{}")
def test_random_bytes(blob):
    with pytest.raises(StatisticsError, match="these bytes are not class statistics"):
        ClassStatistics.from_bytes(blob)


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
        ClassStatistics.from_bytes(framed(header))


FIELDS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers())


@many
@given(st.sampled_from(sorted({*METADATA} - {"checksum"})), FIELDS)
def test_any_value_in_any_field_of_the_header_is_read_or_refused(name, value):
    try:
        received = ClassStatistics.from_bytes(foreign(TENSORS, METADATA | {name: value}))
    except StatisticsError:
        return
    assert received.count.sum() == 9


@many
@given(st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_bytes_are_refused(changes):
    altered = bytearray(BLOB)
    for position, value in changes:
        altered[position] = value
    if bytes(altered) == BLOB:
        return
    with pytest.raises(StatisticsError, match="these bytes are not class statistics"):
        ClassStatistics.from_bytes(bytes(altered))


def test_every_single_flipped_bit_is_refused():
    for position in range(8 * len(BLOB)):
        altered = bytearray(BLOB)
        altered[position // 8] ^= 1 << position % 8
        with pytest.raises(StatisticsError):
            ClassStatistics.from_bytes(bytes(altered))


REFUSED = {
    "classes beyond the last": ({}, {"num_classes": 4}, "classes [0, 1, 4] of 4: outside, twice or not in order"),
    "no number of classes": ({}, {"num_classes": "many"}, "many classes of 3 features"),
    "too many classes": ({}, {"num_classes": 10**9}, "1000000000 classes of 3 features"),
    "no classes": ({}, {"num_classes": 0}, "0 classes of 3 features"),
    "another width": ({}, {"num_features": 2}, "3 of 5 classes with mean of shape [3, 3]"),
    "too many features": ({}, {"num_features": 10**6}, "5 classes of 1000000 features"),
    "a truth for a number": ({}, {"num_classes": True}, "True classes of 3 features"),
    "another number": ({}, {"num_classes": 5.0}, "5.0 classes of 3 features"),
    "unknown kind": ({}, {"kind": "fuller"}, "unknown kind 'fuller'"),
    "another kind": ({}, {"kind": "pooled"}, "factors of 15 numbers, where the counts allow 6"),
    "unknown version": ({}, {"format": "ccvr-statistics/9"}, "the format is 'ccvr-statistics/9', this version reads"),
    "unknown transform": ({}, {"transform": "log"}, 'no feature transform "log"'),
    "taps that are none": ({}, {"taps": [1]}, "a source that is not text"),
    "negative withheld": ({}, {"withheld": -1}, "-1 samples withheld"),
    "negative class": ({"classes": torch.tensor([-1, 1, 4])}, {}, "classes [-1, 1, 4] of 5: outside"),
    "a class twice": ({"classes": torch.tensor([0, 1, 1])}, {}, "classes [0, 1, 1] of 5: outside, twice"),
    "classes out of order": ({"classes": torch.tensor([1, 0, 4])}, {}, "classes [1, 0, 4] of 5: outside, twice"),
    "classes as floats": ({"classes": torch.tensor([0.0, 1, 4])}, {}, "classes of type float32, not int64"),
    "means in float32": ({"mean": TENSORS["mean"].float()}, {}, "mean of type float32, not float64"),
    "factor in float16": ({"factor": TENSORS["factor"].half()}, {}, "factor of type float16, not float32 or"),
    "a count of 0": ({"count": torch.tensor([3, 0, 3])}, {}, "a count that cannot be"),
    "a negative count": ({"count": torch.tensor([3, -3, 3])}, {}, "a count that cannot be"),
    "an absurd count": ({"count": torch.tensor([3, 2**60, 3])}, {}, "more than 1,000,000,000 samples of a class from"),
    "a sample too many": ({"count": torch.tensor([3, 10**9 + 1, 3])}, {}, "more than 1,000,000,000 samples of a class"),
    "too many clients": (
        {"count": torch.tensor([3, 2**60, 3]), "clients": torch.tensor([1, 2**59, 1])},
        {},
        "a count that cannot be",
    ),
    "absurdly many withheld": ({}, {"withheld": 10**16}, "10000000000000000 samples withheld"),
    "more clients than samples": ({"clients": torch.tensor([4, 1, 1])}, {}, "a count that cannot be"),
    "a mean of NaN": ({"mean": TENSORS["mean"] * torch.nan}, {}, "a mean is not finite"),
    "an absurd mean": ({"mean": TENSORS["mean"] * 1e30}, {}, "a mean is as large as "),
    "an infinite factor": ({"factor": TENSORS["factor"] * torch.inf}, {}, "a factor is not finite"),
    "an absurd factor": ({"factor": TENSORS["factor"].double() * 1e30}, {}, "a factor is as large as "),
    "a large factor": ({"factor": TENSORS["factor"].double() * 1e6}, {}, "the root mean square of a feature is "),
    "more directions than samples": (
        {"factor": torch.eye(3)[None].expand(3, 3, 3).reshape(-1)},
        {},
        "factors of 27 numbers, where the counts allow 15",
    ),
    "spread of one sample": (
        {"count": torch.tensor([1, 3, 3])},
        {},
        "factors of 15 numbers, where the counts allow 10",
    ),
    "negative means of tukey": (
        {"mean": -TENSORS["mean"] - 1},
        {"transform": "tukey:0.5"},
        "a mean is -536, and no such feature is below 0",
    ),
    "a spread that tukey cannot have": (
        {"mean": TENSORS["mean"] * 1e-3},
        {"transform": "tukey:0.5"},
        "features that are not below 0 spread further than their sums allow",
    ),
    "a missing tensor": ({"count": None}, {}, "3 of 5 classes with count of shape None"),
    "a tensor too many": ({"extra": torch.zeros(3)}, {}, "3 of 5 classes with extra of shape [3]"),
    "a factor cut": ({"factor": TENSORS["factor"][:-1]}, {}, "factors of 14 numbers, where the counts allow 15"),
    "a factor of two axes": ({"factor": TENSORS["factor"][None]}, {}, "3 of 5 classes with factor of shape [1, 15]"),
    "a scatter for a factor": (
        {"factor": None, "scatter": torch.zeros(3, 6)},
        {},
        "3 of 5 classes with factor of shape None",
    ),
}


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal", "means"])
def test_sums_of_the_largest_clients_are_read(kind):
    """No client can say so much that the server does not read its own sum any more."""
    client = statistics_of(torch.eye(3).double().repeat(4, 1), torch.arange(12) % 4, 5, kind=kind, source=SOURCE)
    count = torch.where(client.count > 0, MAX_COUNT, 0)
    scale = count / client.count.clamp(min=1)
    by_class = scale.view(-1, *[1] * (client.second.dim() - 1)) if KINDS[kind].by_class else scale.max()
    sums = (client.total * scale.unsqueeze(1), client.second * by_class if kind != "means" else client.second[:0])
    withheld = torch.tensor(MAX_COUNT)
    largest = ClassStatistics.of_sums(kind, SOURCE, count, *sums, client.clients, withheld)
    largest = largest.with_rows_of_means() if kind == "means" else largest
    merged = merge([ClassStatistics.from_bytes(largest.to_bytes())] * 3)
    again = ClassStatistics.from_bytes(merged.to_bytes(dtype=torch.float64))
    assert again.count.tolist() == [3 * 10**9] * 4 + [0]
    assert int(again.withheld) == 3 * 10**9


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_client_of_ours_sends(case):
    tensors, metadata, reason = REFUSED[case]
    changed = {name: tensor for name, tensor in (TENSORS | tensors).items() if tensor is not None}
    with pytest.raises(StatisticsError) as refused:
        ClassStatistics.from_bytes(foreign(changed, METADATA | metadata))
    assert str(refused.value).startswith(f"these bytes are not class statistics ({reason}")
    assert "\n" not in str(refused.value)


SIZES = """
import resource, sys
import ccvr
from ccvr.statistics.merge import merge
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
blob = sys.stdin.buffer.read()
merged = ccvr.merge([blob, blob])
assert not merged.num_bytes
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["full", "pooled", "means", "diagonal"])
def test_a_small_blob_that_claims_much_takes_no_memory(kind):
    """In a process of its own, whose peak memory is the whole measure: 14 MB are the counts of 900,000 classes."""
    claims = METADATA | {"kind": kind, "num_classes": 900_000, "num_features": 90_000}
    nothing = {name: tensor[:0] for name, tensor in TENSORS.items()} | {"mean": torch.zeros(0, 90_000).double()}
    if kind == "diagonal":
        nothing.pop("factor")
    done = subprocess.run(
        [sys.executable, "-c", SIZES], input=foreign(nothing, claims), capture_output=True, timeout=120, check=True
    )
    assert int(done.stdout) < 60_000


KERNEL_BLOB = kernel_statistics().to_bytes()


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"projection_std": torch.tensor([1.0, 0.0]).double()}, {}),
        ({"projection_std": torch.tensor([1.0, torch.nan]).double()}, {}),
        ({"projection_mean": torch.tensor([1.0, 1e300]).double()}, {}),
        ({"projection_std": None}, {}),
        ({}, {"bandwidth": -1.0}),
        ({}, {"bandwidth": "wide"}),
        ({}, {"seed": -1}),
        ({}, {"seed": 1.5}),
    ],
)
def test_random_features_that_cannot_be(tensors, metadata):
    header = json.loads(header_of(KERNEL_BLOB)["__metadata__"]["ccvr"])
    changed = {name: tensor for name, tensor in (load(KERNEL_BLOB) | tensors).items() if tensor is not None}
    with pytest.raises(StatisticsError, match="these bytes are not class statistics"):
        ClassStatistics.from_bytes(foreign(changed, header | metadata))


BLOBS = {
    kind: statistics_of(torch.arange(27.0).view(9, 3) ** 2, torch.arange(9) % 3, 3, kind=kind).to_bytes()
    for kind in ("full", "pooled", "diagonal", "means")
} | {"kernel": KERNEL_BLOB}


@many
@given(st.sampled_from(sorted(BLOBS)), st.data())
def test_damage_to_any_kind_is_refused(kind, data):
    blob = bytearray(BLOBS[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        blob = blob[: data.draw(st.integers(0, len(blob)))]
    if bytes(blob) == BLOBS[kind]:
        return
    with pytest.raises(StatisticsError):
        ClassStatistics.from_bytes(bytes(blob))


def test_what_the_server_does_not_expect_is_refused_before_it_is_unpacked(monkeypatch):
    expected = ClassStatistics.zeros(5, 3, source=Source(model="abc"))
    ClassStatistics.from_bytes(BLOB, like=expected)
    monkeypatch.setattr(ClassStatistics, "zeros", None)
    with pytest.raises(StatisticsError, match="statistics with model 'abd' and 'abc' do not add up"):
        ClassStatistics.from_bytes(BLOB, like=replace(expected, source=Source(model="abd")))


def test_statistics_that_do_not_fit_into_memory_are_one_error(monkeypatch):
    def full(*arguments, **named):
        raise RuntimeError("not enough memory: you tried to allocate 999 bytes\nand more")

    monkeypatch.setattr(ClassStatistics, "zeros", full)
    with pytest.raises(StatisticsError, match=r"^these statistics do not fit into memory \(not enough .* bytes\)"):
        ClassStatistics.from_bytes(BLOB)
