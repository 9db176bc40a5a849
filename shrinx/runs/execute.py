"""One run from request to report."""

import warnings
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ..experiments import find_experiment
from .distributed import folder_of_process, is_first, together
from .errors import UserError
from .folder import Request, RunFolder
from .lock import alone
from .trackers import check_tracker, open_tracker


def execute(
    request: Request,
    path: Path,
    *,
    resume: bool = False,
    console: Console | None = None,
    trackers: tuple[str, ...] = (),
    report: bool = True,
) -> dict[str, Any]:
    """Run `request` in the folder `path` and return its result; see `RunFolder` for what is written."""
    experiment = find_experiment(request.experiment)
    for name in trackers:
        check_tracker(name)  # Before there is a folder: a slip of the pen leaves nothing behind.
    with ExitStack() as stack:
        path = stack.enter_context(folder_of_process(path))
        folder = together(lambda: RunFolder.open(path, request, resume=resume))
        stack.enter_context(alone(path))
        config = asdict(request.config)
        wanted = trackers if is_first() else ()
        opened = tuple(stack.enter_context(closing(open_tracker(name, path, config))) for name in wanted)
        try:
            measured = experiment.module.run(request.config, folder, console if is_first() else None, opened)
        except UserError:
            folder.withdraw()
            raise
        result = {
            "experiment": request.experiment,
            "algorithm": request.algorithm,
            "preset": request.preset,
            "seeds": request.seeds,
            **measured,
        }
        folder.finish(result)
        if report and is_first():
            _write_report(path)
    return result


def _write_report(path: Path) -> None:
    try:
        from ..report.write import write_report
    except ImportError as error:
        warnings.warn(f"No report was drawn: {error}; pip install 'shrinx[experiments]'.", stacklevel=3)
        return
    write_report(path)
