"""Every way to differentiate adaptation, against dense float64 algebra on random multi-module quadratics."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads
from problems import quadratic_loss, random_quadratic, relative_error

import shrinx as sx

DIMENSIONS = [5, 23, 80, 200]
TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
STEPS = 4000  # Step size 1 and smallest curvature 0.01: (1 - 0.01)^4000 is below float64's rounding.


def learner_with(adjoint):
    return sx.Learner(
        sx.Predictive(adjoint),
        sx.ProximalGD(1.0),
        num_steps=STEPS,
        optimiser=optax.sgd(1.0),
        variance_optimiser=optax.sgd(1.0),
    )


def gradient_of(problem, adjoint, dtype):
    grad, info = learner_with(adjoint).gradient(quadratic_loss, problem.prior(dtype), problem.task(dtype, batch=True))
    return problem.join(grad.mean), np.asarray(grad.log_variance, np.float64), info


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("seed", range(3))
def test_adaptation_reaches_the_map_estimate(dtype, dimension, seed):
    problem = random_quadratic(seed, dimension=dimension)
    prior, task = problem.prior(dtype), problem.task(dtype)
    adapted = sx.adapt(quadratic_loss, prior, task.support, sx.ProximalGD(1.0), num_steps=STEPS)
    moved = problem.join(adapted.displacement)
    exact = problem.displacement()
    assert relative_error(moved, exact) < TOLERANCE[dtype]
    for module in range(len(problem.sizes)):  # Module by module: displacements span eighteen orders of magnitude.
        rows = problem.labels == module
        assert relative_error(moved[rows], exact[rows]) < (1e-2 if dtype == "float32" else 1e-8)
    assert adapted.residual < (1e-4 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize(("seed", "damping"), [(0, 0.0), (1, 0.0), (2, 0.3)])
def test_implicit_gradient_equals_dense_solve(dtype, dimension, seed, damping):
    problem = random_quadratic(seed, dimension=dimension)
    cg = sx.CG(max_steps=10 * dimension, damping=damping)
    mean, log_variance, info = gradient_of(problem, sx.Implicit(cg), dtype)
    exact_mean, exact_log_variance = problem.meta_gradient(damping)
    for module in range(len(problem.sizes)):
        rows = problem.labels == module
        assert relative_error(mean[rows], exact_mean[rows]) < TOLERANCE[dtype]
    assert relative_error(log_variance, exact_log_variance) < TOLERANCE[dtype]
    # Entry by entry as well: they span eighteen orders of magnitude.
    np.testing.assert_allclose(log_variance, exact_log_variance, rtol=1e-2 if dtype == "float32" else 1e-8)
    assert not info.linear.negative_curvature.any()


@pytest.mark.parametrize("seed", range(3))
def test_preconditioned_system_agrees_where_it_is_well_posed(x64, seed):
    problem = random_quadratic(seed, dimension=40, deviations=(0.03, 10.0))
    cg = sx.CG(max_steps=2000, system="preconditioned")
    mean, log_variance, _ = gradient_of(problem, sx.Implicit(cg), "float64")
    exact_mean, exact_log_variance = problem.meta_gradient()
    assert relative_error(mean, exact_mean) < 1e-8
    assert relative_error(log_variance, exact_log_variance) < 1e-8


@pytest.mark.parametrize("deviation", [1e-2, 1e-4, 1e-6, 1e-12, 0.0])
def test_whitened_system_holds_for_tiny_variances_in_float32(deviation):
    """Half of the modules have σ near 0: the whitened solve stays exact, down to and including 0."""
    base = random_quadratic(0, dimension=40)
    deviations = np.where(np.arange(len(base.sizes)) % 2, 1.0, deviation)
    problem = type(base)(**{**base.__dict__, "deviations": deviations})
    mean, _, _ = gradient_of(problem, sx.Implicit(sx.CG(max_steps=400)), "float32")
    exact, _ = problem.meta_gradient()
    for module in range(len(problem.sizes)):
        rows = problem.labels == module
        assert relative_error(mean[rows], exact[rows]) < 1e-4


SCALES = {"float32": (1e-30, 1e-20, 1.0, 1e20, 1e30), "bfloat16": (1e-30, 1.0, 1e30), "float16": (1.0, 1e4)}
LINEAR = [
    *product(SCALES, ["whitened", "preconditioned"], [(1e-35,), (1e4,), (1e-6, 1.0), (0.0, 1.0)]),
    ("float32", "whitened", (1e-35, 1e4)),
]


@pytest.mark.parametrize(
    ("dtype", "system", "variances", "scale"), [(*case, scale) for case in LINEAR for scale in SCALES[case[0]]]
)
def test_linear_systems_have_no_scale(dtype, scale, system, variances):
    """Squares of the gradient, and of some variances, are beyond the range of 32 bits; a product in 16 bits is, too."""
    base = random_quadratic(0, dimension=12, condition=10)
    deviations = np.sqrt(np.resize(variances, len(base.sizes)))
    problem = type(base)(**{**base.__dict__, "deviations": deviations})
    gradient = problem.split(scale * np.random.default_rng(0).normal(size=12), dtype)
    matrix = jnp.asarray(problem.support_matrix, jnp.float32)

    def hessian(tree):
        vector = jnp.concatenate([tree[f"m{index}"] for index in range(len(problem.sizes))])
        parts = jnp.split(matrix @ vector.astype(jnp.float32), np.cumsum(problem.sizes)[:-1])
        return {f"m{index}": part.astype(dtype) for index, part in enumerate(parts)}

    ours, stats = sx.CG(max_steps=100, system=system).solve(hessian, gradient, problem.prior(dtype))
    exact = np.linalg.solve(np.eye(12) + problem.support_matrix * problem.variance[None], problem.join(gradient))
    assert not stats.negative_curvature
    for module in range(len(problem.sizes)):
        rows = problem.labels == module
        assert relative_error(problem.join(ours)[rows], exact[rows]) < 10 * float(jnp.finfo(dtype).eps) ** 0.7


def test_numbers_of_numpys_force_no_precision_on_the_system():
    prior = sx.Prior.create(jnp.zeros(2), variance=0.5)
    solution, _ = sx.CG(damping=np.float64(2.0), tolerance=np.float32(1e-6)).solve(lambda v: 2 * v, jnp.ones(2), prior)
    np.testing.assert_allclose(solution, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_unroll_equals_implicit_at_convergence(x64, seed, checkpoint):
    problem = random_quadratic(seed, dimension=12)
    unrolled = gradient_of(problem, sx.Unroll(checkpoint), "float64")
    exact = problem.meta_gradient()
    assert relative_error(unrolled[0], exact[0]) < 1e-8
    assert relative_error(unrolled[1], exact[1]) < 1e-8


@pytest.mark.parametrize(
    "solver", [sx.ProximalGD(0.3), sx.ProximalAdam(0.05), sx.ProximalGD(optax.cosine_decay_schedule(0.3, 20))]
)
@pytest.mark.parametrize("num_steps", [1, 7, 20])
def test_unrolled_gradient_equals_finite_differences(x64, solver, num_steps):
    """For any number of steps, converged or not."""
    problem = random_quadratic(1, dimension=6, deviations=(0.1, 3.0))
    prior, task = problem.prior("float64"), problem.task("float64")

    def query_loss(mean, log_variance):
        mean, log_variance = jax.tree.map(jnp.asarray, (mean, log_variance))
        at = sx.Prior(mean=mean, log_variance=log_variance, modules=prior.modules)
        with jax.numpy_dtype_promotion("standard"):  # Optax's schedules divide integers by floats.
            adapted = sx.adapt(quadratic_loss, at, task.support, solver, num_steps=num_steps)
        return quadratic_loss(adapted.params, task.query)

    check_grads(query_loss, (prior.mean, prior.log_variance), order=1, modes=["rev"], rtol=1e-6, atol=1e-7)


def test_implicit_gradient_equals_finite_differences_of_the_map_estimate(x64):
    problem = random_quadratic(2, dimension=9, deviations=(0.05, 5.0))
    exact_mean, exact_log_variance = problem.meta_gradient()

    def loss_at(**changes):
        changed = type(problem)(**{**problem.__dict__, **changes})
        residual = changed.map_estimate() - changed.query_centre
        return 0.5 * residual @ changed.query_matrix @ residual

    step = 1e-6
    for index in range(len(problem.mean)):
        shift = step * np.eye(len(problem.mean))[index]
        slope = (loss_at(mean=problem.mean + shift) - loss_at(mean=problem.mean - shift)) / (2 * step)
        assert slope == pytest.approx(exact_mean[index], rel=1e-6, abs=1e-8)
    for index in range(len(problem.sizes)):
        factor = np.exp(0.5 * step * (np.arange(len(problem.sizes)) == index))
        slope = (loss_at(deviations=problem.deviations * factor) - loss_at(deviations=problem.deviations / factor)) / (
            2 * step
        )
        assert slope == pytest.approx(exact_log_variance[index], rel=1e-6, abs=1e-8)


def test_adapt_is_differentiable_with_every_adjoint(x64):
    """`jax.grad` of `adapt` gives what the learner's pullback gives."""
    problem = random_quadratic(3, dimension=10, deviations=(0.1, 3.0))
    prior, task = problem.prior("float64"), problem.task("float64")
    for adjoint in (sx.Unroll(), sx.Implicit(sx.CG(max_steps=100)), sx.FirstOrder()):
        grad = jax.grad(
            lambda p, adjoint=adjoint: quadratic_loss(
                sx.adapt(quadratic_loss, p, task.support, sx.ProximalGD(1.0), num_steps=STEPS, adjoint=adjoint).params,
                task.query,
            )
        )(prior)
        mean, log_variance, _ = gradient_of(problem, adjoint, "float64")
        assert relative_error(problem.join(grad.mean), mean) < 1e-12
        assert relative_error(grad.log_variance, log_variance) < 1e-12


