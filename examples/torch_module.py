"""An unmodified PyTorch module: learn in JAX how to adapt it, and give PyTorch the adapted weights back.

    python examples/torch_module.py [--updates 300]

Every task is a customer to whom four of the ten digits stand for four things, in an order of their own. From forty
labelled images the network has to learn which. How far each of its layers should move is learned by σ-MAML.
"""

import argparse

import jax
import optax
import torch
from torch import nn

import shrinx as sx
from shrinx.tasks import digits


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.output = nn.Linear(64, 4)

    def forward(self, images):
        x = self.norm1(self.conv1(images)).relu()
        x = self.norm2(self.conv2(x)).relu()
        return self.output(x.flatten(1))


def main(num_updates: int) -> None:
    torch.manual_seed(0)
    module = Reader()
    params, apply = sx.from_torch(module)  # in training mode: batch norm by the statistics of the batch

    def loss_fn(params, batch):
        images, labels = batch
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, images[:, None]), labels).mean()

    solver = sx.ProximalGD(0.2)
    learner = sx.sigma_maml(
        solver, num_steps=8, optimiser=optax.adam(3e-3), variance_optimiser=optax.adam(5e-2), max_task_norm=1.0
    )
    state = learner.init(sx.Prior.create(params, variance=10.0))
    train = digits.load("train")
    sample = jax.jit(lambda key: digits.sample_customers(key, train, 4))
    for step in range(num_updates):
        state, info = learner.update(loss_fn, state, sample(jax.random.key(step)))
        if step % 10 == 0:
            print(f"\rupdate {step} of {num_updates}, query loss {info.query_loss:.3f} ", end="", flush=True)

    prior = state.prior
    print("\n\nlayer    variance")
    for name, variance in zip(prior.modules.names, prior.variance, strict=True):
        print(f"{name:8s} {variance:8.2g}")
    chosen = sx.select(prior, sx.TopK(2))
    customer = jax.tree.map(lambda x: x[0], digits.sample_customers(jax.random.key(-1), digits.load("test"), 1))
    adapted = sx.adapt(loss_fn, prior, customer.support, solver, num_steps=50, trainable=chosen)
    module.load_state_dict(sx.to_state_dict(module, adapted.params))  # from here on it is PyTorch again
    images, labels = (torch.tensor(x.tolist()) for x in customer.query)
    right = (module(images[:, None]).argmax(1) == labels).float().mean()
    share = f"{chosen.fraction:.0%} of the parameters"
    print(f"{' and '.join(chosen.names)} adapted to a new customer, {share}: PyTorch reads {right:.0%} right.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300)
    main(parser.parse_args().updates)
