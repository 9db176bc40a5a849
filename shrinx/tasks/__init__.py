"""Sources of tasks: one file each, sampled inside `jit`."""
