"""The convolutional network of the image experiments: blocks of convolution, batch norm and ReLU, and a linear output.

Its parameters are a nested dictionary, so that `by_layer` gives the modules of the paper: conv0, …, norm0, …, output.
"""

import functools
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ._convolve import convolve
from ._gpu.choose import Mode, kernel_block

ConvParams = dict[str, dict[str, Float[Array, "..."]]]
Images = Float[Array, "images height width channels"]
Batch = tuple[Images, Int[Array, " images"]]

EPSILON = 1e-3
"""Added to the variances of batch norm."""


@dataclass(frozen=True)
class ConvNet:
    """Each block is a 3x3 convolution, batch norm and ReLU, and halves the image; the last one is flattened.

    Augmented Omniglot is `ConvNet((28, 28, 1), 20)`, few-shot Omniglot `ConvNet((28, 28, 1), 5, halve="stride")`,
    miniImageNet `ConvNet((84, 84, 3), 5, num_filters=32)`.

    Batch norm uses the statistics of the batch at hand, in training and test alike, so predictions for an image depend
    on its batch. Convolutions have no bias, since batch norm would take it away again.

    >>> import jax, shrinx as sx
    >>> network = ConvNet((28, 28, 1), num_classes=20)
    >>> sx.by_layer(network.init(jax.random.key(0))).names
    ('conv0', 'conv1', 'conv2', 'conv3', 'norm0', 'norm1', 'norm2', 'norm3', 'output')
    """

    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    num_classes: int
    num_filters: int = 64
    halve: Literal["pool", "stride"] = "pool"
    """How a block halves the image: by 2x2 max-pooling, an odd last row or column left out, or by stride 2."""
    num_blocks: int = 4
    dtype: Literal["float32", "bfloat16"] | None = None
    """What convolutions are computed in; all the rest (parameters, statistics of batch norm, logits and losses) keeps
    the type of the parameters, which is also the default here."""
    gpu_kernels: Mode = "auto"
    """Whether blocks are computed by GPU kernels: on a recent NVIDIA GPU, in bfloat16, with pooling and 32 or 64
    filters ("auto"), never ("off": XLA computes them), or everywhere, but by Python ("interpret", for tests).

    Kernels have all derivatives of which the first is a gradient. For `jax.jvp` of the network itself choose "off"."""

    def __post_init__(self) -> None:
        if self.halve not in ("pool", "stride"):
            raise ValueError(f"`halve` must be 'pool' or 'stride', got {self.halve!r}.")
        if self.dtype not in (None, "float32", "bfloat16"):
            raise ValueError(f"`dtype` must be None, 'float32' or 'bfloat16', got {self.dtype!r}.")
        if self.gpu_kernels not in get_args(Mode):
            raise ValueError(f"`gpu_kernels` must be 'auto', 'off' or 'interpret', got {self.gpu_kernels!r}.")
        if min(self.num_classes, self.num_filters, self.num_blocks) < 1:
            raise ValueError("A convolutional network needs at least one class, filter and block.")
        if len(self.image_shape) != 3 or min(*self.image_shape, *self.last_shape) < 1:
            raise ValueError(
                f"`image_shape` must be (height, width, channels) with sides that can be halved {self.num_blocks} "
                f"times, got {self.image_shape}."
            )

    @property
    def last_shape(self) -> tuple[int, int]:
        """Height and width after the last block."""
        height, width = self.image_shape[:2]
        for _ in range(self.num_blocks):
            height, width = (side // 2 if self.halve == "pool" else -(-side // 2) for side in (height, width))
        return height, width

    def init(self, key: PRNGKeyArray) -> ConvParams:
        """Kernels of variance 1 / inputs (truncated normal), scales one, offsets and output bias zero.

        The paper does not say how it initialises. The size of a convolution's kernel does not change what the network
        computes, batch norm sees to that, but it sets how far a gradient step of a given length turns the kernel.
        """
        lecun = jax.nn.initializers.lecun_normal()
        *conv_keys, output_key = jax.random.split(key, self.num_blocks + 1)
        params: ConvParams = {}
        for block, conv_key in enumerate(conv_keys):
            channels = self.image_shape[2] if block == 0 else self.num_filters
            params[f"conv{block}"] = {"kernel": lecun(conv_key, (3, 3, channels, self.num_filters))}
            params[f"norm{block}"] = {"scale": jnp.ones(self.num_filters), "offset": jnp.zeros(self.num_filters)}
        height, width = self.last_shape
        kernel = lecun(output_key, (height * width * self.num_filters, self.num_classes))
        params["output"] = {"kernel": kernel, "bias": jnp.zeros(self.num_classes)}
        return params

    def apply(self, params: ConvParams, images: Images) -> Float[Array, "images classes"]:
        """Logits."""
        if images.shape[1:] != self.image_shape:
            raise ValueError(f"This network is made for images of shape {self.image_shape}, got {images.shape[1:]}.")
        hidden = images
        for block in range(self.num_blocks):
            kernel, norm = params[f"conv{block}"]["kernel"], params[f"norm{block}"]
            inputs = hidden.astype(kernel.dtype if self.dtype is None else self.dtype)
            by_kernels = kernel_block(self.gpu_kernels, inputs, kernel) if self.halve == "pool" else None
            compute = by_kernels or functools.partial(xla_block, self.halve)
            hidden = compute(inputs, kernel, norm["scale"], norm["offset"])
        kernel, bias = params["output"]["kernel"], params["output"]["bias"]
        features = hidden.reshape(len(images), -1).astype(kernel.dtype)
        # What all classes' weights have in common cancels in the softmax, so nothing keeps it small; a GPU's shorter
        # floats would round the differences away.
        return jnp.matmul(features, kernel, precision=jax.lax.Precision.HIGHEST) + bias[None]

    def cross_entropy(self, params: ConvParams, batch: Batch) -> Float[Array, ""]:
        """Mean negative log-likelihood of the labels."""
        images, labels = batch
        log_likelihoods = jax.nn.log_softmax(self.apply(params, images))
        return -jnp.mean(jnp.take_along_axis(log_likelihoods, labels[:, None], axis=1))

    def accuracy(self, params: ConvParams, batch: Batch) -> Float[Array, ""]:
        """The share of images whose largest logit is that of the label."""
        images, labels = batch
        return jnp.mean(jnp.argmax(self.apply(params, images), axis=-1).astype(labels.dtype) == labels)


def xla_block(
    halve: Literal["pool", "stride"],
    inputs: Images,
    kernel: Float[Array, "3 3 channels filters"],
    scale: Float[Array, " filters"],
    offset: Float[Array, " filters"],
) -> Float[Array, "images rows columns filters"]:
    """Convolution, batch norm, pooling and ReLU."""
    hidden = convolve(inputs, kernel.astype(inputs.dtype), stride=1 if halve == "pool" else 2)
    hidden = batch_norm(hidden, scale, offset)
    # ReLU commutes with the maximum, and after it there is a quarter of the work.
    return jax.nn.relu(max_pool(hidden) if halve == "pool" else hidden)


def batch_norm(inputs: Images, scale: Float[Array, " channels"], offset: Float[Array, " channels"]) -> Images:
    """Mean 0 and variance 1 per channel over the images and pixels at hand, then scale and offset."""
    wide = inputs.astype(scale.dtype)
    # Mean and mean square in one pass over the data; centring first takes two, and on a GPU a third of a step's time.
    mean = jnp.mean(wide, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(wide), axis=(0, 1, 2)) - jnp.square(mean)
    # Rounding can bring the variance of a constant channel below zero.
    factor = scale * jax.lax.rsqrt(jnp.where(variance > 0, variance, 0) + EPSILON)
    return (wide * factor[None, None, None] + (offset - mean * factor)[None, None, None]).astype(inputs.dtype)


def max_pool(inputs: Images) -> Float[Array, "images rows columns channels"]:
    """The largest of every 2x2 pixels; an odd last row or column is left out.

    Of pixels that tie, the first gets the gradient. On the flat ground of a drawing whole patches are alike, and then
    all ways of sharing it give the parameters the same gradient.
    """
    images, height, width, channels = inputs.shape
    rows, columns = height // 2, width // 2
    tiles = inputs[:, : 2 * rows, : 2 * columns].reshape(images, rows, 2, columns, 2, channels)
    pixels = (tiles[:, :, row, :, column] for row in (0, 1) for column in (0, 1))
    # Not `jnp.max`: its gradient looks for the pixels equal to the maximum and divides by their number. A compiler that
    # computes the pixels a second time and rounds them differently finds none, and the gradient is NaN.
    return functools.reduce(lambda best, pixel: jnp.where(best >= pixel, best, pixel), pixels)
