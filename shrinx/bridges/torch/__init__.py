"""PyTorch modules inside JAX."""

from .bridge import from_torch as from_torch
from .weights import to_state_dict as to_state_dict
