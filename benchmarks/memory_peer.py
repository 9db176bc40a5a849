"""Memory of one meta-gradient of higher, as the process takes it: the network, task and loss of `benchmarks.memory`.

python -m benchmarks.memory_peer STEPS      in the environment of PyTorch; prints MB
"""

import sys
from dataclasses import replace

from .cases import omniglot_maml
from .cases.omniglot import make_batches, make_params
from .libraries import with_higher
from .worker import peak_bytes


def measured_bytes(num_steps: int) -> int:
    """What the meta-gradient adds to a process that has made one through a single step."""
    one_task = make_batches(1, num_tasks=1, num_classes=20)
    case = replace(omniglot_maml.make(), params=make_params(20), batches=one_task)
    with_higher.maml(case)()
    before = peak_bytes()
    with_higher.maml(replace(case, num_steps=num_steps))()
    return peak_bytes() - before


if __name__ == "__main__":
    print(round(measured_bytes(int(sys.argv[1])) / 1e6, 2))
