"""A block of the convolutional network by GPU kernels, three times as fast as what XLA makes of it.

`pixels.py` has what kernels share, `block.py` and `first.py` the kernels, `plain.py` the same functions in plain JAX,
`differentiable.py` joins the two, `rules.py` makes blocks of them, and `choose.py` says when they are used.
"""
