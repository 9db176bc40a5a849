"""The command line: list, run, report.

shrinx list
shrinx run sinusoid --preset quick --algorithm sigma-reptile --seeds 2 --out runs/demo
shrinx run sinusoid --preset quick --algorithm sigma-reptile --seeds 2 --out runs/demo --resume
shrinx report runs/demo
"""

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from .runs.errors import UserError

EXTRA = "The command line needs more than the library: pip install 'shrinx[experiments]'"


def main(arguments: list[str] | None = None) -> int:
    """The entry point `shrinx`; returns the exit code: 0 done, 1 interrupted by an error, 2 wrong usage, 130 Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"list": _list, "run": _run, "report": _report}
    parser = argparse.ArgumentParser(
        prog="shrinx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=commands, help="what to do; `shrinx COMMAND --help` says more")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    warnings.showwarning = _show_warning
    try:
        return commands[parsed.command](parsed.rest)
    except UserError as error:
        print(f"shrinx: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name in ("tyro", "rich", "matplotlib"):
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
        print(f"{name:12s} {summary}")
        print(f"{'':12s} algorithms: {', '.join(experiment.algorithms)}")
        print(f"{'':12s} presets: {', '.join(experiment.presets)}")
    return 0


def _run(rest: list[str]) -> int:
    """Run an experiment in a folder."""
    import tyro
    from rich.console import Console

    from .experiments import EXPERIMENTS, find_experiment
    from .runs.execute import execute
    from .runs.folder import FinishedError, Request

    # The first look finds what the defaults depend on; the second, below, reads everything.
    first = argparse.ArgumentParser(prog="shrinx run", add_help=False)
    first.add_argument("experiment", nargs="?")
    first.add_argument("--algorithm")
    first.add_argument("--preset", default="quick")
    known, _ = first.parse_known_args(rest)
    if known.experiment is None:
        listing = "\n".join(f"  {name:12s} {summary}" for name, (_, summary) in EXPERIMENTS.items())
        print(
            "usage: shrinx run EXPERIMENT [--algorithm A] [--preset P] [--seeds N] [--out DIR] [--resume] [options]\n\n"
            f"experiments:\n{listing}\n\n"
            "example: shrinx run sinusoid --preset quick --seeds 2 --out runs/demo\n"
            "`shrinx run EXPERIMENT --help` lists every option with its default."
        )
        return 0 if {"-h", "--help"} & set(rest) else 2
    experiment = find_experiment(known.experiment)
    algorithm = known.algorithm or experiment.algorithms[0]
    default = experiment.config(algorithm, known.preset)

    def described(text: str) -> Any:
        return tyro.conf.arg(help=text)

    config_type: Any = tyro.conf.OmitArgPrefixes[type(default)]

    @dataclass(frozen=True)
    class Options:
        config: Annotated[config_type, described("the experiment's own")]  # pyright: ignore[reportInvalidTypeForm]
        preset: Annotated[str, described(f"one of {', '.join(experiment.presets)}")] = known.preset
        seeds: Annotated[int, described("how many seeds to run together")] = 1
        out: Annotated[Path | None, described("the run's folder; runs/EXPERIMENT-ALGORITHM-PRESET by default")] = None
        resume: Annotated[bool, tyro.conf.FlagCreatePairsOff, described("go on with a half-finished run")] = False
        tracker: Annotated[tuple[str, ...], described("also log to tensorboard, wandb or mlflow")] = ()

    arguments = list(rest)
    arguments.remove(known.experiment)
    options: Any = tyro.cli(
        Options,
        prog=f"shrinx run {experiment.name}",
        description=(experiment.module.__doc__ or "").strip(),
        args=arguments,
        default=Options(config=default),
    )
    if options.seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {options.seeds}.")
    path = options.out or Path("runs") / f"{experiment.name}-{algorithm}-{options.preset}"
    request = Request(experiment.name, algorithm, options.preset, options.seeds, options.config)
    console = Console(stderr=True)
    try:
        result = execute(request, path, resume=options.resume, console=console, trackers=options.tracker)
    except FinishedError as finished:
        print(f"shrinx: {finished}")
        return 0
    except KeyboardInterrupt:
        print(f"\nshrinx: interrupted; go on with the same command and --resume (folder {path}).", file=sys.stderr)
        return 130
    _print_summary(result, path)
    return 0


def _print_summary(result: dict[str, Any], path: Path) -> None:
    test = result["test"]

    def score(part: dict[str, Any]) -> str:
        if part["mean"] is None:
            return "not finite"
        return f"{part['mean']:.4g}" + (f" ± {part['ci95']:.2g}" if part["ci95"] is not None else "")

    chosen = [module["name"] for module in result["modules"] if module["selected"]]
    print(f"{result['metric']['name']} on held-out tasks: {score(test['all'])} with all modules adapted,")
    print(f"{score(test['selected'])} with {', '.join(chosen) or 'none'} ({result['fraction']:.1%} of the parameters).")
    print(f"Report: {path / 'report.html'}")


def _report(rest: list[str]) -> int:
    """Draw the report of one run, or compare several."""
    parser = argparse.ArgumentParser(
        prog="shrinx report",
        description="Draw the report of a finished run, or of several side by side.",
        epilog="example: shrinx report runs/maml runs/sigma-maml --out compared.html",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="finished runs")
    parser.add_argument("--out", type=Path, default=Path("comparison.html"), help="page for several runs")
    parsed = parser.parse_args(rest)
    from .report.write import write_comparison, write_report

    if len(parsed.folders) == 1:
        print(write_report(parsed.folders[0]))
    else:
        print(write_comparison(parsed.folders, parsed.out))
    return 0


def _show_warning(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
    print(f"shrinx: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
