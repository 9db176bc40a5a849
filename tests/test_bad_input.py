"""One sentence that names the culprit, before anything is compiled."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

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


def without_a_prior(*names):
    return sx.Prior.create(PARAMS, variance={name: float("inf") if name in names else 1.0 for name in PARAMS})


def with_rates(rates):
    return sx.Prior(PARAMS, PRIOR.log_variance, PRIOR.modules, rates)


ADAPT = {
    "no steps": (lambda: sx.adapt(one_row, PRIOR, DATA, GD, num_steps=0), "`num_steps` must be at least 1, got 0"),
    "empty data": (
        lambda: sx.adapt(one_row, PRIOR, DATA[:0], GD, num_steps=1),
        r"`data` is empty: 'array' of shape \(0, 3\)",
    ),
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
    "no prior for an implicit gradient": (
        lambda: sx.adapt(one_row, without_a_prior("b"), DATA, GD, num_steps=1, adjoint=sx.Implicit()),
        r"The implicit gradient needs finite variances, but modules \['b'\]",
    ),
    "rates of another network": (
        lambda: sx.adapt(one_row, with_rates({"a": jnp.ones(3)}), DATA, GD, num_steps=1),
        r"`prior.rates` does not match the modules: it has leaves \['a'\]",
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
    """Of what adapts: the rest are constants."""
    tasks, sgd = sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3))), optax.sgd(0.1)
    everything, b_alone, a_alone = (
        getattr(sx, name)(GD, num_steps=2, optimiser=sgd, variance_optimiser=sgd, trainable=trainable)
        for trainable in (None, "b", "a")
    )
    for learner in (everything, b_alone):
        for call in (partial(learner.gradient, loss_fn, tasks=tasks), learner.init):
            with pytest.raises(ValueError, match=r"finite variances, but modules \['b'\]"):
                call(without_a_prior("b"))
    state, info = a_alone.update(loss_fn, a_alone.init(without_a_prior("b")), tasks)
    assert info.healthy.all()
    assert state.prior.log_variance[1] == jnp.inf


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_is_a_number_on_support_sets_only(name):
    learner = make_learners()[name]
    tasks = sx.Task(jnp.ones((2, 3)), jnp.ones((2, 4, 3)))
    with pytest.raises(ValueError, match=r"`loss_fn` must return one floating number .* got shape \(3,\)"):
        learner.gradient(lambda params, batch: jnp.sum(batch, 0) * jnp.sum(params["a"] + params["b"]), PRIOR, tasks)


OTHERS = {
    "one of fixed variances": ("maml", "sigma_maml"),
    "one without rates": ("maml", "meta_sgd"),
    "one of learned variances": ("sigma_maml", "maml"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_states_of_other_learners(case):
    theirs, ours = (make_learners()[name] for name in OTHERS[case])
    tasks = sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="`state` is that of another learner or other optimisers"):
        ours.update(loss_fn, theirs.init(PRIOR), tasks)


def test_states_of_other_optimisers():
    theirs, ours = (make_learners(optimiser=optimiser)["maml"] for optimiser in (optax.sgd(0.1), optax.adam(0.1)))
    with pytest.raises(ValueError, match="`state` is that of another learner or other optimisers"):
        ours.update(loss_fn, theirs.init(PRIOR), sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3))))


@pytest.mark.parametrize(
    ("name", "rates", "message"),
    [
        ("meta_sgd", jnp.ones(2), "one for each module; this learner's are by parameter"),
        ("meta_sgd_module", PARAMS, "one for each parameter; this learner's are by module"),
    ],
)
def test_priors_with_rates_of_the_other_kind(name, rates, message):
    learner = make_learners()[name]
    with pytest.raises(ValueError, match=message):
        learner.init(with_rates(rates))


NO_RATES = {
    "implicit": sx.Predictive(sx.Implicit()),
    "first order": sx.Predictive(sx.FirstOrder()),
    "reptile": sx.Reptile(sx.Unroll()),
}
LEARNER = {
    "num_steps": ({"num_steps": 0}, "`num_steps` must be at least 1"),
    "warmup": ({"warmup": -1}, "`warmup` must be at least 0"),
    "chunk_size": ({"chunk_size": 0}, "`chunk_size` must be at least 1"),
    "variance_range": ({"variance_range": (1.0, 0.1)}, "`variance_range` must be an interval"),
    "variance": ({"variance": -1.0}, "`variance` must be 0 or greater, got -1.0"),
    "no variance": ({"variance": float("nan")}, "`variance` must be 0 or greater, got nan"),
    "three bounds": ({"variance_range": [1.0, 2.0, 3.0]}, "variance_range"),
    "rates": ({"rates": "module"}, "go together"),
    "regulariser": ({"regulariser": 0.1}, "^`regulariser`: about variances, which only move with"),
    "traced regulariser": ({"regulariser": jnp.ones(())}, "^`regulariser`: about variances"),
    "range of what does not move": ({"variance_range": (0.1, 1.0)}, "^`variance_range`: about variances"),
    "both": ({"learned": "a", "warmup": 3}, "^`learned` and `warmup`: about variances"),
    "variances of plain Reptile": (
        {"meta_gradient": sx.Reptile(None), "variance_optimiser": optax.sgd(0.1)},
        "Plain Reptile has no gradient for variances: use `sigma_reptile`",
    ),
    **{
        f"rates, {name}": (
            {"meta_gradient": gradient, "rates": "module", "rate_optimiser": optax.sgd(0.1)},
            "Learned `rates` need the steps' own gradient",
        )
        for name, gradient in NO_RATES.items()
    },
}


@pytest.mark.parametrize("case", LEARNER)
def test_learners_that_make_no_sense(case):
    options, message = LEARNER[case]
    defaults = {"meta_gradient": sx.Predictive(sx.Unroll()), "num_steps": 1, "optimiser": optax.sgd(0.1)}
    with pytest.raises((ValueError, TypeError), match=message):
        sx.Learner(solver=GD, **{**defaults, **options})


def test_a_range_may_be_a_list():
    sgd = optax.sgd(0.1)
    learner = sx.sigma_maml(GD, num_steps=1, optimiser=sgd, variance_optimiser=sgd, variance_range=[0.5, 2.0])
    assert learner.variance_range == (0.5, 2.0)
    learner.update(loss_fn, learner.init(PRIOR), sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3))))


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
        (lambda: sx.CG(damping=-1.0), "`damping` must be 0 or greater, got -1.0"),
        (lambda: sx.CG(damping=float("nan")), "`damping` must be 0 or greater, got nan"),
        (lambda: sx.CG(tolerance=-1e-3), "`tolerance` must be 0 or greater, got -0.001"),
        (lambda: sx.ProximalGD(jnp.asarray(-0.5)), "`learning_rate` must be positive, got -0.5"),
        (lambda: sx.ProximalAdam(0.1, eps=-1.0), "`eps` must be 0 or greater, got -1.0"),
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


# In a process of its own, where the library's own checks are the only ones.
WRONG_TYPES = {
    "sx.ProximalGD('fast')": "`learning_rate` must be a number, got 'fast'",
    "sx.ProximalGD(True)": "`learning_rate` must be a number, got True",
    "sx.ProximalAdam(jnp.ones(2))": "`learning_rate` must be a number",
    "sx.CG(damping=None)": "`damping` must be a number, got None",
    "sx.CG(damping=1j)": "`damping` must be a number, got 1j",
    "sx.Unroll(20)": "`checkpoint` must be true or false, got 20; steps are `last=`",
    "sx.Unroll(mixed=20)": "`mixed` must be true or false, got 20",
    "sx.by_axis(params, {'a': np.int64(0)}).sizes": "(1, 1, 1, 3)",
    "sx.Learner(**parts, num_steps=2.5)": "`num_steps` must be an integer, got 2.5",
    "sx.Learner(**parts, num_steps=np.int32(2)).num_steps": "2",
    "sx.Learner(**parts, num_steps=2, divergence='far')": "`divergence` must be a number, got 'far'",
    "sx.Learner(**parts, num_steps=2, regulariser=None)": "`regulariser` must be a number, got None",
    "sx.Learner(**parts, num_steps=2, max_task_norm=True)": "`max_task_norm` must be a number, got True",
    "sx.Learner(**parts, num_steps=2, variance_range=3.0)": "`variance_range` must be two numbers",
    "type(sx.imaml(gd, num_steps=1, optimiser=sgd, regularisation=np.float32(2)).variance).__name__": "float",
    "sx.maml(gd, num_steps=1, optimiser=sgd).update(loss_fn, state, task, key=7)": "`key` must be made by",
    "sx.maml(gd, num_steps=1, optimiser=sgd).gradient(loss_fn, prior, task, key='k')": "`key` must be made by",
    "sx.adapt(loss_fn, prior, data, gd, num_steps=1, key=7)": "`key` must be made by `jax.random.key(seed)`, got 7",
    "sx.evaluate(loss_fn, prior, task, gd, num_steps=1, key=jnp.ones(2))": "`key` must be made by",
    "sx.evaluate(loss_fn, prior, task, gd, num_steps=1, key=jax.random.PRNGKey(0)).shape": "(2,)",
    "sx.adapt(loss_fn, prior, data, gd, num_steps=1, adjoint='implicit')": "`adjoint` must be an adjoint such as",
    "sx.adapt(loss_fn, params, data, gd, num_steps=1, adjoint=sx.Implicit())": "Expected a `Prior`, got dict",
    "sx.adaptation_curve(loss_fn, prior, task, gd, num_steps=2, steps=[0.5])": "`steps` must be a list of integers",
    "sx.adaptation_curve(loss_fn, prior, task, gd, num_steps=2, steps=2)": "`steps` must be a list of integers, got 2",
    "sx.adaptation_curve(loss_fn, prior, task, gd, num_steps=2, steps=np.arange(3)).shape": "(2, 3)",
    "sx.adaptation_curve(loss_fn, prior, task, gd, num_steps=2, steps=iter([0, 2])).shape": "(2, 2)",
    "sx.adaptation_curve(loss_fn, prior, task, gd, num_steps=2, steps=jnp.arange(3)).shape": "(2, 3)",
    "list(sx.ablate(loss_fn, prior, task, gd, num_steps=1, subsets={'a': iter(['nope'])}))": "Unknown modules ['nope']",
    "prior.freeze_all_but(sx.TopK(1))": "Names of modules or a `Selection` are needed, got TopK(k=1); a rule",
    "len(prior.restrict(sx.select(prior, sx.TopK(1)))[0].modules)": "1",
    "sx.adapt(loss_fn, prior, data, gd, num_steps=1, sample=16)": "`sample` must be a function of key and data",
    "sx.adapt(loss_fn, prior, data, gd, num_steps=1, sample=sx.RowSample)": "`sample` must be a function of key and",
    "sx.Rows.stack({'x': np.ones(3)})": "`tasks` must be a list, with the arrays of a task in each place",
    "sx.Rows(jnp.ones(3), jnp.ones(3)).split(0)": "`key` must be made by `jax.random.key(seed)`, got 0",
    "sx.ablate(loss_fn, prior, task, gd, num_steps=1, subsets=['a'])": "`subsets` must be a mapping from labels",
    "sx.ProximalAdam(0.1, eps='x')": "`eps` must be a number, got 'x'",
    "sx.adapt(loss_fn, prior, 'abc', gd, num_steps=1)": "`data` must hold numbers and arrays of numbers",
    "sx.adapt(loss_fn, prior, {'x': np.array(['a'])}, gd, num_steps=1)": "`data` must hold numbers and",
    "sx.adapt(loss_fn, prior, data, gd, num_steps=1, trainable=sx.TopK(1))": "Names of modules or a `Selection` are",
    "sx.adapt(loss_fn, prior, data, gd, num_steps=1, trainable=5)": "Names of modules or a `Selection` are",
    "sx.Bank.create('bank', prior, sx.TopK(1))": "Names of modules or a `Selection` are needed, got TopK(k=1); a rule",
    "sx.Learner(**parts, num_steps=2, query_sample=sx.RowSample)": "`query_sample` must be a function of key and data",
    "sx.Learner(**parts, num_steps=2, sample=3)": "`sample` must be a function of key and data",
    "sx.Learner(**parts, num_steps=2, variance='2')": "`variance` must be a number, got '2'",
    "sx.Learner(**parts, num_steps=2, variance=jnp.asarray(2.0)).variance": "2.0",
    "sx.Learner(**parts, num_steps=2, variance_range=('a', 'b'))": "`variance_range` must be a number, got 'a'",
    "sx.by_axis(params, 'a')": "`axes` must be a mapping from patterns to axes, such as {'conv': 0}, got 'a'",
    "sx.by_axis(params, {'a': '0'})": "The axes of leaf 'a' must be integers, got '0'",
    "sx.by_axis(params, {'a': None})": "The axes of leaf 'a' must be integers, got None",
    "sx.by_axis(params, {'a': 0}, groups=1.0)": "`groups` must be an integer, got 1.0",
    "sx.Packing(params)": "Expected a `Prior`, got dict",
    "sx.Packing(prior).pack_prior(params)": "Expected a `Prior`, got dict",
    "sx.Rows(jnp.ones(3), jnp.ones(3)).split(None)": "`key` must be made by `jax.random.key(seed)`, got None",
    "sx.adapt_task(bank, loss_fn, 7, data, gd)": "A task's name must be text, got 7",
    "sx.adapt_task(bank, loss_fn, 'a', data, gd, tolerance='2')": "`tolerance` must be a number, got '2'",
    "sx.adapt_task(bank, loss_fn, 'a', data, gd, loss_scale=-2)": "`loss_scale` must be positive, got -2",
    "sx.adapt_task(bank, loss_fn, 'a', data, gd, variance_factor='2')": "`factor` must be a number, got '2'",
    "prior.scale_variance(None)": "`factor` must be a number, got None",
    "sx.maml(gd, num_steps=1, optimiser=sgd, variance_optimiser=sgd)": "`variance_optimiser` makes no difference",
    "learner.update(loss_fn, state, sx.Task(jnp.ones((2, 3)), np.array([['a'] * 3] * 2)))": "`task.query` must hold",
    "learner.update(loss_fn, state, sx.Task(Table(), jnp.ones((2, 3))))": "`task.support` must hold",
    "sx.evaluate(loss_fn, prior, sx.Task(Table(), Table()), gd, num_steps=1)": "`task.support` must hold",
    "sx.Rows.stack([{'x': Table()}])": "'x' of `tasks[0]` is no array but a Table",
    "sx.Share('x')": "`share` must be a number, got 'x'",
    "sx.Threshold(None)": "`least` must be a number, got None",
}

SCRIPT = """
import json, sys, tempfile
import jax, jax.numpy as jnp, numpy as np, optax, shrinx as sx

