import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import shrinx as sx

PARAMS = {"a": np.array([1.0, -2.0]), "b": np.array([[0.5, 3.0]]), "c": np.array([4.0])}
LIMITS = {"a": 0.0, "b": 2.0, "c": np.inf}


def make(variance, dtype="float64"):
    params = jax.tree.map(lambda x: jnp.asarray(x, dtype), PARAMS)
    return sx.Prior.create(params, variance=variance)


def shifted(prior, by):
    return jax.tree.map(lambda x: x + by, prior.mean)


def test_energy_and_density_are_those_of_a_normal_distribution(x64):
    prior = make({"a": 0.3, "b": 2.0, "c": 7.0})
    theta = shifted(prior, 0.7)
    expected = 0.0
    for name, variance in (("a", 0.3), ("b", 2.0), ("c", 7.0)):
        logpdf = jax.scipy.stats.norm.logpdf(theta[name], PARAMS[name], np.sqrt(variance))
        expected += float(jnp.sum(logpdf))
    assert float(prior.log_density(theta)) == pytest.approx(expected, rel=1e-12)
    assert float(prior.energy(theta)) == pytest.approx(0.49 * (2 / 0.6 + 2 / 4 + 1 / 14), rel=1e-12)


@pytest.mark.parametrize("step", [1e-3, 0.5, 40.0])
def test_prox_minimises_its_definition(x64, step):
    prior = make({"a": 0.3, "b": 2.0, "c": 7.0})
    theta = shifted(prior, 0.7)
    point = prior.prox(theta, step)

    def objective(x):
        distance = sum(jnp.sum((x[name] - theta[name]) ** 2) for name in x)
        return prior.energy(x) + distance / (2 * step)

    assert all(jnp.max(jnp.abs(g)) < 1e-10 for g in jax.tree.leaves(jax.grad(objective)(point)))


def test_limits_are_exact(dtype):
    prior = make(LIMITS, dtype)
    theta = shifted(prior, 0.7)
    point = prior.prox(theta, 0.1)
    assert jnp.array_equal(point["a"], prior.mean["a"])  # Variance 0: back to the mean, to the bit.
    assert jnp.array_equal(point["c"], theta["c"])  # No prior: not moved at all.
    assert prior.energy(prior.mean) == 0
    assert prior.energy(theta) == jnp.inf  # A frozen module has moved.
    part = {"a": prior.mean["a"], "b": theta["b"], "c": theta["c"]}
    assert float(prior.energy(part)) == pytest.approx(0.49 * 2 / 4, rel=1e-5)


@pytest.mark.parametrize("step", [0.0, 1e-30, 0.1, 1e30])
@pytest.mark.parametrize("variance", [0.0, 1e-30, 1e-6, 1.0, 1e6, 1e30, np.inf])
def test_no_derivative_is_ever_nan(dtype, variance, step):
    prior = make(variance, dtype)
    theta = shifted(prior, 0.7)

    def total(prior, theta, step):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(prior.prox(theta, step)))

    for function in (total, lambda p, t, s: p.energy(t), lambda p, t, s: p.energy(p.mean)):
        value, grads = jax.value_and_grad(function, argnums=(0, 1))(prior, theta, step)
        assert not jnp.isnan(value)
        assert all(not jnp.isnan(leaf).any() for leaf in jax.tree.leaves(grads))
    if step > 0:
        slope = jax.grad(total, argnums=2)(prior, theta, jnp.asarray(step, dtype))
        assert not jnp.isnan(slope)


def test_gradients_at_the_limits(x64):
    """A frozen module's prox is φ: derivative 1 for φ, 0 for θ and log σ². Without a prior it is θ."""
    prior = make(LIMITS)
    theta = shifted(prior, 0.7)

    def total(prior, theta):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(prior.prox(theta, 0.1)))

    by_prior, by_theta = jax.grad(total, argnums=(0, 1))(prior, theta)
    np.testing.assert_array_equal(by_prior.mean["a"], 1.0)
    np.testing.assert_array_equal(by_theta["a"], 0.0)
    np.testing.assert_array_equal(by_prior.mean["c"], 0.0)
    np.testing.assert_array_equal(by_theta["c"], 1.0)
    assert by_prior.log_variance[0] == 0
    assert by_prior.log_variance[1] > 0
    assert by_prior.log_variance[2] == 0


def test_gradients_against_finite_differences(x64):
    prior = make({"a": 0.3, "b": 2.0, "c": 7.0})

    def functions(mean, log_variance, theta):
        mean, log_variance, theta = jax.tree.map(jnp.asarray, (mean, log_variance, theta))
        at = sx.Prior(mean=mean, log_variance=log_variance, modules=prior.modules)
        return at.energy(theta), at.log_density(theta), at.prox(theta, 0.2)

    check_grads(functions, (prior.mean, prior.log_variance, shifted(prior, 0.7)), order=2, rtol=1e-5, atol=1e-6)


