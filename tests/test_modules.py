import copy
import os
import pickle
import subprocess
import sys

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shrinx as sx


def equinox_params():
    mlp = eqx.nn.MLP(2, 1, width_size=3, depth=1, key=jax.random.key(0))
    return eqx.partition(mlp, eqx.is_inexact_array)[0], ("layers/0", "layers/1")


def linen_params():
    model = linen.Sequential([linen.Dense(3), linen.Dense(1)])
    return model.init(jax.random.key(0), jnp.ones((1, 2))), ("params/layers_0", "params/layers_1")


def nnx_params():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.body = nnx.Linear(2, 3, rngs=rngs)
            self.head = nnx.Linear(3, 1, rngs=rngs)

    return nnx.state(Net(nnx.Rngs(0)), nnx.Param), ("body", "head")


def haiku_params():
    model = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([3, 1])(x)))
    return model.init(jax.random.key(0), jnp.ones((1, 2))), ("mlp/~/linear_0", "mlp/~/linear_1")


def dict_params():
    return {
        "body": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)},
        "head": {"w": jnp.ones((3, 1)), "b": jnp.ones(1)},
    }, ("body", "head")


@pytest.fixture(params=[equinox_params, linen_params, nnx_params, haiku_params, dict_params])
def framework(request):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return request.param()


def test_layers_of_every_framework(framework):
    params, names = framework
    modules = sx.by_layer(params)
    assert modules.names == names
    assert modules.sizes == (9, 4)
    assert len(sx.by_leaf(params)) == 4
    assert len(set(sx.by_leaf(params).names)) == 4


def test_sum_and_expand_are_transposes(framework):
    params, _ = framework
    for modules in (sx.by_layer(params), sx.by_leaf(params)):
        values = jnp.arange(1.0, len(modules) + 1)
        spread = jax.tree.map(lambda leaf, value: jnp.broadcast_to(value, leaf.shape), params, modules.expand(values))
        np.testing.assert_allclose(modules.sum(spread), values * jnp.asarray(modules.sizes, jnp.float32))


def test_partition_is_hashable_static_and_comparable(framework):
    params, _ = framework
    assert sx.by_layer(params) == sx.by_layer(jax.tree.map(lambda x: 2 * x, params))
    assert hash(sx.by_layer(params)) == hash(sx.by_layer(params))
    assert sx.by_layer(params) != sx.by_leaf(params)
    traces = []

    @eqx.filter_jit
    def norm(prior):
        traces.append(None)
        return prior.energy(prior.mean)

    norm(sx.Prior.create(params))
    norm(sx.Prior.create(jax.tree.map(lambda x: x + 1, params)))
    assert len(traces) == 1


def test_restriction_extracts_and_merges(framework):
    params, names = framework
    restriction = sx.by_layer(params).restrict(names[1])
    part = restriction.extract(params)
    assert restriction.part.names == (names[1],)
    assert sum(leaf.size for leaf in jax.tree.leaves(part)) == 4
    merged = restriction.merge(jax.tree.map(lambda x: x + 1, part), params)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    change = sx.by_layer(params).sum(jax.tree.map(jnp.subtract, merged, params))
    np.testing.assert_allclose(change, [0.0, 4.0], atol=1e-6)


def heads():
    key = jax.random.key(0)
    return {
        "attention": {"q": jax.random.normal(key, (8, 5)), "bias": jnp.ones(8)},
        "conv": {"w": jax.random.normal(key, (4, 2, 3, 3)), "b": jnp.ones(4)},
        "out": {"w": jnp.ones((5, 2))},
    }


@pytest.mark.parametrize(
    ("axes", "groups", "names", "size"),
    [
        ({"attention": 0}, 2, ("attention[0]", "attention[1]", "conv", "out"), 24),
        ({"conv": 0}, None, ("attention", "conv[0]", "conv[1]", "conv[2]", "conv[3]", "out"), 19),
        ({"conv/w": (2, 3)}, None, ("attention", "conv", *(f"conv[{i}]" for i in range(9)), "out"), 8),
        ({"conv/w": -1}, 3, ("attention", "conv", "conv[0]", "conv[1]", "conv[2]", "out"), 24),
    ],
)
def test_modules_finer_than_a_leaf(axes, groups, names, size):
    params = heads()
    modules = sx.by_axis(params, axes, groups=groups)
    assert modules.names == names
    split = [name for name in names if "[" in name]
    assert all(modules.sizes[modules.names.index(name)] == size for name in split)
    assert sum(modules.sizes) == sum(leaf.size for leaf in jax.tree.leaves(params))
    # Cutting out one module and putting it back touches exactly its entries.
    restriction = modules.restrict(split[1])
    part = restriction.extract(params)
    assert sum(leaf.size for leaf in part) == size
    merged = restriction.merge(jax.tree.map(lambda x: x + 1, part), params)
    change = modules.sum(jax.tree.map(jnp.subtract, merged, params))
    np.testing.assert_allclose(change, [size if name == split[1] else 0 for name in modules.names], atol=1e-5)
    back = restriction.merge(part, merged)
    assert all(jnp.array_equal(a, b) for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True))


