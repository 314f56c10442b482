"""The shape of a block that kernels are compiled for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockShape:
    """What a kernel is compiled for: channels in and out, image and kernel size, zero padding, pooling (1: none)."""

    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int
    padding: int = 0
    pool: int = 2

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output; pooling leaves out a last odd row or column."""
        grown = 2 * self.padding - self.kernel + 1
        return (self.height + grown) // self.pool, (self.width + grown) // self.pool

    def flop(self, images: int) -> int:
        """Floating-point operations of one convolution over so many images, as far as pooling reads it."""
        height, width = self.pooled
        taps = self.inputs * self.outputs * self.kernel**2
        return 2 * taps * self.pool**2 * height * width * images
