"""The split model: inputs → preprocessed inputs → feature → score."""

import copy
from typing import TypeGuard

from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.kernels.crops import Crops, is_images
from ccvr.kernels.inputs import Inputs, call, on
from ccvr.kernels.lanes import Lanes
from ccvr.models.blocks import is_heard, takes_lanes
from ccvr.models.digest import backbone_digest
from ccvr.models.find import find_head
from ccvr.models.heads import HEAD_KINDS, Head, LinearHead
from ccvr.models.modes import alone_with
from ccvr.models.preprocess import Normalize
from ccvr.models.taps import Capture, TappedBackbone
from ccvr.models.transform import FeatureTransform


class Backbone(nn.Module):
    """A model without its head: what would enter the head comes out, whatever the model did after it."""

    def __init__(self, model: nn.Module, head_path: str) -> None:
        super().__init__()
        head = model.get_submodule(head_path)
        assert isinstance(head, nn.Linear | Head)
        self._capture = [Capture(len(head.weight))]  # in a list, so that it is registered once, inside the model
        self.model = replaced(model, head, self._capture[0])

    def forward(self, x: Inputs | Lanes) -> Tensor:
        kept = self._capture[0].kept
        kept.begin()
        try:
            call(self.model, x)
        finally:
            z: Tensor | None = kept.end().get("the head")
        if z is None:
            raise ModelError("the model did not reach its head in this pass; the head must be used in every pass.")
        return z


def replaced(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """``model`` with a submodule replaced under every name it has; the new module itself where all is replaced."""
    if model is old:
        return new
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)
    return model


class SplitModel(nn.Module):
    """head(backbone(normalize(x))): inputs [B, …] → features [B, d] → scores [B, classes].

    ``normalize`` is what the data set puts before a model, such as the normalisation of uint8 images. Inputs of several
    tensors come as keywords, or as one mapping. ``example`` are inputs [B, …] that it was built for, where there were
    any: they say types and shapes.
    """

    def __init__(
        self,
        normalize: nn.Module,
        backbone: nn.Module,
        head: Head,
        *,
        class_names: tuple[str, ...] = (),
        example: Inputs | None = None,
    ) -> None:
        super().__init__()
        self.normalize, self.backbone, self.head = normalize, backbone, head
        self.class_names, self.example = class_names, example

    def inputs(self, x: Inputs | Crops) -> Inputs | Lanes:
        """What the backbone reads: normalised images, in the vector lanes where it takes those."""
        normalize = self.normalize
        if isinstance(normalize, Normalize) and self._takes_lanes():
            crops = x if isinstance(x, Crops) else Crops.of(x) if _is_pixels(x) else None
            if crops is not None and len(crops) and crops.is_small:
                return crops.lanes(normalize.scale, normalize.shift)
        inputs: Inputs = normalize(on(self.head.weight.device, x.images if isinstance(x, Crops) else x))
        return inputs

    def _takes_lanes(self) -> bool:
        """Whether normalisation and the backbone's first block are ours, unchanged, and run by kernels."""
        normalize, backbone = self.normalize, self.backbone
        return (
            type(normalize) is Normalize
            and normalize.is_plain()
            and type(backbone) is Backbone
            and takes_lanes(backbone.model)
            and not is_heard(normalize, backbone)
        )

    def features(self, x: Inputs | Lanes) -> Tensor:
        z: Tensor = self.backbone(x if isinstance(x, Lanes) else self.inputs(x))
        return z

    def forward(self, x: Inputs | None = None, /, **named: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(named if x is None else x))
        return scores

    def with_head(self, head: Head) -> "SplitModel":
        """The same backbone under another head: shared, or, where the head reads taps, a copy that serves them."""
        backbone = self.backbone
        if head.taps:
            outside = [tap for tap in head.taps if not tap.startswith("backbone.")]
            if outside:
                raise ModelError(f'the tap "{outside[0]}" is not a layer of the backbone. Choose another layer.')
            inside = [tap.removeprefix("backbone.") for tap in head.taps]
            if not isinstance(backbone, TappedBackbone) or backbone.taps != tuple(inside):
                backbone = TappedBackbone(copy.deepcopy(backbone), inside)
        new = SplitModel(self.normalize, backbone, head, class_names=self.class_names, example=self.example)
        new.training = self.training
        return new

    def digest(self) -> str:
        """SHA-256 of every tensor that features depend on."""
        return backbone_digest(self, "head")


def _is_pixels(x: Inputs) -> TypeGuard[Tensor]:
    return type(x) is Tensor and is_images(x) and x.device.type == "cpu"


def split_model(
    model: nn.Module, normalize: nn.Module, example: Inputs, *, head_path: str = "", head_kind: str = "linear"
) -> SplitModel:
    """Cut ``model`` before its head. The model is taken over, not copied."""
    path = find_head(model, normalize(example), head_path)
    linear = model.get_submodule(path)
    assert isinstance(linear, nn.Linear)
    head = HEAD_KINDS[head_kind](linear.weight, linear.bias)
    return SplitModel(normalize, Backbone(model, path), head, example=example)


def under_new_head(model: nn.Module, path: str, head: Head) -> nn.Module:
    """A copy of any model in which ``head`` stands where the one at ``path`` stood. The model itself is left alone.

    Without taps and transform it is the same class with another nn.Linear; its state dict fits a head with a bias.
    """
    with alone_with(model):  # no other thread's hooks and modes are copied
        copied = copy.deepcopy(model)
    if isinstance(copied, SplitModel):
        return copied.with_head(head)
    if head.taps:
        head = copy.deepcopy(head)
        head.taps = tuple(f"backbone.model.{tap}" for tap in head.taps)
        split = SplitModel(nn.Identity(), Backbone(copied, path), head)
        split.training = model.training
        return split.with_head(head)
    return replaced(copied, copied.get_submodule(path), _plain(head))


def _plain(head: Head) -> nn.Module:
    """An nn.Linear where that says all."""
    if not isinstance(head, LinearHead) or head.transform != FeatureTransform():
        return head
    num_classes, d = head.weight.shape
    like = {"device": head.weight.device, "dtype": head.weight.dtype}
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, d, num_classes, bias=head.bias is not None, **like)
    linear.load_state_dict(head.state_dict())
    return linear
