"""Which features statistics are of."""

from dataclasses import dataclass


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
