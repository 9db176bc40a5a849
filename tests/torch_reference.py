"""What PyTorch itself says about a module, for as many sets of weights as there are tasks."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

NUM_TASKS = 3


class Scaled(torch.nn.Module):
    """A layer without weights, after one that has some."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x, *rest):
        return self.layer(self.scale * x, *rest)


class Net(torch.nn.Module):
    """A linear layer, and whatever `function(module, x)` does with it."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def weights_per_task(params, seed=0):
    """The weights of the module itself, and of modules near it."""
    rng = np.random.default_rng(seed)

    def near(x):
        return x[None] + 0.1 * jnp.asarray(rng.normal(size=(NUM_TASKS, *x.shape)), x.dtype).at[0].set(0)

    return jax.tree.map(near, params)


def to_numpy(tensor):
    return np.asarray(tensor.detach())


def torch_outputs(module, params, inputs):
    """Outputs, and gradients of their weighted sum in parameters and inputs."""
    weights = {name: torch.tensor(np.asarray(x)).requires_grad_() for name, x in params.items()}
    tensors = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = jax.tree.leaves(torch.func.functional_call(module, weights, tuple(tensors)))
    loss = sum((x * directions(x)).sum() for x in outputs if x.is_floating_point())
    wanted = [*weights.values(), *(x for x in tensors if x.requires_grad)]
    gradients = torch.autograd.grad(loss, wanted, materialize_grads=True, allow_unused=True)
    return outputs, dict(zip(weights, gradients, strict=False)), list(gradients[len(weights) :])


def directions(x):
    """Weights of the sum that is differentiated, the same in both frameworks."""
    return torch.tensor(np.random.default_rng(1).normal(size=tuple(x.shape)), dtype=x.dtype)


def jax_outputs(apply, stacked, inputs):
    """The same, for all tasks at once under `vmap`."""

    def loss(params, floats):
        given = iter(floats)
        arrays = [next(given) if x.is_floating_point() else jnp.asarray(x.numpy()) for x in inputs]
        outputs = jax.tree.leaves(apply(params, *arrays))
        rng = [np.random.default_rng(1).normal(size=x.shape) for x in outputs]
        parts = [
            jnp.sum(x * jnp.asarray(r, x.dtype))
            for x, r in zip(outputs, rng, strict=True)
            if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return sum(parts), outputs

    floats = [jnp.asarray(x.numpy()) for x in inputs if x.is_floating_point()]
    run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (_, outputs), gradients = jax.jit(jax.vmap(run, in_axes=(0, None)))(stacked, floats)
    return outputs, *gradients


def assert_close(actual, expected, tolerance=1e-5):
    expected = to_numpy(expected)
    assert actual.shape == expected.shape
    difference = np.abs(np.asarray(actual, np.float64) - expected)
    assert (difference <= tolerance * max(1.0, np.abs(expected).max(initial=0))).all(), difference.max()
