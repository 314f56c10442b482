"""A time limit: parsing and the time left."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ccvr.core.errors import UsageError

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float:
    """Seconds of ``2h``, ``90m``, ``1h30m``, ``45s``; ``0`` is no time at all."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([hms])", text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise UsageError(
            f'--budget is "{text}"; give hours, minutes or seconds: 2h, 90m, 1h30m, or 0 to train nothing.'
        )
    return sum(float(number) * UNITS[unit] for number, unit in parts)


@dataclass(frozen=True)
class Budget:
    """Seconds from now on; None is no limit."""

    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.clock())

    def is_spent(self) -> bool:
        return self.seconds is not None and self.clock() - self.started >= self.seconds
