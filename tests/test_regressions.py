"""One behaviour each, found by people who tried the library."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import make_learners
from problems import quadratic_loss, random_quadratic, relative_error

import shrinx as sx
from shrinx.bank.errors import BankError

SGD = optax.sgd(0.1)
GD = sx.ProximalGD(0.1)


def squared_distance(theta, x):
    return jnp.sum((theta - x) ** 2)


def sum_loss(params, x):
    return jnp.sum((params["a"] + params["b"] - x) ** 2)


@pytest.mark.parametrize("system", ["whitened", "preconditioned"])
def test_frozen_modules_in_either_linear_system(x64, system):
    base = random_quadratic(0, dimension=12, deviations=(0.3, 3.0))
    frozen = np.arange(len(base.sizes)) % 2 == 0
    problem = type(base)(**{**base.__dict__, "deviations": np.where(frozen, 0.0, base.deviations)})
    cg = sx.CG(max_steps=100, system=system)
    learner = sx.Learner(sx.Predictive(sx.Implicit(cg)), sx.ProximalGD(1.0), num_steps=2000, optimiser=SGD)
    ours, _ = learner.gradient(quadratic_loss, problem.prior("float64"), problem.task("float64", batch=True))
    assert relative_error(problem.join(ours.mean), problem.meta_gradient()[0]) < 1e-8


def test_unrolling_adam_through_units_that_are_off():
    model = eqx.nn.MLP(1, 1, width_size=8, depth=2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params, batch):
        x, y = batch
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    x = jnp.linspace(0.5, 1, 5)[None, :, None]
    tasks = sx.Task(support=(x, x), query=(x, x))
    learner = sx.sigma_maml(sx.ProximalAdam(1e-2), num_steps=3, optimiser=SGD, variance_optimiser=SGD)
    gradient, info = learner.gradient(loss_fn, sx.Prior.create(params), tasks)
    assert info.num_failed == 0
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_adapt_is_compiled_once():
    traces = []

    def loss_fn(theta, x):
        traces.append(None)
        return squared_distance(theta, x)

    counts = []
    for value in range(4):
        sx.adapt(loss_fn, sx.Prior.create(jnp.zeros(2)), jnp.full(2, float(value)), GD, num_steps=3)
        counts.append(len(traces))
    assert len(set(counts)) == 1


def test_parameters_of_no_firm_type_are_compiled_once():
    """After the first update they would have one."""
    traces = []

    def loss_fn(theta, x):
        traces.append(None)
        return squared_distance(theta, x)

    learner = sx.maml(GD, num_steps=1, optimiser=SGD)
    state = learner.init(sx.Prior.create(jnp.full((2,), 1.0)))
    counts = []
    for _ in range(3):
        state, _ = learner.update(loss_fn, state, sx.Task(jnp.ones((2, 2)), jnp.ones((2, 2))))
        counts.append(len(traces))
    assert len(set(counts)) == 1


@pytest.mark.parametrize("rates", ["parameter", "module"])
@pytest.mark.parametrize("size", [1, 3])
def test_rates_of_a_lone_array_from_update_to_update(size, rates):
    """Those of its parameters and those of its modules may have one shape."""
    params = jnp.zeros(size)
    prior = sx.Prior.create(params, modules=sx.by_axis(params, {"params": 0}))
    learner = sx.meta_sgd(GD, num_steps=2, optimiser=SGD, rate_optimiser=SGD, rates=rates)
    state, tasks = learner.init(prior), sx.Task(jnp.ones((2, size)), jnp.ones((2, size)))
    for _ in range(2):
        state, info = learner.update(squared_distance, state, tasks)
    assert info.healthy.all()
    assert (state.prior.rates > 1).all()


def test_an_imposed_variance_is_where_a_learned_one_begins():
    options = {"num_steps": 3, "optimiser": SGD, "variance_optimiser": SGD}
    imposing = sx.Learner(sx.Predictive(sx.Unroll()), GD, variance=0.5, **options)
    plain = sx.Learner(sx.Predictive(sx.Unroll()), GD, **options)
    tasks = sx.Task(jnp.ones((2, 1)), jnp.ones((2, 1)))
    ours, theirs = imposing.init(sx.Prior.create(jnp.zeros(1))), plain.init(sx.Prior.create(jnp.zeros(1), variance=0.5))
    for _ in range(3):
        ours, seen = imposing.update(squared_distance, ours, tasks)
        theirs, expected = plain.update(squared_distance, theirs, tasks)
        assert ours.prior.log_variance == theirs.prior.log_variance
        np.testing.assert_array_equal(seen.query_loss, expected.query_loss)


def test_a_fixed_variance_is_imposed_on_states_too():
    """Of another learner with optimisers alike."""
    flat, held = (
        sx.Learner(sx.Predictive(sx.Unroll()), GD, num_steps=3, optimiser=SGD, variance=v) for v in (1e9, 0.0)
    )
    state, tasks = flat.init(sx.Prior.create(jnp.zeros(1))), sx.Task(jnp.ones((2, 1)), jnp.ones((2, 1)))
    _, info = held.update(squared_distance, state, tasks)
    np.testing.assert_allclose(info.query_loss, 1.0)


def test_implicit_derivatives_it_does_not_have_are_errors_not_zeros():
    prior = sx.Prior.create(jnp.zeros(1))

    def adapted(x, adjoint):
        return sx.adapt(squared_distance, prior, x, sx.ProximalGD(0.3), num_steps=30, adjoint=adjoint).params[0]

    assert jax.grad(adapted)(jnp.ones(1), sx.Unroll())[0] > 0.1
    with pytest.raises(TypeError, match="`Implicit` has derivatives with respect to the prior only"):
        jax.grad(adapted)(jnp.ones(1), sx.Implicit())


@pytest.mark.parametrize("adjoint", [sx.Unroll(), sx.Implicit(), sx.Implicit(variance_adjoint=sx.Unroll())])
def test_what_a_loss_closes_over_may_be_traced(adjoint):
    """Of θ̂ = (φ + 2 s σ² x) / (1 + 2 s σ²), for a batch of s."""

    def slope(scale):
        def adapted(prior):
            options = {"num_steps": 200, "adjoint": adjoint}
            return sx.adapt(
                lambda theta, x: scale * squared_distance(theta, x), prior, jnp.ones(1), sx.ProximalGD(0.1), **options
            ).params[0]

        return jax.grad(adapted)(sx.Prior.create(jnp.zeros(1)))

    scales = jnp.array([0.5, 1.0, 3.0])
    slopes = jax.vmap(slope)(scales)
    np.testing.assert_allclose(slopes.mean[:, 0], 1 / (1 + 2 * scales), rtol=1e-4)
    np.testing.assert_allclose(slopes.log_variance[:, 0], 2 * scales / (1 + 2 * scales) ** 2, rtol=1e-4)


@pytest.mark.parametrize("adjoint", [sx.Unroll(), sx.Implicit(), sx.Implicit(batches=3)])
def test_what_a_sample_closes_over_may_be_traced(adjoint):
    """A mini-batch is always the mean of the first rows, so many as is said."""

    def slope(size):
        def sample(key, rows):
            del key
            return jnp.sum(jnp.where(jnp.arange(4.0) < size, rows, 0))[None] / size

        def adapted(prior):
            options = {"num_steps": 200, "key": jax.random.key(0), "sample": sample, "adjoint": adjoint}
            return sx.adapt(squared_distance, prior, jnp.arange(4.0), GD, **options).params[0]

        return jax.value_and_grad(adapted)(sx.Prior.create(jnp.zeros(1)))

    found, slopes = jax.jit(jax.vmap(slope))(jnp.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(found, 2 / 3 * np.array([0, 0.5, 1.5]), rtol=1e-4)
    np.testing.assert_allclose(slopes.mean[:, 0], 1 / 3, rtol=1e-4)


def test_an_implicit_derivative_of_what_a_loss_closes_over_is_an_error():
    def adapted(scale, adjoint):
        def loss_fn(theta, x):
            return scale * squared_distance(theta, x)

        prior = sx.Prior.create(jnp.zeros(1))
        return sx.adapt(loss_fn, prior, jnp.ones(1), GD, num_steps=200, adjoint=adjoint).params[0]

    np.testing.assert_allclose(jax.grad(adapted)(1.0, sx.Unroll()), 2 / 9, rtol=1e-4)
    with pytest.raises(TypeError, match="`Implicit` has derivatives with respect to the prior only"):
        jax.grad(adapted)(1.0, sx.Implicit())


@pytest.mark.parametrize("batches", [1, 3])
def test_plain_numbers_among_the_data(batches):
    def loss_fn(theta, data):
        return data["scale"] * squared_distance(theta, data["x"])

    def adapted(prior):
        options = {"sample": lambda key, data: data, "key": jax.random.key(0), "adjoint": sx.Implicit(batches=batches)}
        return sx.adapt(loss_fn, prior, {"x": jnp.ones(1), "scale": 2.0}, GD, num_steps=200, **options).params[0]

    np.testing.assert_allclose(jax.grad(adapted)(sx.Prior.create(jnp.zeros(1))).mean, 0.2, rtol=1e-4)


@pytest.mark.parametrize("variance_adjoint", [None, sx.Unroll(), sx.FirstOrder()])
def test_implicit_derivatives_of_a_part_of_the_parameters(variance_adjoint):
    """A cotangent that nobody has made is zero."""

    def loss_fn(params, x):
        return 0.5 * jnp.sum((params["a"] + params["b"] - x) ** 2) + jnp.sum(params["b"] ** 2)

    def adapted(prior, adjoint):
        return sx.adapt(loss_fn, prior, jnp.ones(2), GD, num_steps=200, adjoint=adjoint).params["a"][0]

    implicit = sx.Implicit(sx.CG(max_steps=20), variance_adjoint=variance_adjoint)
    ours, exact = (jax.grad(adapted)(sx.Prior.create(PARAMS), adjoint) for adjoint in (implicit, sx.Unroll()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours.mean, exact.mean)
    if not isinstance(variance_adjoint, sx.FirstOrder):
        np.testing.assert_allclose(ours.log_variance, exact.log_variance, rtol=1e-4)


@pytest.mark.parametrize("derivative", [jax.hessian, lambda f: jax.jacrev(jax.grad(f))])
@pytest.mark.parametrize("variance_adjoint", [None, sx.FirstOrder()])
def test_second_implicit_derivatives_are_errors_not_zeros(derivative, variance_adjoint):
    prior = sx.Prior.create(jnp.zeros(1))

    def adapted(log_variance):
        moved = eqx.tree_at(lambda p: p.log_variance, prior, log_variance)
        adjoint = sx.Implicit(variance_adjoint=variance_adjoint)
        return sx.adapt(squared_distance, moved, jnp.ones(1), GD, num_steps=20, adjoint=adjoint).params[0]

    assert jnp.isfinite(jax.grad(adapted)(prior.log_variance)).all()
    with pytest.raises(NotImplementedError, match="has first derivatives only"):
        derivative(adapted)(prior.log_variance)


@pytest.mark.parametrize("adjoint", [sx.Unroll(), sx.Implicit(), sx.FirstOrder()])
def test_the_displacement_has_the_derivative_of_the_parameters(adjoint):
    def both(prior):
        adapted = sx.adapt(squared_distance, prior, jnp.ones(1), sx.ProximalGD(0.3), num_steps=50, adjoint=adjoint)
        return adapted.displacement[0], adapted.params[0] - prior.mean[0]

    prior = sx.Prior.create(jnp.zeros(1))
    one, two = (jax.grad(lambda p, i=i: both(p)[i])(prior) for i in (0, 1))
    np.testing.assert_allclose(one.log_variance, two.log_variance, rtol=1e-5)
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-6)


def test_power_iterations_start_in_general_position():
    def loss_fn(params, x):
        return 50 * jnp.sum((params["a"][0] - params["a"][1] - x) ** 2)

    prior = sx.Prior.create({"a": jnp.zeros(2)}, variance=1e4)
    adapted = sx.adapt(loss_fn, prior, jnp.ones(1), sx.ProximalGD(0.1, power_steps=1), num_steps=100)
    assert adapted.failed_step == -1
    assert adapted.losses[-1] < 1e-3


def test_modules_that_do_not_adapt_keep_their_variance():
    learner = sx.sigma_maml(GD, num_steps=2, optimiser=SGD, variance_optimiser=SGD, trainable="b", regulariser=0.1)
    state = learner.init(sx.Prior.create({"a": jnp.zeros(1), "b": jnp.zeros(1)}))
    state, _ = learner.update(sum_loss, state, sx.Task(jnp.ones((2, 1)), jnp.ones((2, 1))))
    assert state.prior.log_variance[0] == 0
    assert state.prior.log_variance[1] != 0


def test_a_moved_frozen_module_has_density_zero():
    prior = sx.Prior.create({"a": jnp.zeros(1), "b": jnp.zeros(1)}, variance=0.0)
    assert prior.log_density({"a": jnp.ones(1), "b": jnp.zeros(1)}) == -jnp.inf


@pytest.mark.parametrize("variance", [1e-37, 1e-40, 1e-300])
def test_variances_too_small_for_the_dtype(variance):
    prior = sx.Prior.create(jnp.zeros(1), variance=variance)
    adapted = sx.adapt(squared_distance, prior, jnp.ones(1), GD, num_steps=3)
    assert adapted.failed_step == -1
    assert jnp.isfinite(adapted.gradient_norms).all()


def test_selections_are_accepted_wherever_names_are():
    prior = sx.Prior.create({"a": jnp.zeros(1), "b": jnp.zeros(1)}, variance={"a": 0.1, "b": 2.0})
    chosen = sx.select(prior, sx.TopK(1))
    tasks = sx.Task(jnp.ones((2, 1)), jnp.ones((2, 1)))
    learner = sx.maml(GD, num_steps=2, optimiser=SGD, trainable=chosen)
    assert learner.trainable == ("b",)
    learner.update(sum_loss, learner.init(prior), tasks)
    scores = sx.ablate(sum_loss, prior, tasks, learner.solver, num_steps=3, subsets={"chosen": chosen, "none": []})
    np.testing.assert_allclose(scores["none"], 1.0)
    assert (scores["chosen"] < 1).all()
    once = sx.ablate(sum_loss, prior, tasks, learner.solver, num_steps=3, subsets={"chosen": iter(chosen)})
    np.testing.assert_array_equal(once["chosen"], scores["chosen"])
    np.testing.assert_array_equal(prior.freeze_all_but(chosen).frozen, [True, False])
    assert prior.modules.indices(chosen) == (1,)


def test_variances_may_be_traced():
    def adapted(variance):
        prior = sx.Prior.create(jnp.zeros(1), variance=variance)
        return sx.adapt(lambda t, x: 0.5 * squared_distance(t, x), prior, jnp.ones(1), sx.ProximalGD(0.5), num_steps=60)

    params = jax.vmap(adapted)(jnp.array([1.0, 3.0])).params[:, 0]
    np.testing.assert_allclose(params, [0.5, 0.75], rtol=1e-4)


PARAMS = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
TASKS = sx.Task(jnp.ones((2, 2)), jnp.ones((2, 2)))


def reptile_without_a_prior():
    learner = sx.Learner(sx.Reptile(None), GD, num_steps=1, optimiser=SGD)
    return learner.gradient(sum_loss, sx.Prior.create(PARAMS, variance=jnp.inf), TASKS)


def score_with_a_dictionary():
    def metric_fn(params, query):
        return {"sum": jnp.sum(query)}

    return sx.evaluate(sum_loss, sx.Prior.create(PARAMS), TASKS, GD, num_steps=1, metric_fn=metric_fn)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sx.by_axis({"c": {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}}, {"c": 0}), "split into 2 and 3 modules"),
        (lambda: sx.by_leaf({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}), r"same path \['a/b'\]"),
        (lambda: sx.reptile(GD, num_steps=1, optimiser=SGD, trainable="a"), "Plain Reptile learns only what adapts"),
        (lambda: sx.maml(GD, num_steps=1, optimiser=SGD, warmup=3), "only move with a `variance_optimiser`"),
        (reptile_without_a_prior, r"finite variances, but modules \['a', 'b'\]"),
        (score_with_a_dictionary, "`metric_fn` must return one floating number"),
        (lambda: make_learners()["maml"].update(sum_loss, sx.Prior.create(PARAMS), TASKS), "state"),
    ],
)
def test_mistakes_that_used_to_pass(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_threshold_takes_a_variance_of_exactly_that():
    for least in (1e-5, 0.01, 0.1, 0.3, 2.0, 100.0):
        prior = sx.Prior.create({"a": jnp.zeros(3), "b": jnp.zeros(2)}, variance={"a": least, "b": 0.999 * least})
        assert sx.select(prior, sx.Threshold(least)).names == ("a",)


def test_a_batch_of_packed_parameters_is_not_taken_for_layers():
    prior = sx.Prior.create({f"layer{i}": jnp.full((2, 2), float(i)) for i in range(3)})
    packing = sx.Packing(prior)
    batch = jax.vmap(lambda shift: jax.tree.map(lambda leaf: leaf + shift, packing.pack(prior.mean)))(jnp.arange(3.0))
    with pytest.raises(ValueError, match="`packed` does not match the modules"):
        packing.unpack(batch)
    assert jax.vmap(packing.unpack)(batch)["layer2"][:, 0, 0].tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match="does not match the modules"):
        packing.loss_fn(lambda params, batch: 0.0)(prior.mean, None)


@pytest.mark.parametrize("params", [{"w": jnp.ones(1), "b": jnp.ones(1)}, {"w": jnp.ones(3)}, {"v": jnp.ones(3)}])
def test_energy_is_of_parameters_that_fit(params):
    prior = sx.Prior.create({"w": jnp.zeros(3), "b": jnp.zeros(1)})
    for measure in (prior.energy, prior.log_density, prior.displacement):
        with pytest.raises(ValueError, match="`params` does not match the modules"):
            measure(params)


def test_a_task_without_data_says_so(tmp_path):
    prior = sx.Prior.create({"w": jnp.zeros(3)})
    bank = sx.Bank.create(tmp_path, prior, "w")

    def loss_fn(params, x):
        return squared_distance(params["w"], x)

    learner = sx.reptile(GD, num_steps=2, optimiser=SGD)
    for call in (
        lambda: sx.adapt_task(bank, loss_fn, "a", None, GD),
        lambda: sx.adapt_task(bank, loss_fn, ["a"], None, GD),
        lambda: sx.evaluate(loss_fn, prior, sx.Task(None), GD, num_steps=2),
        lambda: learner.update(loss_fn, learner.init(prior), sx.Task(None)),
        lambda: sx.spread(sx.Task(None)),
    ):
        with pytest.raises(ValueError, match="holds no arrays"):
            call()
    assert len(bank) == 0


def test_select_inside_jit_says_so():
    with pytest.raises(TypeError, match=r"`select` looks at the variances.* call it outside"):
        jax.jit(lambda prior: sx.select(prior, sx.TopK(1)).fraction)(sx.Prior.create({"w": jnp.zeros(3)}))


@pytest.mark.parametrize(
    ("names", "data", "error", "message"),
    [
        ("a", (np.ones(3), np.array(["a"] * 3)), TypeError, "`data` must hold numbers and arrays of numbers only"),
        ("a", {"x": np.ones(3), "name": "alice"}, TypeError, "'name' is a str"),
    ],
)
def test_what_a_bank_cannot_adapt_to_is_named(tmp_path, names, data, error, message):
    bank = sx.Bank.create(tmp_path, sx.Prior.create({"w": jnp.zeros(3)}), "w")
    with pytest.raises(error, match=message):
        sx.adapt_task(bank, sum_loss, names, data, GD)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**60), np.uint64(2**64 - 1)])
def test_whole_numbers_about_a_task_are_not_rounded(tmp_path, number):
    bank = sx.Bank.create(tmp_path, sx.Prior.create({"w": jnp.zeros(3)}), "w")
    bank.put("a", bank.prior.mean)
    with pytest.raises(TypeError, match=r"'id', which describes a task, has whole numbers beyond 2\^53"):
        bank.describe("a", {"id": number})
    bank.describe("a", {"id": 2**53})
    assert int(bank.about("a")["id"]) == 2**53


@pytest.mark.parametrize("answer", [lambda y: {"y": y}, lambda y: jnp.round(y).astype(jnp.int32)])
def test_uncertainty_is_of_one_array_of_floats(tmp_path, answer):
    bank = sx.Bank.create(tmp_path, sx.Prior.create({"w": jnp.zeros(3)}), "w", posterior="diagonal")
    sx.adapt_task(bank, lambda params, x: squared_distance(params["w"], x), "a", jnp.ones(3), GD)
    with pytest.raises(BankError, match="what `apply` returns must be one array of floating numbers") as caught:
        bank.predict(lambda params, x: answer(x @ params["w"]), ["a"], np.ones((1, 3), np.float32), uncertainty=True)
    assert not [note for note in caught.value.__notes__ if "`predict` gives every row" in note]


def test_lists_in_place_of_arrays_are_not_listed_in_full():
    rows = np.ones((300, 3)).tolist()
    with pytest.raises(TypeError) as caught:
        sx.adapt(lambda params, x: x @ params, sx.Prior.create(jnp.zeros(3)), rows, GD, num_steps=2)
    note = caught.value.__notes__[0]
    assert "and 880 more (lists in place of arrays?)" in note
    assert len(note) < 1000


NAMES = ("mean", "data", "learning rate")


@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize("of", NAMES)
def test_derivatives_that_implicit_lacks_name_it(derivative, of):
    def adapted(value):
        mean, data, rate = jnp.zeros(()), jnp.ones(()), 0.1
        mean, data, rate = (value if of == name else own for name, own in zip(NAMES, (mean, data, rate), strict=True))
        solver, prior = sx.ProximalGD(rate), sx.Prior.create(mean)
        return sx.adapt(squared_distance, prior, data, solver, num_steps=9, adjoint=sx.Implicit()).params

    if derivative is jax.grad and of == "mean":
        assert 0 < derivative(adapted)(jnp.asarray(0.5)) < 1
    else:
        with pytest.raises(TypeError, match=r"`Implicit` has derivatives with respect to the prior only.*Unroll"):
            derivative(adapted)(jnp.asarray(0.5))


@pytest.mark.parametrize("of", ["optimiser", "variance_optimiser"])
def test_optimisers_that_need_the_loss_are_named(of):
    optimisers = {"optimiser": SGD, "variance_optimiser": SGD} | {of: optax.lbfgs()}
    learner = sx.sigma_maml(GD, num_steps=2, **optimisers)
    state = learner.init(sx.Prior.create(jnp.zeros(3)))
    with pytest.raises(TypeError, match=r"this one needs more \(.*value.*use another, such as `optax.adam`"):
        learner.update(squared_distance, state, sx.Task(jnp.ones((2, 3)), jnp.ones((2, 3))))


def test_laplace_inside_jit():
    prior = sx.Prior.create(jnp.zeros(1), variance=1.0)

    def deviations(prior, params):
        return sx.laplace(squared_distance, prior, params, jnp.ones(1)).array

    expected = deviations(prior, jnp.array([0.75]))
    np.testing.assert_allclose(jax.jit(deviations)(prior, jnp.array([0.75])), expected, rtol=1e-6)
