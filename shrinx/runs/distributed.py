"""One run by several processes, on one machine or many: each has its devices, all adapt their share of the tasks.

Only the first process has the run's folder. It reads the checkpoint and hands it to the others, which write to a
folder that is thrown away, so that nothing here needs a file system they share.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._devices import spread
from .._task import Task, check_tasks
from .errors import UserError
from .folder import FinishedError
from .watch import LostProcessError

T = TypeVar("T")
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Join the other processes of a run, if it has any; before anything is computed.

    `coordinator` is the address of the first one. With "auto" JAX looks for SLURM, Kubernetes, Open MPI and the like.
    What is not given may stand in the environment: `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`.
    """
    address = coordinator or os.environ.get(ADDRESS)
    if address is None:
        if processes is not None or process is not None:
            raise UserError("--processes and --process need --coordinator, the address of the first process.")
        return
    count, index = (_number(given, name) for given, name in ((processes, COUNT), (process, INDEX)))
    try:
        jax.distributed.initialize(None if address == "auto" else address, count, index)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"This process cannot join the others at {address}: {reason}.") from error


def _number(given: int | None, variable: str) -> int | None:
    text = os.environ.get(variable)
    if given is not None or text is None:
        return given
    if not text.isdigit():
        raise UserError(f"{variable} must be a number, got {text!r}.")
    return int(text)


def is_first() -> bool:
    return jax.process_index() == 0


@contextmanager
def folder_of_process(path: Path) -> Iterator[Path]:
    """`path` for the first process; for the others a folder that is removed in the end."""
    if is_first():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "run"


def together(begin: Callable[[], T]) -> T:
    """`begin()` in every process, or an error in all of them if it is one in the first."""
    if jax.process_count() == 1:
        return begin()
    result, error = None, None
    try:
        result = begin()
    except UserError as refusal:
        error = refusal
    verdict = 0 if error is None else 2 if isinstance(error, FinishedError) else 1
    verdict = int(broadcast_one_to_all(np.asarray(verdict)))
    if error is not None:
        raise error
    if verdict:
        kind = FinishedError if verdict == 2 else UserError
        raise kind("The first process has not begun; its output says why.")
    return result  # pyright: ignore[reportReturnType]


def from_first(tree: T) -> T:
    """What the first process has, for all of them."""
    return tree if jax.process_count() == 1 else jax.tree.map(jnp.asarray, broadcast_one_to_all(tree))


def share_out(tasks: Task) -> Task:
    """Spread a batch of tasks over all devices, or over as many as it can be divided among."""
    devices, num_tasks = jax.devices(), check_tasks(tasks)
    count = max(count for count in range(1, len(devices) + 1) if num_tasks % count == 0)
    if jax.process_count() > 1 and count < len(devices):
        raise UserError(
            f"{num_tasks} tasks per update cannot be divided evenly among the {len(devices)} devices of "
            f"{jax.process_count()} processes; choose another --tasks-per-update or number of processes."
        )
    return tasks if count == 1 else spread(tasks, Mesh(np.asarray(devices[:count]), ("tasks",)))


def everywhere(tree: T) -> T:
    """The same on every device, inside `jit`."""
    if jax.process_count() == 1:
        return tree
    mesh = Mesh(np.asarray(jax.devices()), ("tasks",))
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))


def bring_home(tree: Any) -> Any:
    """Arrays of all devices as arrays of this process alone, for what it does without the others."""
    return tree if jax.device_count() == 1 else jax.tree.map(jnp.asarray, jax.device_get(tree))


@contextmanager
def notice_loss() -> Iterator[None]:
    """An error of the communication with other processes means that one of them has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise LostProcessError(str(error).splitlines()[0]) from error
