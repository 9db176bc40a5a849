"""PyTorch without any meta-learning library: `torch.func`, tasks under vmap."""

from collections.abc import Callable

import torch
from torch.func import functional_call, grad, grad_and_value, vjp, vmap

from ..case import Case
from .torch_networks import device as device
from .torch_networks import loss_of, network_of, tensors

VERSION = torch.__version__

Tensors = dict[str, torch.Tensor]


def maml(case: Case) -> Callable[[], list[float]]:
    loss, params = _loss(case), _params(case)
    optimiser = torch.optim.Adam(params.values(), lr=case.outer_rate)

    def of_task(params, support, query):
        return loss(_descend(case, loss, params, support), query)

    def meta_step(batch) -> float:
        optimiser.zero_grad()
        value = vmap(of_task, in_dims=(None, 0, 0))(params, *batch).mean()
        value.backward()
        optimiser.step()
        return value.item()

    return _pass(case, meta_step)


def imaml(case: Case) -> Callable[[], list[float]]:
    loss, params = _loss(case), _params(case)
    optimiser = torch.optim.Adam(params.values(), lr=case.outer_rate)

    def of_task(params, support, query):
        adapted = _descend(case, loss, params, support)
        gradient, value = grad_and_value(loss)(adapted, query)
        # The Hessian is symmetric, so that a pullback will do; it is traced once for all steps.
        _, hessian = vjp(lambda p: grad(loss)(p, support), adapted)

        def operator(vector):
            (product,) = hessian(vector)
            return {name: vector[name] + product[name] / case.regularisation for name in vector}

        return value, _conjugate_gradients(operator, gradient, case.linear_steps)

    def meta_step(batch) -> float:
        with torch.no_grad():
            values, gradients = vmap(of_task, in_dims=(None, 0, 0))(params, *batch)
        for name, parameter in params.items():
            parameter.grad = gradients[name].mean(0)
        optimiser.step()
        return values.mean().item()

    return _pass(case, meta_step)


def reptile(case: Case) -> Callable[[], list[float]]:
    loss, params = _loss(case), _params(case)
    gradients = vmap(grad(loss))

    @torch.no_grad()
    def meta_step(batch) -> float:
        adapted = {name: p.expand(case.num_tasks, *p.shape).clone() for name, p in params.items()}
        optimiser = torch.optim.Adam(adapted.values(), lr=case.inner_rate)
        for _ in range(case.num_steps):
            for name, gradient in gradients(adapted, batch.support).items():
                adapted[name].grad = gradient
            optimiser.step()
        value = vmap(loss)(adapted, batch.query).mean()
        for name, parameter in params.items():
            parameter += case.outer_rate * (adapted[name].mean(0) - parameter)
        return value.item()

    return _pass(case, meta_step)


def adapt(case: Case) -> Callable[[], list[float]]:
    loss, params = _loss(case), _params(case)

    def of_task(params, support, query):
        return loss(_descend(case, loss, params, support), query)

    @torch.no_grad()
    def score(batch) -> float:
        return vmap(of_task, in_dims=(None, 0, 0))(params, *batch).mean().item()

    return _pass(case, score)


def serve(case: Case) -> Callable[[], list[float]]:
    loss, params = _loss(case), _params(case)

    def of_task(own, query):
        weight, bias = own
        return loss({**params, "0.weight": weight.T, "0.bias": bias}, query)

    @torch.no_grad()
    def score(batch) -> float:
        return vmap(of_task)(*batch).mean().item()

    return _pass(case, score)


ALGORITHMS = {"maml": maml, "imaml": imaml, "reptile": reptile, "adapt": adapt, "serve": serve}


def _params(case: Case) -> Tensors:
    return {name: p.detach().clone().requires_grad_() for name, p in network_of(case).named_parameters()}


def _loss(case: Case) -> Callable[[Tensors, tuple], torch.Tensor]:
    network, criterion = network_of(case), loss_of(case)
    return lambda params, examples: criterion(functional_call(network, params, (examples[0],)), examples[1])


def _descend(case: Case, loss: Callable, params: Tensors, support) -> Tensors:
    """Gradient descent, with λ each step followed by the proximal step of λ/2 |θ - φ|²."""
    shrinkage = 1 / (1 + case.inner_rate * case.regularisation)
    theta = params
    for _ in range(case.num_steps):
        gradient = grad(loss)(theta, support)
        theta = {name: p - case.inner_rate * gradient[name] for name, p in theta.items()}
        if case.regularisation:
            theta = {name: torch.lerp(params[name], p, shrinkage) for name, p in theta.items()}
    return theta


def _conjugate_gradients(operator: Callable[[Tensors], Tensors], rhs: Tensors, steps: int) -> Tensors:
    def dot(a: Tensors, b: Tensors) -> torch.Tensor:
        return sum((a[name] * b[name]).sum() for name in a)

    solution = {name: torch.zeros_like(value) for name, value in rhs.items()}
    residual = direction = rhs
    square = dot(residual, residual)
    for _ in range(steps):
        image = operator(direction)
        alpha = square / dot(direction, image)
        solution = {name: value + alpha * direction[name] for name, value in solution.items()}
        residual = {name: value - alpha * image[name] for name, value in residual.items()}
        previous, square = square, dot(residual, residual)
        direction = {name: value + square / previous * direction[name] for name, value in residual.items()}
    return solution


def _pass(case: Case, meta_step: Callable) -> Callable[[], list[float]]:
    batches = tensors(case)
    return lambda: [meta_step(batch) for batch in batches]
