"""The scores of a run's heads."""

import numpy as np
import pytest
import torch

from ccvr.experiment.calibrate import client_accuracy
from ccvr.models.scoring import ClassCounts


def test_client_accuracy_is_recall_under_the_clients_own_label_mix():
    counts = ClassCounts(torch.tensor([9, 5, 1]), torch.tensor([10, 10, 10]))
    mixes = np.array([[4, 0, 0], [1, 1, 2], [0, 0, 7]])
    per_client = [90.0, (0.9 + 0.5 + 2 * 0.1) / 4 * 100, 10.0]
    found = client_accuracy(counts, mixes)
    assert found["mean"] == pytest.approx(np.mean(per_client), abs=1e-4)
    assert found["worst"] == pytest.approx(10.0)
    assert found["p10"] == pytest.approx(np.percentile(per_client, 10), abs=1e-4)


def test_a_class_without_test_samples_is_left_out_of_the_mix():
    counts = ClassCounts(torch.tensor([5, 0]), torch.tensor([10, 0]))
    found = client_accuracy(counts, np.array([[1, 99], [0, 5]]))
    assert found == {"mean": 50.0, "worst": 50.0, "p10": 50.0}
