"""iMAML on the sinusoid: 5 tasks, 100 proximal steps towards loss + λ/2 |θ - φ|², 5 conjugate-gradient steps."""

from ..case import Case
from .sinusoid import make_batches, make_params


def make() -> Case:
    return Case(
        name="sinusoid-imaml",
        title="Sinusoid, iMAML, 100 steps + 5 CG",
        algorithm="imaml",
        network="mlp",
        params=make_params(),
        batches=make_batches(4, num_tasks=5),
        num_steps=100,
        inner_rate=0.01,
        regularisation=2.0,
        linear_steps=5,
    )
