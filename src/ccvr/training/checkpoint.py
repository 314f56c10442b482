"""A round state as bytes and back."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ccvr.core.errors import RunError
from ccvr.models.state import Tensors
from ccvr.training.rounds import RoundState

GROUPS = ("parameters", "buffers", "server")


def checkpoint_bytes(state: RoundState) -> bytes:
    """Everything that the next round depends on, but the memories, which are files of their own."""
    tensors: Tensors = {}
    for group in GROUPS:
        tensors |= {f"{group}/{name}": tensor.cpu().contiguous() for name, tensor in getattr(state, group).items()}
    header = {
        "format": "ccvr-checkpoint/1",
        "round": str(state.round),
        "memories": json.dumps(sorted(state.memories.items())),
    }
    return save(tensors, header)


def read_checkpoint(path: Path) -> RoundState:
    groups: dict[str, Tensors] = {group: {} for group in GROUPS}
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            names = list(file.keys())
            for group, name in (key.split("/", 1) for key in names):
                groups[group][name] = file.get_tensor(f"{group}/{name}")
        parameters, buffers, server = (groups[group] for group in GROUPS)
        return RoundState(int(header["round"]), parameters, buffers, server, dict(json.loads(header["memories"])))
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise RunError(
            f"checkpoint {path} cannot be read ({error}). Delete it to go on from the one before."
        ) from error
