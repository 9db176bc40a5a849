"""Every algorithm by name, at settings that suit the small test problems."""

import jax
import optax

import shrinx as sx


def relaxed(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """Optax mixes integers and floats, which the strict promotion of these tests forbids to everybody else."""

    def update(*args):
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(*args)

    return optax.GradientTransformation(optimiser.init, update)


MEAN, VARIANCE = relaxed(optax.adam(1e-3)), relaxed(optax.adam(1e-2))


def make_learners(solver=None, num_steps=5, **options):
    solver = sx.ProximalGD(0.1) if solver is None else solver
    about_variances = {name: options.pop(name) for name in ("learned", "warmup") if name in options}
    common = {"num_steps": num_steps, "optimiser": MEAN, **options}
    learned = {"variance_optimiser": VARIANCE, **about_variances}
    cg = sx.CG(max_steps=5, damping=0.1)
    return {
        "sigma_maml": sx.sigma_maml(solver, **common, **learned),
        "sigma_imaml": sx.sigma_imaml(solver, linear_solver=cg, **common, **learned),
        "sigma_reptile": sx.sigma_reptile(solver, linear_solver=cg, **common, **learned),
        "maml": sx.maml(solver, **common),
        "fomaml": sx.fomaml(solver, **common),
        "imaml": sx.imaml(solver, linear_solver=cg, regularisation=2.0, **common),
        "reptile": sx.reptile(solver, **common),
        "meta_sgd": sx.meta_sgd(solver, rate_optimiser=VARIANCE, **common),
        "meta_sgd_module": sx.meta_sgd(solver, rate_optimiser=VARIANCE, rates="module", **common),
    }


NAMES = tuple(make_learners())
# One for every way in which a model is differentiated: the others do to it what one of these does.
KINDS = ("sigma_maml", "sigma_imaml", "sigma_reptile", "meta_sgd")

# For the few programs that run longer than they compile: what `conftest.py` turns off for all others.
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
