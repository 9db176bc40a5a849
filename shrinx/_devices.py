"""Tasks spread over devices."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._task import Task, check_tasks


def spread(tasks: Task, mesh: Mesh | None = None) -> Task:
    """Give every device its share of a batch of tasks.

    A learner then adapts on all devices at once, each to its share, and the compiler adds up the meta-gradients. The
    result is the one of a single device but for the order of that sum. Works inside `jit`, on tasks that are sampled
    there, and outside. With several processes every one of them calls it with the same tasks.

    **Arguments:** `tasks`, a batch; `mesh`, whose first axis the tasks are spread over: all devices (of all
    processes) by default. The number of tasks must be a multiple of that of devices.

    **Returns:** the same tasks, spread.

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> tasks = sx.spread(sx.Task(support=jnp.zeros((16, 10, 2)), query=jnp.zeros((16, 3, 2))))
    >>> tasks.support.shape, len(tasks.support.sharding.device_set) == jax.device_count()
    ((16, 10, 2), True)
    """
    mesh = Mesh(np.asarray(jax.devices()), ("tasks",)) if mesh is None else mesh
    axis = mesh.axis_names[0]
    num_tasks, num_devices = check_tasks(tasks), mesh.shape[axis]
    if num_tasks % num_devices:
        raise ValueError(f"{num_tasks} tasks cannot be spread evenly over {num_devices} devices.")
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    parts = (tasks.support, tasks.query, tasks.progress)
    support, query, progress = jax.lax.with_sharding_constraint(parts, sharding)
    return Task(support=support, query=query, mesh=mesh, progress=progress)


def sum_over_devices(
    sum_up: Callable[[Any, Any], tuple[Any, Any]], mesh: Mesh, everyone: Any, share: Any
) -> tuple[Any, Any]:
    """`sum_up(everyone, share)` on every device for its part of `share`: the first result added up, the second joined.

    What a device does, the compiler need not know how to divide: kernels of our own it could not.
    """
    num_tasks, num_devices = len(jax.tree.leaves(share)[0]), mesh.shape[mesh.axis_names[0]]
    if num_tasks % num_devices:
        raise ValueError(
            f"These {num_tasks} tasks are a part of a batch that was spread over {num_devices} devices, and cannot be "
            "spread evenly: make a `Task` of them and spread that."
        )
    arrays, others = eqx.partition(everyone, eqx.is_array)

    def on_device(arrays: Any, share: Any) -> tuple[Any, Any]:
        total, rest = sum_up(eqx.combine(arrays, others), share)
        return jax.tree.map(lambda leaf: leaf[None], total), rest

    split = PartitionSpec(mesh.axis_names[0])
    apart = jax.shard_map(on_device, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split, check_vma=False)
    totals, rest = apart(arrays, share)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), totals), rest
