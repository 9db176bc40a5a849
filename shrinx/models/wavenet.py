"""WaveNet (appendix E.2): the next sample of speech from all samples before, and from pitch and phones.

Its parameters are a nested dictionary, so that `by_layer` gives the modules of the paper. A convolution over time is a
matrix product whose outputs are shifted and added: under `vmap` over tasks with weights of their own it becomes a
batched matrix product, where a library convolution would become a grouped one, which XLA runs slowly.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from .._types import Params
from .conditioning import Conditioning

LEVELS = 256
"""Values of an 8-bit mu-law sample."""
SILENCE = 128
"""The sample that stands before the first."""
TAPS = 2
"""A dilated convolution sees the present and one sample of the past."""

Samples = Shaped[Array, "strings samples"]
Layer = dict[str, Any]


class Speech(NamedTuple):
    """A batch of strings of speech: mu-law samples, and per frame pitch in Hz (0 is unvoiced) and phone.

    `speaker` is the row of the table of speakers, where a network has one.
    """

    samples: Samples
    f0: Shaped[Array, "strings frames"]
    phones: Shaped[Array, "strings frames"]
    speaker: Int[Array, " strings"]


@dataclass(frozen=True)
class WaveNet:
    """Residual blocks of dilated causal convolutions, the sum of whose skip outputs gives the next sample.

    The defaults are the paper's network with a quarter of the standard channels: 30 blocks, 123 modules. Each block has
    four (`dilated`, `condition`, `residual`, `skip`), but nothing would read the last one's `residual`.

    With `num_speakers` it is the multi-speaker network of the SEA baselines: a table of embeddings, and a layer in
    every block that reads them.

    >>> import jax, shrinx as sx
    >>> network = WaveNet()
    >>> modules = sx.by_layer(jax.eval_shape(network.init, jax.random.key(0)))
    >>> len(modules), sum(modules.sizes), modules.names[-4:]
    (123, 3330752, ('input', 'input_skip', 'output0', 'output1'))
    """

    dilations: tuple[int, ...] = 3 * tuple(2**power for power in range(10))
    residual_channels: int = 128
    skip_channels: int = 64
    output_channels: int = 256
    hop: int = 80
    """Samples in a frame: 5 ms at 16 kHz."""
    conditioning: Conditioning = field(default_factory=Conditioning)
    num_speakers: int | None = None
    speaker_channels: int = 64
    dtype: Literal["float32", "bfloat16"] | None = None
    """What the blocks are computed in; parameters, the sum of skip outputs, the last layer and losses keep the type of
    the parameters, which is also the default here."""
    unroll: bool = True
    """Blocks one by one in the program, so that nothing is copied between them. Otherwise they are one loop, of which
    there is less to compile."""
    remat: bool = False
    """Keep only the blocks' inputs for the gradient and compute the rest again: a tenth of the memory, a third more
    time."""

    def __post_init__(self) -> None:
        sizes = (self.residual_channels, self.skip_channels, self.output_channels, self.hop, self.speaker_channels)
        if not self.dilations or min(*self.dilations, *sizes) < 1:
            raise ValueError("A WaveNet needs at least one block, and channels, dilations and hop of at least 1.")
        if self.num_speakers is not None and self.num_speakers < 1:
            raise ValueError(f"`num_speakers` must be None or at least 1, got {self.num_speakers}.")
        if self.dtype not in (None, "float32", "bfloat16"):
            raise ValueError(f"`dtype` must be None, 'float32' or 'bfloat16', got {self.dtype!r}.")

    @property
    def block_names(self) -> tuple[str, ...]:
        return tuple(f"block{block:02d}" for block in range(len(self.dilations)))

    @property
    def receptive_field(self) -> int:
        """How many samples before it the next one depends on."""
        return 1 + sum(self.dilations)

    def init(self, key: PRNGKeyArray) -> Params:
        """Kernels of variance 1 / inputs (truncated normal), biases zero, embeddings standard normal."""
        keys = iter(jax.random.split(key, 5 * (len(self.dilations) + 1)))
        residual, skip, gates = self.residual_channels, self.skip_channels, 2 * self.residual_channels

        def kernel(*shape: int) -> Array:
            fan_in = jax.nn.initializers.lecun_normal(in_axis=tuple(range(len(shape) - 1)))
            return fan_in(next(keys), shape)

        def dense(*shape: int) -> Layer:
            return {"kernel": kernel(*shape), "bias": jnp.zeros(shape[-1])}

        def block(is_last: bool) -> Layer:
            layers: Layer = {
                "dilated": dense(TAPS, residual, gates),
                # The dilated convolution's bias is theirs as well.
                "condition": {"kernel": kernel(self.conditioning.num_features, gates)},
                "skip": dense(residual, skip),
            }
            if not is_last:
                layers["residual"] = dense(residual, residual)
            if self.num_speakers is not None:
                layers["speaker"] = {"kernel": kernel(self.speaker_channels, gates)}
            return layers

        params = {name: block(name == self.block_names[-1]) for name in self.block_names}
        params["input"] = dense(LEVELS, residual)
        params["input_skip"] = dense(residual, skip)
        params["output0"] = dense(skip, self.output_channels)
        params["output1"] = dense(self.output_channels, LEVELS)
        if self.num_speakers is not None:
            params["speaker"] = {"table": jax.random.normal(next(keys), (self.num_speakers, self.speaker_channels))}
        return params

    def apply(self, params: Params, speech: Speech) -> Float[Array, "strings samples levels"]:
        """Logits of every sample given those before it, all at once."""
        self._check(speech)
        before = jnp.pad(speech.samples, ((0, 0), (1, 0)), constant_values=SILENCE)[:, :-1]
        hidden = self.dense(params["input"], jax.nn.one_hot(before, LEVELS, dtype=self.compute_dtype(params)))
        skip = self.dense(params["input_skip"], hidden).astype(params["output1"]["kernel"].dtype)
        told = self.conditions(params, speech.f0, speech.phones, speech.speaker)
        dilations = jnp.asarray(self.dilations, jnp.int32)

        def block(carry: tuple[Array, Array], one: tuple[Layer, Array, Array]) -> tuple[tuple[Array, Array], None]:
            hidden, skip = carry
            hidden, more = self._block(hidden, *one)
            return (hidden, skip + more.astype(skip.dtype)), None

        block = jax.checkpoint(block) if self.remat else block
        *alike, last = self.block_names
        carry = hidden, skip
        if alike:
            layers = _stacked([params[name] for name in alike])
            carry, _ = jax.lax.scan(block, carry, (layers, told[:-1], dilations[:-1]), unroll=self.unroll)
        # By itself, as nothing would read its residual output and it has no layer for one.
        (_, skip), _ = block(carry, (params[last], told[-1], dilations[-1]))
        return self.output(params, skip)

    def _block(self, hidden: Array, layers: Layer, told: Array, dilation: Array) -> tuple[Array, Array]:
        """The next block's input, and this one's skip output."""
        gated = self.gate(self.dilated(layers["dilated"], hidden, dilation), told)
        skip = self.dense(layers["skip"], gated)
        return hidden + self.dense(layers["residual"], gated) if "residual" in layers else hidden, skip

    def negative_log_likelihood(self, params: Params, speech: Speech) -> Float[Array, ""]:
        """Mean over all samples, in nats."""
        logits = self.apply(params, speech)
        # A gather would do, but its gradient is a scatter: slow on a GPU, and different from run to run.
        right = speech.samples[..., None] == jnp.arange(LEVELS, dtype=speech.samples.dtype)[None, None]
        likelihood = jnp.sum(jnp.where(right, logits, 0), axis=-1) - jax.nn.logsumexp(logits, axis=-1)
        return -jnp.mean(likelihood)

    def compute_dtype(self, params: Params) -> Any:
        return params["input"]["kernel"].dtype if self.dtype is None else jnp.dtype(self.dtype)

    def dense(self, layer: Layer, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """A 1x1 convolution, as one tall matrix so that the kernel's gradient contracts a single axis."""
        kernel = layer["kernel"].astype(inputs.dtype)
        outputs = inputs.reshape(-1, inputs.shape[-1]) @ kernel
        if "bias" in layer:
            outputs = outputs + layer["bias"].astype(inputs.dtype)[None]
        return outputs.reshape(*inputs.shape[:-1], kernel.shape[-1])

    def dilated(self, layer: Layer, inputs: Array, dilation: int | Array) -> Float[Array, "strings samples gates"]:
        """Causal convolution with zeros before the first sample; `dilation` is at most the network's largest."""
        past, present = layer["kernel"]
        both = self.dense({"kernel": jnp.concatenate([past, present], axis=-1)}, inputs)
        past, present = jnp.split(both, 2, axis=-1)
        longest = min(max(self.dilations), inputs.shape[1])
        past = jnp.pad(past, ((0, 0), (longest, 0), (0, 0)))
        start = jnp.maximum(longest - dilation, 0)
        past = jax.lax.dynamic_slice_in_dim(past, start, inputs.shape[1], axis=1)
        return past + present + layer["bias"].astype(inputs.dtype)[None, None]

    def conditions(
        self,
        params: Params,
        f0: Shaped[Array, "strings frames"],
        phones: Shaped[Array, "strings frames"],
        speaker: Int[Array, " strings"],
    ) -> Float[Array, "blocks strings frames gates"]:
        """What each block hears besides the samples.

        Computed once a frame: to repeat a frame for its samples comes to the same before and after a 1x1 layer.
        """
        features = self.conditioning.features(f0, phones.astype(jnp.int32)).astype(self.compute_dtype(params))
        told = self._dense_of_blocks(params, "condition", features)
        if self.num_speakers is None:
            return told
        voice = params["speaker"]["table"][speaker].astype(features.dtype)
        return told + self._dense_of_blocks(params, "speaker", voice)[:, :, None]

    def _dense_of_blocks(self, params: Params, kind: str, inputs: Array) -> Float[Array, "blocks *batch outputs"]:
        """What the layers of one kind, one in each block, make of the same inputs."""
        layers = _stacked([params[name][kind] for name in self.block_names])
        return jax.vmap(self.dense, in_axes=(0, None))(layers, inputs)

    def gate(self, sounds: Array, told: Array) -> Float[Array, "strings samples residual"]:
        """tanh of one half of the channels times the sigmoid of the other, frames spread over their samples."""
        strings, frames, gates = told.shape
        both = sounds.reshape(strings, frames, -1, gates) + told[:, :, None]
        wave, opening = jnp.split(both.reshape(sounds.shape), 2, axis=-1)
        return jnp.tanh(wave) * jax.nn.sigmoid(opening)

    def output(self, params: Params, skip: Float[Array, "*batch skip"]) -> Float[Array, "*batch levels"]:
        """Logits from the sum of skip outputs."""
        dtype = self.compute_dtype(params)
        hidden = jax.nn.relu(self.dense(params["output0"], jax.nn.relu(skip).astype(dtype)))
        return self.dense(params["output1"], hidden.astype(skip.dtype))

    def _check(self, speech: Speech) -> None:
        samples, frames = speech.samples.shape[1], speech.f0.shape[1]
        if samples != frames * self.hop or speech.phones.shape != speech.f0.shape:
            raise ValueError(
                f"{frames} frames of pitch and {speech.phones.shape[1]} of phones do not fit {samples} samples: "
                f"a frame has {self.hop}."
            )


def _stacked(layers: list[Layer]) -> Layer:
    return jax.tree.map(lambda *of: jnp.stack(of), *layers)
