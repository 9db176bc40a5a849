"""When a block of the network is computed by GPU kernels. Only then are they, and Pallas, imported."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Mode = Literal["auto", "off", "interpret"]
Block = Callable[..., Float[Array, "images rows columns filters"]]

SIZES = (16, 32, 64)
"""Numbers of channels and filters that make a matrix product: powers of two, and few enough for the fast memory."""
TRUSTED = (32, 64)
"""Numbers of filters for which compiled kernels were found to be as exact as XLA. On an H200 (JAX 0.11.2) those for 16
were not, with losses off by 0.2 and 0.4, though interpreted they are; why is not known."""
FEW_CHANNELS = (1, 2, 3)
"""Of the images, for the kernels of the first block."""


def kernel_block(
    mode: Mode,
    inputs: Float[Array, "images height width channels"],
    kernel: Float[Array, "3 3 channels filters"],
) -> Block | None:
    """`block(inputs, kernel, scale, offset)` for arrays of these shapes and types, or None if XLA should do it."""
    trusted = inputs.dtype == jnp.bfloat16 and kernel.shape[-1] in TRUSTED
    runs = mode == "interpret" or (mode == "auto" and trusted and on_recent_gpu())
    if not (runs and fits(inputs, kernel)):
        return None
    try:
        from . import rules
    except ImportError:
        return None
    few = inputs.shape[-1] in FEW_CHANNELS
    tilings = rules.tilings_for(inputs, interpret=mode == "interpret")
    return functools.partial(rules.first_block if few else rules.block, tilings)


def on_recent_gpu() -> bool:
    """Whether programs go to an NVIDIA GPU that multiplies bfloat16 (compute capability 8.0)."""
    device = jax.config.jax_default_device or jax.devices()[0]  # pyright: ignore[reportAttributeAccessIssue]
    # An AMD GPU calls its capability gfx90a or the like.
    major = str(getattr(device, "compute_capability", "")).split(".")[0]
    return getattr(device, "platform", device) in ("gpu", "cuda") and major.isdigit() and int(major) >= 8


def fits(inputs: Float[Array, "images height width channels"], kernel: Float[Array, "3 3 channels filters"]) -> bool:
    """Whether the kernels are made for these shapes and types."""
    images, height, width, channels = inputs.shape
    filters = kernel.shape[-1]
    return (
        channels in (*FEW_CHANNELS, *SIZES)
        and filters in SIZES
        # Places in an array are 32-bit numbers.
        and images * height * width * max(channels, filters) < 2**31
        and kernel.dtype == jnp.float32
        and jnp.result_type(float) == jnp.float32
    )
