"""A second collection that differs from an earlier one by few samples, and why that matters."""

import json
import os
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ccvr
from ccvr.core.errors import RunError, StatisticsError, UsageError

Y = torch.arange(60) % 3
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)) + Y.unsqueeze(1)
NEW_Y = torch.cat([Y, torch.full((20,), 1)])
NEW_X = torch.cat([X, torch.randn(20, 5, generator=torch.Generator().manual_seed(1))])


def model(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def collect(x: Tensor, y: Tensor, path: Path | None, *, size: int = 16, **options: object) -> ccvr.ClassStatistics:
    batches = list(zip(x.split(size), y.split(size), strict=True))
    return ccvr.collect(options.pop("model", model()), batches, num_classes=3, history=path, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "sent.json"


def test_collecting_with_a_history_finds_the_same(path: Path) -> None:
    own, other = collect(X, Y, path), collect(X, Y, None)
    assert own.to_bytes() == other.to_bytes()


@pytest.mark.parametrize(
    "options",
    [{}, {"size": 60}, {"size": 7}, {"kind": "pooled"}, {"transform": "tukey"}, {"taps": "auto"}, {"model": model(1)}],
    ids=["the same", "one batch", "small batches", "kind", "transform", "taps", "model"],
)
@pytest.mark.parametrize("order", [torch.arange(60), torch.randperm(60, generator=torch.Generator().manual_seed(2))])
def test_the_same_samples_again_are_no_warning(path: Path, options: dict[str, object], order: Tensor) -> None:
    collect(X, Y, path)
    before = path.read_bytes()
    collect(X[order], Y[order], path, **options)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("more", "warned"), [(1, True), (7, True), (8, False), (20, False)])
@pytest.mark.parametrize("first", ["few", "many"])
def test_a_few_samples_more_or_less(path: Path, more: int, warned: bool, first: str) -> None:
    parts = [(X, Y), (NEW_X[: 60 + more], NEW_Y[: 60 + more])]
    one, other = parts if first == "few" else reversed(parts)
    collect(*one, path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        collect(*other, path)
    assert [each.category for each in seen] == [ccvr.DifferencingWarning] * warned
    if warned:
        n, m = (20 + more, 20) if first == "few" else (20, 20 + more)
        assert str(seen[0].message).startswith(
            f"statistics of {n} samples of class 1 may differ from earlier ones of {m} by fewer than 8 samples: "
        )
        assert seen[0].filename == __file__, "it points at the caller"


def test_earlier_samples_sent_again_after_others_are_no_warning(path: Path) -> None:
    """The warning asks for this."""
    collect(X, Y, path)
    with pytest.warns(ccvr.DifferencingWarning):
        collect(X[:-1], Y[:-1], path)
    collect(X, Y, path)


def test_a_swapped_sample_is_a_warning(path: Path) -> None:
    collect(X, Y, path)
    with pytest.warns(ccvr.DifferencingWarning, match="20 samples of class 0 may differ from earlier ones of 20"):
        collect(torch.cat([NEW_X[60:61], X[1:]]), Y, path)


def test_a_swapped_label_is_a_warning_for_both_classes(path: Path) -> None:
    collect(X, Y, path)
    with pytest.warns(ccvr.DifferencingWarning, match="of class 0 .* and 1 more: who has both"):
        collect(X, torch.cat([torch.tensor([1]), Y[1:]]), path)


def test_a_model_that_is_nearly_the_same_does_not_hide_it(path: Path) -> None:
    """A server may change one weight by nothing that matters."""
    changed = model()
    with torch.no_grad():
        changed[0].weight[0, 0] += 1e-9
    collect(X, Y, path)
    with pytest.warns(ccvr.DifferencingWarning):
        collect(X[1:], Y[1:], path, model=changed)


def test_every_earlier_collection_counts(path: Path) -> None:
    collect(X, Y, path)
    collect(NEW_X, NEW_Y, path)
    with pytest.warns(ccvr.DifferencingWarning, match="of 21 samples of class 1 may differ from earlier ones of 20"):
        collect(NEW_X[:61], NEW_Y[:61], path)


def test_min_count_raises_the_bound(path: Path) -> None:
    collect(X, Y, path)
    with pytest.warns(ccvr.DifferencingWarning, match="fewer than 15 samples"):
        collect(NEW_X[:70], NEW_Y[:70], path, min_count=15)


def test_classes_that_are_withheld_were_not_sent(path: Path) -> None:
    few = torch.cat([torch.zeros(7, dtype=torch.int64), Y[Y > 0]])
    collect(torch.cat([X[:7], X[Y > 0]]), few, path)
    assert set(json.loads(path.read_text())["classes"]) == {"1", "2"}
    collect(X, Y, path)


def test_the_warning_as_an_error_sends_and_keeps_nothing(path: Path) -> None:
    collect(X, Y, path)
    before = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ccvr.DifferencingWarning)
        with pytest.raises(ccvr.DifferencingWarning):
            collect(X[1:], Y[1:], path)
    assert path.read_bytes() == before


def test_the_file_holds_counts_and_keyed_digests_alone(path: Path, tmp_path: Path) -> None:
    collect(X, Y, path)
    content = json.loads(path.read_text())
    assert set(content) == {"format", "key", "classes"}
    assert [[count for count, _ in pairs] for pairs in content["classes"].values()] == [[20], [20], [20]]
    collect(X, Y, tmp_path / "other.json")
    other = json.loads((tmp_path / "other.json").read_text())
    assert other["key"] != content["key"]
    assert other["classes"] != content["classes"], "who has no key cannot compare two files"
    assert not list(path.parent.glob(".*"))


def test_inputs_of_several_tensors_and_any_type(path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor, flag: Tensor) -> Tensor:
            return self.head(x.float() + flag.unsqueeze(1))

    def again(x: Tensor, flag: Tensor) -> ccvr.ClassStatistics:
        return ccvr.collect(Two(), [({"flag": flag, "x": x}, Y)], num_classes=3, history=path)

    again(X.bfloat16(), Y % 2 == 0)
    with pytest.warns(ccvr.DifferencingWarning):
        again(X.bfloat16(), Y % 2 == 1)


DAMAGED = {
    "empty": b"",
    "text": b"history",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "another format": b'{"format": "ccvr-sent/9", "key": "%s", "classes": {}}' % (b"0" * 64),
    "no key": b'{"format": "ccvr-sent/1", "classes": {}}',
    "a short key": b'{"format": "ccvr-sent/1", "key": "00", "classes": {}}',
    "a key of other letters": b'{"format": "ccvr-sent/1", "key": "zz", "classes": {}}',
    "classes of another type": b'{"format": "ccvr-sent/1", "key": "%s", "classes": [1]}' % (b"0" * 64),
    "pairs of another type": b'{"format": "ccvr-sent/1", "key": "%s", "classes": {"0": [[1, 2]]}}' % (b"0" * 64),
    "pairs of three": b'{"format": "ccvr-sent/1", "key": "%s", "classes": {"0": [[1, "00", 3]]}}' % (b"0" * 64),
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_line(path: Path, name: str) -> None:
    path.parent.mkdir()
    path.write_bytes(DAMAGED[name])
    with pytest.raises(StatisticsError) as caught:
        collect(X, Y, path)
    assert str(caught.value).startswith(f"the history {path} cannot be read (")
    assert str(caught.value).endswith("Restore it, or delete it and lose what it knows.")
    assert path.read_bytes() == DAMAGED[name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.mkfifo(path)], ids=["folder", "FIFO"])
def test_what_is_no_file_is_one_line(tmp_path: Path, make) -> None:
    make(tmp_path / "sent.json")
    with pytest.raises(StatisticsError, match="cannot be read"):
        collect(X, Y, tmp_path / "sent.json")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="give another history"):
        collect(X, Y, tmp_path / "file" / "sent.json")
    with pytest.raises(UsageError, match="history is 3; give the path of a file"):
        collect(X, Y, 3)


