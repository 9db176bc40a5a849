"""One sentence that names the culprit, before anything is compiled."""

import jax
import jax.numpy as jnp
import optax
import pytest
from learners import NAMES, make_learners

import shrinx as sx


def loss_fn(params, batch):
    return jnp.sum((params["a"] + params["b"] - batch) ** 2)


PARAMS = {"a": jnp.zeros(3), "b": jnp.zeros(3)}
PRIOR = sx.Prior.create(PARAMS)
DATA = jnp.ones((4, 3))
GD = sx.ProximalGD(0.1)


def one_row(params, batch):
    return jnp.sum((params["a"] + params["b"] - batch[0]) ** 2)


ADAPT = {
    "no steps": (lambda: sx.adapt(one_row, PRIOR, DATA, GD, num_steps=0), "`num_steps` must be at least 1, got 0"),
    "empty data": (lambda: sx.adapt(one_row, PRIOR, DATA[:0], GD, num_steps=1), r"`data` is empty: .*\(0, 3\)"),
    "no data": (lambda: sx.adapt(one_row, PRIOR, {}, GD, num_steps=1), "`data` holds no arrays"),
    "vector loss": (
        lambda: sx.adapt(lambda p, b: p["a"], PRIOR, DATA, GD, num_steps=1),
        r"must return one floating number .* got shape \(3,\)",
    ),
    "pair loss": (lambda: sx.adapt(lambda p, b: (1.0, 2.0), PRIOR, DATA, GD, num_steps=1), "got a tuple"),
    "integer loss": (lambda: sx.adapt(lambda p, b: jnp.int32(1), PRIOR, DATA, GD, num_steps=1), "dtype int32"),
    "unknown module": (
        lambda: sx.adapt(one_row, PRIOR, DATA, GD, num_steps=1, trainable=["a", "tail"]),
        r"Unknown modules \['tail'\]; known: \['a', 'b'\]",
    ),
    "nothing trainable": (lambda: sx.adapt(one_row, PRIOR, DATA, GD, num_steps=1, trainable=[]), "names no module"),
    "no key": (
        lambda: sx.adapt(one_row, PRIOR, DATA, GD, num_steps=1, sample=lambda k, d: d),
        "`sample` draws random batches and needs a `key`",
    ),
    "zero tasks": (
        lambda: sx.evaluate(one_row, PRIOR, sx.Task(DATA[:0], DATA[:0]), GD, num_steps=1),
        r"`task.support` is empty: .*\(0, 3\)",
    ),
    "no query": (lambda: sx.evaluate(one_row, PRIOR, sx.Task(DATA), GD, num_steps=1), "`task.query`, which is missing"),
    "unknown subset": (
        lambda: sx.ablate(one_row, PRIOR, sx.Task(DATA, DATA), GD, num_steps=1, subsets={"x": ["c"]}),
        r"Unknown modules \['c'\]",
    ),
}


@pytest.mark.parametrize("case", ADAPT)
def test_adapting_to_nonsense(case):
    call, message = ADAPT[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (sx.Task(jnp.ones((0, 4, 3)), jnp.ones((0, 4, 3))), r"`task.support` is empty: .*\(0, 4, 3\)"),
        (sx.Task(jnp.ones((2, 0, 3)), jnp.ones((2, 4, 3))), r"`task.support` is empty: .*\(2, 0, 3\)"),
        (sx.Task(jnp.ones((2, 4, 3)), jnp.ones((3, 4, 3))), "leading task axes differ: .*2.*3"),
        (sx.Task({"x": jnp.ones((2, 4)), "n": jnp.ones(())}, jnp.ones((2, 4))), "leaf 'n' is a scalar"),
        (sx.Task({}, jnp.ones((2, 4))), "`task.support` holds no arrays"),
    ],
)
def test_learning_from_nonsense(name, tasks, message):
    learner = make_learners()[name]
    for call in (
        lambda: learner.gradient(loss_fn, PRIOR, tasks),
        lambda: learner.update(loss_fn, learner.init(PRIOR), tasks),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_query_set(name):
    tasks = sx.Task(jnp.ones((2, 3)))
    learner = make_learners()[name]
    if name == "reptile":
        learner.gradient(loss_fn, PRIOR, tasks)
        return
    with pytest.raises(ValueError, match="which is missing"):
        learner.gradient(loss_fn, PRIOR, tasks)


@pytest.mark.parametrize("name", NAMES)
def test_things_that_are_no_task_or_prior(name):
    learner = make_learners()[name]
    with pytest.raises(Exception, match="Task"):
        learner.gradient(loss_fn, PRIOR, (jnp.ones((2, 3)), jnp.ones((2, 3))))
    with pytest.raises(Exception, match="Prior"):
        learner.init(PARAMS)


@pytest.mark.parametrize("name", ["sigma_imaml", "sigma_reptile"])
def test_implicit_gradients_need_finite_variances(name):
    prior = sx.Prior.create(PARAMS, variance={"a": 1.0, "b": float("inf")})
    tasks = sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"finite variances, but modules \['b'\]"):
        make_learners()[name].gradient(loss_fn, prior, tasks)


