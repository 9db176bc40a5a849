"""Modules and calls that the PyTorch bridge cannot take: one sentence that says why, and the way out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_reference import Net  # noqa: E402

import shrinx as sx  # noqa: E402

ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SecondPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.kept = [self.linear.weight]

    def forward(self, x):
        return x @ self.kept[0]


def reassign(module, x):
    module.count = module.count + 1
    return module.linear(x)


MODULES = {
    "a class": (lambda: nn.Linear, r"Expected a `torch.nn.Module`, got type"),
    "a function": (lambda: torch.sin, r"Expected a `torch.nn.Module`, got builtin"),
    "no parameters": (lambda: nn.ReLU(), r"ReLU has no parameters with `requires_grad`; `module.requires_grad_\(\)`"),
    "all frozen": (lambda: nn.Linear(3, 1).requires_grad_(False), "has no parameters with `requires_grad`"),
    "lazy": (lambda: nn.LazyLinear(2), "Parameter 'weight' has no shape yet; call the module once"),
    "float64": (lambda: nn.Linear(3, 1).double(), r"'weight' has dtype torch.float64; call `module.float\(\)`"),
    "scripted": (lambda: torch.jit.trace(nn.Linear(3, 1), torch.ones(1, 3)), "compiled by `torch.jit`"),
}

FORWARD = {
    "control flow on values": (
        lambda m, x: m.linear(x) if x.sum() > 0 else x,
        "no Python control flow depend on values",
    ),
    "a value taken out": (lambda m, x: m.linear(x) * x.sum().item(), "unknown here: aten._local_scalar_dense.default;"),
    "shapes by value": (lambda m, x: m.linear(x)[x[:, 0] > 0], "shape depends on values.*use `torch.where`"),
    "numpy inside": (
        lambda m, x: m.linear(x) + torch.from_numpy(x.numpy()),
        r"cannot export Net for inputs float32\[6, 3\]",
    ),
    "a counter": (
        lambda m, x: (m.count.add_(1), m.linear(x))[1],
        r"writes into its buffers \['count'\].*out of `forward`",
    ),
    "a replaced buffer": (reassign, r"writes into its buffers \['count'\]"),
    "a custom backward": (lambda m, x: Sign.apply(m.linear(x)), "calls a `torch.autograd.Function`.*straight-through"),
    "writing through detach": (
        lambda m, x: (lambda y: (y.detach().add_(1), y)[1])(m.linear(x)),
        r"writes in place into a detached tensor; let it make a copy",
    ),
    "random numbers": (lambda m, x: m.linear(x) + torch.randn_like(x), "unknown here: aten.randn_like.default"),
    "many unknown operators": (
        lambda m, x: torch.special.bessel_j0(torch.fft.rfft(m.linear(x)).abs()),
        r"aten._fft_r2c.default, aten.special_bessel_j0.default; .* `from_torch\(module, operators=",
    ),
}

DROPOUT = {
    "layer": nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)),
    "attention": nn.TransformerEncoderLayer(3, 1, 4),
    "LSTM": nn.LSTM(3, 4, 2, dropout=0.5),
    "function": Net(lambda m, x: nn.functional.dropout(m.linear(x))),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", MODULES)
def test_modules_that_cannot_be_bridged(case):
    make, message = MODULES[case]
    with pytest.raises((TypeError, ValueError), match=message):
        sx.from_torch(make())


@pytest.mark.parametrize("case", FORWARD)
def test_forward_passes_that_cannot_be_exported(case, capfd):
    function, message = FORWARD[case]
    params, apply = sx.from_torch(Net(function, count=torch.zeros(())))
    with pytest.raises((ValueError, NotImplementedError), match=message) as raised:
        apply(params, ROWS)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""


def test_a_parameter_in_a_second_place():
    params, apply = sx.from_torch(SecondPlace())
    with pytest.raises(ValueError, match=r"keeps parameter 'linear.weight' in a second place"):
        apply(params, ROWS)


@pytest.mark.parametrize("case", DROPOUT)
def test_dropout_must_be_off(case):
    params, apply = sx.from_torch(DROPOUT[case].train())
    with pytest.raises(ValueError, match=r"Dropout is switched on.*call `module.eval\(\)` first"):
        apply(params, ROWS)


def test_dropout_off_and_batch_norm_on():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    module[2].eval()
    params, apply = sx.from_torch(module)
    np.testing.assert_allclose(apply(params, ROWS).mean(0), 0, atol=1e-6)


LINEAR = nn.Linear(3, 2)
PARAMS, APPLY = sx.from_torch(LINEAR)
STACKED = jax.tree.map(lambda x: jnp.stack([x, x]), PARAMS)

CALLS = {
    "tensors": (lambda: APPLY(PARAMS, torch.ones(2, 3)), "inputs are tensors of PyTorch; give arrays"),
    "wrong width": (
        lambda: APPLY(PARAMS, np.ones((2, 5), np.float32)),
        r"cannot export Linear for inputs float32\[2, 5\]",
    ),
    "integers": (lambda: APPLY(PARAMS, np.ones((2, 3), int)), "arrays of dtypes int32 and float32.*convert its inputs"),
    "half": (lambda: APPLY(PARAMS, jnp.ones((2, 3), jnp.bfloat16)), "arrays of dtypes bfloat16 and float32"),
    "a list": (lambda: APPLY(PARAMS, [[1.0, 2.0, 3.0]]), r"for inputs 1.0, 2.0, 3.0: .* must be Tensor, not list"),
    "a key": (lambda: APPLY(PARAMS, jax.random.key(0)), "PyTorch has no dtype key<fry>"),
    "no input": (lambda: APPLY(PARAMS), "missing 1 required positional argument: 'input'"),
    "unknown keyword": (lambda: APPLY(PARAMS, ROWS, mask=1), "unexpected keyword argument 'mask'"),
    "missing": (lambda: APPLY({"weight": PARAMS["weight"]}, ROWS), r"\['bias'\] are missing, \[\] are unknown"),
    "unknown": (lambda: APPLY({**PARAMS, "x": 1}, ROWS), r"\[\] are missing, \['x'\] are unknown"),
    "integer params": (
        lambda: APPLY({**PARAMS, "bias": jnp.zeros(2, int)}, ROWS),
        r"params\['bias'\]` must .* dtype int32",
    ),
    "numbers": (lambda: APPLY({**PARAMS, "bias": 0.0}, ROWS), r"params\['bias'\]` must be an array .* got float"),
    "state dict": (lambda: APPLY(LINEAR.state_dict(), ROWS), r"params\['weight'\]` must be an array .* got Tensor"),
    "no dictionary": (lambda: APPLY([*PARAMS.values()], ROWS), "`params` must be a dictionary .* got list"),
    "all tasks at once": (lambda: APPLY(STACKED, ROWS), r"shape \(2, 2, 3\), the module's \(2, 3\); .*`jax.vmap`"),
    "all tasks go back": (lambda: sx.to_state_dict(LINEAR, STACKED), r"or choose one: `jax.tree.map"),
    "arguments swapped": (lambda: sx.to_state_dict(PARAMS, LINEAR), "Expected a `torch.nn.Module`, got dict"),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_that_make_no_sense(case):
    call, message = CALLS[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_an_index_out_of_range_is_seen():
    params, apply = sx.from_torch(nn.Embedding(5, 2))
    assert np.isnan(apply(params, np.array([0, 5]))).tolist() == [[False, False], [True, True]]
