"""Trackers. Those of packages that are installed are read back: pip install '.[trackers]'."""

import time

import pytest

from shrinx.runs import trackers
from shrinx.runs.errors import UserError
from shrinx.runs.trackers import check_tracker, open_tracker, scalars

ROWS = [
    {"step": 5, "seconds": 1.0, "query_loss": [1.0, None], "num_failed": [0, 2], "log_variance": [[0.0], [2.0]]},
    {"step": 10, "seconds": 2.0, "query_loss": [0.5, 0.25], "num_failed": [0, 0], "log_variance": [[1.0], [2.0]]},
]
CONFIG = {"algorithm": "sigma-maml", "mean_rate": 0.005, "max_task_norm": None}
LOSSES = [(5, 1.0), (10, 0.375)]


def track(name, path):
    path.mkdir()
    tracker = open_tracker(name, path, CONFIG)
    for row in ROWS:
        tracker.log(row)
    tracker.close()


def test_a_row_as_numbers():
    row = {**ROWS[0], "log_variance": [[0.0, None], [2.0, None]]}
    assert scalars(row) == {"seconds": 1.0, "query_loss": 1.0, "num_failed": 1.0, "log_variance/0": 1.0}


def test_an_unknown_tracker(tmp_path):
    for find in (check_tracker, lambda name: open_tracker(name, tmp_path, {})):
        with pytest.raises(UserError, match="Unknown tracker 'foo'; known: tensorboard, wandb, mlflow"):
            find("foo")


def test_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setitem(trackers.TRACKERS, "toy", ("no_such_package", None))
    with pytest.raises(UserError, match="'toy' needs a package that is not here: pip install no_such_package"):
        check_tracker("toy")


class Failing:
    """Fails where it is told to, and counts what reaches it."""

    def __init__(self, where):
        self.where, self.called = where, []
        self.fail("start")

    def fail(self, part):
        if part == self.where:
            raise RuntimeError("The server is down.\nCall somebody.")

    def log(self, row):
        self.called.append(row["step"])
        self.fail("log")

    def close(self):
        self.called.append("close")
        self.fail("close")


@pytest.mark.parametrize(("where", "called"), [("log", [5]), ("close", [5, 10, "close"]), (None, [5, 10, "close"])])
@pytest.mark.filterwarnings("always")
def test_a_tracker_that_fails_does_not_end_the_run(monkeypatch, recwarn, tmp_path, where, called):
    failing = Failing(where)
    monkeypatch.setitem(trackers.TRACKERS, "toy", ("json", lambda path, config: failing))
    track("toy", tmp_path / "run")
    assert failing.called == called
    expected = ["The tracker 'toy' failed (The server is down); the run goes on without it."] if where else []
    assert [str(warning.message) for warning in recwarn] == expected


def test_a_tracker_that_does_not_start(monkeypatch, tmp_path):
    monkeypatch.setitem(trackers.TRACKERS, "toy", ("json", lambda path, config: Failing("start")))
    with pytest.raises(UserError, match=r"'toy' does not start \(The server is down\): mend that or leave it out"):
        track("toy", tmp_path / "run")


@pytest.mark.filterwarnings("ignore")  # Those of other packages are not ours to mend.
class TestReal:
    def test_tensorboard(self, tmp_path):
        pytest.importorskip("tensorboardX")
        reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        track("tensorboard", tmp_path / "run")
        events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("query_loss")] == LOSSES
        assert b"sigma-maml" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]

    def test_wandb(self, monkeypatch, tmp_path):
        pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_SILENT", "true")
        track("wandb", tmp_path / "run")
        (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
        deadline = time.monotonic() + 10
        while not written.stat().st_size and time.monotonic() < deadline:  # Older ones write after they have finished.
            time.sleep(0.1)
        for text in (b"query_loss", b"log_variance/0", b"0.375", b"sigma-maml"):
            assert text in written.read_bytes()

    def test_mlflow(self, monkeypatch, tmp_path):
        mlflow = pytest.importorskip("mlflow")
        monkeypatch.chdir(tmp_path)
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
        track("mlflow", tmp_path / "run")
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("shrinx").experiment_id])
        assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
        assert run.data.params == {key: str(value) for key, value in CONFIG.items()}
        history = client.get_metric_history(run.info.run_id, "query_loss")
        assert [(metric.step, metric.value) for metric in history] == LOSSES