class Table:  # As of pandas.
    pass

gd, sgd = sx.ProximalGD(0.1), optax.sgd(0.1)
params = {"a": jnp.zeros(3), "b": jnp.zeros(3)}
prior, data = sx.Prior.create(params), jnp.ones(3)
task = sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3)))
parts = {"meta_gradient": sx.Predictive(sx.Unroll()), "solver": gd, "optimiser": sgd, "variance_optimiser": sgd}
state = sx.maml(gd, num_steps=1, optimiser=sgd).init(prior)
learner = sx.maml(gd, num_steps=1, optimiser=sgd)
bank = sx.Bank.create(tempfile.mkdtemp(), prior, "a")
loss_fn = lambda params, x: jnp.sum((params["a"] + params["b"] - x) ** 2)

def outcome(code):
    try:
        return str(eval(code))
    except Exception as error:
        return str(error)

print(json.dumps({code: outcome(code) for code in json.load(sys.stdin)}))
"""


@pytest.fixture(scope="module")
def outcomes():
    command, root = [sys.executable, "-c", SCRIPT], Path(__file__).parents[1]
    codes = json.dumps(list(WRONG_TYPES))
    found = subprocess.run(command, cwd=root, input=codes, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


@pytest.mark.parametrize("code", WRONG_TYPES)
def test_things_of_the_wrong_type_are_called_by_their_names(outcomes, code):
    assert outcomes[code].startswith(WRONG_TYPES[code])
