"""PyTorch: `torch.func` under vmap; eager or compiled, launched from Python or recorded as a CUDA graph.

Parameters are float32, the network is computed in bfloat16 and the loss in float32 again.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vjp, vmap
from torch.nn import functional

from ..case import Params
from ..libraries.torch_networks import DEVICE, conv4
from ..libraries.torch_networks import device as device
from .job import Job
from .libraries import Variant

VERSION = torch.__version__

Tensors = dict[str, torch.Tensor]
torch.backends.cudnn.benchmark = True


class Draw(NamedTuple):
    """As in `job.Draw`."""

    rows: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    degrees: torch.Tensor


def peak_mb() -> float | None:
    return torch.cuda.max_memory_allocated() / 1e6 if DEVICE.type == "cuda" else None


@torch.no_grad()
def prepare(job: Job, case: str, variant: Variant) -> tuple[list[float], Callable[[], object]]:
    params = _every_task(job, _tensors(job.params()))
    batches = [None if case == "inner-step" else _batch(job, step) for step in range(job.steps)]
    step, numbers = CASES[case](job, _loss(job, variant), params)
    if variant.compiled:
        step = torch.compile(step, fullgraph=True)

    @torch.no_grad()
    def run() -> Tensors:
        theta = params
        for batch in batches:
            theta = step(theta, batch)
        return theta

    if DEVICE.type == "cpu":
        return numbers, run
    replay = _recorded(run) if variant.graph else run

    def wait() -> None:
        replay()
        torch.cuda.synchronize()

    return numbers, wait


def inner_step(job: Job, loss: Callable, mean: Tensors) -> tuple[Callable, list[float]]:
    drawings = _drawings(job)
    # Every module has a variance of its own; that they are alike here, the program does not know.
    factors = {name: torch.full((), 1 / (1 + job.rate / job.variance), device=DEVICE) for name in mean}

    def advance(theta: Tensors, batch) -> tuple[Tensors, torch.Tensor]:
        slopes, losses = vmap(grad_and_value(loss))(theta, *batch)
        moved = {name: p - job.rate * slopes[name] for name, p in theta.items()}
        return {name: torch.lerp(mean[name], p, factors[name]) for name, p in moved.items()}, losses.mean()

    batch = _batch(job, 0)
    theta, before = advance(mean, batch)
    _, after = advance(theta, batch)
    return lambda theta, _: advance(theta, _augmented(*drawings, _random_draw(job)))[0], [before.item(), after.item()]


def gradient(job: Job, loss: Callable, params: Tensors) -> tuple[Callable, list[float]]:
    def slope(theta: Tensors, batch) -> Tensors:
        return vmap(grad(loss))(theta, *batch)

    return _descend(job, slope), _numbers(job, loss, slope, params)


def hvp(job: Job, loss: Callable, params: Tensors) -> tuple[Callable, list[float]]:
    vector = _every_task(job, _tensors(job.vector()))

    def product(theta: Tensors, images, labels, vector: Tensors) -> Tensors:
        # The Hessian is symmetric, so that a pullback will do.
        return vjp(lambda theta: grad(loss)(theta, images, labels), theta)[1](vector)[0]

    def slope(theta: Tensors, batch) -> Tensors:
        return vmap(product)(theta, *batch, vector)

    return _descend(job, slope), _numbers(job, loss, slope, params)


CASES = {"inner-step": inner_step, "gradient": gradient, "hvp": hvp}


def _descend(job: Job, slope: Callable) -> Callable:
    def step(theta: Tensors, batch) -> Tensors:
        slopes = slope(theta, batch)
        return {name: p - job.small_rate * slopes[name] for name, p in theta.items()}

    return step


def _numbers(job: Job, loss: Callable, slope: Callable, params: Tensors) -> list[float]:
    batch = _batch(job, 0)
    slopes = slope(params, batch)
    length = math.sqrt(sum(tensor.square().sum().item() for tensor in slopes.values()))
    return [vmap(loss)(params, *batch).mean().item(), length]


class _PatchConvolution(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = functional.unfold(images, 3, padding=1)
        return (self.weight.flatten(1) @ patches).unflatten(-1, images.shape[-2:])


def _network(job: Job, variant: Variant) -> nn.Module:
    network = conv4(job.params()).to(DEVICE)
    if variant.patches:
        for index, layer in enumerate(network):
            if isinstance(layer, nn.Conv2d):
                network[index] = _PatchConvolution(layer.weight)
    return network


def _loss(job: Job, variant: Variant) -> Callable:
    network = _network(job, variant)

    def loss(params: Tensors, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        half = {name: p.bfloat16() for name, p in params.items()}
        return functional.cross_entropy(functional_call(network, half, (images.bfloat16(),)).float(), labels)

    return loss


def _tensors(params: Params) -> Tensors:
    """By the names, and in the layout, of the module."""
    return {name: p.detach() for name, p in conv4(params).to(DEVICE).named_parameters()}


def _every_task(job: Job, params: Tensors) -> Tensors:
    return {name: p.expand(job.tasks, *p.shape).contiguous() for name, p in params.items()}


def _to_device(array) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def _drawings(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    return _to_device(job.bytes()).movedim(-1, 2), _to_device(job.labels())


def _batch(job: Job, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _augmented(*_drawings(job), Draw(*map(_to_device, job.draw(step))))


def _random_draw(job: Job) -> Draw:
    shape = (job.tasks, job.images)
    return Draw(
        rows=torch.rand(job.tasks, job.drawings, device=DEVICE).topk(job.images).indices,
        scale=torch.rand(shape, device=DEVICE) * 0.4 + 0.8,
        shift=torch.rand(*shape, 2, device=DEVICE) * 0.4 - 0.2,
        degrees=torch.randint(0, 360, shape, device=DEVICE),
    )


def _augmented(drawings: torch.Tensor, labels: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale, turn and shift by the sampler of PyTorch, all images of all tasks at once."""
    tasks = torch.arange(len(drawings), device=DEVICE)[:, None]
    images = drawings[tasks, draw.rows].flatten(0, 1).float() / 255
    side = images.shape[-1]
    angle = draw.degrees.flatten() * (math.pi / 180)
    cosine, sine = (trigonometric(angle) / draw.scale.flatten() for trigonometric in (torch.cos, torch.sin))
    down, right = (draw.shift.flatten(0, 1) * (2 * side / (side - 1))).unbind(-1)
    # Where a pixel's colour comes from, as (x, y); the sides of an image are at -1 and 1.
    x = torch.stack([cosine, -sine, sine * down - cosine * right], dim=-1)
    y = torch.stack([sine, cosine, -sine * right - cosine * down], dim=-1)
    grid = functional.affine_grid(torch.stack([x, y], dim=1), list(images.shape), align_corners=True)
    warped = functional.grid_sample(images, grid, align_corners=True)
    return warped.unflatten(0, draw.rows.shape), labels[tasks, draw.rows]


def _recorded(run: Callable) -> Callable[[], None]:
    # What is recorded must have been done before, on another stream than the default one.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
