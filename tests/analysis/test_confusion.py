import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccvr.analysis.confusion import confusion, recall
from ccvr.core.errors import AnalysisError
from ccvr.models.scoring import count

samples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40)


@given(samples)
def test_every_sample_is_counted_where_it_belongs(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = (torch.tensor([pair[k] for pair in pairs], dtype=torch.int64) for k in (0, 1))
    found = confusion(predicted, labels, 4)
    for truth in range(4):
        for guess in range(4):
            assert found[truth, guess] == pairs.count((truth, guess))


@given(st.integers(0, 30), st.integers(0, 99), st.integers(0, 30))
def test_it_adds_up_to_the_counts_of_scoring(n: int, seed: int, cut: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, 4, generator=generator)
    labels = torch.randint(0, 3, (n,), generator=generator)  # nobody has class 3
    found, counts = confusion(scores, labels, 4), count(scores, labels)
    assert torch.equal(found.diagonal(), counts.correct)
    assert torch.equal(found.sum(1), counts.total)
    assert torch.equal(found.sum(0), torch.bincount(scores.argmax(1), minlength=4))
    assert recall(found) == counts.recall
    assert recall(found)[3] is None
    parts = confusion(scores[:cut], labels[:cut], 4) + confusion(scores[cut:], labels[cut:], 4)
    assert torch.equal(parts, found)


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([0, 4], [0, 1], "predictions run from 0 to 4"),
        ([0, 1], [-1, 1], "labels run from -1 to 1"),
        ([0, 1], [1], "shapes"),
    ],
)
def test_what_does_not_fit_is_refused(predicted: list[int], labels: list[int], message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        confusion(torch.tensor(predicted), torch.tensor(labels), 4)
