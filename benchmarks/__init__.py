"""shrinx beside other libraries: the same work, measured in turns. `python -m benchmarks --help`."""
