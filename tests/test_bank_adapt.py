"""Adapting into a bank: to the MAP estimate of the task-specific modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bank_models import sinusoid_prior
from lines import exact_posterior, line_loss, line_prior, line_tasks, names_of

import shrinx as sx
from shrinx import _pace
from shrinx.bank import BankError
from shrinx.bank.converging import Descent, advance, start
from shrinx.models import mlp

GD = sx.ProximalGD(0.02)


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


@pytest.mark.parametrize("power_steps", [0, 1])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_steps_below_the_rounding_of_16_bits_add_up(tmp_path, dtype, power_steps):
    prior = sx.Prior.create({"a": jnp.ones(1, dtype)}, variance=1e3)
    bank = sx.Bank.create(tmp_path / "bank", prior, "a")

    def loss_fn(params, x):
        return 0.5 * jnp.sum((params["a"].astype(jnp.float32) - x) ** 2)

    solver = sx.ProximalGD(1e-3, power_steps=power_steps)
    report = sx.adapt_task(bank, loss_fn, "one", jnp.full(1, 2.0), solver)
    assert report.converged == [True]
    np.testing.assert_allclose(np.float32(bank.params("one")["a"]), 2, atol=0.05)


@pytest.mark.parametrize(("rate", "converged"), [(1e-9, False), (0.3, True)])
def test_steps_too_short_to_be_seen_have_not_arrived(tmp_path, rate, converged):
    """A large loss hides their descent in its rounding."""
    prior = sx.Prior.create({"a": jnp.zeros(1)}, variance=1e3)
    bank = sx.Bank.create(tmp_path / "bank", prior, "a")

    def loss_fn(params, x):
        return 1e4 + jnp.sum((params["a"] - x) ** 2)

    report = sx.adapt_task(bank, loss_fn, "one", jnp.ones(1), sx.ProximalGD(rate), max_steps=1000)
    assert report.converged == converged
    assert (report.residual < 1e-3) == converged


def test_pieces_are_seen_and_change_nothing(tmp_path, monkeypatch):
    tasks = line_tasks(jax.random.key(0), 3)
    seen, found = {}, {}
    for name, shortest in (("single", 0.0), ("doubled", np.inf)):
        monkeypatch.setattr(_pace, "SHORTEST", shortest)
        monkeypatch.setattr(_pace, "LONGEST", np.inf)
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
        ("a", jnp.ones((0, 5)), {}, "`data` is empty"),
    ],
)
def test_adapting_to_nonsense(tmp_path, names, data, options, message):
    bank = sx.Bank.create(tmp_path / "bank", line_prior(), "weights")
    with pytest.raises(ValueError, match=message):
        sx.adapt_task(bank, line_loss, names, data, GD, **options)
    assert bank.names() == ()


def squared_distance(params, x):
    return jnp.sum((params["a"] - x) ** 2)


def distance_prior(variance=1e6, dtype="float32"):
    return sx.Prior.create({"a": jnp.zeros(1, dtype), "b": jnp.zeros(1, dtype)}, variance=variance)


@pytest.mark.parametrize("compression", ["float16", None])
def test_a_task_that_cannot_be_stored_takes_no_other_with_it(tmp_path, compression):
    """One moves further than 16 bits go, or ends at what is not finite; the other is not at fault."""
    bank = sx.Bank.create(tmp_path / "bank", distance_prior(), "a", compression=compression)
    # Where the only step is the last, nobody looks at the loss there.
    far, rate, max_steps = (3e6, 0.4, 2000) if compression else (1e30, 1e10, 1)

    def loss_fn(params, x):
        return squared_distance(params, x) if compression else -x[0] * params["a"][0]

    names, data = ["alice", "bob"], jnp.array([[far], [2.0]])
    with pytest.raises(BankError, match=r"^'alice' is not stored \(the other 1 task is\)\. The ") as error:
        sx.adapt_task(bank, loss_fn, names, data, sx.ProximalGD(rate), max_steps=max_steps)
    assert ("do not fit into float16" if compression else "are not finite") in str(error.value)
    assert bank.names() == ("bob",)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"alice": {"age": "thirty"}}, "'age', which describes a task, must be numbers, got 'thirty'"),
        ({"alice": {"trips": [[1.0], [2.0, 3.0]]}}, "'trips', which describes a task, must be numbers, got"),
        ({"alice": {"phase": 1j}}, "'phase', which describes a task, must be numbers, got 1j"),
        ({"alicia": {"age": 30}}, r"by the task's name, \['alice'\]; got \[\"'alicia'\"\]"),
    ],
)
def test_descriptions_are_looked_at_before_the_work(tmp_path, about, message):
    bank = sx.Bank.create(tmp_path / "bank", distance_prior(), "a")

    def never(params, x):
        raise AssertionError("It adapts.")

    with pytest.raises((TypeError, BankError), match=message):
        sx.adapt_task(bank, never, ["alice"], jnp.ones((1, 1)), GD, about=about)
    assert bank.names() == ()


@pytest.mark.parametrize("dtype", [">f4", ">i2", np.longdouble, jnp.float8_e4m3fn, jnp.bfloat16, "f2"])
def test_numbers_of_all_kinds_describe_a_task(tmp_path, dtype):
    bank = sx.Bank.create(tmp_path / "bank", distance_prior(), "a")
    about = {"alice": {"age": np.asarray([30, 1.5]).astype(dtype)}}
    sx.adapt_task(bank, squared_distance, "alice", jnp.ones(1), GD, about=about)
    np.testing.assert_array_equal(bank.about("alice")["age"].astype(float), about["alice"]["age"].astype(float))


def test_whole_numbers_describe_a_task(tmp_path):
    bank = sx.Bank.create(tmp_path / "bank", distance_prior(), "a")
    sx.adapt_task(bank, squared_distance, "alice", jnp.ones(1), GD, about={"alice": {"age": 30, "trips": [1.0, 2.0]}})
    bank.describe("alice", {**bank.about("alice"), "member": True})
    assert {key: value.tolist() for key, value in bank.about("alice").items()} == {
        "age": 30.0,
        "trips": [1.0, 2.0],
        "member": 1.0,
    }


def test_the_objective_has_the_energy_that_16_bits_round_away(tmp_path):
    """Of a displacement of 1e-3 from 1: with a variance of 1e-6 its energy is what holds the task."""
    prior = sx.Prior.create({"a": jnp.ones(4, jnp.bfloat16)}, variance=1e-6)
    bank = sx.Bank.create(tmp_path / "bank", prior, "a")

    def pull(params, strength):
        return -jnp.sum(params["a"].astype(jnp.float32)) * strength[0]

    report = sx.adapt_task(bank, pull, "one", jnp.full(1, 1e3), sx.ProximalGD(1e-6), max_steps=1000)
    # θ - φ = σ² times the pull, and half of what that gains is energy; the loss itself sees nothing of it.
    assert report.objective[0] - report.loss[0] == pytest.approx(4 * 0.5 * (1e-6 * 1e3) ** 2 / 1e-6, rel=0.05)
