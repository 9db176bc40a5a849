"""Examples in docstrings are tests; those of the PyTorch bridge need PyTorch."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["shrinx/bridges/torch/*"]
