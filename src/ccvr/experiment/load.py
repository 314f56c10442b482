"""A calibrated model as a file, and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ccvr.core.errors import RunError
from ccvr.core.run import RunFolder
from ccvr.models.build import ImageShape, ModelSpec, build_model
from ccvr.models.heads import HEADS, Head
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes
from ccvr.models.transform import FeatureTransform

MODEL_FORMAT = "ccvr-model/1"
HEAD_FORMAT = "ccvr-head/1"
REMEDY = "Delete the run's results.json and make it again with `ccvr resume`."


def head_bytes(head: Head) -> bytes:
    return tensors_to_bytes(head.state_dict(), format=HEAD_FORMAT, kind=head.kind, transform=str(head.transform))


def read_head(path: Path) -> Head:
    header, tensors = _read(path, HEAD_FORMAT)
    with _understood(path):
        transform = FeatureTransform.parse(header["transform"])
        return HEADS[header["kind"]](tensors["weight"], tensors.get("bias"), transform)


def model_bytes(model: SplitModel, *, name: str, head_path: str, image_shape: ImageShape) -> bytes:
    """The model with what is needed to build it again, the data set not being there."""
    return tensors_to_bytes(
        model.state_dict(),
        format=MODEL_FORMAT,
        name=name,
        head_path=head_path,
        image_shape=image_shape,
        class_names=model.class_names,
        head_kind=model.head.kind,
        transform=str(model.head.transform),
    )


def load(run: str | Path, *, head: str | None = None) -> SplitModel:
    """The deployed model of a run, in eval mode: uint8 images [B, C, H, W] → scores [B, classes].

    ``head`` takes another calibration's head by its label. ``class_names`` of the result names the classes.
    """
    folder = RunFolder.open(Path(run))
    if not folder.model.is_file():
        raise RunError(f"{run} has no model. Finish it with `ccvr resume {run}`.")
    model = read_model(folder.model)
    if head is not None:
        if not folder.head(head).is_file():
            known = ", ".join(sorted(path.stem for path in folder.head("x").parent.glob("*.safetensors")))
            raise RunError(f'{run} has no head "{head}". It has: {known}.')
        found = read_head(folder.head(head))
        if found.weight.shape != model.head.weight.shape:
            raise RunError(f"{folder.head(head)} is a head of another model. {REMEDY}")
        model = model.with_head(found)
    return model.eval()


def read_model(path: Path) -> SplitModel:
    header, tensors = _read(path, MODEL_FORMAT)
    with _understood(path):
        return _rebuild(header, tensors)


def _rebuild(header: dict[str, Any], tensors: Tensors) -> SplitModel:
    channels = header["image_shape"][0]
    model = build_model(
        ModelSpec(header["name"], header["head_path"]),
        tuple(header["image_shape"]),
        len(header["class_names"]),
        mean=[0.0] * channels,
        std=[1.0] * channels,
        head_kind=header["head_kind"],
        seed=0,
    )
    model.head.transform = FeatureTransform.parse(header["transform"])
    model.class_names = tuple(header["class_names"])
    model.load_state_dict(tensors)
    return model


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """A header without a field, or tensors that do not fit, are a damaged file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path} is damaged ({reason}). {REMEDY}") from error


def _read(path: Path, format: str) -> tuple[dict[str, Any], Tensors]:
    try:
        return tensors_from_bytes(path.read_bytes(), format=format)
    except (UnreadableTensors, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}). {REMEDY}") from error
