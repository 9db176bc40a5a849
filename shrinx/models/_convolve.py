"""A convolution that stays fast when every task has a kernel of its own.

Under `vmap` over kernels a library convolution becomes a grouped one, which XLA runs slowly, and its derivatives slower
still. Patches and one matrix product become a batched matrix product instead, in the forward pass, in the gradient and
in Hessian-vector products alike. Where multiplications are what takes the time, Winograd's algorithm does with fewer.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._winograd import convolve_tiles

SIDE = 3
MANY_CHANNELS, LARGE_IMAGE = 32, 8
"""From where on Winograd's algorithm is faster on a CPU (`python -m benchmarks.convolutions`)."""


def convolve(
    inputs: Float[Array, "images height width channels"],
    kernel: Float[Array, "3 3 channels filters"],
    stride: int = 1,
) -> Float[Array, "images rows columns filters"]:
    """The 3x3 convolution with zero padding that XLA and TensorFlow call SAME: ⌈height / stride⌉ rows come out."""
    if stride == 1 and _suits_tiles(inputs):
        return convolve_tiles(inputs, kernel)
    return convolve_patches(inputs, kernel, stride)


def convolve_patches(
    inputs: Float[Array, "images height width channels"],
    kernel: Float[Array, "3 3 channels filters"],
    stride: int = 1,
) -> Float[Array, "images rows columns filters"]:
    """The same as a single product of matrices."""
    patches = patches_of(inputs, stride)
    # As one tall matrix, so that the kernel's gradient contracts a single axis.
    product = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(-1, kernel.shape[-1])
    return product.reshape(*patches.shape[:-1], kernel.shape[-1])


def patches_of(
    inputs: Float[Array, "images height width channels"], stride: int = 1
) -> Float[Array, "images rows columns patch"]:
    """Of every pixel that comes out, the nine that go in, row by row, each with its channels."""
    top, bottom = _same_padding(inputs.shape[1], stride)
    left, right = _same_padding(inputs.shape[2], stride)
    padded = jnp.pad(inputs, ((0, 0), (top, bottom), (left, right), (0, 0)))
    last_row, last_column = padded.shape[1] - SIDE + 1, padded.shape[2] - SIDE + 1
    shifted = [
        padded[:, row : row + last_row : stride, column : column + last_column : stride]
        for row in range(SIDE)
        for column in range(SIDE)
    ]
    return jnp.concatenate(shifted, axis=-1)


def _suits_tiles(inputs: Float[Array, "images height width channels"]) -> bool:
    """Accelerators have multiplications to spare, and sums of tiles would lose what half precision has left."""
    _, height, width, channels = inputs.shape
    large = channels >= MANY_CHANNELS and min(height, width) >= LARGE_IMAGE
    return large and jax.default_backend() == "cpu" and inputs.dtype in (jnp.float32, jnp.float64)


def _same_padding(length: int, stride: int) -> tuple[int, int]:
    total = max((-(-length // stride) - 1) * stride + SIDE - length, 0)
    return total // 2, total - total // 2
