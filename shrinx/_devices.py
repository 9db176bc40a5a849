"""Tasks spread over devices."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._task import Task, check_tasks


def spread(tasks: Task, mesh: Mesh | None = None) -> Task:
    """Give every device its share of a batch of tasks.

    Adaptation then runs on all devices at once, and the compiler adds up the meta-gradients: a learner needs nothing
    else. The result is the one of a single device but for the order of that sum. Works inside `jit`, on tasks that
    are sampled there, and outside. With several processes every one of them calls it with the same tasks.

    **Arguments:** `tasks`, a batch; `mesh`, whose first axis the tasks are spread over: all devices (of all
    processes) by default. The number of tasks must be a multiple of that of devices.

    **Returns:** the same tasks, spread.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> tasks = sx.spread(sx.Task(support=jnp.zeros((16, 10, 2)), query=jnp.zeros((16, 3, 2))))
    >>> tasks.support.shape, len(tasks.support.sharding.device_set) == jax.device_count()
    ((16, 10, 2), True)
    """
    mesh = Mesh(np.asarray(jax.devices()), ("tasks",)) if mesh is None else mesh
    axis = mesh.axis_names[0]
    num_tasks, num_devices = check_tasks(tasks), mesh.shape[axis]
    if num_tasks % num_devices:
        raise ValueError(f"{num_tasks} tasks cannot be spread evenly over {num_devices} devices.")
    return jax.lax.with_sharding_constraint(tasks, NamedSharding(mesh, PartitionSpec(axis)))
