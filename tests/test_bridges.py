"""Equinox, Flax and Haiku models through their bridges. (PyTorch has test files of its own.)"""

import functools
import subprocess
import sys

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_learner
from flax import nnx
from learners import KINDS

import shrinx as sx

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
KEY = jax.random.key(0)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Linear(3, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.last = eqx.nn.Linear(4, 2, key=key)

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, train=True):
        x = linen.BatchNorm(use_running_average=not train, name="norm")(linen.Dense(4, name="first")(x))
        return linen.Dense(2, name="last")(jnp.tanh(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.last = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.norm(self.first(x))))


def haiku_net(x, train=True):
    x = hk.BatchNorm(True, True, 0.9, name="norm")(hk.Linear(4, name="first")(x), is_training=train)
    return hk.Linear(2, name="last")(jnp.tanh(x))


# Every model twice: with the statistics of the batch, and with the running ones (mean 0, variance 1 at first).


def equinox_bridge(train):
    model, state = eqx.nn.make_with_state(EquinoxNet)(KEY)
    return sx.from_equinox(eqx.nn.inference_mode(model, not train), state)


def linen_bridge(train):
    params, apply = sx.from_flax(LinenNet(), LinenNet().init(KEY, ROWS))
    return params, functools.partial(apply, train=train)


def nnx_bridge(train):
    model = NnxNet(nnx.Rngs(0))
    return sx.from_flax(model if train else (model.eval(), model)[1])


def haiku_bridge(train):
    model = hk.transform_with_state(haiku_net)
    params, apply = sx.from_haiku(model, *model.init(KEY, ROWS))
    return params, functools.partial(apply, train=train)


BRIDGES = {"equinox": equinox_bridge, "linen": linen_bridge, "nnx": nnx_bridge, "haiku": haiku_bridge}


