"""The command line: list, run, report, tune, try, data, bank, adapt, say, completion.

shrinx list
shrinx run sinusoid --preset quick --algorithm sigma-reptile --seeds 2 --out runs/demo
shrinx run sinusoid --preset quick --algorithm sigma-reptile --seeds 2 --out runs/demo --resume
shrinx report runs/demo
shrinx data list
shrinx bank create voices --run runs/demo
shrinx adapt --base voices --task alice --data alice.npz
shrinx say --bank voices --voice alice --digits 31415 out.wav
eval "$(shrinx completion bash)"
"""

import argparse
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from . import __version__
from .cli_bank import run_adapt, run_bank, run_say
from .cli_completion import completion
from .cli_data import run_data
from .cli_options import first_look, hint, parse
from .cli_tune import run_try, run_tune
from .runs.compilation import keep_programs
from .runs.errors import UserError
from .runs.interruption import terminable

EXTRA = "The command line needs more than the library: pip install 'shrinx[experiments]'"


def main(arguments: list[str] | None = None) -> int:
    """The entry point `shrinx`; returns the exit code.

    0 done, 1 interrupted by an error, 2 wrong usage, 130 Ctrl-C, 141 whoever read the output has gone.
    """
    try:
        try:
            return _command(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()  # Here, not when Python ends, where nothing can catch what it raises.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _command(arguments: list[str]) -> int:
    commands = {
        "list": _list,
        "run": _run,
        "report": _report,
        "tune": run_tune,
        "try": run_try,
        "data": run_data,
        "bank": run_bank,
        "adapt": run_adapt,
        "say": run_say,
        "completion": completion,
    }
    parser = argparse.ArgumentParser(
        prog="shrinx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"shrinx {__version__}")
    parser.add_argument("command", choices=commands, help="what to do; `shrinx COMMAND --help` says more")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    warnings.showwarning = _show_warning
    keep_programs()
    try:
        with terminable():  # From the first import on: what takes seconds may swallow a Ctrl-C.
            return commands[parsed.command](parsed.rest)
    except UserError as error:
        print(f"shrinx: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name in ("tyro", "rich", "matplotlib", "optuna"):
            print(f"shrinx: {EXTRA} (missing: {error.name}).", file=sys.stderr)
            return 2
        raise
    except KeyboardInterrupt:
        print("shrinx: interrupted.", file=sys.stderr)
        return 130


def _list(rest: list[str]) -> int:
    """The experiments."""
    from .experiments import EXPERIMENTS, find_experiment

    parser = argparse.ArgumentParser(
        prog="shrinx list", description="List experiments with their algorithms and presets."
    )
    parser.parse_args(rest)
    for name, (_, summary) in EXPERIMENTS.items():
        experiment = find_experiment(name)
        print(f"{name:18s} {summary}")
        print(f"{'':18s} algorithms: {', '.join(experiment.algorithms)}")
        print(f"{'':18s} presets: {', '.join(experiment.presets)}")
    return 0


def _run(rest: list[str]) -> int:
    """Run an experiment in a folder."""
    import tyro
    from rich.console import Console

    from .runs.distributed import is_first, join
    from .runs.execute import execute
    from .runs.folder import FinishedError, Request
    from .runs.watch import LostProcessError, give_up, watching

    look = first_look(rest, "run", "shrinx run sinusoid --preset quick --seeds 2 --out runs/demo")
    if isinstance(look, int):
        return look

    @dataclass(frozen=True)
    class Options:
        config: Annotated[look.config_type, hint("the experiment's own")]  # pyright: ignore[reportInvalidTypeForm]
        preset: Annotated[str, hint(f"one of {', '.join(look.experiment.presets)}")]
        seeds: Annotated[int, hint("how many seeds to run together")] = 1
        out: Annotated[Path | None, hint("the run's folder; runs/EXPERIMENT-ALGORITHM-PRESET by default")] = None
        resume: Annotated[bool, tyro.conf.FlagCreatePairsOff, hint("go on with a half-finished run")] = False
        tracker: Annotated[tuple[str, ...], hint("also log to tensorboard, wandb or mlflow")] = ()
        coordinator: Annotated[
            str | None,
            hint("HOST:PORT of the first of several processes, or auto (SLURM, Kubernetes, Open MPI)"),
        ] = None
        processes: Annotated[int | None, hint("how many there are")] = None
        process: Annotated[int | None, hint("which of them this is, from 0")] = None

    options = parse(look, "run", Options)
    if options.seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {options.seeds}.")
    path = options.out or Path("runs") / f"{look.experiment.name}-{look.algorithm}-{look.preset}"
    request = Request(look.experiment.name, look.algorithm, look.preset, options.seeds, options.config)
    console = Console(stderr=True)
    join(options.coordinator, options.processes, options.process)
    try:
        with watching(path):
            result = execute(request, path, resume=options.resume, console=console, trackers=options.tracker)
    except FinishedError as finished:
        print(f"shrinx: {finished}")
        return 0
    except KeyboardInterrupt:
        print(f"\nshrinx: interrupted; go on with the same command and --resume (folder {path}).", file=sys.stderr)
        return 130
    except LostProcessError:
        give_up(path)
    if is_first():
        _print_summary(result, path)
    return 0


def _print_summary(result: dict[str, Any], path: Path) -> None:
    from .report.numbers import have_parted

    test = result["test"]

    def score(part: dict[str, Any]) -> str:
        if part["mean"] is None:
            return "not finite"
        return f"{part['mean']:.4g}" + (f" ± {part['ci95']:.2g}" if part["ci95"] is not None else "")

    modules = result["modules"]
    chosen = [module["name"] for module in modules if module["selected"] and module["variance"] is not None]
    chosen = chosen if have_parted(modules) and len(chosen) < len(modules) else []  # All have been named.
    # Several conditions together have no curves unless they were asked for.
    curves = result.get("curves")
    adapted = "without adaptation" if curves and curves["steps"][-1] == 0 else "with all modules adapted"
    print(f"{result['metric']['name']} on held-out tasks: {score(test['all'])} {adapted}{',' if chosen else '.'}")
    if chosen:
        print(f"{score(test['selected'])} with {', '.join(chosen)} ({result['fraction']:.1%} of the parameters).")
    print(f"Report: {path / 'report.html'}")


def _report(rest: list[str]) -> int:
    """Draw the report of one run, or compare several."""
    parser = argparse.ArgumentParser(
        prog="shrinx report",
        description="Draw the report of a finished run, or of several side by side.",
        epilog="example: shrinx report runs/maml runs/sigma-maml --out compared.html",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="finished runs")
    parser.add_argument(
        "--out",
        type=Path,
        help="page for several runs (comparison.html by default), or a folder for page, figures and tables",
    )
    parsed = parser.parse_args(rest)
    from .report.write import write_comparison, write_report

    if len(parsed.folders) > 1:
        print(write_comparison(parsed.folders, parsed.out or Path("comparison.html")))
    elif parsed.out is None:
        print(write_report(parsed.folders[0]))
    else:
        raise UserError("The report of one run is written into its folder; --out is for several runs.")
    return 0


def _show_warning(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
    print(f"shrinx: {message}", file=sys.stderr)
