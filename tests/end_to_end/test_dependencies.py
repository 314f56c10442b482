"""What `pip install "ccvr[flower]"` brings: Flower, and nothing for graphics cards."""

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
GRAPHICS = re.compile(r"(nvidia|cuda|cupy|triton|torch|tensorflow|jax)\b|.*-cu\d+$")


def closure(name: str, extra: str = "", seen: dict[tuple[str, str], None] | None = None) -> set[str]:
    """A distribution and all that it needs on this system, as installed."""
    seen = {} if seen is None else seen
    if (name, extra) not in seen:
        seen[name, extra] = None
        for needed in map(Requirement, distribution(name).requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                for each in {"", *needed.extras}:
                    closure(re.sub(r"[-_.]+", "-", needed.name).lower(), each, seen)
    return {each for each, _ in seen}


@pytest.mark.flower
def test_flower_brings_no_package_for_graphics_cards():
    """Flower and Ray would do without torch altogether; ours is the build that the constraints pin."""
    brought = closure("flwr", "simulation")
    assert {"flwr", "ray", "grpcio"} <= brought
    assert [name for name in brought if GRAPHICS.match(name)] == []
    assert brought <= closure("ccvr", "flower")


def test_the_constraints_pin_no_package_for_graphics_cards():
    pinned = [line.partition("==")[0] for line in CONSTRAINTS.read_text().splitlines() if "==" in line]
    assert {"torch", "flwr", "ray"} <= set(pinned)
    assert [name for name in pinned if GRAPHICS.match(name)] == ["torch"]
