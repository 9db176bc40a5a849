"""Training in chunks, interrupted between any two things it does."""

import contextlib
import signal
import threading

import numpy as np
import pytest

from shrinx.experiments import find_experiment
from shrinx.runs import checkpoint, stages
from shrinx.runs.folder import Request, RunFolder, read_metrics
from shrinx.runs.interruption import terminable

NUM_STEPS, CHUNK = 5, 2


def open_folder(path, resume=False):
    config = find_experiment("sinusoid").config("sigma-reptile", "quick")
    return RunFolder.open(path, Request("sinusoid", "sigma-reptile", "quick", 1, config), resume=resume)


def advance(state, step, length):
    for place in range(step, step + length):
        state = state * 1.5 + place
    return state, {"query_loss": [float(state)]}, "note"


class Interrupter:
    """Wraps functions; the call of any of them with the number `at` ends in Ctrl-C, before or after its work."""

    def __init__(self, at, after):
        self.at, self.after, self.calls = at, after, 0

    def wrap(self, function):
        def wrapped(*arguments, **options):
            self.calls += 1
            due = self.calls == self.at
            if due and not self.after:
                raise KeyboardInterrupt
            result = function(*arguments, **options)
            if due:
                raise KeyboardInterrupt
            return result

        return wrapped


def train(folder, monkeypatch, interrupter=None):
    with monkeypatch.context() as patch:
        patch.setattr(stages, "CHECKPOINT_SECONDS", -1.0)  # After every chunk.
        wrap = (lambda function: function) if interrupter is None else interrupter.wrap
        patch.setattr(RunFolder, "log", wrap(RunFolder.log))
        patch.setattr(checkpoint, "save", wrap(checkpoint.save))
        state, _ = stages.train_in_chunks(folder, np.ones(()), wrap(advance), num_steps=NUM_STEPS, chunk=CHUNK)
    return float(state), [(row["step"], row["query_loss"]) for row in read_metrics(folder.path)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interruption_at_any_moment_changes_nothing(tmp_path, monkeypatch, after):
    whole = train(open_folder(tmp_path / "whole"), monkeypatch)
    counting = Interrupter(0, after)
    train(open_folder(tmp_path / "counted"), monkeypatch, counting)
    assert counting.calls == 3 * -(-NUM_STEPS // CHUNK) + 1
    for moment in range(1, counting.calls + 1):
        path = tmp_path / f"{moment}"
        with pytest.raises(KeyboardInterrupt):
            train(open_folder(path), monkeypatch, Interrupter(moment, after))
        assert train(open_folder(path, resume=True), monkeypatch) == whole


def test_termination_is_an_interruption_and_no_longer_than_training(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)

    def terminated(state, step, length):
        if step == 4:
            signal.raise_signal(signal.SIGTERM)
        return advance(state, step, length)

    with pytest.raises(KeyboardInterrupt):
        stages.train_in_chunks(open_folder(tmp_path), np.ones(()), terminated, num_steps=NUM_STEPS, chunk=CHUNK)
    assert checkpoint.restore(tmp_path / "checkpoints", np.ones(()))[0] == 4
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_that_a_callback_swallows_is_heeded(tmp_path):
    for number in (signal.SIGTERM, signal.SIGINT):

        def swallowing(state, step, length, number=number):
            if step == 2:
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(number)
            return advance(state, step, length)

        folder = open_folder(tmp_path / number.name)
        with pytest.raises(KeyboardInterrupt):
            stages.train_in_chunks(folder, np.ones(()), swallowing, num_steps=NUM_STEPS, chunk=CHUNK)
        assert checkpoint.restore(folder.checkpoints, np.ones(()))[0] == 2 + CHUNK
        # It is over with.
        folder = open_folder(folder.path, resume=True)
        stages.train_in_chunks(folder, np.ones(()), advance, num_steps=NUM_STEPS, chunk=CHUNK)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nested_loops_lose_no_interruption(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), terminable(), terminable(), contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
    with terminable():
        pass


def test_other_threads_train_too(tmp_path, monkeypatch):
    """Where signals cannot be handled."""
    results = []
    thread = threading.Thread(target=lambda: results.append(train(open_folder(tmp_path), monkeypatch)))
    thread.start()
    thread.join()
    assert results[0][1][-1][0] == NUM_STEPS
