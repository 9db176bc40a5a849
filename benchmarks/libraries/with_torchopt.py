"""TorchOpt: differentiable optimisers, `custom_root` for implicit gradients; tasks one after the other."""

import warnings
from collections.abc import Callable

import torch
import torchopt
from torch.func import functional_call, grad

from ..case import Case
from .torch_networks import device as device
from .torch_networks import each_task, loss_of, network_of, tensors

VERSION = torchopt.__version__

# It uses functions of functorch that are to be removed.
warnings.filterwarnings("ignore", category=FutureWarning, module="torchopt")


def maml(case: Case) -> Callable[[], list[float]]:
    network, criterion = network_of(case), loss_of(case)
    inner = torchopt.MetaSGD(network, lr=case.inner_rate)
    outer = torch.optim.Adam(network.parameters(), lr=case.outer_rate)

    def meta_step(batch) -> float:
        start = torchopt.extract_state_dict(network, by="reference"), torchopt.extract_state_dict(inner, by="reference")
        losses = []
        for support, query in each_task(batch):
            for _ in range(case.num_steps):
                inner.step(criterion(network(support.x), support.y))
            losses.append(criterion(network(query.x), query.y))
            torchopt.recover_state_dict(network, start[0])
            torchopt.recover_state_dict(inner, start[1])
        return _step(outer, losses)

    return _pass(case, meta_step)


def imaml(case: Case) -> Callable[[], list[float]]:
    network, criterion = network_of(case), loss_of(case)
    names, params = zip(*network.named_parameters(), strict=True)
    outer = torch.optim.Adam(params, lr=case.outer_rate)
    shrinkage = 1 / (1 + case.inner_rate * case.regularisation)

    def loss(theta, examples):
        return criterion(functional_call(network, dict(zip(names, theta, strict=True)), (examples.x,)), examples.y)

    def energy(theta, mean, support):
        distance = sum(((t - m) ** 2).sum() for t, m in zip(theta, mean, strict=True))
        return loss(theta, support) + 0.5 * case.regularisation * distance

    linear_solver = torchopt.linear_solve.solve_cg(maxiter=case.linear_steps, rtol=0.0, atol=0.0)

    @torchopt.diff.implicit.custom_root(grad(energy, argnums=0), argnums=1, solve=linear_solver)
    @torch.enable_grad()
    def descend(theta, mean, support):
        for _ in range(case.num_steps):
            theta = tuple(t.detach().requires_grad_() for t in theta)
            gradients = torch.autograd.grad(loss(theta, support), theta)
            moved = [t.detach() - case.inner_rate * g for t, g in zip(theta, gradients, strict=True)]
            theta = tuple(torch.lerp(m.detach(), t, shrinkage) for t, m in zip(moved, mean, strict=True))
        return theta

    def meta_step(batch) -> float:
        losses = [loss(descend(params, params, support), query) for support, query in each_task(batch)]
        return _step(outer, losses)

    return _pass(case, meta_step)


def reptile(case: Case) -> Callable[[], list[float]]:
    network = network_of(case)
    start = tuple(network.parameters())

    def meta_step(batch) -> float:
        tasks = [_adapted(case, network, torchopt.adam(case.inner_rate), *task) for task in each_task(batch)]
        with torch.no_grad():
            for phi, *thetas in zip(start, *(theta for theta, _ in tasks), strict=True):
                phi += case.outer_rate * (torch.stack(thetas).mean(0) - phi)
        return sum(value for _, value in tasks) / len(tasks)

    return _pass(case, meta_step)


def adapt(case: Case) -> Callable[[], list[float]]:
    network = network_of(case)

    def score(batch) -> float:
        tasks = [_adapted(case, network, torchopt.sgd(case.inner_rate), *task) for task in each_task(batch)]
        return sum(value for _, value in tasks) / len(tasks)

    return _pass(case, score)


ALGORITHMS = {"maml": maml, "imaml": imaml, "reptile": reptile, "adapt": adapt}


def _step(outer: torch.optim.Optimizer, losses: list[torch.Tensor]) -> float:
    """One step on the mean loss of the tasks."""
    value = torch.stack(losses).mean()
    outer.zero_grad()
    value.backward()
    outer.step()
    return value.item()


def _adapted(case: Case, network, optimiser, support, query) -> tuple[tuple[torch.Tensor, ...], float]:
    criterion = loss_of(case)
    names = [name for name, _ in network.named_parameters()]

    def loss(params, examples):
        return criterion(functional_call(network, dict(zip(names, params, strict=True)), (examples.x,)), examples.y)

    params = tuple(p.detach().clone().requires_grad_() for p in network.parameters())
    state = optimiser.init(params)
    for _ in range(case.num_steps):
        gradients = torch.autograd.grad(loss(params, support), params)
        updates, state = optimiser.update(gradients, state, inplace=True)
        params = torchopt.apply_updates(params, updates, inplace=True)
    with torch.no_grad():
        return params, loss(params, query).item()


def _pass(case: Case, meta_step: Callable) -> Callable[[], list[float]]:
    batches = tensors(case)
    return lambda: [meta_step(batch) for batch in batches]
