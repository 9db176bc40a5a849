"""Adapting into a bank: to the MAP estimate of the task-specific modules, and how sure it is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bank_models import sinusoid_prior
from learners import OPTIMISED

import shrinx as sx
from shrinx.bank import BankError, calibration, converging
from shrinx.bank.converging import Descent, advance, start
from shrinx.models import mlp
from shrinx.tasks import normal, sinusoid

GD = sx.ProximalGD(0.02)


def features(x):
    return jnp.stack([jnp.ones_like(x), x, jnp.sin(2 * x), jnp.cos(2 * x)], axis=-1)


def line(params, x):
    """Linear in the task-specific weights, so that everything has a closed form."""
    return features(x) @ params["weights"] + params["offset"]


NOISE = 0.3


def line_loss(params, batch):
    x, y = batch
    return 0.5 * jnp.sum(jnp.square((y - line(params, x)) / NOISE))


def line_prior(variance=1.5):
    params = {"weights": jnp.array([0.5, -1.0, 0.0, 2.0]), "offset": jnp.zeros(())}
    return sx.Prior.create(params, variance={"weights": variance, "offset": 1e-6})


def line_tasks(key, num_tasks, *, num_support=8, num_query=20):
    """Tasks drawn from the prior itself: x and y of support and query."""
    keys = jax.random.split(key, 3)
    prior = line_prior()
    spread = jnp.sqrt(jnp.asarray(1.5)) * jax.random.normal(keys[0], (num_tasks, 4))
    weights = prior.mean["weights"][None] + spread
    x = jax.random.uniform(keys[1], (num_tasks, num_support + num_query), minval=-3.0, maxval=3.0)
    y = jnp.einsum("tpf,tf->tp", features(x), weights) + NOISE * jax.random.normal(keys[2], x.shape)
    return sx.Task((x[:, :num_support], y[:, :num_support]), (x[:, num_support:], y[:, num_support:]))


def exact_posterior(x, y, variance=1.5):
    """Mean and covariance of the weights, densely and in float64."""
    phi, matrix = np.asarray(line_prior().mean["weights"], np.float64), np.asarray(features(x), np.float64)
    precision = matrix.T @ matrix / NOISE**2 + np.eye(4) / variance
    covariance = np.linalg.inv(precision)
    return covariance @ (matrix.T @ np.asarray(y, np.float64) / NOISE**2 + phi / variance), covariance


def names_of(count):
    return [f"task{number:03d}" for number in range(count)]


@pytest.mark.parametrize("solver", [sx.ProximalGD(3e-3), sx.ProximalAdam(0.02)])
def test_the_map_estimate_of_a_batch_of_tasks(tmp_path, solver):
    bank = sx.Bank.create(tmp_path / "bank", line_prior(), "weights")
    tasks = line_tasks(jax.random.key(0), 12)
    report = sx.adapt_task(bank, line_loss, names_of(12), tasks.support, solver, tolerance=1e-6)
    assert report.names == bank.names()
    assert report.converged.all()
    assert (report.num_steps < 10_000).all()
    assert len(set(report.num_steps.tolist())) > 1  # Every task stops by itself.
    assert (report.residual < 1e-2).all()
    for row, name in enumerate(report.names):
        expected, _ = exact_posterior(tasks.support[0][row], tasks.support[1][row])
        params = sx.Bank.open(bank.path).params(name)
        np.testing.assert_allclose(params["weights"], expected, atol=2e-2)
        assert params["offset"] == 0
        assert report.objective[row] == pytest.approx(
            float(line_loss(params, jax.tree.map(lambda leaf, row=row: leaf[row], tasks.support)))
            + float(line_prior().energy(params)),
            rel=1e-2,
        )


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_batch_equals_its_tasks_one_by_one(tmp_path, chunk_size):
    tasks = line_tasks(jax.random.key(0), 5)
    solver = sx.ProximalGD(3e-3)
    banks = [sx.Bank.create(tmp_path / name, line_prior(), "weights") for name in ("batch", "single")]
    batch = sx.adapt_task(banks[0], line_loss, names_of(5), tasks.support, solver, chunk_size=chunk_size)
    for row, name in enumerate(names_of(5)):
        data = jax.tree.map(lambda leaf, row=row: leaf[row], tasks.support)
        single = sx.adapt_task(banks[1], line_loss, name, data, solver)
        assert single.num_steps.tolist() == [batch.num_steps[row]]
        np.testing.assert_allclose(banks[0].params(name)["weights"], banks[1].params(name)["weights"], rtol=1e-5)
        steps = int(single.num_steps[0])
        adapted = sx.adapt(line_loss, line_prior(), data, solver, num_steps=steps, trainable="weights")
        np.testing.assert_allclose(banks[1].params(name)["weights"], adapted.params["weights"], rtol=1e-5)


def test_the_last_step_is_the_last(tmp_path):
    bank = sx.Bank.create(tmp_path / "bank", line_prior(), "weights")
    data = jax.tree.map(lambda leaf: leaf[0], line_tasks(jax.random.key(0), 1).support)
    for max_steps in (1, 7, 130):
        report = sx.adapt_task(bank, line_loss, "a", data, sx.ProximalGD(1e-4), max_steps=max_steps)
        adapted = sx.adapt(line_loss, bank.prior, data, sx.ProximalGD(1e-4), num_steps=max_steps, trainable="weights")
        np.testing.assert_allclose(bank.params("a")["weights"], adapted.params["weights"], rtol=1e-6)
        assert (report.num_steps.tolist(), report.converged.tolist()) == ([max_steps], [False])


def test_pieces_are_seen_and_change_nothing(tmp_path, monkeypatch):
    tasks = line_tasks(jax.random.key(0), 3)
    seen, found = {}, {}
    for name, shortest in (("single", 0.0), ("doubled", np.inf)):
        monkeypatch.setattr(converging, "SHORTEST", shortest)
        monkeypatch.setattr(converging, "LONGEST", np.inf)
        bank, said = sx.Bank.create(tmp_path / name, line_prior(), "weights"), []
        options = {"max_steps": 20, "chunk_size": 2, "about": {"task001": {"note": np.ones(1)}}}
        solver = sx.ProximalGD(1e-4)
        sx.adapt_task(
            bank,
            line_loss,
            names_of(3),
            tasks.support,
            solver,
            **options,
            report=lambda done, total, said=said: said.append((done, total)),
        )
        seen[name], found[name] = said, bank.params("task001")["weights"]
        assert (bank.about("task000"), bank.about("task001")) == ({}, {"note": np.ones(1)})
    assert seen["single"] == [(before + done, 40) for before in (0, 20) for done in range(21)]
    ends = [0, 1, 2, 4, 8, 16, 20]
    assert seen["doubled"] == [(before + done, 40) for before in (0, 20) for done in ends]
    np.testing.assert_array_equal(found["single"], found["doubled"])


def test_mini_batches(tmp_path):
    bank = sx.Bank.create(tmp_path / "bank", line_prior(), "weights")
    data = jax.tree.map(lambda leaf: leaf[0], line_tasks(jax.random.key(0), 1, num_support=64).support)

    def sample(key, data):
        rows = jax.random.choice(key, 64, (32,))
        return jax.tree.map(lambda leaf: leaf[rows], data)

    def mean_loss(params, batch):
        return line_loss(params, batch) / batch[0].size

    prior = line_prior(variance=1.5 * 64)
    bank = sx.Bank.create(tmp_path / "mean", prior, "weights")
    sx.adapt_task(bank, mean_loss, "a", data, sx.ProximalGD(0.02), sample=sample, key=jax.random.key(1), tolerance=1e-2)
    expected, _ = exact_posterior(*data)
    np.testing.assert_allclose(bank.params("a")["weights"], expected, atol=0.1)
    with pytest.raises(ValueError, match="`sample` draws random batches and needs a `key`"):
        sx.adapt_task(bank, mean_loss, "b", data, GD, sample=sample)


def carried_shapes(jaxpr):
    """Shapes of everything that a loop carries, at any depth."""
    shapes = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("while", "scan"):
            shapes |= {variable.aval.shape for variable in equation.outvars}
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                shapes |= carried_shapes(inner)
    return shapes


def test_gradients_and_state_exist_for_the_selected_modules_only():
    prior = sinusoid_prior(24)
    data = (jnp.ones((2, 10, 1)), jnp.ones((2, 10, 1)))

    def shapes(selected):
        def adapt(prior, data):
            solver = sx.ProximalAdam(0.01)
            descent = Descent(mlp.squared_error, prior, solver, None, selected, 200, 1e-4, None, 1.0)
            return advance(descent, data, None, start(descent, 2), jnp.asarray(100))

        return carried_shapes(jax.make_jaxpr(adapt)(prior, data).jaxpr)

    assert (2, 1, 24) in shapes(("w0",))
    assert (2, 24, 24) not in shapes(("w0",))
    assert (2, 24, 24) in shapes(("w0", "w1"))


def test_a_task_that_diverges_does_not_take_the_others_along(tmp_path):
    bank = sx.Bank.create(tmp_path / "bank", line_prior(), "weights")
    x, y = line_tasks(jax.random.key(0), 3).support
    broken = (x, y.at[1, 0].set(jnp.nan))
    with pytest.raises(BankError, match=r"is not finite for \['b'\]: not stored \(the other 2 tasks are\)"):
        sx.adapt_task(bank, line_loss, ["a", "b", "c"], broken, sx.ProximalGD(3e-3))
    assert bank.names() == ("a", "c")
    with pytest.raises(BankError, match=r"is not finite for \['a', 'b', 'c'\].* lower the solver's learning rate"):
        sx.adapt_task(bank, line_loss, ["a", "b", "c"], (x, y), sx.ProximalGD(50.0))
    assert bank.names() == ("a", "c")


DATA = (jnp.ones((2, 5)), jnp.ones((2, 5)))


@pytest.mark.parametrize(
    ("names", "data", "options", "message"),
    [
        (["a", "b", "c"], DATA, {}, "There are 3 names and data of 2 tasks; arrays need one entry per task"),
        (["a", "a"], DATA, {}, r"Tasks are named twice: \['a'\]"),
        (["a", ""], DATA, {}, "between 1 and 1000 characters, got 0"),
        (["a", "b"], (DATA[0], DATA[1][:1]), {}, "The leading task axes differ"),
        (["a", "b"], DATA, {"max_steps": 0}, "`max_steps` must be at least 1, got 0"),
        (["a", "b"], DATA, {"tolerance": 0.0}, "`tolerance` must be positive, got 0.0"),
        (["a", "b"], DATA, {"chunk_size": 0}, "`chunk_size` must be at least 1"),
        ("a", jnp.ones((0, 5)), {}, "`task.support` is empty"),
    ],
)
def test_adapting_to_nonsense(tmp_path, names, data, options, message):
    bank = sx.Bank.create(tmp_path / "bank", line_prior(), "weights")
    with pytest.raises(ValueError, match=message):
        sx.adapt_task(bank, line_loss, names, data, GD, **options)
    assert bank.names() == ()


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
    halved = sx.laplace(normal.loss_fn, prior, estimate, observations, structure=structure, scale=2.0)
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
            lambda p: sx.laplace(line_loss, p, p.mean, (jnp.ones(2), jnp.ones(2)), scale=0.0),
            "`scale` must be a positive",
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


def noisy_sinusoids(key, num_tasks, noise, *, num_support=10, num_query=10):
    task_key, *keys = jax.random.split(key, 3)
    tasks = sinusoid.sample_tasks(task_key, num_tasks, num_support=num_support, num_query=num_query)

    def with_noise(key, part):
        return part[0], part[1] + noise * jax.random.normal(key, part[1].shape)

    return sx.Task(with_noise(keys[0], tasks.support), with_noise(keys[1], tasks.query))


SINUSOID_NOISE = 0.1


@pytest.fixture(scope="module")
def learned():
    """A prior learned from sinusoids seen under a little noise."""
    params = mlp.init(jax.random.key(0), (1, 40, 40, 1), first_scale=0.3)
    learner = sx.sigma_maml(
        sx.ProximalGD(0.01),
        num_steps=30,
        optimiser=optax.adam(5e-3),
        variance_optimiser=optax.adam(3e-2),
        max_task_norm=0.5,
    )

    @functools.partial(jax.jit, compiler_options=OPTIMISED)
    def train(state, keys):
        def update(state, key):
            return learner.update(mlp.squared_error, state, noisy_sinusoids(key, 5, SINUSOID_NOISE))[0], None

        return jax.lax.scan(update, state, keys)[0]

    prior = sx.Prior.create(params, modules=sx.by_leaf(params), variance=6.0)
    with jax.numpy_dtype_promotion("standard"):  # Optax raises rates to the power of a count.
        return train(learner.init(prior), jax.random.split(jax.random.key(1), 1500)).prior


@pytest.mark.slow
def test_no_early_stopping_is_needed(learned, tmp_path):
    """Until convergence is about as good as stopping at the best of all moments, which nobody knows."""
    chosen = ("b0", "w0")
    bank = sx.Bank.create(tmp_path / "bank", learned, chosen)
    tasks = noisy_sinusoids(jax.random.key(2), 50, SINUSOID_NOISE, num_query=100)
    solver = sx.ProximalGD(0.01)
    report = sx.adapt_task(bank, mlp.squared_error, names_of(50), tasks.support, solver, max_steps=3000)
    assert report.converged.mean() > 0.9
    x, y = tasks.query
    error = np.mean((bank.predict(mlp.apply, names_of(50), x, points=True) - y) ** 2)
    moments = {"num_steps": 1000, "steps": range(0, 1001, 20)}
    curve = sx.adaptation_curve(mlp.squared_error, learned, tasks, solver, trainable=chosen, **moments)
    best = float(jnp.min(jnp.mean(curve, axis=0)))
    assert error < 1.25 * best
    # Without the prior, with all modules, the same number of steps overfits.
    free = sx.Prior.create(learned.mean, modules=learned.modules, variance=jnp.inf)
    without = sx.evaluate(mlp.squared_error, free, tasks, solver, num_steps=1000)
    assert float(jnp.mean(without)) > 1.2 * error


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_coverage_on_held_out_sinusoids(learned, tmp_path, structure, record_property):
    def coverage(folder, key, scale):
        bank = sx.Bank.create(tmp_path / folder, learned, ("b0", "w0"), posterior=structure)
        tasks = noisy_sinusoids(key, 50, SINUSOID_NOISE, num_query=50)
        sx.adapt_task(bank, mlp.squared_error, names_of(50), tasks.support, sx.ProximalGD(0.01), scale=scale)
        prediction = bank.predict(mlp.apply, names_of(50), tasks.query[0], points=True, uncertainty=True)
        errors = np.asarray(tasks.query[1]) - prediction.mean
        spread = np.sqrt(prediction.deviation**2 + SINUSOID_NOISE**2)
        return np.mean(np.abs(errors) < 1.96 * spread), calibration(errors, prediction.deviation, SINUSOID_NOISE)

    scale = 10 / (2 * SINUSOID_NOISE**2)  # Mean squared error of ten points, as a negative log-likelihood.
    as_learned, factor = coverage("first", jax.random.key(3), scale)
    calibrated, _ = coverage("second", jax.random.key(4), scale * factor)
    # Python's own numbers: the tests' workers can send no others.
    record_property("coverage as learned, factor, calibrated", tuple(map(float, (as_learned, factor, calibrated))))
    assert as_learned > 0.95
    assert 0.91 < calibrated < 0.98
