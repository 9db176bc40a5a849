"""Processes that write to one bank and die, for `test_bank_damage.py`.

python bank_processes.py FOLDER kill ACTION TIMES
python bank_processes.py FOLDER add PROCESSES TASKS
"""

import os
import random
import signal
import sys
import time

import numpy as np
from bank_models import SELECTED, sinusoid_prior

import shrinx as sx


def parameters(prior, value):
    """Task-specific modules that are all one number, so that a mixture of two versions would show."""
    return {name: np.full_like(leaf, value) if name in SELECTED else leaf for name, leaf in prior.mean.items()}


def write_forever(bank, prior, action, seed):
    generator = random.Random(seed)
    while True:
        bank.put(generator.choice("abcde"), parameters(prior, generator.randrange(1000)))
        if action == "change":
            name = f"{seed}-{generator.random()}"
            bank.put(name, parameters(prior, 7))
            if generator.random() < 0.5:
                bank.pack()
            bank.rename(name, f"new {name}")
            bank.delete(f"new {name}")


def check(bank, prior, kept):
    assert bank.verify() == ()
    again = sx.Bank.open(bank.path)
    assert set(kept) <= set(again.names())
    for name in again.names():
        params = again.params(name)
        values = {float(value) for module in SELECTED for value in np.ravel(params[module])}
        assert len(values) == 1, (name, values)
        if name in kept and kept[name] is not None:
            assert values == {kept[name]}


def kill(bank, prior, action, times):
    kept = {f"earlier{index}": float(-index) for index in range(3)} | dict.fromkeys("abcde")
    for name, value in kept.items():
        bank.put(name, parameters(prior, value or 0.0))
    generator = random.Random(0)
    for seed in range(times):
        child = os.fork()
        if not child:
            write_forever(bank, prior, action, seed)
        time.sleep(generator.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        check(bank, prior, kept)
    bank.pack()
    assert not list(bank.path.rglob("*.part"))
    check(bank, prior, kept)
    print(f"killed {times} times")


def add(bank, prior, processes, tasks):
    children = []
    for process in range(processes):
        child = os.fork()
        if not child:
            for task in range(tasks):
                bank.put(f"{process}-{task}", parameters(prior, 100.0 * process + task))
                if task % 7 == 3:
                    bank.pack()
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    check(bank, prior, {f"{p}-{t}": 100.0 * p + t for p in range(processes) for t in range(tasks)})
    print(f"{len(bank.names())} tasks")


if __name__ == "__main__":
    folder, command, first, second = sys.argv[1:]
    prior = sinusoid_prior(8)
    bank = sx.Bank.create(folder, prior, SELECTED)
    bank.put("warm", prior.mean)  # Reads the base, so that children need nothing of JAX.
    bank.delete("warm")
    if command == "kill":
        kill(bank, prior, first, int(second))
    else:
        add(bank, prior, int(first), int(second))
