"""higher: functional copies of a module and differentiable optimisers; tasks one after the other."""

from collections.abc import Callable
from importlib.metadata import version

import higher
import torch

from ..case import Case
from .torch_networks import device as device
from .torch_networks import each_task, loss_of, network_of, tensors

VERSION = version("higher")


def maml(case: Case) -> Callable[[], list[float]]:
    network, criterion = network_of(case), loss_of(case)
    inner = torch.optim.SGD(network.parameters(), lr=case.inner_rate)
    outer = torch.optim.Adam(network.parameters(), lr=case.outer_rate)

    def meta_step(batch) -> float:
        outer.zero_grad()
        values = []
        for support, query in each_task(batch):
            with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (functional, optimiser):
                for _ in range(case.num_steps):
                    optimiser.step(criterion(functional(support.x), support.y))
                loss = criterion(functional(query.x), query.y)
                (loss / case.num_tasks).backward()
                values.append(loss.item())
        outer.step()
        return sum(values) / len(values)

    return _pass(case, meta_step)


def reptile(case: Case) -> Callable[[], list[float]]:
    network, criterion = network_of(case), loss_of(case)
    inner = torch.optim.Adam(network.parameters(), lr=case.inner_rate)

    def meta_step(batch) -> float:
        shift = [torch.zeros_like(p) for p in network.parameters()]
        values = []
        for support, query in each_task(batch):
            adapted, value = _adapted(case, network, inner, criterion, support, query)
            values.append(value)
            for total, theta, phi in zip(shift, adapted, network.parameters(), strict=True):
                total += (theta - phi.detach()) / case.num_tasks
        with torch.no_grad():
            for parameter, change in zip(network.parameters(), shift, strict=True):
                parameter += case.outer_rate * change
        return sum(values) / len(values)

    return _pass(case, meta_step)


def adapt(case: Case) -> Callable[[], list[float]]:
    network, criterion = network_of(case), loss_of(case)
    inner = torch.optim.SGD(network.parameters(), lr=case.inner_rate)

    def score(batch) -> float:
        values = [_adapted(case, network, inner, criterion, *task)[1] for task in each_task(batch)]
        return sum(values) / len(values)

    return _pass(case, score)


ALGORITHMS = {"maml": maml, "reptile": reptile, "adapt": adapt}


def _adapted(case: Case, network, inner, criterion, support, query) -> tuple[list[torch.Tensor], float]:
    with higher.innerloop_ctx(network, inner, track_higher_grads=False) as (functional, optimiser):
        for _ in range(case.num_steps):
            optimiser.step(criterion(functional(support.x), support.y))
        with torch.no_grad():
            value = criterion(functional(query.x), query.y).item()
        return [p.detach() for p in functional.parameters()], value


def _pass(case: Case, meta_step: Callable) -> Callable[[], list[float]]:
    batches = tensors(case)
    return lambda: [meta_step(batch) for batch in batches]
