"""A calibrated model as a file, and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ccvr.core.errors import ModelError, RunError
from ccvr.core.run import RunFolder
from ccvr.models.build import ImageShape, ModelSpec, build_model
from ccvr.models.heads import HEAD_KINDS, Head
from ccvr.models.random_features import RandomFeatures
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes
from ccvr.models.transform import FeatureTransform

MODEL_FORMAT = "ccvr-model/2"
HEAD_FORMAT = "ccvr-head/2"
REMEDY = (
    "Delete the run's results.json and make it again with `ccvr resume`; calibrations that were added with "
    "`ccvr calibrate` must be added again."
)


def head_bytes(head: Head) -> bytes:
    return tensors_to_bytes(head.state_dict(), format=HEAD_FORMAT, **_described(head))


def _described(head: Head) -> dict[str, Any]:
    return {"head_kind": head.kind, "transform": str(head.transform), "taps": head.taps}


def read_head(path: Path) -> Head:
    header, tensors = _read(path, HEAD_FORMAT)
    with _understood(path):
        return _head(header, tensors)


def head_from_bytes(blob: bytes) -> Head:
    """The head in bytes of ``head_bytes``, on its way between machines."""
    try:
        return _head(*tensors_from_bytes(blob, format=HEAD_FORMAT))
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"these bytes are no head of ours ({reason}).") from error


def _head(header: dict[str, Any], tensors: Tensors) -> Head:
    transform = (
        RandomFeatures(tensors["transform.omega"], tensors["transform.phase"])
        if "transform.omega" in tensors
        else FeatureTransform.parse(header["transform"])
    )
    return HEAD_KINDS[header["head_kind"]](
        tensors["weight"], tensors.get("bias"), transform, taps=tuple(header["taps"])
    )


def model_bytes(model: SplitModel, head: Head, *, name: str, head_path: str, image_shape: ImageShape) -> bytes:
    """The model under that head, with what is needed to build it again, the data set not being there."""
    backbone = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("head.")}
    return tensors_to_bytes(
        backbone | {f"head.{key}": tensor for key, tensor in head.state_dict().items()},
        format=MODEL_FORMAT,
        name=name,
        head_path=head_path,
        image_shape=image_shape,
        class_names=model.class_names,
        **_described(head),
    )


def load(run: str | Path, *, head: str | None = None) -> SplitModel:
    """The deployed model of a run, in eval mode: uint8 images [B, C, H, W] → scores [B, classes].

    ``head`` takes another calibration's head by its label. ``class_names`` of the result names the classes.
    """
    folder = RunFolder.open(Path(run))
    if not folder.model.is_file():
        raise RunError(f"{run} has no model. Finish it with `ccvr resume {run}`.")
    if head is None:
        return read_model(folder.model).eval()
    if not folder.head(head).is_file():
        known = ", ".join(sorted(path.stem for path in folder.head("x").parent.glob("*.safetensors")))
        raise RunError(f'{run} has no head "{head}". It has: {known}.')
    return read_model(folder.model, read_head(folder.head(head))).eval()


def read_model(path: Path, head: Head | None = None) -> SplitModel:
    """The model in a file, under its own head or another one."""
    header, tensors = _read(path, MODEL_FORMAT)
    with _understood(path):
        mark = "head."
        own = {key.removeprefix(mark): tensor for key, tensor in tensors.items() if key.startswith(mark)}
        backbone = {key: tensor for key, tensor in tensors.items() if not key.startswith(mark)}
        return _rebuild(header, backbone).with_head(head or _head(header, own))


def _rebuild(header: dict[str, Any], backbone: Tensors) -> SplitModel:
    """The model with its backbone, under a fresh head."""
    channels = header["image_shape"][0]
    model = build_model(
        ModelSpec(header["name"], header["head_path"]),
        tuple(header["image_shape"]),
        len(header["class_names"]),
        mean=[0.0] * channels,
        std=[1.0] * channels,
        seed=0,
    )
    model.class_names = tuple(header["class_names"])
    fresh = {f"head.{key}": tensor for key, tensor in model.head.state_dict().items()}
    model.load_state_dict(backbone | fresh)
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
