"""Networks of the experiments: `(params, apply)`, nothing more."""
