"""Models of other frameworks as `(params, apply)`: a pytree of floating arrays and a pure function.

No framework is imported before one of its models is brought.
"""
