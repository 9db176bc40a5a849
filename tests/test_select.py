import jax.numpy as jnp
import numpy as np
import pytest

import shrinx as sx

VARIANCE = {"conv": 1e-4, "norm": 3e-4, "head": 2.0, "off": 0.0}
SIZES = {"conv": 1000, "norm": 10, "head": 50, "off": 5}


def prior(variance=None):
    params = {name: jnp.full(size, 0.5) for name, size in SIZES.items()}
    return sx.Prior.create(params, variance=VARIANCE if variance is None else variance)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (sx.TopK(1), ("head",)),
        (sx.TopK(2), ("head", "norm")),
        (sx.TopK(4), ("head", "norm", "conv")),  # A frozen module is never chosen.
        (sx.Threshold(2e-4), ("head", "norm")),
        (sx.Threshold(5.0), ()),
        (sx.Share(), ("head",)),
        (sx.Share(0.9999), ("head", "norm")),  # Of 2.0004 all told, the head has 2.
        (sx.Share(0.999999), ("head", "norm", "conv")),
    ],
)
def test_rules(rule, names):
    chosen = sx.select(prior(), rule)
    assert chosen.names == names
    assert set(np.asarray(prior().modules.names)[chosen.mask]) == set(names)
    assert chosen.fraction == pytest.approx(sum(SIZES[name] for name in names) / 1065)
    np.testing.assert_allclose(chosen.scores, prior().log_variance)


@pytest.mark.parametrize(
    ("variance", "names"),
    [
        ({"off": 2e-4}, ("head",)),
        ({}, ("head",)),  # A frozen module cannot be chosen, and is no end of a gap.
        ({"conv": 0.0, "norm": 0.0}, ("head",)),
        ({"conv": 0.0, "norm": 0.0, "head": 0.0}, ()),
        ({"head": jnp.inf}, ("head",)),
        ({"head": jnp.inf, "norm": jnp.inf}, ("head", "norm")),
    ],
)
def test_largest_gap_splits_where_the_ranking_of_what_can_move_breaks(variance, names):
    assert sx.select(prior({**VARIANCE, **variance}), sx.LargestGap()).names == names


def test_the_largest_gap_of_one_module():
    assert sx.select(sx.Prior.create(jnp.ones(3)), sx.LargestGap()).names == ("params",)


@pytest.mark.parametrize(
    ("variance", "names"),
    [
        ({"conv": 0.1, "norm": 0.1, "head": 0.1, "off": 0.1}, ("conv", "head", "norm", "off")),
        ({"conv": 0.1, "norm": 0.1, "head": 100.0, "off": 0.0}, ("head",)),
        ({"conv": 1.0, "norm": 1.0, "head": 100.0, "off": 0.0}, ("head", "conv", "norm")),
        ({"conv": jnp.inf, "norm": 3.0, "head": jnp.inf, "off": 0.0}, ("conv", "head")),
        ({"conv": 0.0, "norm": 0.0, "head": 0.0, "off": 0.0}, ()),
        ({"conv": 1e-5, "norm": 0.05, "head": 60.0, "off": 1e-5}, ("head",)),
    ],
    ids=["equal", "one", "ties", "infinite", "frozen", "clipped"],
)
def test_the_fewest_modules_that_hold_a_share(variance, names):
    assert sx.select(prior(variance), sx.Share(0.99)).names == names


def test_scores_that_correct_for_size():
    distance = sx.select(prior(), sx.TopK(2), score="distance")
    assert distance.names == ("head", "conv")
    sizes = np.asarray(prior().modules.sizes)
    np.testing.assert_allclose(np.exp(distance.scores), np.asarray(prior().variance) * sizes, rtol=1e-5)
    relative = sx.select(prior(), sx.TopK(2), score="relative")
    np.testing.assert_allclose(np.exp(relative.scores), prior().variance / 0.25, rtol=1e-5)


def test_a_threshold_of_infinity_takes_what_has_no_prior():
    free = sx.Prior.create({"a": jnp.zeros(2), "b": jnp.zeros(2)}, variance={"a": jnp.inf, "b": 1.0})
    assert sx.select(free, sx.Threshold(np.inf)).names == ("a",)


def test_selection_from_data():
    """The module that differs between tasks gets the larger variance and is chosen."""
    import jax
    import optax
    from learners import relaxed

    def loss_fn(params, batch):
        return jnp.sum((params["shared"] - batch[:, 0]) ** 2) + jnp.sum((params["own"] - batch[:, 1]) ** 2)

    key = jax.random.key(0)
    own = 2.0 * jax.random.normal(key, (200, 1))
    centre = jnp.concatenate([jnp.full((200, 1), 1.5), own], axis=1)[:, None]
    noise = jax.random.normal(jax.random.key(1), (2, 200, 5, 2))
    tasks = sx.Task(support=centre + noise[0], query=centre + noise[1])
    state_prior = sx.Prior.create({"shared": jnp.zeros(1), "own": jnp.zeros(1)})
    learner = sx.sigma_imaml(
        sx.ProximalGD(0.05),
        num_steps=60,
        optimiser=relaxed(optax.adam(0.05)),
        variance_optimiser=relaxed(optax.adam(0.05)),
    )
    state = learner.init(state_prior)
    for _ in range(300):
        state, _ = learner.update(loss_fn, state, tasks)
    assert sx.select(state.prior, sx.LargestGap()).names == ("own",)
    assert float(state.prior.mean["shared"][0]) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sx.select(prior(), sx.TopK(9)), "cannot choose 9 of 4"),
        (lambda: sx.TopK(0), "`k` must be at least 1"),
        (lambda: sx.Threshold(0.0), "`least` must be positive"),
        (lambda: sx.Share(0.0), "above 0 and below 1"),
        (lambda: sx.Share(1.0), "above 0 and below 1"),
        (
            lambda: sx.select(sx.Prior(prior().mean, jnp.full(4, jnp.nan), prior().modules), sx.TopK(1)),
            "no usable score",
        ),
    ],
)
def test_bad_selections(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_lengths_of_half_precision_parameters():
    prior = sx.Prior.create({"a": jnp.full(2, 300.0, jnp.float16), "b": jnp.ones(2, jnp.float16)})
    assert set(sx.select(prior, sx.TopK(2), score="relative").names) == {"a", "b"}
