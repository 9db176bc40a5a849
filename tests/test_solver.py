"""Inner solvers: every solver on every problem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from jax.test_util import check_grads
from problems import quadratic_loss, random_quadratic, relative_error

import shrinx as sx

SOLVERS = {
    "gd": sx.ProximalGD(0.5),
    "gd-schedule": sx.ProximalGD(lambda step: 0.5),
    "gd-safe": sx.ProximalGD(0.5, power_steps=2),
    "backtracking": sx.ProximalBacktracking(0.5),
    "adam": sx.ProximalAdam(optax.exponential_decay(0.3, 500, 0.2)),
    "averaged": sx.Averaged(sx.ProximalGD(0.5), window=50),
    "adam-paper": sx.ProximalAdam(optax.exponential_decay(0.3, 500, 0.2), eps=0.0, eps_root=1e-8),
}


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # Optax's schedules mix integers and floats.
        yield


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("seed", range(2))
def test_every_solver_finds_the_map_estimate(x64, solver, seed):
    problem = random_quadratic(seed, dimension=10, condition=10, deviations=(1e-3, 3.0))
    adapt = jax.jit(lambda p, d: sx.adapt(quadratic_loss, p, d, solver, num_steps=4000))
    adapted = adapt(problem.prior("float64"), problem.task("float64").support)
    assert relative_error(problem.join(adapted.params), problem.map_estimate()) < 1e-6
    assert adapted.residual < 1e-5


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_structure_and_dtype_are_kept(solver, dtype):
    params = {"a": jnp.ones(3, dtype), "b": {"c": jnp.ones((2, 2), dtype)}}
    prior = sx.Prior.create(params)

    def loss_fn(p, data):
        return jnp.sum(p["a"].astype(jnp.float32) ** 2) + jnp.sum(p["b"]["c"].astype(jnp.float32) ** 2) * data[0]

    adapted = sx.adapt(loss_fn, prior, jnp.ones(1), solver, num_steps=3)
    assert jax.tree.structure(adapted.params) == jax.tree.structure(params)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(adapted.params))
    assert adapted.losses.shape == (3,)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_displacements_are_not_rounded_like_parameters(solver, dtype):
    """Of a strong prior they are too small to be seen in the parameters. With a slope of -2 they are 2 σ² each."""
    variance = {"a": 1e-4, "b": 1e-6, "c": 0.0}
    prior = sx.Prior.create({name: jnp.ones(2, dtype) for name in variance}, variance=variance)

    def loss_fn(params, target):
        return sum(0.5 * jnp.sum((leaf.astype(jnp.float32) - target) ** 2) for leaf in params.values())

    for trainable in (None, ("a", "b")):
        adapted = sx.adapt(loss_fn, prior, jnp.full(2, 3.0), solver, num_steps=300, trainable=trainable)
        for name in variance:
            assert adapted.params[name].dtype == dtype
            assert adapted.displacement[name].dtype == jnp.float32
            np.testing.assert_allclose(adapted.displacement[name], 2 * variance[name], rtol=2e-3)
    implicit = sx.adapt(loss_fn, prior, jnp.full(2, 3.0), solver, num_steps=300, adjoint=sx.Implicit()).displacement
    np.testing.assert_allclose(implicit["a"], adapted.displacement["a"], rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_what_happens_in_frozen_modules_is_nobodys_concern(solver):
    """Neither an infinite gradient, nor a large curvature, nor their number."""
    params = {"a": jnp.zeros(2), "root": jnp.zeros(2), "sharp": jnp.zeros(2), "many": jnp.zeros(100_000)}
    prior = sx.Prior.create(params, variance={"a": 1.0, "root": 0.0, "sharp": 0.0, "many": 0.0})

    def loss_fn(params, target):
        others = jnp.sum(jnp.sqrt(params["root"])) + 1e6 * jnp.sum(params["sharp"] ** 2) + jnp.sum(params["many"])
        return 0.5 * jnp.sum((params["a"] - target) ** 2) + others

    adapted = sx.adapt(loss_fn, prior, jnp.array([1.0, -2.0]), solver, num_steps=10)
    alone = sx.adapt(loss_fn, prior, jnp.array([1.0, -2.0]), solver, num_steps=10, trainable="a")
    assert adapted.failed_step == -1
    np.testing.assert_allclose(adapted.params["a"], alone.params["a"], rtol=1e-5)
    np.testing.assert_allclose(adapted.gradient_norms, alone.gradient_norms, rtol=1e-4, atol=1e-6)
    for name in ("root", "sharp", "many"):
        np.testing.assert_array_equal(adapted.params[name], 0.0)


def test_the_first_step_is_as_safe_as_the_others():
    """Also where hardly any of the parameters can move."""
    params = {"a": jnp.zeros(1), "many": jnp.zeros(100_000)}
    prior = sx.Prior.create(params, variance={"a": 1e4, "many": 0.0})

    def loss_fn(params, target):
        return 50 * jnp.sum((params["a"] - target) ** 2) + jnp.sum(params["many"])

    adapted = sx.adapt(loss_fn, prior, jnp.ones(1), sx.ProximalGD(0.1, power_steps=1), num_steps=3)
    assert (adapted.losses[1:] < 1e-3 * adapted.losses[0]).all()


def test_power_iterations_where_nothing_moves():
    prior = sx.Prior.create(jnp.zeros(2), variance=0.0)
    adapted = sx.adapt(lambda p, x: jnp.sum((p - x) ** 2), prior, jnp.ones(2), SOLVERS["gd-safe"], num_steps=3)
    assert adapted.failed_step == -1
    np.testing.assert_array_equal(adapted.params, 0.0)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(sx.ProximalGD(0.1), optax.sgd(0.1)), (sx.ProximalAdam(0.05, b1=0.8, b2=0.99), optax.adam(0.05, b1=0.8, b2=0.99))],
)
def test_without_a_prior_solvers_are_the_plain_ones(x64, ours, theirs):
    problem = random_quadratic(0, dimension=10)
    task = problem.task("float64")
    prior = sx.Prior.create(problem.split(problem.mean, "float64"), variance=np.inf)
    adapted = sx.adapt(quadratic_loss, prior, task.support, ours, num_steps=50)
    params, state = prior.mean, theirs.init(prior.mean)
    for _ in range(50):
        updates, state = theirs.update(jax.grad(quadratic_loss)(params, task.support), state)
        params = optax.apply_updates(params, updates)
    assert relative_error(problem.join(adapted.params), problem.join(params)) < 1e-13


def test_proximal_gd_takes_the_papers_step(x64):
    problem = random_quadratic(0, dimension=10, deviations=(0.1, 2.0))
    prior, task = problem.prior("float64"), problem.task("float64")
    theta, rate = problem.mean, 0.3
    for _ in range(5):
        half = theta - rate * problem.support_matrix @ (theta - problem.support_centre)
        theta = (half - problem.mean) / (1 + rate / problem.variance) + problem.mean
    adapted = sx.adapt(quadratic_loss, prior, task.support, sx.ProximalGD(rate), num_steps=5)
    np.testing.assert_allclose(problem.join(adapted.params), theta, rtol=1e-12)


def test_proximal_adam_takes_the_papers_step(x64):
    problem = random_quadratic(0, dimension=10, deviations=(0.1, 2.0))
    prior, task = problem.prior("float64"), problem.task("float64")
    theta, rate, first, second, eps = problem.mean, 0.1, 0.0, 0.0, 1e-4
    for step in range(1, 6):
        gradient = problem.support_matrix @ (theta - problem.support_centre)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        root = np.sqrt(second / (1 - 0.999**step) + eps)
        half = theta - rate * (first / (1 - 0.9**step)) / root
        theta = (half - problem.mean) / (1 + rate / root / problem.variance) + problem.mean
    solver = sx.ProximalAdam(rate, eps=0.0, eps_root=eps)
    adapted = sx.adapt(quadratic_loss, prior, task.support, solver, num_steps=5)
    np.testing.assert_allclose(problem.join(adapted.params), theta, rtol=1e-12)


def test_curvature_safe_steps_survive_a_step_size_that_diverges():
    def loss_fn(theta, data):
        return 0.5 * jnp.sum(data * theta**2)

    prior = sx.Prior.create(jnp.ones(3), variance=1e4)
    curvature = jnp.array([100.0, 1.0, 0.1])
    plain = sx.adapt(loss_fn, prior, curvature, sx.ProximalGD(0.1), num_steps=200)
    safe = sx.adapt(loss_fn, prior, curvature, sx.ProximalGD(0.1, power_steps=2), num_steps=200)
    assert plain.failed_step >= 0
    assert safe.failed_step == -1
    assert safe.losses[-1] < 0.1 * safe.losses[0]


@pytest.mark.parametrize("rate", [1e-4, 1.0, 1e6])
def test_backtracking_needs_no_step_size(rate):
    """Whatever the first step size, no step raises the objective and the minimum is found."""

    def loss_fn(theta, data):
        return 0.5 * jnp.sum(data * theta**2)

    prior = sx.Prior.create(jnp.ones(3), variance=1.0)
    curvature, solver = jnp.array([100.0, 1.0, 0.1]), sx.ProximalBacktracking(rate)
    adapted = sx.adapt(loss_fn, prior, curvature, solver, num_steps=1000)
    np.testing.assert_allclose(adapted.params, 1 / (1 + curvature), atol=1e-3)
    path = [sx.adapt(loss_fn, prior, curvature, solver, num_steps=count).params for count in range(1, 9)]
    objective = [float(loss_fn(theta, curvature) + prior.energy(theta)) for theta in (prior.mean, *path)]
    assert objective == sorted(objective, reverse=True)


def test_backtracking_keeps_its_step_size_where_nothing_changes():
    prior, solver = sx.Prior.create(jnp.ones(2)), sx.ProximalBacktracking(0.3)
    displacement, state = jnp.zeros(2), solver.init(prior)
    for _ in range(3):
        displacement, state, _ = solver.step(lambda delta: jnp.sum(delta**2), displacement, state, prior)
    assert state == solver.init(prior)
    assert not displacement.any()


def test_backtracking_grows_steps_that_are_too_short_to_be_seen():
    """In 32 bits the first of them change nothing."""
    prior = sx.Prior.create(jnp.ones(1), variance=jnp.inf)
    solver, displacement = sx.ProximalBacktracking(0.3), jnp.ones(1)
    state = jnp.asarray(1e-9)
    for _ in range(150):
        displacement, state, _ = solver.step(lambda delta: jnp.sum((delta - 2) ** 2), displacement, state, prior)
    np.testing.assert_allclose(displacement, 2.0, rtol=1e-3)


class Counting(sx.AbstractSolver):
    """Its state is a number of Python's."""

    def init(self, prior):
        return 0.0

    def step(self, loss_fn, displacement, state, prior):
        loss, gradient = jax.value_and_grad(loss_fn)(displacement)
        moved = displacement - 0.1 * gradient
        return moved, state + 1.0, sx.StepInfo.of(prior, displacement, loss, gradient)


