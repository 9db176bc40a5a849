"""Notice that another process of a run has ended.

A process that waits for the others inside a compiled program cannot be told, and JAX itself looks for a minute and a
half before it ends the program by an abort. So every process leaves a sign of life with the coordinator, and a thread
of each watches those of the others.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax._src import distributed  # The store that processes share has no public name.

INTERVAL, PATIENCE = 1.0, 20.0
"""Seconds between signs of life, and without one until a process counts as lost."""
FOLDER, DONE = "shrinx/alive", "done"


class LostProcessError(Exception):
    """Another process of the run has ended."""


def give_up(path: Path) -> NoReturn:
    """End this process with a sentence."""
    print(
        "\nshrinx: another process of this run has ended; go on with the same command and --resume, with as many "
        f"processes as are left (folder {path}).",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)  # An orderly end would wait for the process that is gone.


@contextmanager
def watching(path: Path) -> Iterator[None]:
    """While inside, the loss of another process ends this one. `path` is the run's folder, which the sentence names."""
    if jax.process_count() == 1:
        yield
        return
    client, stop = distributed.global_state.client, threading.Event()
    thread = threading.Thread(target=_watch, args=(client, path, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with suppress(jax.errors.JaxRuntimeError):
            _say(client, DONE)


def _watch(client: Any, path: Path, stop: threading.Event) -> None:
    heard: dict[str, tuple[str, float]] = {}
    while not stop.wait(INTERVAL):
        now = time.monotonic()
        try:
            _say(client, str(now))
            for name, word in client.key_value_dir_get(FOLDER):
                if name not in heard or heard[name][0] != word:
                    heard[name] = word, now
        except jax.errors.JaxRuntimeError:  # The coordinator, which is the first process, does not answer.
            give_up(path)
        if any(word != DONE and now - since > PATIENCE for word, since in heard.values()):
            give_up(path)


def _say(client: Any, word: str) -> None:
    client.key_value_set(f"{FOLDER}/{jax.process_index()}", word, allow_overwrite=True)
