"""Every layer of PyTorch against PyTorch: values and gradients, for tasks with weights of their own under `vmap`."""

import inspect

import jax
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_reference import (  # noqa: E402
    NUM_TASKS,
    Scaled,
    assert_close,
    jax_outputs,
    torch_outputs,
    weights_per_task,
)

import shrinx as sx  # noqa: E402
from shrinx.bridges.torch.operators import OPERATORS  # noqa: E402
from shrinx.bridges.torch.program import PLACEMENT  # noqa: E402


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Attention(nn.Module):
    """Causal self-attention as people write it: chunk, view, transpose, a mask in a buffer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(10, 8)
        self.positions = nn.Parameter(torch.randn(1, 6, 8))
        self.project = nn.Linear(8, 24)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6, dtype=torch.bool)), persistent=False)

    def forward(self, index):
        batch, length = index.shape
        x = self.tokens(index) + self.positions[:, :length]
        q, k, v = (part.view(batch, length, 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(~self.mask[:length, :length], -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 8)


def images(*size):
    return lambda: (torch.randn(2, *size),)


def indices(high, *size):
    return lambda: (torch.randint(0, high, size),)


def kinks():
    """Where activations bend, and where exponentials overflow."""
    return (torch.tensor([-1e4, -200, -100, -21, -20, -6, -3, -1, -0.5, 0, 0.5, 1, 3, 6, 20, 21, 100, 200, 1e4]),)


def evenly():
    """Many equal values, among which maxima have to choose."""
    return (torch.randn(2, 3, 8, 8).round(),)


def masked(query, key, value):
    return functional.scaled_dot_product_attention(query, key, value, query.new_ones(5, 5).tril(-1).bool())


PLAIN = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
)
PLAIN += (nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink)
PLAIN += (nn.Softsign, nn.Tanh, nn.Tanhshrink)

ACTIVATIONS = {layer.__name__: layer for layer in PLAIN} | {
    "ELU, another slope": lambda: nn.ELU(0.7),
    "GELU by tanh": lambda: nn.GELU("tanh"),
    "Softplus, steep": lambda: nn.Softplus(beta=2, threshold=5),
}

LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), images(4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), images(5, 4)),
    "embedding": (lambda: nn.Embedding(5, 3), indices(5, 2, 4)),
    "embedding with padding": (lambda: nn.Embedding(5, 3, padding_idx=1), indices(3, 2, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), images(3, 8)),
    "conv1d same": (lambda: nn.Conv1d(3, 4, 4, padding="same"), images(3, 8)),
    "conv1d causal": (
        lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(3, 4, 3, dilation=2)),
        images(3, 8),
    ),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), images(3, 8, 8)),
    "conv2d of one image": (lambda: nn.Conv2d(3, 4, 3), lambda: (torch.randn(3, 8, 8),)),
    "conv2d strided": (lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)), images(3, 8, 7)),
    "conv2d in groups": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        images(4, 9, 9),
    ),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), images(4, 6, 6)),
    "conv2d circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), images(2, 5, 5)),
    "conv2d reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), images(2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), images(2, 4, 4, 4)),
    "transposed conv": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        images(4, 5, 5),
    ),
    "batch norm of the batch": (lambda: nn.BatchNorm2d(3), images(3, 4, 4)),
    "batch norm of vectors": (lambda: nn.BatchNorm1d(3), lambda: (torch.randn(6, 3),)),
    "batch norm running": (lambda: running(nn.BatchNorm2d(3)), images(3, 4, 4)),
    "batch norm without memory": (lambda: nn.BatchNorm1d(3, track_running_stats=False).eval(), images(3, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), images(3, 4, 4)),
    "layer norm": (lambda: nn.LayerNorm((4, 5)), images(3, 4, 5)),
    "layer norm without scale": (lambda: Scaled(nn.LayerNorm(5, elementwise_affine=False)), images(3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), images(4, 3, 3)),
    "rms norm": (lambda: nn.RMSNorm(5), images(3, 5)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), images(3)),
    "softmax": (lambda: Scaled(nn.Softmax(1)), images(3, 4)),
    "log softmax": (lambda: Scaled(nn.LogSoftmax(-1)), images(3, 4)),
    "gated": (lambda: Scaled(nn.GLU(-1)), images(3, 4)),
    "max pool 1d": (lambda: Scaled(nn.MaxPool1d(2)), images(3, 9)),
    "max pool 2d": (lambda: Scaled(nn.MaxPool2d(3, 2, 1, ceil_mode=True)), images(3, 8, 9)),
    "max pool dilated": (lambda: Scaled(nn.MaxPool2d(2, 1, 1, dilation=2)), images(3, 8, 9)),
    "max pool among equals": (lambda: Scaled(nn.MaxPool2d(2)), evenly),
    "max pool 3d": (lambda: Scaled(nn.MaxPool3d(2)), images(2, 4, 4, 4)),
    "mean pool 1d": (lambda: Scaled(nn.AvgPool1d(3, 2, 1)), images(3, 9)),
    "mean pool 2d": (lambda: Scaled(nn.AvgPool2d(3, 2, 1, ceil_mode=True)), images(3, 8, 9)),
    "mean pool of what is there": (
        lambda: Scaled(nn.AvgPool2d(3, 2, 1, True, count_include_pad=False)),
        images(3, 8, 9),
    ),
    "mean pool by a number": (lambda: Scaled(nn.AvgPool2d(2, divisor_override=3)), images(3, 8, 8)),
    "mean pool 3d": (lambda: Scaled(nn.AvgPool3d(2)), images(2, 4, 4, 4)),
    "adaptive mean pool 1d": (lambda: Scaled(nn.AdaptiveAvgPool1d(3)), images(3, 8)),
    "adaptive mean pool 2d": (lambda: Scaled(nn.AdaptiveAvgPool2d((3, None))), images(3, 8, 5)),
    "adaptive mean pool 3d": (lambda: Scaled(nn.AdaptiveAvgPool3d(2)), images(2, 5, 4, 4)),
    "global mean pool": (lambda: Scaled(nn.AdaptiveAvgPool2d(1)), images(3, 8, 5)),
    "adaptive max pool 1d": (lambda: Scaled(nn.AdaptiveMaxPool1d(3)), images(3, 8)),
    "adaptive max pool among equals": (lambda: Scaled(nn.AdaptiveMaxPool2d(3)), evenly),
    "dropout switched off": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(), images(4)),
    "dropout of nothing": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), images(4)),
    "attention": (lambda: Scaled(Function(functional.scaled_dot_product_attention)), lambda: qkv()),
    "attention of the past": (
        lambda: Scaled(Function(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True))),
        lambda: qkv(),
    ),
    "attention to nothing": (lambda: Scaled(Function(masked)), lambda: qkv()),
    "attention by hand": (Attention, indices(10, 2, 5)),
    "multi-head attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(),
        lambda: (torch.randn(2, 5, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 8)),
    ),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), images(5, 8)),
    "transformer layer, norm first": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", norm_first=True),
        images(5, 8),
    ),
    "transformer encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
        images(5, 8),
    ),
    "LSTM": (lambda: nn.LSTM(3, 4), images(5, 3)),
    "LSTM, two layers and ways": (lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), images(5, 3)),
    "LSTM, projected": (lambda: nn.LSTM(3, 4, 2, bias=False, proj_size=2), images(5, 3)),
    "LSTM of one sequence": (lambda: nn.LSTM(3, 4), lambda: (torch.randn(5, 3),)),
    "GRU": (lambda: nn.GRU(3, 4, 2, bidirectional=True), images(5, 3)),
    "RNN": (lambda: nn.RNN(3, 4, 2, nonlinearity="relu"), images(5, 3)),
    "upsampling": (lambda: Scaled(nn.Upsample(scale_factor=2)), images(3, 4, 4)),
    "bilinear upsampling": (lambda: Scaled(nn.Upsample(scale_factor=2, mode="bilinear")), images(3, 4, 4)),
    "pixel shuffle": (lambda: Scaled(nn.PixelShuffle(2)), images(4, 3, 3)),
    "unfolding": (lambda: Scaled(nn.Unfold(2)), images(3, 4, 4)),
}


def running(norm):
    """A batch norm that has seen data."""
    norm(torch.randn(20, 3, 4, 4) * 3 + 1)
    return norm.eval()


def qkv():
    return tuple(torch.randn(2, 3, 5, 4) for _ in range(3))


FUNCTIONS = {
    "arithmetic": lambda x: (2 - x) * x / (3 + x.abs()) ** 1.5 + torch.rsqrt(x**2 + 1) - x.pow(2).add(x, alpha=0.5),
    "absolute value at zero": lambda x: x.round().abs(),
    "clamps": lambda x: x.round().clamp(-1, 1) + x.clamp_min(0) - x.clamp_max(torch.tensor(0.3)),
    "comparisons": lambda x: torch.where((x > 0) & (x < 1) | (x == x.max()), x, -x),
    "copies of parts": lambda x: in_place(x),
    "cumulative": lambda x: x.cumsum(1) + x.cumprod(-1),
    "deviation of nothing": lambda x: (0 * x).std(1) + x.std(1) + x.var((0, 1), keepdim=True)[0],
    "einsum": lambda x: torch.einsum("abc,adc->bd", x, x),
    "extremes": lambda x: (x.max(1).values, x.min(-1, keepdim=True).values, x.amax((0, 2)), x.max(), x.argmax(1)),
    "gathers": lambda x: x.gather(1, x.argsort(1)) + x[:, [2, 0, 1]] + x.index_select(1, torch.tensor([1, 1, 0])),
    "integers": lambda x: (x, (x * 3).int() // 2 + torch.arange(4) % 3 + (x > 0).sum()),
    "means": lambda x: x.mean() + x.mean((0, 2)).sum() + x.sum(-1).prod() + (x > 0).all() + x.logsumexp(1),
    "norm of nothing": lambda x: (0 * x).norm(dim=1) + x.norm(dim=1) + x.norm(p=1, dim=1) + x.norm(torch.inf, 1),
    "normalised": lambda x: functional.normalize(x, dim=1) + functional.cosine_similarity(x, x + 1, dim=2)[..., None],
    "one hot": lambda x: functional.one_hot(x.argmax(1), 5) * x.sum(),
    "rolled": lambda x: x.roll(1, -1).flip(1).repeat(1, 2, 1).repeat_interleave(2, -1).tril(),
    "scatter": lambda x: torch.zeros(2, 5, 4).scatter(1, x.argsort(1), x).scatter_add(1, x.argsort(1), x),
    "shapes": lambda x: x[None].transpose(1, 3).squeeze().unflatten(0, (2, 2)).flatten(1)[..., None].expand(-1, -1, 2),
    "sorted": lambda x: (x.sort(1, descending=True).values, x.topk(2, dim=2, largest=False).values),
    "split": lambda x: torch.cat([*x.split([1, 2], 1), *x.chunk(2, -1)[1].unbind(2)[:0], x[:, :1]], 1),
    "trigonometry": lambda x: x.sin() + x.cos().atan2(x) + x.tanh().asin() + x.expm1().log1p() + torch.erf(x),
    "windows": lambda x: x.unfold(-1, 2, 1),
}


def in_place(x):
    y = x.clone()
    y[:, 0] = 3.0
    y[:, 1:, ::2] += x[:, :2, ::2]
    y[x > 0.5] = 0
    return y.mul_(2).relu_()


def check(module, inputs):
    params, apply = sx.from_torch(module)
    stacked = weights_per_task(params)
    outputs, gradients, input_gradients = jax_outputs(apply, stacked, inputs)
    for task in range(NUM_TASKS):
        weights = jax.tree.map(lambda x, task=task: x[task], stacked)
        expected, by_name, by_input = torch_outputs(module, weights, inputs)
        for actual, value in zip(outputs, expected, strict=True):
            assert_close(actual[task], value)
        for name, value in by_name.items():
            assert_close(gradients[name][task], value)
        for actual, value in zip(input_gradients, by_input, strict=True):
            assert_close(actual[task], value)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    check(make(), inputs())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    check(Scaled(ACTIVATIONS[name]()), kinks())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    torch.manual_seed(0)
    check(Scaled(Function(FUNCTIONS[name])), (torch.randn(2, 3, 4),))


def overloads(key):
    """The operators that a key of the table stands for, without those that write into memory or name their axes."""
    space, packet, *overload = key.split(".")
    family = getattr(getattr(torch.ops, space), packet)
    found = [getattr(family, name) for name in (overload or family.overloads())]
    return [op for op in found if not op._schema.is_mutable and "name" not in op._overloadname.lower()]


@pytest.mark.parametrize("key", [key for key in OPERATORS if key.startswith("aten.")])
def test_functions_take_what_the_schema_gives(key):
    """A key without an overload promises that one function serves all of them."""
    for op in overloads(key):
        arguments = [a for a in op._schema.arguments if a.name not in PLACEMENT]
        positional = [a.name for a in arguments if not a.kwarg_only]
        named = {a.name: None for a in arguments if a.kwarg_only}
        inspect.signature(OPERATORS[key]).bind(*positional, **named)
