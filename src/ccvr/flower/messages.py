"""The contents of Flower's messages: named bytes, and settings."""

from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app.typing import ConfigRecordValues

from ccvr.core.errors import FederationError

BLOBS, SETTINGS, ERROR = "ccvr.blobs", "ccvr.settings", "error"
STYPE = "ccvr"
"""The type of our arrays' bytes. Flower's mods do not know it, so a mod that would change them fails."""

T = TypeVar("T")


def pack(blobs: Mapping[str, bytes], **settings: ConfigRecordValues) -> RecordDict:
    """A message's content. Empty texts are left out: Flower's mods that measure sizes fail on them."""
    arrays = {name: array_of(blob) for name, blob in blobs.items()}
    said = {name: value for name, value in settings.items() if value != ""}
    return RecordDict({BLOBS: ArrayRecord(arrays), SETTINGS: ConfigRecord(said)})


def array_of(blob: bytes) -> Array:
    """Bytes as an array, because only arrays travel in chunks."""
    return Array("uint8", (len(blob),), STYPE, blob)


def blob_of(content: RecordDict, name: str) -> bytes:
    """The bytes of that name; what was received is untrusted."""
    record = content.array_records.get(BLOBS)
    array = None if record is None else record.get(name)
    if array is None or array.stype != STYPE or not isinstance(array.data, bytes):
        raise FederationError(f'a message without the bytes "{name}".')
    return array.data


def setting_of(content: RecordDict, name: str, kind: type[T], default: T | None = None) -> T:
    """The setting of that name, if it is of that type."""
    record: Any = content.config_records.get(SETTINGS, {})
    value = record.get(name, default)
    if type(value) is not kind:
        raise FederationError(f'a message with "{name}" {value!r}, which is no {kind.__name__}.')
    return value