@pytest.mark.parametrize("num_steps", [2, 20])
def test_the_state_of_a_solver_may_be_a_number(num_steps):
    prior = sx.Prior.create(jnp.zeros(1), variance=jnp.inf)
    adapted = sx.adapt(lambda theta, x: jnp.sum((theta - x) ** 2), prior, jnp.ones(1), Counting(), num_steps=num_steps)
    np.testing.assert_allclose(adapted.params, 1 - 0.8**num_steps, rtol=1e-5)


def test_backtracking_is_differentiated_through_the_steps_it_took(x64):
    problem = random_quadratic(0, dimension=6, deviations=(0.1, 2.0))
    prior, support = problem.prior("float64"), problem.task("float64").support

    def loss(log_variance):
        moved = eqx.tree_at(lambda p: p.log_variance, prior, log_variance)
        solver = sx.ProximalBacktracking(2.0)
        adapted = sx.adapt(quadratic_loss, moved, support, solver, num_steps=6, adjoint=sx.Unroll())
        return jnp.linalg.norm(ravel_pytree(adapted.params)[0])

    check_grads(loss, (prior.log_variance,), order=1, modes=["rev"], eps=1e-6)


@pytest.mark.parametrize("settings", [{"growth": 0.9}, {"cut": 0.0}, {"cut": 1.0}])
def test_backtracking_needs_factors_on_either_side_of_one(settings):
    with pytest.raises(ValueError, match="growth"):
        sx.ProximalBacktracking(0.1, **settings)
    with pytest.raises(TypeError, match="schedule"):
        sx.ProximalBacktracking(lambda step: 0.1)


