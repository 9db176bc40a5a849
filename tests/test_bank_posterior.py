"""Posteriors of adapted tasks: how sure a bank is of what it has stored, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lines import NOISE, exact_posterior, features, line, line_loss, line_prior, line_tasks, names_of

import shrinx as sx
from shrinx.bank import BankError, calibration
from shrinx.tasks import normal

GD = sx.ProximalGD(0.02)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
@pytest.mark.parametrize("variance", [1e-12, 0.3, 1e6])
def test_the_normal_model_has_its_exact_posterior(structure, variance):
    """θ ~ N(φ, σ²), x ~ N(θ, 1): the posterior has precision N + 1/σ²."""
    observations = normal.sample_tasks(
        jax.random.key(0), 1, mean=2.0, variance=1.0, num_support=7, num_query=1
    ).support[0]
    prior = sx.Prior.create(jnp.asarray(2.0), variance=variance)
    estimate = normal.map_estimate(jnp.mean(observations)[None], 7, 2.0, variance)[0]
    posterior = sx.laplace(normal.loss_fn, prior, estimate, observations, structure=structure)
    assert float(posterior.variance(jnp.ones(1))) == pytest.approx(1 / (7 + 1 / variance), rel=1e-5)
    halved = sx.laplace(normal.loss_fn, prior, estimate, observations, structure=structure, loss_scale=2.0)
    assert float(halved.variance(jnp.ones(1))) == pytest.approx(0.5 / (7 + 1 / variance), rel=1e-5)


def test_intervals_of_the_normal_model_through_the_bank(tmp_path):
    """Adapted, stored, served: mean and deviation of every task are those of the exact posterior."""
    prior = sx.Prior.create({"theta": jnp.asarray(1.0), "fixed": jnp.zeros(2)}, variance={"theta": 0.5, "fixed": 1e-9})
    bank = sx.Bank.create(tmp_path / "bank", prior, "theta", posterior="diagonal")
    tasks = normal.sample_tasks(jax.random.key(0), 300, mean=1.0, variance=0.5, num_support=4, num_query=1)

    def loss_fn(params, x):
        return normal.loss_fn(params["theta"], x)

    names = names_of(300)
    sx.adapt_task(bank, loss_fn, names, tasks.support, sx.ProximalGD(0.1), tolerance=1e-6)
    prediction = bank.predict(lambda params, x: params["theta"] * x, names, np.ones(300, np.float32), uncertainty=True)
    expected = normal.map_estimate(jnp.mean(tasks.support, axis=1), 4, 1.0, 0.5)
    np.testing.assert_allclose(prediction.mean, expected, atol=1e-4)
    np.testing.assert_allclose(prediction.deviation, (4 + 1 / 0.5) ** -0.5, rtol=1e-5)
    covered = np.abs(np.asarray(tasks.query[:, 0]) - prediction.mean) < 1.96 * np.sqrt(prediction.deviation**2 + 1.0)
    assert 0.92 < covered.mean() < 0.98


def test_intervals_of_a_linear_model_are_exact(tmp_path):
    """Four weights with correlated posteriors: the full structure has them, the diagonal one cannot."""
    tasks = line_tasks(jax.random.key(1), 150)
    names = names_of(150)
    x, y = tasks.query
    coverage = {}
    for structure in ("full", "diagonal"):
        bank = sx.Bank.create(tmp_path / structure, line_prior(), "weights", posterior=structure)
        sx.adapt_task(bank, line_loss, names, tasks.support, sx.ProximalGD(3e-3), tolerance=1e-6)
        again = sx.Bank.open(bank.path)
        again.pack()
        prediction = again.predict(line, names, x, points=True, uncertainty=True)
        np.testing.assert_allclose(prediction.mean, again.predict(line, names, x, points=True), rtol=1e-6)
        assert again.info("task007").has_posterior
        spread = np.sqrt(prediction.deviation**2 + NOISE**2)
        coverage[structure] = np.mean(np.abs(np.asarray(y) - prediction.mean) < 1.96 * spread)
        if structure == "full":
            for row in (0, 17, 149):
                _, covariance = exact_posterior(tasks.support[0][row], tasks.support[1][row])
                matrix = np.asarray(features(x[row]), np.float64)
                exact = np.sqrt(np.einsum("pf,fg,pg->p", matrix, covariance, matrix))
                np.testing.assert_allclose(prediction.deviation[row], exact, rtol=1e-3)
    assert coverage["full"] == pytest.approx(0.95, abs=0.015)
    assert coverage["diagonal"] != pytest.approx(0.95, abs=0.005)


def test_frozen_modules_are_certain_and_negative_curvature_is_flat():
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([0.5])}
    prior = sx.Prior.create(params, variance={"a": 2.0, "b": 0.0})

    def saddle(p, data):
        return jnp.sum(data * (p["a"][0] ** 2 - p["a"][1] ** 2)) + jnp.sum(p["b"] ** 2)

    expected = [1 / (2 + 0.5), 2.0, 0.0]
    np.testing.assert_allclose(sx.laplace(saddle, prior, params, jnp.ones(1)).array, expected, rtol=1e-6)
    root = sx.laplace(saddle, prior, params, jnp.ones(1), structure="full").array
    np.testing.assert_allclose(root @ root.T, np.diag(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p: sx.laplace(line_loss, p, p.mean, (jnp.ones(2), jnp.ones(2)), loss_scale=0.0),
            "`loss_scale` must be a positive",
        ),
        (lambda p: sx.laplace(line_loss, p, {"w": jnp.ones(1)}, jnp.ones(2)), "does not match the modules"),
        (lambda p: sx.laplace(line_loss, p, p.mean, {}), "`data` holds no arrays"),
        (
            lambda p: sx.laplace(line_loss, p, p.mean, (jnp.ones(2), jnp.ones(2)), trainable="nothing"),
            r"Unknown modules \['nothing'\]",
        ),
        (
            lambda p: sx.laplace(line_loss, line_prior(jnp.inf), p.mean, (jnp.ones(2), jnp.ones(2))),
            r"Modules \['weights'\] have an infinite variance",
        ),
        (
            lambda p: sx.laplace(
                lambda q, x: jnp.sum(q * x),
                sx.Prior.create(jnp.ones(5000)),
                jnp.ones(5000),
                jnp.ones(5000),
                structure="full",
            ),
            "A full posterior of 5,000 parameters is too large .* take 'diagonal'",
        ),
    ],
)
def test_posteriors_that_do_not_exist(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(line_prior())


def test_banks_without_posteriors_say_so(tmp_path):
    prior = line_prior()
    certain = sx.Bank.create(tmp_path / "certain", prior, "weights")
    certain.put("alice", prior.mean)
    x = jnp.ones((1, 3))
    with pytest.raises(
        BankError, match=r"keeps no posteriors; make one with `Bank.create\(..., posterior='diagonal'\)`"
    ):
        certain.predict(line, ["alice"], x, uncertainty=True)
    data = (jnp.ones(2), jnp.ones(2))
    posterior = sx.laplace(line_loss, prior, prior.mean, data, trainable="weights")
    with pytest.raises(BankError, match="The bank keeps no posteriors, got a DiagonalPosterior"):
        certain.put("alice", prior.mean, posterior=posterior)
    full = sx.Bank.create(tmp_path / "full", prior, "weights", posterior="full")
    with pytest.raises(BankError, match="The bank keeps full posteriors, got a DiagonalPosterior"):
        full.put("alice", prior.mean, posterior=posterior)
    full.put("alice", prior.mean)
    with pytest.raises(BankError, match="Task 'alice' was stored without a posterior; adapt it anew"):
        full.predict(line, ["alice"], x, uncertainty=True)
    for wrong in (sx.laplace(line_loss, prior, prior.mean, data, structure="full"),):
        with pytest.raises(BankError, match=r"posterior of shape \(5, 5\), expected \(4, 4\)"):
            full.put("alice", prior.mean, posterior=wrong)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_calibration_finds_the_factor(level):
    generator = np.random.default_rng(0)
    deviations = generator.uniform(1.0, 3.0, 50_000)
    errors = generator.normal(size=50_000) * np.sqrt(deviations**2 / 50 + 0.2**2)
    assert calibration(errors, deviations, 0.2, level=level) == pytest.approx(50, rel=0.06)


def test_calibrating_nonsense():
    assert calibration(np.zeros(3), np.ones(3), 0.0) == pytest.approx(1e6)
    with pytest.raises(ValueError, match="must have one shape"):
        calibration(np.ones(5), np.ones(4), 0.2)
    with pytest.raises(ValueError, match="`level` must be between 0 and 1, got 95"):
        calibration(np.ones(5), np.ones(5), 0.2, level=95.0)


def test_the_posterior_of_some_modules_is_taken_where_the_others_are():
    """Not where the prior has them: H = 2b² at b = 3."""
    prior = sx.Prior.create({"a": jnp.ones(1), "b": jnp.ones(1)})
    params, traced = {"a": jnp.ones(1), "b": jnp.full(1, 3.0)}, []

    def loss_fn(params, x):
        traced.append(x)
        return jnp.sum((params["a"] * params["b"] - x) ** 2)

    posterior = sx.laplace(loss_fn, prior, params, jnp.ones(1), trainable="a")
    np.testing.assert_allclose(posterior.array, 1 / (1 + 18), rtol=1e-6)
    before = len(traced)
    sx.laplace(loss_fn, prior, params, jnp.ones(1), trainable="a")
    assert len(traced) == before  # The program is that of the first call.
