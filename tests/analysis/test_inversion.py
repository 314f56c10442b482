from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from ccvr.analysis.inversion import Descent, Inversion, invert, total_variation
from ccvr.analysis.mean_inversion import invert_means
from ccvr.analysis.similarity import ssim
from ccvr.core.errors import AnalysisError
from ccvr.models.heads import LinearHead
from ccvr.models.preprocess import Normalize
from ccvr.models.split import SplitModel

SHAPE = (2, 12, 12)
DIMENSIONS = 2 * 12 * 12
EXACT = Descent(steps=300, lr=0.1, weights=(0.0,))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear_model() -> SplitModel:
    """A rotation of all pixels: what it gives says everything."""
    rotation = torch.linalg.qr(torch.randn(DIMENSIONS, DIMENSIONS, generator=rng(1))).Q
    linear = nn.Linear(DIMENSIONS, DIMENSIONS, bias=False)
    linear.weight.data.copy_(rotation)
    head = LinearHead(torch.zeros(3, DIMENSIONS), None)
    return SplitModel(Normalize([0.4, 0.6], [0.2, 0.3]), nn.Sequential(nn.Flatten(), nn.Dropout(0.5), linear), head)


def pictures(n: int) -> Tensor:
    """Smooth pictures, each with patterns of its own, black and white among them."""
    coarse = torch.rand(n, 2, 4, 4, generator=rng(2))
    fine = nn.functional.interpolate(coarse, size=(12, 12), mode="bilinear")
    return ((fine - 0.5) * 500 + 127).clamp(0, 255).to(torch.uint8)


