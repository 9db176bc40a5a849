"""The PyTorch bridge: what it promises beside the right numbers (those are in test_torch_layers.py)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_learner
from learners import KINDS
from problems import image_tasks

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_reference import Net, assert_close  # noqa: E402

import shrinx as sx  # noqa: E402

ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def bridged(function):
    torch.manual_seed(0)
    module = Net(function)
    return module, *sx.from_torch(module)


def small_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


# What comes out, and what does not change


def test_names_and_modules_are_those_of_the_state_dict():
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    params, _ = sx.from_torch(module)
    assert set(params) == set(module.state_dict())
    names = sx.by_layer(params).names
    assert set(names) == {"linear1", "linear2", "norm1", "norm2", "self_attn", "self_attn.out_proj"}
    heads = sx.by_axis(params, {r"self_attn\.in_proj": 0}, groups=6)
    assert {f"self_attn[{head}]" for head in range(6)} < set(heads.names)


def test_later_changes_of_the_module_do_not_reach_the_function():
    module = small_cnn().eval()
    params, apply = sx.from_torch(module)
    images = jnp.ones((2, 1, 8, 8))
    before = apply(params, images)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(1)
    module.train()
    np.testing.assert_array_equal(apply(params, images), before)
    np.testing.assert_allclose(apply(params, images[:1]), before[:1], rtol=1e-5)  # Exported anew.


def test_the_function_does_not_change_the_module():
    module = small_cnn()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    params, apply = sx.from_torch(module)
    apply(params, jnp.ones((2, 1, 8, 8)))
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize("batch", [1, 2, 5, 17])
def test_any_batch_size(batch):
    module = small_cnn().eval()
    params, apply = sx.from_torch(module)
    apply(params, jnp.zeros((3, 1, 8, 8)))
    images = torch.randn(batch, 1, 8, 8)
    assert_close(apply(params, images.numpy()), module(images))


def test_a_shape_is_exported_once(monkeypatch):
    exports = []
    original = torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda *args, **options: exports.append(1) or original(*args, **options)
    )
    params, apply = sx.from_torch(nn.Linear(3, 2))
    for rows in (ROWS, 2 * ROWS, ROWS[:2], ROWS[1:3]):
        jax.jit(apply)(params, rows)
        apply(params, rows)
    assert len(exports) == 2


def test_inputs_and_outputs_of_any_structure():
    def function(module, x, options, *, scale=1, flip=False):
        y = module.linear(x) * options["gain"][0] * scale
        return {"y": y.flip(0) if flip else y, "pair": (x, None, options["index"])}

    module, params, apply = bridged(function)
    options = {"index": np.array([1, 2]), "gain": [np.float32(2.0)]}
    tensors = {"index": torch.tensor([1, 2]), "gain": [torch.tensor(2.0)]}
    for keywords in ({}, {"scale": 3}, {"scale": 3.0}, {"flip": True}, {"flip": 1}):
        actual = apply(params, ROWS, options, **keywords)
        expected = module(torch.tensor(ROWS), tensors, **keywords)
        assert_close(actual["y"], expected["y"])
        assert actual["pair"][1] is None
        np.testing.assert_array_equal(actual["pair"][2], [1, 2])


def test_masks_and_keywords_of_attention():
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    params, apply = sx.from_torch(module)
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for name, mask in {"src_key_padding_mask": padding, "src_mask": torch.ones(5, 5).triu(1).bool()}.items():
        expected = module(x, **{name: mask})
        assert_close(apply(params, x.numpy(), **{name: mask.numpy()}), expected)


# Buffers, frozen parameters, gradients that stop


def test_batch_norm_uses_the_batch_in_training_and_running_statistics_in_evaluation():
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(3))
    module(torch.randn(50, 3) * 2 + 5)
    rows = torch.tensor(ROWS)
    for mode in (True, False):
        params, apply = sx.from_torch(module.train(mode))
        assert set(params) == {"0.weight", "0.bias"}
        expected = nn.functional.batch_norm(
            rows, module[0].running_mean, module[0].running_var, module[0].weight, module[0].bias, training=False
        )
        if mode:
            expected = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()
        assert_close(apply(params, ROWS), expected)
        assert module[0].num_batches_tracked == 1


def test_frozen_parameters_are_constants():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    params, apply = sx.from_torch(module)
    assert set(params) == {"1.weight", "1.bias"}
    assert_close(apply(params, ROWS), module(torch.tensor(ROWS)))
    state = sx.to_state_dict(module, jax.tree.map(jnp.zeros_like, params))
    assert torch.equal(state["0.weight"], module[0].weight)
    assert not state["1.weight"].any()


STOPPED = {
    "detach": (lambda m, x: m.linear(x) * m.linear(x).detach()),
    "detach in place": (lambda m, x: m.linear(x) + (m.linear(x) * 3).detach_()),
    "no_grad": (lambda m, x: m.linear(x) * no_grad(m.linear, x)),
    "straight through": (lambda m, x: m.linear(x) + (m.linear(x).round() - m.linear(x)).detach()),
}


def no_grad(function, x):
    with torch.no_grad():
        y = function(x)
        return y * y


@pytest.mark.parametrize("name", STOPPED)
def test_gradients_stop_where_they_stop_in_pytorch(name):
    module, params, apply = bridged(STOPPED[name])
    module(torch.tensor(ROWS)).sum().backward()
    gradient = jax.grad(lambda params: apply(params, ROWS).sum())(params)
    for key, parameter in module.named_parameters():
        assert_close(gradient[key], parameter.grad)


SMOOTH = {
    "convolution": (small_cnn, (3, 1, 8, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, "gelu", batch_first=True), (2, 3, 4)),
    "LSTM": (lambda: nn.LSTM(3, 4), (5, 2, 3)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives(name):
    torch.manual_seed(0)
    make, shape = SMOOTH[name]
    module, inputs = make(), torch.randn(shape)
    params, apply = sx.from_torch(module)

    def loss(params):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(apply(params, inputs.numpy())))

    vector = jax.tree.map(jnp.cos, params)
    product = jax.jit(lambda p: jax.jvp(jax.grad(loss), (p,), (vector,))[1])(params)

    weights = dict(module.named_parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # The others have one derivative only.
        value = sum(leaf.sin().sum() for leaf in jax.tree.leaves(module(inputs)))
    gradient = torch.autograd.grad(value, list(weights.values()), create_graph=True)
    along = [torch.tensor(np.asarray(vector[key])) for key in weights]
    inner = sum((g * v).sum() for g, v in zip(gradient, along, strict=True))
    for key, expected in zip(weights, torch.autograd.grad(inner, list(weights.values())), strict=True):
        assert_close(product[key], expected, 1e-4)


# Precision


def test_double_precision(x64):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    params, apply = sx.from_torch(module)
    rows = torch.tensor(ROWS, dtype=torch.float64)
    assert apply(params, rows.numpy()).dtype == jnp.float64
    assert_close(apply(params, rows.numpy()), module(rows), 1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_of_a_single_precision_module(dtype):
    """The dtype is that of the parameters and inputs that are given."""
    module = small_cnn()
    params, apply = sx.from_torch(module)
    half = jax.tree.map(lambda x: x.astype(dtype), params)
    images = torch.randn(4, 1, 8, 8)
    outputs = apply(half, jnp.asarray(images.numpy(), dtype))
    assert outputs.dtype == dtype
    np.testing.assert_allclose(outputs.astype(jnp.float32), apply(params, images.numpy()), atol=0.1)


def test_half_precision_weights_come_and_go():
    module = nn.Linear(3, 2).bfloat16()
    params, apply = sx.from_torch(module)
    assert params["weight"].dtype == jnp.bfloat16
    assert apply(params, jnp.asarray(ROWS, jnp.bfloat16)).dtype == jnp.bfloat16
    state = sx.to_state_dict(module, params)
    assert state["weight"].dtype == torch.bfloat16
    assert torch.equal(state["weight"], module.weight)


# The way back


def test_adapted_weights_go_back_into_pytorch():
    module = small_cnn()
    params, apply = sx.from_torch(module)
    adapted = jax.tree.map(lambda x: x + 0.1, params)
    images = torch.randn(4, 1, 8, 8)
    state = sx.to_state_dict(module, adapted)
    before = module.state_dict()
    assert list(state) == list(before)
    assert all(state[name].dtype == tensor.dtype for name, tensor in before.items())
    assert state["1.num_batches_tracked"] == 0
    module.load_state_dict(state)
    assert_close(apply(adapted, images.numpy()), module(images))


def test_tied_weights_are_one_parameter_under_all_their_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(5, 3)
            self.output = nn.Linear(3, 5, bias=False)
            self.output.weight = self.tokens.weight

        def forward(self, index):
            return self.output(self.tokens(index))

    module = Tied()
    params, apply = sx.from_torch(module)
    assert set(params) == {"tokens.weight"}
    index = torch.tensor([0, 3])
    module(index).sum().backward()
    gradient = jax.grad(lambda params: apply(params, index.numpy()).sum())(params)
    assert_close(gradient["tokens.weight"], module.tokens.weight.grad)
    state = sx.to_state_dict(module, jax.tree.map(lambda x: x + 1, params))
    assert torch.equal(state["tokens.weight"], state["output.weight"])
    module.load_state_dict(state)


def test_a_bank_of_a_module(tmp_path):
    """Served from the bank, and exported under the names of the `state_dict`."""
    module = small_cnn()
    params, apply = sx.from_torch(module)
    bank = sx.Bank.create(tmp_path / "bank", sx.Prior.create(params), "5")
    for scale, name in enumerate(("alice", "bob")):
        bank.put(name, {**params, "5.weight": scale * params["5.weight"]})
    images = torch.randn(2, 4, 1, 8, 8)
    served = sx.Bank.open(bank.path).predict(apply, ["bob", "alice"], images.numpy(), points=True)
    assert_close(served[0], module(images[0]))
    assert_close(served[1], module[-1].bias.expand(4, 3))
    bank.export("alice", tmp_path / "alice.safetensors")
    exported = pytest.importorskip("safetensors.torch").load_file(tmp_path / "alice.safetensors")
    assert set(exported) == set(dict(module.named_parameters()))
    assert not module.load_state_dict(exported, strict=False).unexpected_keys
    assert_close(served[1], module(images[1]))


# Operators of one's own


def test_an_operator_can_be_added_and_replaced():
    module, params, apply = bridged(lambda m, x: torch.special.bessel_j0(m.linear(x)))
    with pytest.raises(NotImplementedError, match=r"Net uses operators that are unknown here: aten.special_bessel_j0"):
        apply(params, ROWS)
    for name in ("aten.special_bessel_j0", "aten.special_bessel_j0.default"):
        params, apply = sx.from_torch(module, operators={name: jnp.cos})
        assert_close(apply(params, ROWS), module.linear(torch.tensor(ROWS)).cos())
    params, apply = sx.from_torch(nn.Linear(3, 2), operators={"aten.linear": lambda x, w, b: 7 * jnp.ones((6, 2))})
    np.testing.assert_array_equal(apply(params, ROWS), 7)
    params, apply = sx.from_torch(module, operators={"aten.special_bessel_j0": jnp.sum})
    with pytest.raises(ValueError, match=r"special_bessel_j0.default gives shape \(\) in JAX and \(6, 3\) in PyTorch"):
        apply(params, ROWS)


# The conformance suite of the learners


@functools.cache
def torch_cnn():
    params, apply = sx.from_torch(small_cnn())

    def loss_fn(params, batch):
        images, labels = batch
        scores = jax.nn.log_softmax(apply(params, images[:, None]))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    return loss_fn, sx.Prior.create(params, variance=0.1), image_tasks(jax.random.key(1), 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_learner(name):
    test_learner.test_update_keeps_structure_and_dtype_and_traces_once(name, torch_cnn())
