"""What a client remembers between rounds, in Flower's state of its node."""

from flwr.app import ArrayRecord, RecordDict

from ccvr.core.errors import RunError
from ccvr.flower.messages import array_of
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from ccvr.training.client_state import ClientStates

MEMORY = "ccvr-memory/1"
"""Format of bytes, and the beginning of their names in the state."""


class NodeMemories(ClientStates):
    """Memories of one client, as long as Flower's run lasts; the server names the ``last`` one that it knows of."""

    def __init__(self, state: RecordDict, last: int) -> None:
        self.state, self.last = state, last

    def read(self, client: int, round: int) -> Tensors:
        record = self.state.array_records.get(f"{MEMORY}/{round}")
        if record is None:
            raise RunError(
                f"client {client} has no memory of round {round}: Flower keeps it as long as its own run lasts. "
                "Start a new run; algorithms without memories can be resumed."
            )
        return tensors_from_bytes(record["memory"].data, format=MEMORY)[1]

    def write(self, client: int, round: int, memory: Tensors) -> None:
        """Put a memory away. The last one stays, in case the server never gets what was trained with it."""
        kept = [name for name in self.state.array_records if name.startswith(f"{MEMORY}/")]
        for name in kept:
            if _round(name) < round and _round(name) != self.last:
                del self.state[name]
        blob = tensors_to_bytes(memory, format=MEMORY)
        self.state[f"{MEMORY}/{round}"] = ArrayRecord({"memory": array_of(blob)})


def _round(name: str) -> int:
    return int(name.rpartition("/")[2])
