"""A calibrated model as a file, and back."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch

from ccvr.core.errors import ModelError, RunError, UnknownName
from ccvr.core.run import RunFolder
from ccvr.core.schema import Count, mistyped
from ccvr.core.trust import Trust, require_trust
from ccvr.kernels.inputs import Inputs, from_tensors, tensors_of
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.heads import HEAD_KINDS, Head
from ccvr.models.preprocess import fit_preprocess
from ccvr.models.random_features import RandomFeatures
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import read_tensor_file, tensors_from_bytes, tensors_to_bytes
from ccvr.models.transform import FeatureTransform

MODEL_FORMAT = "ccvr-model/2"
HEAD_FORMAT = "ccvr-head/2"
MAX_INPUT = 2**18
"""Numbers in the input of a small model, as in a picture of 3 × 295 × 295."""
REMEDY = (
    "Delete the run's results.json and make it again with `ccvr resume`; calibrations that were added with "
    "`ccvr calibrate` must be added again."
)


class HeadHeader(TypedDict):
    """What is beside the tensors of a head."""

    head_kind: str
    transform: str
    taps: list[str]


class ModelHeader(HeadHeader):
    """What is beside the tensors of a model."""

    name: str
    head_path: str
    class_names: list[str]
    preprocess: NotRequired[str]
    inputs: NotRequired[dict[str, list[str | Count]]]
    """Name of the type, then the shape of one sample."""
    image_shape: NotRequired[list[Count]]


SCHEMAS: Mapping[str, Any] = {HEAD_FORMAT: HeadHeader, MODEL_FORMAT: ModelHeader}


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
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"these bytes are not a head of ours ({reason}).") from error


def _head(header: dict[str, Any], tensors: Tensors) -> Head:
    transform = (
        RandomFeatures(tensors["transform.omega"], tensors["transform.phase"])
        if "transform.omega" in tensors
        else FeatureTransform.parse(header["transform"])
    )
    taps = tuple(header["taps"])
    if not all(isinstance(tap, str) for tap in taps):
        raise TypeError("taps that are not names")
    if tensors["weight"].dim() != 2:
        raise ValueError(f"weights of shape {list(tensors['weight'].shape)}")
    return HEAD_KINDS[header["head_kind"]](tensors["weight"], tensors.get("bias"), transform, taps=taps)


@dataclass(frozen=True)
class Blueprint:
    """What builds a model again where its data set is not there."""

    name: str
    head_path: str
    inputs: Inputs
    """Such as the model reads, [B, …]; their types and shapes are kept."""
    preprocess: str

    def to_header(self) -> dict[str, Any]:
        inputs = tensors_of(self.inputs).items()
        kept = {key: [str(tensor.dtype).removeprefix("torch."), *tensor.shape[1:]] for key, tensor in inputs}
        return {"name": self.name, "head_path": self.head_path, "inputs": kept, "preprocess": self.preprocess}

    @classmethod
    def from_header(cls, header: Mapping[str, Any], *, most: int) -> "Blueprint":
        """What a file states; an input of more than ``most`` numbers is refused, because models grow with it.

        Files of before there were other inputs hold the shape of an image.
        """
        kept = header["inputs"] if "inputs" in header else {"": ["uint8", *header["image_shape"]]}
        size = sum(math.prod(shape) for _, *shape in kept.values())
        if size > most:
            raise ValueError(f"inputs have {size:,} numbers, the model at most {most:,}")
        tensors = {key: torch.zeros(2, *shape, dtype=_dtype(dtype)) for key, (dtype, *shape) in kept.items()}
        inputs = from_tensors(tensors)
        return cls(header["name"], header["head_path"], inputs, header.get("preprocess", "pixels"))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a type of numbers")
    return dtype


def model_bytes(model: SplitModel, head: Head, blueprint: Blueprint) -> bytes:
    """The model under that head, with what is needed to build it again."""
    backbone = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("head.")}
    return tensors_to_bytes(
        backbone | {f"head.{key}": tensor for key, tensor in head.state_dict().items()},
        format=MODEL_FORMAT,
        **blueprint.to_header(),
        class_names=model.class_names,
        **_described(head),
    )


def load(run: str | Path, *, head: str | None = None, trust: bool = False) -> SplitModel:
    """The deployed model of a run, in eval mode: inputs as the data set has them [B, …] → scores [B, classes].

    Args:
        run: the run folder.
        head: the label of another calibration, whose head the model gets.
        trust: import code that is not ours where the model names it, as ``package.module:name``. Importing runs it, so
            only for runs whose author you trust.

    Returns:
        The model; its ``class_names`` name the classes.

    Raises:
        UntrustedCode: the model is built by code that is not ours, and ``trust`` is not given.
        RunError: the folder is no run, is not finished or damaged, or has no such head.
    """
    return load_from(RunFolder.open(Path(run), trust=trust), head=head)


def load_from(folder: RunFolder, *, head: str | None = None) -> SplitModel:
    """The model of an open run folder, as ``load`` gives it."""
    if folder.results.is_file():
        folder.require_unchanged(folder.read_results())
    if not folder.model.is_file():
        raise RunError(f"{folder.path} has no model. Finish it with `ccvr resume {folder.path}`.")
    if head is None:
        return read_model(folder.model, trust=folder.trust).eval()
    if not folder.head(head).is_file():
        known = ", ".join(sorted(path.stem for path in folder.head("x").parent.glob("*.safetensors")))
        raise RunError(f'{folder.path} has no head "{head}". It has: {known}.')
    return read_model(folder.model, read_head(folder.head(head)), trust=folder.trust).eval()


def read_model(path: Path, head: Head | None = None, *, trust: Trust = False) -> SplitModel:
    """The model in a file, under its own head or another one; names of code that is not ours need ``trust``."""
    header, tensors = _read(path, MODEL_FORMAT)
    require_trust({key: value for key, value in header.items() if key != "class_names"}, path, trust)
    with _understood(path):
        mark = "head."
        own = {key.removeprefix(mark): tensor for key, tensor in tensors.items() if key.startswith(mark)}
        backbone = {key: tensor for key, tensor in tensors.items() if not key.startswith(mark)}
        head = head or _head(header, own)
        if len(head.weight) != len(header["class_names"]):
            raise ValueError(f"its head has {len(head.weight)} rows for {len(header['class_names'])} classes")
        return _rebuild(header, backbone).with_head(head)


def _rebuild(header: dict[str, Any], backbone: Tensors) -> SplitModel:
    """The model with its backbone, under a fresh head."""
    blueprint = Blueprint.from_header(header, most=max(MAX_INPUT, 4 * sum(t.numel() for t in backbone.values())))
    model = build_model(
        ModelSpec(blueprint.name, blueprint.head_path),
        blueprint.inputs,
        len(header["class_names"]),
        preprocess=fit_preprocess(blueprint.preprocess, blueprint.inputs),
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
    except UnknownName as error:  # before LookupError, which it is: the file is whole, code of the user's is not found
        raise RunError(f"{path} needs code that is not here: {error} Start from the folder that holds it.") from error
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path} is damaged ({reason}). {REMEDY}") from error


def _read(path: Path, format: str) -> tuple[dict[str, Any], Tensors]:
    try:
        header, tensors = tensors_from_bytes(read_tensor_file(path), format=format)
    except (ValueError, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}). {REMEDY}") from error
    if fact := mistyped(header, SCHEMAS[format]):
        raise RunError(f"{path} is damaged ({fact}). {REMEDY}")
    return header, tensors