def test_threads_that_share_a_file_lose_nothing(path: Path) -> None:
    sizes = [60 + 3 * k for k in range(8)]
    x, y = NEW_X.repeat(2, 1), torch.cat([NEW_Y, NEW_Y])
    collect(x[:60], y[:60], path)

    def work(number: int) -> None:
        collect(x[:number], y[:number], path, model=model(number), min_count=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=work, args=(number,)) for number in sizes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = {count for count, _ in json.loads(path.read_text())["classes"]["1"]}
    assert found == {int((y[:number] == 1).sum()) for number in sizes}


# --- what docs/library.md says about it -------------------------------------------------------------------------------


def test_the_difference_of_two_collections_is_the_feature_of_the_new_sample() -> None:
    """n' mu' − n mu; where the head reads the pixels, that is the picture."""
    pixels = torch.randint(0, 256, (40, 64), generator=torch.Generator().manual_seed(3)) / 255
    labels = torch.arange(40) % 2
    shallow = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    before = ccvr.merge([ccvr.collect(shallow, [(pixels[:39], labels[:39])], num_classes=2).to_bytes()])
    after = ccvr.merge([ccvr.collect(shallow, [(pixels, labels)], num_classes=2).to_bytes()])
    feature = after.count[1] * after.mean[1] - before.count[1] * before.mean[1]
    assert torch.equal((feature * 255).round(), (pixels[39] * 255).double().round())


def test_of_fewer_samples_than_dimensions_membership_can_be_tested() -> None:
    """z − mu of a member lies in the span of the covariance; of anything else it does not."""
    rng = torch.Generator().manual_seed(4)
    z, others = torch.randn(8, 256, generator=rng), torch.randn(1000, 256, generator=rng)
    found = ccvr.ClassStatistics.from_bytes(ccvr.statistics_of(z, torch.zeros(8).long(), 1).to_bytes())
    values, vectors = torch.linalg.eigh(found.covariance(0))
    outside = vectors[:, values <= 1e-4 * values.max()]

    def distance(t: Tensor) -> Tensor:
        t = t.double() - found.mean[0]
        return (t @ outside).norm(dim=1) / t.norm(dim=1)

    assert outside.shape[1] == 256 - 7
    assert distance(z).max() < 1e-3
    assert distance(others).min() > 0.8
