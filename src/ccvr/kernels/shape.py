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
    def padded(self) -> tuple[int, int]:
        """Height and width of an image with its padding."""
        return self.height + 2 * self.padding, self.width + 2 * self.padding

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output; pooling leaves out a last odd row or column."""
        height, width = self.padded
        return (height - self.kernel + 1) // self.pool, (width - self.kernel + 1) // self.pool

    @property
    def taps(self) -> int:
        """Numbers of an image, channels last, that one row of the kernel meets."""
        return self.kernel * self.inputs

    def flop(self, images: int) -> int:
        """Floating-point operations of one convolution over so many images, as far as pooling reads it."""
        height, width = self.pooled
        return 2 * self.taps * self.kernel * self.outputs * self.pool**2 * height * width * images
