"""The split model: image → normalised image → feature → score."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.models.find import find_head
from ccvr.models.heads import HEADS, Head


class Normalize(nn.Module):
    """(x / 255 − mean) / std per channel for uint8 images; floating-point inputs are taken as normalised already."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        super().__init__()
        mean_, std_ = torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(std, dtype=torch.float64)
        self.register_buffer("scale", (1 / (255 * std_)).float().view(-1, 1, 1))
        self.register_buffer("shift", (mean_ / std_).float().view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.scale.dtype).mul_(self.scale).sub_(self.shift) if x.dtype == torch.uint8 else x


class _Capture(nn.Module):
    """Stands where the head was and keeps what enters it.

    Zeros of the head's shape go on: what the model does with its scores afterwards fits, and cannot change z in place.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.seen: Tensor | None = None

    def forward(self, z: Tensor) -> Tensor:
        self.seen = z
        return z.new_zeros(len(z), self.num_outputs)


class Backbone(nn.Module):
    """A model without its head: what would enter the head comes out, whatever the model did after it."""

    def __init__(self, model: nn.Module, head_path: str) -> None:
        super().__init__()
        head = model.get_submodule(head_path)
        assert isinstance(head, nn.Linear)
        self._capture = [_Capture(head.out_features)]  # in a list, so that it is registered once, inside the model
        self.model = _replace(model, head, self._capture[0])

    def forward(self, x: Tensor) -> Tensor:
        self.model(x)
        capture = self._capture[0]
        z, capture.seen = capture.seen, None
        if z is None:
            raise ModelError("the model did not reach its head in this pass; the head must be used in every pass.")
        return z


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """``model`` with a submodule replaced under every name it has; the new module itself where all is replaced."""
    if model is old:
        return new
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)
    return model


class SplitModel(nn.Module):
    """head(backbone(normalize(x))): uint8 images [B, C, H, W] → features [B, d] → scores [B, classes]."""

    def __init__(
        self, normalize: nn.Module, backbone: nn.Module, head: Head, *, class_names: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.normalize, self.backbone, self.head = normalize, backbone, head
        self.class_names = class_names

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.backbone(self.normalize(x))
        return z

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))
        return scores

    def with_head(self, head: Head) -> "SplitModel":
        """The same backbone (shared, not copied) under another head."""
        return SplitModel(self.normalize, self.backbone, head, class_names=self.class_names)

    def digest(self) -> str:
        """SHA-256 of every tensor that features depend on: names, types, shapes, values."""
        whole = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            if not name.startswith("head."):
                whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
                whole.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return whole.hexdigest()


def split_model(
    model: nn.Module, normalize: nn.Module, example: Tensor, *, head_path: str = "", head_kind: str = "linear"
) -> SplitModel:
    """Cut ``model`` before its head. The model is taken over, not copied."""
    path = find_head(model, normalize(example), head_path)
    linear = model.get_submodule(path)
    assert isinstance(linear, nn.Linear)
    head = HEADS[head_kind](linear.weight, linear.bias)
    return SplitModel(normalize, Backbone(model, path), head)
