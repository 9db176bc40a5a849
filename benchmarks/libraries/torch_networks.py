"""The networks of the cases as modules of PyTorch, and the data as its tensors."""

import torch
from torch import nn

from ..case import Batch, Case, Examples, Params

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"


def network_of(case: Case) -> nn.Module:
    """The network with the first parameters of the case."""
    return (mlp(case.params) if case.network == "mlp" else conv4(case.params)).to(DEVICE)


def loss_of(case: Case):
    """`loss(outputs, targets)`."""
    return nn.functional.mse_loss if case.network == "mlp" else nn.functional.cross_entropy


def tensors(case: Case) -> list[Batch]:
    def convert(examples: Examples) -> Examples:
        x, y = (torch.from_numpy(array).to(DEVICE) for array in examples)
        return Examples(x if case.network == "mlp" else x.movedim(-1, -3).contiguous(), y)

    return [Batch(convert(batch.support), convert(batch.query)) for batch in case.batches]


def each_task(batch: Batch) -> list[tuple[Examples, Examples]]:
    """Support and query of every task, for libraries that adapt one after the other."""
    tasks = range(len(batch.support.x))
    return [tuple(Examples(part.x[task], part.y[task]) for part in batch) for task in tasks]


def mlp(params: Params) -> nn.Module:
    network = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    for layer, linear in enumerate(network[::2]):
        _set(linear.weight, params[f"{layer}/weight"].T)
        _set(linear.bias, params[f"{layer}/bias"])
    return network


def conv4(params: Params) -> nn.Sequential:
    blocks = []
    for block in range(4):
        kernel = params[f"conv{block}/kernel"]
        convolution = nn.Conv2d(kernel.shape[2], kernel.shape[3], 3, padding=1, bias=False)
        norm = nn.BatchNorm2d(kernel.shape[3], eps=1e-3, track_running_stats=False)
        _set(convolution.weight, kernel.transpose(3, 2, 0, 1))
        _set(norm.weight, params[f"norm{block}/scale"])
        _set(norm.bias, params[f"norm{block}/offset"])
        blocks += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
    kernel = params["output/kernel"]
    output = nn.Linear(*kernel.shape)
    _set(output.weight, kernel.T)
    _set(output.bias, params["output/bias"])
    return nn.Sequential(*blocks, nn.Flatten(), output)


def _set(parameter: nn.Parameter, array) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(array.copy()))
