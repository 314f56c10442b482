"""Which features statistics are of, and what must be the same in statistics that add up."""

from dataclasses import dataclass, fields

from ccvr.core.errors import StatisticsError


@dataclass(frozen=True)
class Source:
    """The model, the layers and the transform behind some features; statistics of other sources do not add up."""

    model: str = ""
    """SHA-256 of the backbone's tensors."""
    head: str = ""
    """Path of the head whose input is the feature."""
    taps: tuple[str, ...] = ()
    """Paths of the layers whose outputs stand before it."""
    transform: str = "none"
    projection: str = ""
    """SHA-256 of the random features' weights, where there are any."""


def identity(kind: str, source: Source, num_classes: int, num_features: int) -> dict[str, object]:
    """What must be the same in statistics that add up."""
    of_source = {field.name: getattr(source, field.name) for field in fields(source)}
    return {"kind": kind, **of_source, "num_classes": num_classes, "num_features": num_features}


def require_same(mine: dict[str, object], theirs: dict[str, object]) -> None:
    for name, value in mine.items():
        if value != theirs[name]:
            raise StatisticsError(
                f"statistics with {name} {value!r} and {theirs[name]!r} do not add up. "
                "Collect both in the same way from the same model."
            )
