"""Modular meta-learning with shrinkage."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from ._adapt import adapt as adapt
from ._adjoint import AbstractAdjoint as AbstractAdjoint
from ._adjoint import FirstOrder as FirstOrder
from ._adjoint import Implicit as Implicit
from ._adjoint import Unroll as Unroll
from ._algorithms import fomaml as fomaml
from ._algorithms import imaml as imaml
from ._algorithms import maml as maml
from ._algorithms import meta_sgd as meta_sgd
from ._algorithms import reptile as reptile
from ._algorithms import sigma_imaml as sigma_imaml
from ._algorithms import sigma_maml as sigma_maml
from ._algorithms import sigma_reptile as sigma_reptile
from ._averaging import Averaged as Averaged
from ._backtracking import ProximalBacktracking as ProximalBacktracking
from ._devices import spread as spread
from ._diagonal import Diagonal as Diagonal
from ._evaluate import ablate as ablate
from ._evaluate import adaptation_curve as adaptation_curve
from ._evaluate import evaluate as evaluate
from ._learner import Learner as Learner
from ._learner import LearnerInfo as LearnerInfo
from ._learner import LearnerState as LearnerState
from ._linear import CG as CG
from ._linear import LinearStats as LinearStats
from ._metagradient import AbstractMetaGradient as AbstractMetaGradient
from ._metagradient import Predictive as Predictive
from ._metagradient import Reptile as Reptile
from ._mixed import value_and_gradient as value_and_gradient
from ._modules import Modules as Modules
from ._modules import by_axis as by_axis
from ._modules import by_label as by_label
from ._modules import by_layer as by_layer
from ._modules import by_leaf as by_leaf
from ._packing import Packing as Packing
from ._prior import Prior as Prior
from ._prior import inverse_gamma_penalty as inverse_gamma_penalty
from ._problem import Adapted as Adapted
from ._problem import Progress as Progress
from ._rows import Rows as Rows
from ._rows import RowSample as RowSample
from ._select import AbstractRule as AbstractRule
from ._select import LargestGap as LargestGap
from ._select import Selection as Selection
from ._select import Share as Share
from ._select import Threshold as Threshold
from ._select import TopK as TopK
from ._select import select as select
from ._solver import AbstractSolver as AbstractSolver
from ._solver import ProximalAdam as ProximalAdam
from ._solver import ProximalGD as ProximalGD
from ._solver import StepInfo as StepInfo
from ._task import Task as Task
from .bank import Bank as Bank
from .bank import adapt_task as adapt_task
from .bank import laplace as laplace
from .bridges.equinox import from_equinox as from_equinox
from .bridges.flax import from_flax as from_flax
from .bridges.haiku import from_haiku as from_haiku
from .bridges.torch import from_torch as from_torch
from .bridges.torch import to_state_dict as to_state_dict

try:
    __version__ = _version("shrinx")
except _PackageNotFoundError:  # Run from a source tree that was not installed.
    __version__ = "0+unknown"
