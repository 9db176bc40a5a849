"""What WaveNet is told about every 5 ms of speech: pitch and phone, now, a little before and a little later."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

TYPICAL_PITCH = 130.0
"""Hz; log-pitch is taken relative to it."""


@dataclass(frozen=True)
class Conditioning:
    """Features of frames: log-pitch (0 where unvoiced), whether voiced, and the phone as one of `num_phones`.

    The network is causal and would hear of the next phone only when it begins, while the mouth moves towards it before:
    so every frame is told what holds `context` frames away, too. At the ends the outermost frame is repeated.

    >>> import jax.numpy as jnp
    >>> conditioning = Conditioning(num_phones=2, context=(0, 1))
    >>> conditioning.features(jnp.array([[0.0, 130.0]]), jnp.array([[0, 1]]))
    Array([[[0., 0., 1., 0., 0., 1., 0., 1.],
            [0., 1., 0., 1., 0., 1., 0., 1.]]], dtype=float32)
    """

    num_phones: int = 20
    context: tuple[int, ...] = (-8, 0, 8)
    """In frames; 0 is the frame itself."""

    def __post_init__(self) -> None:
        if self.num_phones < 1 or not self.context:
            raise ValueError("Conditioning needs at least one phone and one place in `context`.")

    @property
    def num_features(self) -> int:
        return len(self.context) * (2 + self.num_phones)

    def features(
        self, f0: Shaped[Array, "strings frames"], phones: Int[Array, "strings frames"]
    ) -> Float[Array, "strings frames features"]:
        """From pitch in Hz (0 is unvoiced) and indices of phones."""
        pitch = f0.astype(jnp.float32)
        voiced = pitch > 0
        log_pitch = jnp.where(voiced, jnp.log(jnp.where(voiced, pitch, TYPICAL_PITCH) / TYPICAL_PITCH), 0)
        here = jnp.concatenate(
            [
                jnp.stack([log_pitch, voiced.astype(log_pitch.dtype)], axis=-1),
                jax.nn.one_hot(phones, self.num_phones, dtype=log_pitch.dtype),
            ],
            axis=-1,
        )
        frames = jnp.arange(here.shape[1])
        return jnp.concatenate([here[:, jnp.clip(frames + away, 0, len(frames) - 1)] for away in self.context], axis=-1)
