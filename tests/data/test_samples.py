"""Samples and data sets: what is refused, and in which words."""

import pytest
import torch

from ccvr.core.errors import DataError
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.samples import Dataset, Samples


def images(n: int = 4, shape: tuple[int, int, int] = (1, 2, 3), labels: list[int] | None = None) -> Samples:
    return Samples(
        torch.zeros(n, *shape, dtype=torch.uint8), torch.tensor(labels if labels is not None else [0] * n).long()
    )


def message_of(call) -> str:
    with pytest.raises(DataError) as refused:
        call()
    return str(refused.value)


def test_samples():
    some = images(4, (3, 5, 7))
    assert (len(some), some.first(2).shape) == (4, (2, 3, 5, 7))
    several = Samples({"ids": torch.arange(6).view(3, 2), "mask": torch.ones(3, 2)}, torch.zeros(3).long())
    assert (len(several), several.first(1)["ids"].tolist()) == (3, [[0, 1]])


LABELS = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.zeros(2, 3), LABELS.int(), "labels are torch.int32 of shape [2]; give int64 of shape [N]."),
        (torch.zeros(2, 3), LABELS.view(2, 1), "labels are torch.int64 of shape [2, 1]; give int64 of shape [N]."),
        (torch.zeros(3, 4), LABELS, "inputs are float32 [3, 4] for 2 labels; give tensors with one row a label."),
        (torch.tensor(1.0), LABELS, "inputs are float32 [] for 2 labels; give tensors with one row a label."),
        (torch.zeros(2, 3).numpy(), LABELS, "inputs or labels are a ndarray; give torch tensors."),
        (torch.zeros(2, 3), [0, 0], "inputs or labels are a list; give torch tensors."),
        (None, LABELS, "inputs or labels are a NoneType; give torch tensors."),
        ({"": torch.zeros(2, 3)}, LABELS, "inputs are named ['']; give each a name."),
        ({3: torch.zeros(2, 3)}, LABELS, "inputs are named [3]; give each a name."),
        ({}, LABELS, "inputs are none for 2 labels; give tensors with one row a label."),
        (
            {"ids": torch.zeros(2, 3), "mask": torch.zeros(3, 3)},
            LABELS,
            "inputs are ids: float32 [2, 3], mask: float32 [3, 3] for 2 labels; give tensors with one row a label.",
        ),
    ],
)
def test_samples_that_are_none(inputs, labels, message):
    assert message_of(lambda: Samples(inputs, labels)) == message


def test_a_dataset():
    dataset = Dataset(images(4, labels=[0, 1, 1, 0]), images(2, labels=[1, 1]), ("cat", "dog", "nobody"))
    assert (dataset.num_classes, dataset.augment, dataset.preprocess) == (3, False, "auto")


class Flipped:
    def prepare(self, inputs):
        return inputs

    def batch(self, prepared, indices, *, rng):
        return prepared[indices].flip(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocess": torch.nn.Identity()}, "preprocess is a Identity; give a name, or package.module:name."),
        ({"augment": "flip"}, "augment is a str; give a bool, or an object with prepare and batch."),
    ],
)
def test_options_that_are_none(options, message):
    assert message_of(lambda: Dataset(images(), images(), ("cat",), **options)) == message


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_none(number):
    good, bad = (Samples(torch.tensor([[1.0], [value]]), LABELS) for value in (2.0, number))
    assert message_of(lambda: Dataset(good, bad, ("cat",))) == (
        "some test inputs are not finite. Remove those samples, or fill in what is missing."
    )


@pytest.mark.parametrize(
    ("augment", "wanted", "found"),
    [
        (False, None, type(None)),
        (False, True, ShiftAndMirror),
        (True, None, ShiftAndMirror),
        (True, False, type(None)),
        (Flipped(), None, Flipped),
        (Flipped(), True, Flipped),
        (Flipped(), False, type(None)),
    ],
)
def test_a_spec_decides_over_the_data_set_s_augmentation(augment, wanted, found):
    dataset = Dataset(images(), images(), ("cat",), augment=augment)
    assert type(dataset.augmentation(wanted)) is found


def test_the_digest_sees_names_numbers_shapes_and_labels():
    def digest(inputs, labels=(0, 1), names=("cat", "dog")):
        part = Samples(inputs, torch.tensor(labels))
        return Dataset(part, part, names).digest()

    x = torch.arange(4.0)
    different = [
        digest(x.view(2, 2)),
        digest(x.view(2, 2).bfloat16()),
        digest(x.view(2, 2, 1)),
        digest(x.view(2, 2) + 1),
        digest({"x": x.view(2, 2)}),
        digest({"y": x.view(2, 2)}),
        digest(x.view(2, 2), labels=(1, 0)),
        digest(x.view(2, 2), names=("cat", "cow")),
    ]
    assert len(set(different)) == len(different)
    assert digest(x.view(2, 2)) == different[0]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (images(0), images(), "the train part has no samples."),
        (images(), images(0), "the test part has no samples."),
        (
            images(),
            images(2, (3, 2, 3)),
            "train inputs are uint8 [1, 1, 2, 3], test inputs uint8 [1, 3, 2, 3] a sample; they must agree.",
        ),
        (
            images(2, labels=[0, 2]),
            images(),
            "the train labels run from 0 to 2, but there are 2 classes (0 to 1). "
            "The file is not this data set, or its labels are damaged.",
        ),
        (
            images(),
            images(2, labels=[-1, 0]),
            "the test labels run from -1 to 0, but there are 2 classes (0 to 1). "
            "The file is not this data set, or its labels are damaged.",
        ),
    ],
)
def test_datasets_that_are_none(train, test, message):
    assert message_of(lambda: Dataset(train, test, ("cat", "dog"))) == message