@pytest.fixture(autouse=True)
def relaxed():
    """Haiku mixes dtypes, which the tests forbid to everybody else."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(params=BRIDGES)
def bridge(request):
    return BRIDGES[request.param]


def direct(name, params):
    """The model as its own framework calls it, by the statistics of the batch."""
    if name == "equinox":
        model, state = eqx.nn.make_with_state(EquinoxNet)(KEY)
        whole = eqx.combine(params, model)
        return jax.vmap(whole, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(ROWS, state)[0]
    if name == "linen":
        return LinenNet().apply({**LinenNet().init(KEY, ROWS), "params": params}, ROWS, mutable="batch_stats")[0]
    if name == "nnx":
        model = NnxNet(nnx.Rngs(0))
        nnx.update(model, params)
        return model(ROWS)
    model = hk.transform_with_state(haiku_net)
    return model.apply(params, model.init(KEY, ROWS)[1], None, ROWS)[0]


@pytest.mark.parametrize("name", BRIDGES)
def test_parameters_and_values_are_those_of_the_framework(name):
    params, apply = BRIDGES[name](True)
    assert set(sx.by_layer(params).names) == {"first", "norm", "last"}
    moved = jax.tree.map(lambda x: x + 0.1, params)
    np.testing.assert_allclose(apply(moved, ROWS), direct(name, moved), rtol=1e-5, atol=1e-6)


def test_batch_norm_uses_the_batch_or_running_statistics_and_remembers_nothing(bridge):
    params, apply = bridge(True)
    outputs = apply(params, ROWS)
    assert not np.allclose(apply(params, ROWS[:3]), outputs[:3], atol=1e-3)
    np.testing.assert_array_equal(apply(params, ROWS), outputs)
    params, apply = bridge(False)
    np.testing.assert_allclose(apply(params, ROWS[:3]), apply(params, ROWS)[:3], rtol=1e-5)


def test_every_task_has_weights_of_its_own(bridge):
    params, apply = bridge(True)
    tasks = [jax.tree.map(lambda x, scale=scale: scale * x, params) for scale in (1.0, 1.5)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *tasks)
    together = jax.jit(jax.vmap(apply, in_axes=(0, None)))(stacked, ROWS)
    for outputs, task in zip(together, tasks, strict=True):
        np.testing.assert_allclose(outputs, apply(task, ROWS), rtol=1e-4, atol=1e-6)


@functools.cache
def learner_model(name):
    params, apply = BRIDGES[name](True)
    x = jax.random.normal(KEY, (5, 10, 3))
    y = jnp.sin(x[..., :2] + jnp.arange(5.0)[:, None, None])

    def loss_fn(params, batch):
        x, y = batch
        return jnp.mean((apply(params, x) - y) ** 2)

    return loss_fn, sx.Prior.create(params, variance=0.1), sx.Task(support=(x, y), query=(x + 0.1, y))


@pytest.mark.slow
@pytest.mark.parametrize("model", BRIDGES)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_learner(name, model):
    test_learner.test_update_keeps_structure_and_dtype_and_traces_once(name, learner_model(model))


def test_an_equinox_model_of_several_inputs():
    class Product(eqx.Module):
        weight: jax.Array
        name: str = "product"

        def __call__(self, x, y):
            return {"product": self.weight * x * y}

    params, apply = sx.from_equinox(Product(jnp.array([2.0, 3.0, 4.0])))
    np.testing.assert_allclose(apply(params, ROWS, ROWS)["product"], jnp.array([[2.0, 3.0, 4.0]]) * ROWS**2)


def test_haiku_with_and_without_a_key_and_a_state():
    for transform in (hk.transform, lambda f: hk.without_apply_rng(hk.transform(f))):
        model = transform(lambda x: hk.Linear(2)(x))
        params, apply = sx.from_haiku(model, model.init(KEY, ROWS))
        assert apply(params, ROWS).shape == (6, 2)
    model = hk.without_apply_rng(hk.transform_with_state(haiku_net))
    params, apply = sx.from_haiku(model, *model.init(KEY, ROWS))
    assert apply(params, ROWS).shape == (6, 2)


def with_dropout(framework):
    """(params, apply) of a model that drops units."""
    if framework == "equinox":
        parts = [eqx.nn.Linear(3, 2, key=KEY), eqx.nn.Dropout()]
        return sx.from_equinox(eqx.nn.Sequential(parts))
    if framework == "linen":
        module = linen.Sequential([linen.Dense(2), linen.Dropout(0.5, deterministic=False)])
        return sx.from_flax(module, module.init({"params": KEY, "dropout": KEY}, ROWS))
    if framework == "nnx":
        rngs = nnx.Rngs(0)
        return sx.from_flax(nnx.Sequential(nnx.Linear(3, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)))
    model = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, hk.Linear(2)(x)))
    return sx.from_haiku(model, model.init(KEY, ROWS))


@pytest.mark.parametrize(
    ("framework", "message"),
    {
        "equinox": r"Dropout is switched on.*pass `eqx.nn.inference_mode\(model\)`",
        "linen": r"Sequential draws random numbers.*switch it off by `deterministic=True`",
        "nnx": r"Sequential draws random numbers.*switch it off by `model.eval\(\)`",
        "haiku": r"must pass a non-None PRNGKey",
    }.items(),
)
def test_dropout_without_a_key_is_refused(framework, message):
    def run():
        params, apply = with_dropout(framework)
        return jax.jit(apply)(params, ROWS)

    with pytest.raises(ValueError, match=message):
        run()


def test_dropout_with_a_key():
    params, apply = with_dropout("linen")
    assert (apply(params, ROWS, rngs={"dropout": KEY}) == 0).any()
    params, apply = with_dropout("haiku")
    assert (apply(params, ROWS, rng=KEY) == 0).any()


def test_dropout_switched_off():
    parts = [eqx.nn.Linear(3, 2, key=KEY), eqx.nn.Dropout()]
    params, apply = sx.from_equinox(eqx.nn.inference_mode(eqx.nn.Sequential(parts)))
    np.testing.assert_allclose(apply(params, ROWS), jax.vmap(parts[0])(ROWS), rtol=1e-6)


DENSE = linen.Dense(2)
VARIABLES = {"params": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
HAIKU = hk.transform(lambda x: hk.Linear(2)(x))
STATEFUL = hk.transform_with_state(lambda x: hk.Linear(2)(x))

BAD = {
    "equinox: no model": (lambda: sx.from_equinox(jnp.ones(3)), "a model that can be called, got ArrayImpl"),
    "equinox: no parameters": (lambda: sx.from_equinox(eqx.nn.Lambda(jnp.tanh)), "no parameters"),
    "equinox: complex": (
        lambda: sx.from_equinox(eqx.nn.Linear(2, 2, dtype=jnp.complex64, key=KEY)),
        "leaf 'weight' has dtype complex64; keep it out",
    ),
    "flax: a class": (
        lambda: sx.from_flax(LinenNet),
        "with its variables or an nnx model, got LinenNet, a class",
    ),
    "flax: no variables": (lambda: sx.from_flax(DENSE), r"Dense is a linen module .* `from_flax\(module, module.init"),
    "flax: parameters alone": (lambda: sx.from_flax(DENSE, VARIABLES["params"]), "with 'params' among them"),
    "flax: variables of nnx": (lambda: sx.from_flax(NnxNet(nnx.Rngs(0)), VARIABLES), "holds its variables itself"),
    "flax: integers": (
        lambda: sx.from_flax(DENSE, {"params": {"kernel": jnp.ones((3, 2), int)}}),
        "leaf 'kernel' has dtype int32; keep it out of the tree",
    ),
    "haiku: not transformed": (
        lambda: sx.from_haiku(haiku_net, {}),
        "takes what `hk.transform.*` returns, got function",
    ),
    "haiku: state forgotten": (lambda: sx.from_haiku(STATEFUL, VARIABLES["params"]), "pass both, `params, state ="),
    "haiku: state without": (
        lambda: sx.from_haiku(HAIKU, VARIABLES["params"], {}),
        "has no state; pass its",
    ),
    "haiku: integers": (
        lambda: sx.from_haiku(HAIKU, {"linear": {"w": jnp.ones(2, int)}}),
        "'linear/w' has dtype int32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, message = BAD[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


MISSING = {
    "flax": lambda: sx.from_flax(DENSE, VARIABLES),
    "haiku": lambda: sx.from_haiku(HAIKU, {}),
    "torch": lambda: sx.from_torch(None),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_framework_is_named_with_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'shrinx\[{name}\]'"):
        MISSING[name]()


def test_no_framework_is_imported_before_it_is_used():
    code = "import sys, shrinx; print({'flax', 'haiku', 'torch', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_names_with_dots_are_paths():
    params = {
        "body.0.weight": jnp.ones(2),
        "body.0.bias": jnp.ones(2),
        "head.weight": jnp.ones(3),
        "scale": jnp.ones(1),
    }
    assert sx.by_layer(params).names == ("body.0", "head", "scale")
    assert sx.by_layer({"net": params}).names == ("net/body.0", "net/head", "net")
    assert sx.by_axis(params, {r"body\.0": 0}).names == ("body.0[0]", "body.0[1]", "head", "scale")
