"""Collecting: eval mode and back, the global model's own features, nothing random, nothing learned on the way."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ccvr.core.errors import StatisticsError
from ccvr.data.batches import TrainingImages, epoch, in_order
from ccvr.data.images import LabelledImages
from ccvr.models.build import MODELS, ModelSpec, build_model
from ccvr.models.split import Normalize, SplitModel, split_model
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.collect import collect, features_of
from ccvr.statistics.moments import ClassStatistics, statistics_of

NONE = FeatureTransform()
TUKEY = FeatureTransform("tukey", 0.5)


def network() -> nn.Sequential:
    """Everything that train mode would change: batch normalisation and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 5)
        )


@pytest.fixture
def model() -> SplitModel:
    return split_model(network(), Normalize([0.5] * 3, [0.25] * 3), torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


@pytest.fixture
def images() -> LabelledImages:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (70, 3, 8, 8), dtype=np.uint8))
    return LabelledImages(pixels, torch.from_numpy(rng.choice([0, 1, 3], 70)))  # classes 2 and 4: nobody has them


def plain_features(images: LabelledImages) -> Tensor:
    """The features written plainly: a fresh copy of the network, the images normalised, no split."""
    body = network()[:-1].eval()
    with torch.no_grad():
        return body((images.images.double() / 255 - 0.5).div(0.25).float())


def close(left: ClassStatistics, right: ClassStatistics, rtol: float) -> bool:
    return torch.equal(left.count, right.count) and all(
        (a - b).abs().max() <= rtol * b.abs().max() for a, b in ((left.total, right.total), (left.outer, right.outer))
    )


@pytest.mark.parametrize("transform", [NONE, TUKEY], ids=str)
def test_statistics_are_those_of_the_transformed_features(model, images, transform):
    z = plain_features(images)
    expected = statistics_of(z if transform == NONE else z.clamp(min=0).sqrt(), images.labels, 5)
    found = collect(model, in_order(images), 5, transform=transform)
    assert close(found, expected, rtol=1e-5)
    assert found.transform == str(transform)
    assert found.count.tolist() == torch.bincount(images.labels, minlength=5).tolist()


def test_the_transform_is_the_caller_s_and_not_the_head_s(model, images):
    raw = collect(model, in_order(images), 5, transform=NONE)
    model.head.transform = TUKEY
    assert torch.equal(collect(model, in_order(images), 5, transform=NONE).outer, raw.outer)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_comes_back_as_it_was(model, images, training):
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    collect(model, in_order(images), 5, transform=NONE)
    assert model.training is training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # running moments of batch normalisation among them


def test_each_submodule_gets_its_own_mode_back(model, images):
    model.train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    modes = [module.training for module in model.modules()]
    collect(model, in_order(images), 5, transform=NONE)
    assert [module.training for module in model.modules()] == modes
    assert not frozen.training


def test_the_mode_comes_back_when_the_batches_break_off(model, images):
    def broken():
        yield next(in_order(images))
        raise OSError("disk gone")

    model.train()
    with pytest.raises(OSError, match="disk gone"):
        collect(model, broken(), 5, transform=NONE)
    assert model.training
    half = features_of(model, in_order(images, batch_size=10))
    next(half)
    half.close()
    assert model.training


def test_collecting_neither_tracks_gradients_nor_leaks_its_mode(model, images):
    for z, _ in features_of(model, in_order(images, batch_size=30)):
        assert not z.requires_grad
        assert torch.is_grad_enabled(), "the consumer's own work is not touched"


def test_features_are_the_same_each_time_and_draw_nothing(model, images):
    state = torch.random.get_rng_state()
    first, second = (collect(model, in_order(images), 5, transform=NONE) for _ in range(2))
    assert torch.equal(first.outer, second.outer)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_images_in_order_are_not_augmented(model, images):
    rng = np.random.default_rng(1)
    augmented = epoch(TrainingImages.prepare(images, augment=True), np.arange(70), 70, rng=rng)
    z = plain_features(images)
    expected = statistics_of(z, images.labels, 5)
    assert close(collect(model, in_order(images), 5, transform=NONE), expected, rtol=1e-5)
    assert not close(collect(model, augmented, 5, transform=NONE), expected, rtol=1e-2)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_batches_of_any_size_give_the_same_to_rounding(model, images, batch_size):
    whole = collect(model, in_order(images, batch_size=70), 5, transform=TUKEY)
    assert close(collect(model, in_order(images, batch_size=batch_size), 5, transform=TUKEY), whole, rtol=1e-6)


def test_clients_add_up_to_all_images(model, images):
    shards = np.array_split(np.random.default_rng(2).permutation(70), 9)
    clients = [collect(model, in_order(images, shard), 5, transform=NONE) for shard in shards]
    merged = sum(clients[1:], start=clients[0])
    assert close(merged, collect(model, in_order(images), 5, transform=NONE), rtol=1e-6)


def test_the_digest_is_the_backbone_s(model, images):
    found = collect(model, in_order(images), 5, transform=NONE)
    assert found.digest == model.digest()
    assert collect(model, in_order(images), 5, transform=NONE, digest="known").digest == "known"
    with torch.no_grad():
        model.head.weight.add_(1)
    assert collect(model, in_order(images), 5, transform=NONE).digest == found.digest
    with torch.no_grad():
        next(model.backbone.parameters()).view(-1)[0] += 1e-6
    local = collect(model, in_order(images), 5, transform=NONE)
    with pytest.raises(StatisticsError, match="statistics with digest"):
        found + local


def test_a_client_without_images(model, images):
    found = collect(model, in_order(images, np.empty(0, np.int64)), 5, transform=NONE)
    assert (found.num_classes, found.num_features, found.count.sum()) == (5, 144, 0)


def test_a_diverged_model_is_named(model, images):
    with torch.no_grad():
        next(model.backbone.parameters()).fill_(torch.nan)
    with pytest.raises(StatisticsError, match="not finite"):
        collect(model, in_order(images), 5, transform=NONE)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_the_table(name):
    model = build_model(ModelSpec(name), (3, 32, 32), 2, mean=[0.5] * 3, std=[0.25] * 3, seed=0)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8))
    labels = torch.tensor([0, 1, 1, 0, 1])
    found = collect(model, in_order(LabelledImages(pixels, labels)), 2, transform=NONE)
    with torch.no_grad():
        of_mean = model.head.score((found.total / found.count.unsqueeze(1)).float())
        scores = model.eval()(pixels)
    # The head is affine, so the score of a class's mean feature is the mean score of its images.
    expected = torch.stack([scores[labels == label].mean(0) for label in range(2)])
    torch.testing.assert_close(of_mean, expected, rtol=1e-4, atol=1e-5)
