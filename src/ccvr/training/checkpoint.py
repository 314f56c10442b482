"""A round state as bytes and back."""

from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes
from ccvr.training.rounds import RoundState

FORMAT = "ccvr-checkpoint/1"
GROUPS = ("parameters", "buffers", "server")


def checkpoint_bytes(state: RoundState) -> bytes:
    """Everything that the next round depends on, but the memories, which are files of their own."""
    tensors: Tensors = {}
    for group in GROUPS:
        tensors |= {f"{group}/{name}": tensor for name, tensor in getattr(state, group).items()}
    return tensors_to_bytes(tensors, format=FORMAT, round=state.round, memories=sorted(state.memories.items()))


def read_checkpoint(path: Path) -> RoundState:
    groups: dict[str, Tensors] = {group: {} for group in GROUPS}
    try:
        header, tensors = tensors_from_bytes(path.read_bytes(), format=FORMAT)
        for key, tensor in tensors.items():
            group, _, name = key.partition("/")
            groups[group][name] = tensor
        parameters, buffers, server = (groups[group] for group in GROUPS)
        return RoundState(header["round"], parameters, buffers, server, dict(header["memories"]))
    except (UnreadableTensors, KeyError, TypeError, OSError) as error:
        raise RunError(
            f"checkpoint {path} cannot be read ({error}). Delete it to go on from the one before."
        ) from error