@pytest.mark.parametrize("adjoint", [sx.Unroll(), sx.Implicit(sx.CG(max_steps=100))])
def test_modules_outside_trainable_still_get_their_meta_gradient(x64, adjoint):
    """With `trainable`, the mean of the frozen modules has the gradient of a prior with variance 0 there."""
    base = random_quadratic(4, dimension=12, deviations=(0.1, 3.0))
    frozen = np.arange(len(base.sizes)) % 2 == 0
    zero = type(base)(**{**base.__dict__, "deviations": np.where(frozen, 0.0, base.deviations)})
    names = tuple(f"m{index}" for index in range(len(base.sizes)) if not frozen[index])
    learner = sx.Learner(
        sx.Predictive(adjoint), sx.ProximalGD(1.0), num_steps=STEPS, optimiser=optax.sgd(1.0), trainable=names
    )
    grad, _ = learner.gradient(quadratic_loss, base.prior("float64"), base.task("float64", batch=True))
    exact_mean, exact_log_variance = zero.meta_gradient()
    assert relative_error(base.join(grad.mean), exact_mean) < 1e-8
    assert relative_error(grad.log_variance, exact_log_variance) < 1e-8


def test_scaling_the_loss_is_scaling_the_variances_down(x64):
    """Loss c·ℓ with variances σ²/c and step size α/c is the same adaptation, and the meta-gradients agree."""
    problem = random_quadratic(5, dimension=10, deviations=(0.1, 3.0))
    task, factor = problem.task("float64", batch=True), 7.0

    def run(scale, variance_scale):
        scaled = type(problem)(**{**problem.__dict__, "deviations": problem.deviations * np.sqrt(variance_scale)})
        learner = sx.sigma_imaml(
            sx.ProximalGD(1.0 / scale),
            num_steps=50,
            optimiser=optax.sgd(1.0),
            variance_optimiser=optax.sgd(1.0),
            linear_solver=sx.CG(max_steps=100),
        )

        def loss(params, data):
            return scale * quadratic_loss(params, data)

        return learner.gradient(loss, scaled.prior("float64"), task)

    plain, plain_info = run(1.0, 1.0)
    scaled, scaled_info = run(factor, 1 / factor)
    assert relative_error(problem.join(scaled.mean), factor * problem.join(plain.mean)) < 1e-12
    assert relative_error(scaled.log_variance, factor * np.asarray(plain.log_variance)) < 1e-12
    assert float(scaled_info.query_loss) == pytest.approx(factor * float(plain_info.query_loss), rel=1e-12)


def test_conjugate_gradients_agree_with_lineax(x64):
    lineax = pytest.importorskip("lineax")
    problem = random_quadratic(6, dimension=30, deviations=(0.05, 5.0))
    prior = problem.prior("float64")
    gradient = problem.query_gradient(problem.map_estimate())
    deviation = np.sqrt(problem.variance)
    whitened = np.eye(30) + deviation[:, None] * problem.support_matrix * deviation[None, :]
    operator = lineax.MatrixLinearOperator(jnp.asarray(whitened), lineax.positive_semidefinite_tag)

    def hessian(tree):
        vector = jnp.concatenate([tree[f"m{index}"] for index in range(len(problem.sizes))])
        parts = jnp.split(jnp.asarray(problem.support_matrix) @ vector, np.cumsum(problem.sizes)[:-1])
        return {f"m{index}": part for index, part in enumerate(parts)}

    theirs = lineax.linear_solve(operator, jnp.asarray(deviation * gradient), lineax.CG(rtol=1e-12, atol=1e-12))
    ours, stats = sx.CG(max_steps=200).solve(hessian, problem.split(gradient, "float64"), prior)
    assert relative_error(problem.join(ours), np.asarray(theirs.value) / deviation) < 1e-9
    assert stats.residual < 1e-11