def features(model: SplitModel, images: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model.features(images)


def test_an_invertible_backbone_gives_the_pictures_away() -> None:
    model, images = linear_model(), pictures(3)
    found = invert(model, features(model, images), SHAPE, rng=rng(), descent=EXACT)
    assert found.images.dtype == torch.uint8
    assert (ssim(found.images, images) > 0.99).all()
    error = (found.images.double() - images.double()).square().mean((1, 2, 3))
    assert (error < 20).all(), "a signal-to-noise ratio above 35 dB"
    assert (found.error < 1e-3).all()


def test_pictures_are_sought_each_by_itself_from_a_seeded_start() -> None:
    model, images = linear_model(), pictures(3)
    z, short = features(model, images), Descent(steps=5)
    together = invert(model, z, SHAPE, rng=rng(), descent=short).images
    assert torch.equal(together, invert(model, z, SHAPE, rng=rng(), descent=short).images)
    assert not torch.equal(together, invert(model, z, SHAPE, rng=rng(9), descent=short).images)
    other = torch.cat([z[:1], 3 * z[1:]])  # the others' loss is no matter
    apart = invert(model, other, SHAPE, rng=rng(), descent=short).images
    assert (together[0].int() - apart[0].int()).abs().max() <= 1
    assert not torch.equal(together[1], apart[1])


def test_no_pixel_leaves_its_bounds() -> None:
    model = linear_model()
    z = 20 * features(model, pictures(2))
    found = invert(model, z, SHAPE, rng=rng(), descent=EXACT)
    extreme = ((found.images == 0) | (found.images == 255)).double().mean()
    assert extreme > 0.8
    error = (features(model, found.images) - z).square().sum(1) / z.square().sum(1)
    assert torch.allclose(error, found.error, rtol=1e-2)  # it is that of valid pixels


def test_the_prior_smooths() -> None:
    model, images = linear_model(), pictures(2)
    z = features(model, images)
    rough = invert(model, z, SHAPE, rng=rng(), descent=EXACT).images
    smooth = invert(model, z, SHAPE, rng=rng(), descent=replace(EXACT, weights=(3.0,))).images
    assert (total_variation(smooth.double()) < 0.5 * total_variation(rough.double())).all()


WEIGHTS = (10.0, 1.0, 0.01)


def alone(model: SplitModel, z: Tensor, weights: tuple[float, ...]) -> Inversion:
    """Where these weights lead to, one after the other, if nothing is near enough before the last."""
    return invert(model, z, SHAPE, rng=rng(), descent=Descent(steps=100, weights=weights, near=0.0))


def test_the_smoothest_picture_that_is_near_is_taken() -> None:
    model = linear_model()
    z = features(model, pictures(3))
    steps = [alone(model, z, WEIGHTS[: i + 1]) for i in range(3)]
    assert all((a.error > 2 * b.error).all() for a, b in pairwise(steps)), "each is better by far"
    near = float(steps[1].error.median())  # so one picture needs the last weight, two do not
    found = invert(model, z, SHAPE, rng=rng(), descent=Descent(steps=100, weights=WEIGHTS, near=near))
    expected = [1 if error <= near else 2 for error in steps[1].error]
    assert sorted(expected) == [1, 1, 2]
    for k, step in enumerate(expected):
        assert found.weight[k] == pytest.approx(WEIGHTS[step])
        assert found.error[k] == pytest.approx(steps[step].error[k].item(), rel=1e-2)
        assert (found.images[k].int() - steps[step].images[k].int()).abs().max() <= 2


@pytest.mark.parametrize("then", [10.0, 0.9])
def test_a_picture_that_does_not_halve_the_error_is_not_taken(then: float) -> None:
    model = linear_model()
    z = features(model, pictures(3))
    first, found = alone(model, z, (1.0,)), alone(model, z, (1.0, then))
    assert torch.equal(found.images, first.images)
    assert torch.equal(found.error, first.error)
    assert found.weight.tolist() == pytest.approx([1.0] * 3)


def test_one_that_is_near_is_taken_however_little_it_gained() -> None:
    model = linear_model()
    z = features(model, pictures(3))
    near = 0.999 * float(alone(model, z, (1.0,)).error.min())
    found = invert(model, z, SHAPE, rng=rng(), descent=Descent(steps=100, weights=(1.0, 0.9), near=near))
    assert (found.weight < 0.95).any()
    assert (found.error[found.weight < 0.95] <= near).all()


def test_total_variation_by_hand() -> None:
    x = torch.tensor([[[[0.0, 1.0, 3.0], [5.0, 5.0, 5.0]]]])
    assert total_variation(x).item() == pytest.approx((5 + 4 + 2) / 3 + (1 + 2 + 0 + 0) / 4)


def test_the_model_is_left_as_it_was() -> None:
    model = linear_model().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    invert(model, torch.ones(1, DIMENSIONS), SHAPE, rng=rng(), descent=Descent(steps=2))
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_model_that_does_not_normalise_is_refused() -> None:
    model = SplitModel(nn.Identity(), nn.Flatten(), LinearHead(torch.zeros(3, 4), None))
    with pytest.raises(AnalysisError, match="does not normalise"):
        invert(model, torch.zeros(1, 4), (1, 2, 2), rng=rng())


class TestMeans:
    def test_means_of_more_give_less_away(self) -> None:
        images = pictures(20)
        found = invert_means(linear_model(), images, numbers=(1, 3, 10), repeats=3, rng=rng(), descent=EXACT)
        one, three, ten = (part.similarity.mean() for part in found)
        assert one > 0.99
        assert one > three + 0.1 > ten + 0.1
        assert found[0].chance.mean() < 0.5
        assert torch.equal(found[0].closest, found[0].groups[:, 0])
        for part in found:
            assert part.groups.shape == (3, part.n)
            assert all(len(set(group)) == part.n for group in part.groups.tolist())
            assert part.images.shape == (3, *SHAPE)
            mean = features(linear_model(), images)[part.groups].mean(1)
            left = (features(linear_model(), part.images) - mean).square().sum(1) / mean.square().sum(1)
            assert torch.allclose(part.error, left, rtol=0, atol=1e-3), "each group has its own pictures"
            assert (left < 2e-3).all()

    def test_a_rotation_gives_the_mean_picture(self) -> None:
        images = pictures(6)
        found = invert_means(linear_model(), images, numbers=(3,), repeats=2, rng=rng(), descent=EXACT)[0]
        expected = images[found.groups].double().mean(1)
        assert (ssim(found.images, expected) > 0.99).all()
        each = torch.stack([ssim(found.images, images[found.groups[:, k]]) for k in range(3)], 1)
        assert torch.allclose(found.similarity, each.max(1).values)
        assert torch.equal(found.closest, found.groups[torch.arange(2), each.argmax(1)])

    def test_chance_needs_as_many_others(self) -> None:
        found = invert_means(
            linear_model(), pictures(5), numbers=(2, 3), repeats=1, rng=rng(), descent=Descent(steps=2)
        )
        assert found[0].chance.isfinite().all()
        assert found[1].chance.isnan().all()

    def test_chance_is_a_mean_over_groups_of_others(self) -> None:
        images = pictures(40)
        found = invert_means(linear_model(), images, numbers=(1, 12), repeats=2, rng=rng(), descent=Descent(steps=20))
        orders = rng()
        for part in found:
            order = torch.stack([torch.randperm(40, generator=orders) for _ in range(2)])
            assert torch.equal(part.groups, order[:, : part.n])
            firsts = range(part.n, part.n + 32 - part.n + 1, part.n)
            assert len(firsts) == {1: 32, 12: 2}[part.n]
            each = [
                torch.stack([ssim(part.images, images[order[:, k]]) for k in range(first, first + part.n)]).amax(0)
                for first in firsts
            ]
            assert torch.allclose(part.chance, sum(each) / len(each))

    @pytest.mark.parametrize("numbers", [(0,), (1, 6)])
    def test_numbers_that_there_are_not_are_refused(self, numbers: tuple[int, ...]) -> None:
        with pytest.raises(AnalysisError, match="numbers from 1 to N"):
            invert_means(linear_model(), pictures(5), numbers=numbers, rng=rng())
