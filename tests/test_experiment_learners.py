"""From an experiment's settings to a learner: which derivative the variances follow."""

from dataclasses import replace

import pytest

import shrinx as sx
from shrinx.experiments.algorithms import LearnerConfig, make_learner
from shrinx.runs.errors import UserError

SIGMA_REPTILE = LearnerConfig(algorithm="sigma-reptile")


@pytest.mark.parametrize(
    ("changes", "adjoint"),
    [
        ({}, sx.Implicit(sx.CG(max_steps=5))),
        ({"cg_steps": 2, "damping": 0.5}, sx.Implicit(sx.CG(max_steps=2, damping=0.5))),
        ({"cg_steps": 2, "hessian_batches": 3}, sx.Implicit(sx.CG(max_steps=2), batches=3)),
        ({"diagonal": True, "solver": "adam", "hessian_batches": 3}, sx.Implicit(sx.Diagonal(), batches=3)),
        ({"cg_steps": 0}, sx.FirstOrder()),
        ({"last_steps": 10}, sx.Unroll(last=10, mixed=True)),
        ({"last_steps": 10, "cg_steps": 0}, sx.Unroll(last=10, mixed=True)),
    ],
)
def test_what_the_variances_of_sigma_reptile_follow(changes, adjoint):
    assert make_learner(replace(SIGMA_REPTILE, **changes)).meta_gradient == sx.Reptile(adjoint)


@pytest.mark.parametrize("algorithm", ["imaml", "sigma-imaml"])
def test_implicit_methods_need_a_linear_solve(algorithm):
    with pytest.raises(UserError, match=f"{algorithm} needs --cg-steps of at least 1, got 0"):
        make_learner(replace(SIGMA_REPTILE, algorithm=algorithm, cg_steps=0))


@pytest.mark.parametrize(
    ("changes", "said"), [({}, "add --average"), ({"average": 20, "last_steps": 5}, "goes with --last-steps 0")]
)
def test_averaging_in_training_that_would_not_do_what_it_says(changes, said):
    with pytest.raises(UserError, match=said):
        make_learner(replace(SIGMA_REPTILE, average_training=True, **changes))


@pytest.mark.parametrize("changes", [{}, {"solver": "adam", "last_steps": 5}, {"solver": "adam", "algorithm": "imaml"}])
def test_the_diagonal_is_what_adam_knows(changes):
    with pytest.raises(UserError, match="--diagonal is for sigma-reptile with --solver adam and --last-steps 0"):
        make_learner(replace(SIGMA_REPTILE, diagonal=True, **changes))


@pytest.mark.parametrize("changes", [{"cg_steps": 0}, {"last_steps": 5}, {"algorithm": "imaml"}, {"algorithm": "maml"}])
def test_batches_of_a_hessian_that_nobody_takes(changes):
    with pytest.raises(UserError, match="--hessian-batches is for the implicit gradient of sigma-reptile"):
        make_learner(replace(SIGMA_REPTILE, hessian_batches=4, **changes))
