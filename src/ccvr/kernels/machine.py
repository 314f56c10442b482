"""What the kernels need to know about this processor, and whether Halide is installed."""

import importlib.util
import platform
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

FMA_IN_FLIGHT = 8
"""Multiply-adds that a core keeps in flight: two a cycle, four cycles each."""

MAX_NUMBERS = 2**31 - 1
"""Numbers of an array that the 32-bit indices of a kernel reach."""

MAX_LANES = 64
"""More images than any register has lanes."""


@cache
def is_installed() -> bool:
    """Whether the extra ``fast`` is installed."""
    return importlib.util.find_spec("halide") is not None


@dataclass(frozen=True)
class Machine:
    """The processor as a kernel sees it: ``lanes`` float32 numbers in a vector register, and so many registers."""

    target: str
    """Halide's name for it."""
    lanes: int
    registers: int

    def at_once(self, number: int, sums: int) -> int:
        """How many of a number of things to work on together where each has so many sums.

        The sums must fit into three quarters of the registers. Fewer than eight leave the multiply-adds waiting for
        each other; a last group that reaches beyond the number costs as much as any.
        """
        most = max(1, min(number, self.registers * 3 // 4 // sums))

        def cost(group: int) -> int:
            return -(-number // group) * max(group * sums, FMA_IN_FLIGHT)

        return min(range(most, 0, -1), key=cost)


def target_of(machine: Machine) -> Any:
    """Halide's target, without checks of arguments in the kernel: they are checked before, and compile slowly."""
    import halide as hl

    features = (hl.TargetFeature.NoAsserts, hl.TargetFeature.NoBoundsQuery)
    return reduce(lambda target, feature: target.with_feature(feature), features, hl.Target(machine.target))


@cache
def this_machine() -> Machine:
    """The machine that this process runs on; a group of images is one vector register wide."""
    import halide as hl

    target = hl.get_jit_target_from_environment()
    wide = target.has_feature(hl.TargetFeature.AVX512) or platform.machine() in ("arm64", "aarch64")
    return Machine(str(target), target.natural_vector_size(hl.Float(32)), 32 if wide else 16)