LEARNER = {
    "num_steps": ({"num_steps": 0}, "`num_steps` must be at least 1"),
    "warmup": ({"warmup": -1}, "`warmup` must be at least 0"),
    "chunk_size": ({"chunk_size": 0}, "`chunk_size` must be at least 1"),
    "variance_range": ({"variance_range": (1.0, 0.1)}, "`variance_range` must be an interval"),
    "variance": ({"variance": -1.0}, "`variance` must be 0 or greater, got -1.0"),
    "rates": ({"rates": "module"}, "go together"),
}


@pytest.mark.parametrize("case", LEARNER)
def test_learners_that_make_no_sense(case):
    options, message = LEARNER[case]
    with pytest.raises(ValueError, match=message):
        sx.Learner(sx.Predictive(sx.Unroll()), GD, **{"num_steps": 1, "optimiser": optax.sgd(0.1), **options})


@pytest.mark.parametrize("option", ["learned", "trainable"])
def test_unknown_names_in_a_learner(option):
    sgd = optax.sgd(0.1)
    learner = sx.sigma_maml(GD, num_steps=1, optimiser=sgd, variance_optimiser=sgd, **{option: ("tail",)})
    with pytest.raises(ValueError, match=r"Unknown modules \['tail'\]; known: \['a', 'b'\]"):
        learner.init(PRIOR)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sx.CG(max_steps=0), "`max_steps` must be at least 1, got 0"),
        (lambda: sx.CG(damping=-1.0), "damping >= 0, got -1.0"),
        (lambda: sx.imaml(GD, num_steps=1, optimiser=optax.sgd(0.1), regularisation=0.0), "must be positive, got 0.0"),
    ],
)
def test_parts_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_prior_made_for_other_parameters():
    other = sx.Prior(mean={"a": jnp.zeros(3)}, log_variance=PRIOR.log_variance, modules=PRIOR.modules)
    with pytest.raises(ValueError, match=r"`prior.mean` does not match the modules: it has leaves \['a'\]"):
        sx.adapt(one_row, other, DATA, GD, num_steps=1)
    short = sx.Prior(mean=PARAMS, log_variance=jnp.zeros(3), modules=PRIOR.modules)
    with pytest.raises(ValueError, match=r"shape \(3,\); there are 2 modules"):
        sx.adapt(one_row, short, DATA, GD, num_steps=1)


def test_integer_parameters():
    with pytest.raises(TypeError, match="leaf 'n' has dtype int32"):
        sx.Prior.create({"a": jnp.ones(2), "n": jnp.arange(2)})


def test_errors_come_before_compilation():
    """A bad task fails while it is looked at: no XLA compilation is started."""
    learner = make_learners()["sigma_imaml"]
    with jax.log_compiles(), pytest.raises(ValueError, match="is empty"):
        learner.gradient(loss_fn, PRIOR, sx.Task(jnp.ones((2, 0, 3)), jnp.ones((2, 4, 3))))


def test_a_loss_that_fails_says_what_it_was_given():
    """The error is the caller's own; the note has what they cannot see: one task's share of the arrays."""
    learner = sx.maml(GD, num_steps=1, optimiser=optax.sgd(0.1))

    def product(params, batch):
        return jnp.sum(batch["x"] @ params["a"])

    tasks = sx.Task({"x": jnp.ones((7, 4))}, {"x": jnp.ones((7, 4))})
    with pytest.raises(TypeError, match="dot_general") as error:
        learner.update(product, learner.init(PRIOR), tasks)
    assert "`loss_fn` was called with one task's batch: x [4]." in error.value.__notes__[0]
    assert "leading task axis" in error.value.__notes__[0]


# What is of the wrong type these tests' type checker refuses before the library does.
LEARNERS = {
    "norm": (lambda: make_learners(max_task_norm=-1.0), "`max_task_norm` must be positive, got -1.0"),
    "divergence": (lambda: make_learners(divergence=0.0), "`divergence` must be positive"),
    "two gradients": (
        lambda: sx.sigma_reptile(
            GD,
            num_steps=1,
            optimiser=optax.sgd(0.1),
            variance_optimiser=optax.sgd(0.1),
            linear_solver=sx.CG(),
            variance_adjoint=sx.Unroll(last=1),
        ),
        "replaces: give one",
    ),
    "regulariser": (lambda: make_learners(regulariser=-1.0), "`regulariser` must be 0 or greater"),
}


@pytest.mark.parametrize("case", LEARNERS)
def test_learners_made_of_nonsense(case):
    call, message = LEARNERS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()