def test_joint_density_diverges_as_the_variance_vanishes(x64):
    """Lemma 1: at θ = φ the density grows without bound, which is why σ² is not estimated from it."""
    densities = [float(make(variance).log_density(make(variance).mean)) for variance in (1.0, 1e-4, 1e-8, 0.0)]
    assert densities == sorted(densities)
    assert densities[-1] == np.inf


def test_inverse_gamma_penalty_is_its_density(x64):
    scale = 0.3
    log_variance = jnp.log(jnp.array([0.1, 1.0, 5.0]))

    def minus_log_density(log_variance):
        variance = jnp.exp(log_variance)
        return -scale * jnp.sum(jnp.log(scale) - 2 * jnp.log(variance) - scale / variance)

    ours = jax.grad(sx.inverse_gamma_penalty)(log_variance, scale)
    np.testing.assert_allclose(ours, jax.grad(minus_log_density)(log_variance), rtol=1e-12)
    lowest = jnp.log(jnp.array([scale / 2]))
    np.testing.assert_allclose(jax.grad(sx.inverse_gamma_penalty)(lowest, scale), 0.0, atol=1e-15)
    at_limits = jnp.array([-jnp.inf, jnp.inf])
    np.testing.assert_array_equal(jax.grad(sx.inverse_gamma_penalty)(at_limits, scale), 0.0)


@pytest.mark.parametrize("variance", [1e-38, 1e-300])
def test_the_penalty_of_a_variance_too_small_for_the_dtype(variance):
    value, slope = jax.value_and_grad(sx.inverse_gamma_penalty)(jnp.asarray(np.log([variance]), jnp.float32), 1e-5)
    assert jnp.isfinite(value)
    assert jnp.isfinite(slope).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_displacement_is_added_in_the_wider_precision(dtype):
    prior = sx.Prior.create(jnp.full(2, 3.0, dtype))
    for other in ("float16", "bfloat16", "float32"):
        delta = jnp.asarray([0.125, 1e-3], other)
        expected = (np.float32(3.0) + np.asarray(delta, np.float32)).astype(dtype)
        assert prior.at(delta).dtype == dtype
        np.testing.assert_array_equal(prior.at(delta), expected)


def test_dtypes_are_kept():
    params = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2, jnp.float32)}
    prior = sx.Prior.create(params)
    assert prior.log_variance.dtype == jnp.float32
    moved = prior.prox(jax.tree.map(lambda x: x + 1, params), 0.1)
    assert jax.tree.map(lambda x: x.dtype, moved) == jax.tree.map(lambda x: x.dtype, params)
    assert prior.energy(moved).dtype == jnp.float32


@pytest.mark.parametrize(
    ("variance", "message"),
    [
        (-1.0, r"0 or greater, got \{'a': -1.0"),
        ({"a": 1.0, "b": -2.0, "c": 1.0}, r"got \{'b': -2.0\}"),
        (float("nan"), "0 or greater"),
        ({"a": 1.0, "b": 1.0}, r"missing \['c'\]"),
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, r"unknown \['d'\]"),
        (np.ones(2), r"shape \(2,\); expected one number or shape \(3,\)"),
    ],
)
def test_bad_variances(variance, message):
    with pytest.raises(ValueError, match=message):
        make(variance, "float32")


@pytest.mark.parametrize(
    ("factor", "message"), [(-1.0, "positive and finite"), (jnp.inf, "positive"), (jnp.ones(3), "must be one number")]
)
def test_bad_scales(factor, message):
    with pytest.raises(ValueError, match=message):
        sx.Prior.create(jnp.zeros(3)).scale_variance(factor)


def test_parameters_that_are_no_numbers():
    with pytest.raises(ValueError, match=r"not a number \(NaN\) in \['b'\]"):
        sx.Prior.create({"a": jnp.ones(2), "b": jnp.array([0.0, jnp.nan])})
    assert sx.Prior.create({"mask": jnp.array([0.0, -jnp.inf])}).mean["mask"].shape == (2,)


def test_mismatched_trees():
    modules = sx.by_layer({"a": jnp.ones(2)})
    with pytest.raises(TypeError, match="leaf 'a' has dtype int32"):
        sx.Prior.create({"a": jnp.arange(2)}, modules=modules)
    with pytest.raises(ValueError, match="does not match the modules"):
        sx.Prior.create({"b": jnp.ones(2)}, modules=modules)
