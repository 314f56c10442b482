"""What clients keep between rounds: one file per client and round, so that a checkpoint can name it."""

from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from ccvr.core.errors import RunError
from ccvr.core.run import write_atomically
from ccvr.models.state import Tensors, copied
from ccvr.models.tensor_file import read_tensor_file


class ClientStates:
    """States of clients in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: int, round: int) -> Tensors:
        path = self._path(client, round)
        try:
            return load(read_tensor_file(path))
        except (OSError, ValueError, LookupError, SafetensorError) as error:
            raise RunError(
                f"the client state {path} cannot be read ({error}). "
                "Delete the newest checkpoint to go on from an older one."
            ) from error

    def write(self, client: int, round: int, state: Tensors) -> None:
        # Copies: safetensors refuses channels last, and tensors that share memory.
        write_atomically(self._path(client, round), save(copied(state)))

    def sweep(self, named: Collection[tuple[int, int]]) -> None:
        """Delete every state except those of the named (client, round) pairs."""
        keep = {self._path(client, round) for client, round in named}
        for path in self.folder.glob("client-*-round-*.safetensors"):
            if path not in keep:
                path.unlink(missing_ok=True)

    def _path(self, client: int, round: int) -> Path:
        return self.folder / f"client-{client}-round-{round}.safetensors"