@pytest.mark.parametrize("rate", [0.0, -0.1])
@pytest.mark.parametrize("solver", [sx.ProximalGD, sx.ProximalAdam, sx.ProximalBacktracking])
def test_learning_rates_must_be_positive(solver, rate):
    with pytest.raises(ValueError, match="learning_rate"):
        solver(rate)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_adam_in_sixteen_bits(dtype):
    """A parameter without a gradient stays, and large gradients at first are forgotten in time."""
    prior = sx.Prior.create(jnp.zeros(2, dtype), variance=1e6)

    def loss_fn(theta, target):
        return jnp.sum((theta[:1] - target) ** 2).astype(jnp.float32)

    adapted = sx.adapt(loss_fn, prior, jnp.full(1, 6.0, dtype), sx.ProximalAdam(0.05), num_steps=600)
    assert adapted.params.dtype == dtype
    np.testing.assert_allclose(adapted.params.astype(jnp.float32), [6.0, 0.0], atol=0.5)


def test_a_loss_without_a_curvature_is_no_reason_to_stand_still():
    prior = sx.Prior.create(jnp.zeros(1), variance=jnp.inf)

    def loss_fn(theta, target):
        return jnp.sum(jnp.abs(theta) ** 1.5 - target * theta)

    adapted = sx.adapt(loss_fn, prior, jnp.ones(1), sx.ProximalGD(0.1, power_steps=1), num_steps=3)
    assert float(adapted.params[0]) > 0.05


@pytest.mark.parametrize("decays", [{"b1": 1.5}, {"b2": -0.1}, {"b2": 1.0}])
def test_decays_of_adam_are_shares(decays):
    with pytest.raises(ValueError, match="must be at least 0 and below 1"):
        sx.ProximalAdam(0.1, **decays)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_frozen_mask_may_be_infinite(solver, dtype):
    params = {"a": jnp.zeros(2, dtype), "mask": jnp.array([0.0, -jnp.inf], dtype)}
    prior = sx.Prior.create(params, variance={"a": 1.0, "mask": 0.0})

    def loss_fn(params, target):
        return 0.5 * jnp.sum((params["a"] - target) ** 2)

    target = jnp.full(2, 2.0, dtype)
    adapted = sx.adapt(loss_fn, prior, target, solver, num_steps=300)
    alone = sx.adapt(loss_fn, prior, target, solver, num_steps=300, trainable="a")
    assert adapted.failed_step == -1
    assert jnp.min(adapted.displacement["a"]) > 0.5
    np.testing.assert_allclose(adapted.displacement["a"], alone.displacement["a"], rtol=1e-2)
