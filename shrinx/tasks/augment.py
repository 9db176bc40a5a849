"""Random scaling, shifting and turning of images, inside the compiled loop.

Images come as bytes and go as floats in [0, 1]; what a transformation brings in from outside the image is 0, so the
ground of a drawing should be 0 and its ink 255.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

ByteImages = UInt8[Array, "images height width channels"]
FloatImages = Float[Array, "images height width channels"]


@dataclass(frozen=True)
class Affine:
    """A distribution of transformations; the defaults are those of large-data augmented Omniglot."""

    scale: tuple[float, float] = (0.8, 1.2)
    """The range of the factor an image is enlarged by."""
    shift: float = 0.2
    """The largest shift, down or up and right or left, as a share of the image's height and width."""
    rotate: bool = True
    """Turn by 0, 1, … or 359 degrees."""

    def __post_init__(self) -> None:
        low, high = self.scale
        if not 0 < low <= high:
            raise ValueError(f"`scale` must be a range of positive factors, got {self.scale}.")
        if not self.shift >= 0:
            raise ValueError(f"`shift` must be 0 or greater, got {self.shift}.")


def augment(key: PRNGKeyArray, images: ByteImages, affine: Affine) -> FloatImages:
    """Transform every image by a draw of its own."""
    scale_key, shift_key, angle_key = jax.random.split(key, 3)
    low, high = affine.scale
    count = len(images)
    scale = jax.random.uniform(scale_key, (count,), jnp.float32, low, high)
    shift = jax.random.uniform(shift_key, (count, 2), jnp.float32, -affine.shift, affine.shift)
    degrees = jax.random.randint(angle_key, (count,), 0, 360 if affine.rotate else 1)
    return warp(images, scale, shift, degrees)


def warp(
    images: ByteImages,
    scale: Float[Array, " images"],
    shift: Float[Array, "images 2"],
    degrees: Int[Array, " images"],
) -> FloatImages:
    """Scale about the centre, turn counter-clockwise, then shift down and right, with bilinear interpolation."""
    count, height, width, channels = images.shape
    rows, columns = _sources(height, width, scale, shift, degrees)
    top, left = jnp.floor(rows), jnp.floor(columns)
    corner_rows = jnp.stack([top, top, top + 1, top + 1], axis=-1)
    corner_columns = jnp.stack([left, left + 1, left, left + 1], axis=-1)
    weights = (1 - jnp.abs(rows[..., None] - corner_rows)) * (1 - jnp.abs(columns[..., None] - corner_columns))
    inside = (corner_rows >= 0) & (corner_rows < height) & (corner_columns >= 0) & (corner_columns < width)
    pixels = jnp.where(inside, corner_rows * width + corner_columns, 0).astype(jnp.int32)
    flat = images.reshape(count, height * width, channels)
    corners = to_float(jax.vmap(lambda image, pixel: image[pixel])(flat, pixels))
    weighted = corners * jnp.where(inside, weights, 0)[..., None]
    return jnp.sum(weighted, axis=2).reshape(images.shape)


def to_float(images: UInt8[Array, "..."]) -> Float[Array, "..."]:
    """Bytes 0 to 255 as floats 0 to 1."""
    return images.astype(jnp.float32) / 255


def _sources(
    height: int, width: int, scale: Array, shift: Array, degrees: Array
) -> tuple[Float[Array, "images pixels"], Float[Array, "images pixels"]]:
    """The place in the original image that every pixel of the result shows: row and column."""
    size = np.asarray([height, width], np.float32)
    centre = (size - 1) / 2
    grid = np.indices((height, width), dtype=np.float32).reshape(1, 2, -1)
    row, column = jnp.moveaxis(grid - (centre[None] + shift * size[None])[..., None], 1, 0)
    # From a table, since float32 would turn 90 degrees into a little less and blur the image.
    angles = np.deg2rad(np.arange(360))
    cosine = jnp.asarray(np.cos(angles), jnp.float32)[degrees] / scale
    sine = jnp.asarray(np.sin(angles), jnp.float32)[degrees] / scale
    rows = cosine[:, None] * row + sine[:, None] * column + centre[0]
    columns = cosine[:, None] * column - sine[:, None] * row + centre[1]
    return rows, columns