def test_head_modules_cover_the_right_rows():
    modules = sx.by_axis(heads(), {"attention": 0}, groups=4)
    mask = modules.expand(jnp.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    np.testing.assert_array_equal(mask["attention"]["q"][:, 0], [0, 0, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(mask["attention"]["bias"], [0, 0, 1, 1, 0, 0, 0, 0])
    assert mask["out"]["w"].shape == (1, 1)


def test_root_leaves_are_modules_of_their_own():
    assert sx.by_layer({"w": jnp.ones(2), "b": jnp.ones(1)}).names == ("b", "w")
    assert sx.by_layer(jnp.ones(3)).names == ("params",)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sx.by_layer({"a": jnp.ones(2), "n": jnp.arange(3)}), TypeError, "leaf 'n' has dtype int32"),
        (lambda: sx.by_layer({"a": jnp.ones(2), "f": jnp.tanh}), TypeError, "leaf 'f' is a"),
        (lambda: sx.by_layer({"a": 1.0}), TypeError, "leaf 'a' is a float"),
        (lambda: sx.by_layer({}), ValueError, "no leaves"),
        (lambda: sx.by_layer({"a": jnp.ones((0, 2))}), ValueError, r"\['a'\] have no parameters"),
        (lambda: sx.by_label({"a": jnp.ones(2)}, {"x": "^b"}), ValueError, r"\['\^b'\] match no leaf .*\['a'\]"),
        (
            lambda: sx.by_label({"a": jnp.ones(2), "b": jnp.ones(2)}, {"x": "a"}),
            ValueError,
            r"No pattern matches leaves \['b'\]; patterns: \['a'\]",
        ),
        (lambda: sx.by_axis({"a": jnp.ones(2)}, {"a": 1}), ValueError, r"'a' of shape \(2,\) has no axis 1"),
        (lambda: sx.by_axis({"a": jnp.ones((0, 2))}, {"a": 0}), ValueError, r"'a' of shape \(0, 2\) is empty"),
        (lambda: sx.by_label({"a": jnp.ones(2)}, lambda path: 3), TypeError, "the name of a module, but 'a' got 3"),
        (lambda: sx.by_leaf({"a": jnp.ones(2)}).expand(jnp.ones(2)), ValueError, r"1 modules, but .* shape \[2\]"),
        (lambda: sx.by_axis({"a": jnp.ones(6)}, {"a": 0}, groups=4), ValueError, "6 indices of leaf 'a' .* 4 groups"),
        (
            lambda: sx.by_layer({"a": jnp.ones(2)}).restrict(["a", "tail"]),
            ValueError,
            r"Unknown modules \['tail'\]; known: \['a'\]",
        ),
        (lambda: sx.by_layer({"a": jnp.ones(2)}).restrict([]), ValueError, "At least one module"),
        (
            lambda: sx.by_layer({"a": jnp.ones(2)}).check({"b": jnp.ones(2)}),
            ValueError,
            r"leaves \['b'\], the modules were made for \['a'\]",
        ),
        (lambda: sx.by_layer({"a": jnp.ones(2)}).check({"a": jnp.ones(3)}), ValueError, r"'a' has shape \(3,\)"),
        (lambda: sx.by_leaf([jnp.ones(2)]).check((jnp.ones(2),)), ValueError, "in containers of another kind"),
    ],
)
def test_bad_partitions_say_what_is_wrong(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_partitions_are_equal_across_processes(tmp_path):
    """Where strings have other hashes."""
    script = "import sys, pickle; sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)))"
    ours = sx.by_layer({"a": {"w": jnp.ones(2)}, "b": {"w": jnp.ones(3)}})
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    sent = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(ours), env=env, capture_output=True)
    theirs = pickle.loads(sent.stdout)
    assert (theirs == ours, hash(theirs) == hash(ours)) == (True, True)
    assert pickle.loads(pickle.dumps(ours)).sizes == (2, 3)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda prior: pickle.loads(pickle.dumps(prior))])
@pytest.mark.parametrize("packed", [False, True])
def test_copies_of_an_equinox_prior_are_as_good(duplicate, packed):
    params, apply = sx.from_equinox(eqx.nn.MLP(2, 1, 4, 2, key=jax.random.key(0)))
    prior = sx.Prior.create(params, variance=0.5)
    again, data = duplicate(prior), jnp.ones((3, 2))
    assert again.modules == prior.modules

    def loss_fn(params, x):
        return jnp.mean((apply(params, x) - 1) ** 2)

    if packed:
        packing = sx.Packing(prior)
        loss_fn, prior, again = packing.loss_fn(loss_fn), packing.pack_prior(prior), sx.Packing(again).pack_prior(again)
    one, two = (sx.adapt(loss_fn, each, data, sx.ProximalGD(0.1), num_steps=3).losses for each in (prior, again))
    np.testing.assert_array_equal(one, two)
