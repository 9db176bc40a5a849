"""Problems with known answers, shared by the tests."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import shrinx as sx


@dataclass(frozen=True)
class Quadratic:
    """Support loss ½(θ-a)ᵀA(θ-a), query loss ½(θ-b)ᵀB(θ-b), modules of unequal size; all closed forms dense, float64.

    The parameters are a dictionary of arrays, one per module, raveled in order for the dense algebra.
    """

    support_matrix: np.ndarray
    support_centre: np.ndarray
    query_matrix: np.ndarray
    query_centre: np.ndarray
    mean: np.ndarray
    deviations: np.ndarray
    sizes: tuple[int, ...]

    @property
    def labels(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def variance(self) -> np.ndarray:
        return self.deviations[self.labels] ** 2

    def split(self, vector: np.ndarray, dtype: str) -> dict:
        parts = np.split(np.asarray(vector), np.cumsum(self.sizes)[:-1])
        return {f"m{index}": jnp.asarray(part, dtype) for index, part in enumerate(parts)}

    def join(self, tree: dict) -> np.ndarray:
        return np.concatenate([np.asarray(tree[f"m{index}"], np.float64) for index in range(len(self.sizes))])

    def prior(self, dtype: str) -> sx.Prior:
        params = self.split(self.mean, dtype)
        modules = sx.by_leaf(params)
        return sx.Prior.create(
            params, modules=modules, variance=dict(zip(modules.names, self.deviations**2, strict=True))
        )

    def task(self, dtype: str, *, batch: bool = False) -> sx.Task:
        task = sx.Task(
            support=(jnp.asarray(self.support_matrix, dtype), jnp.asarray(self.support_centre, dtype)),
            query=(jnp.asarray(self.query_matrix, dtype), jnp.asarray(self.query_centre, dtype)),
        )
        return jax.tree.map(lambda x: x[None], task) if batch else task

    def displacement(self) -> np.ndarray:
        """θ̂ - φ = Σ (I + AΣ)^-1 A(a - φ), which is defined for Σ = 0 too and exact where Σ is tiny."""
        system = np.eye(len(self.mean)) + self.support_matrix * self.variance[None, :]
        pull = self.support_matrix @ (self.support_centre - self.mean)
        return self.variance * np.linalg.solve(system, pull)

    def map_estimate(self) -> np.ndarray:
        return self.mean + self.displacement()

    def query_gradient(self, theta: np.ndarray) -> np.ndarray:
        return self.query_matrix @ (theta - self.query_centre)

    def meta_gradient(self, damping: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Dense reference for the gradients of mean and log-variance at the exact MAP estimate."""
        theta = self.map_estimate()
        hessian = self.support_matrix + damping * np.eye(len(theta))
        system = np.eye(len(theta)) + hessian * self.variance[None, :]
        mean = np.linalg.solve(system, self.query_gradient(theta))
        log_variance = np.zeros(len(self.sizes))
        np.add.at(log_variance, self.labels, mean * self.displacement())
        return mean, log_variance


def quadratic_loss(params: dict, data: tuple) -> jax.Array:
    matrix, centre = data
    theta = jnp.concatenate([params[name] for name in sorted(params, key=lambda n: int(n[1:]))])
    return 0.5 * (theta - centre) @ (matrix @ (theta - centre))


def random_quadratic(
    seed: int, *, dimension: int, condition: float = 100.0, deviations: tuple[float, float] = (1e-6, 1e3)
) -> Quadratic:
    rng = np.random.default_rng(seed)
    num_modules = int(rng.integers(2, min(dimension, 8) + 1))
    cuts = np.sort(rng.choice(np.arange(1, dimension), num_modules - 1, replace=False))
    sizes = tuple(int(size) for size in np.diff([0, *cuts, dimension]))
    low, high = np.log10(deviations)

    def matrix() -> np.ndarray:
        basis = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
        eigenvalues = np.logspace(-np.log10(condition), 0, dimension)
        return (basis * eigenvalues) @ basis.T

    return Quadratic(
        support_matrix=matrix(),
        support_centre=rng.normal(size=dimension),
        query_matrix=matrix(),
        query_centre=rng.normal(size=dimension),
        mean=rng.normal(size=dimension),
        deviations=10.0 ** rng.uniform(low, high, num_modules),
        sizes=sizes,
    )


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def conv_net(key: jax.Array, *, blocks: int = 2, channels: int = 4, classes: int = 3) -> dict:
    """Blocks of convolution and batch norm on 8x8 images, and a linear output; modules conv0, bn0, conv1, …"""
    *keys, output_key = jax.random.split(key, blocks + 1)
    he = jax.nn.initializers.he_normal(in_axis=1, out_axis=0)
    params = {}
    for block, block_key in enumerate(keys):
        inputs = channels if block else 1
        params[f"conv{block}"] = {"w": he(block_key, (channels, inputs, 3, 3)), "b": jnp.zeros(channels)}
        params[f"bn{block}"] = {"scale": jnp.ones(channels), "offset": jnp.zeros(channels)}
    features = channels * (8 >> blocks) ** 2
    params["output"] = {"w": he(output_key, (classes, features)), "b": jnp.zeros(classes)}
    return params


def conv_net_loss(params: dict, batch: tuple, compute_dtype=None) -> jax.Array:
    """Mean cross-entropy; batch norm by the statistics of the batch, tanh so that second derivatives exist."""
    images, labels = batch
    cast = (lambda x: x) if compute_dtype is None else (lambda x: x.astype(compute_dtype))
    x = cast(images)[:, None]
    for block in range(len(params) // 2):
        conv, norm = params[f"conv{block}"], params[f"bn{block}"]
        x = jax.lax.conv(x, cast(conv["w"]), (2, 2), "SAME") + cast(conv["b"])[None, :, None, None]
        x = (x - x.mean((0, 2, 3), keepdims=True)) * jax.lax.rsqrt(x.var((0, 2, 3), keepdims=True) + 1e-3)
        x = jnp.tanh(x * cast(norm["scale"])[None, :, None, None] + cast(norm["offset"])[None, :, None, None])
    logits = x.reshape(len(x), -1) @ cast(params["output"]["w"]).T + cast(params["output"]["b"])[None]
    logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


def image_tasks(key: jax.Array, num_tasks: int, *, points: int = 12, classes: int = 3, dtype=jnp.float32) -> sx.Task:
    """Each class of each task is a random 8x8 picture seen under noise."""
    pattern_key, *noise_keys = jax.random.split(key, 3)
    pattern = jax.random.normal(pattern_key, (num_tasks, classes, 8, 8), dtype)
    labels = jnp.broadcast_to(jnp.arange(points, dtype=jnp.int32) % classes, (num_tasks, points))

    def draw(noise_key):
        noise = jax.random.normal(noise_key, (num_tasks, points, 8, 8), dtype)
        return pattern[:, np.arange(points) % classes] + 0.7 * noise, labels

    return sx.Task(support=draw(noise_keys[0]), query=draw(noise_keys[1]))
