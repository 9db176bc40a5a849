"""Search of hyperparameters: random ones in a study, or given ones in a file."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from .cli_actions import named_files
from .cli_options import first_look, hint, parse
from .runs.errors import UserError


def run_tune(rest: list[str]) -> int:
    """Search hyperparameters on validation tasks."""
    from rich.console import Console

    from .runs.interruption import terminable
    from .runs.tune import tune

    look = first_look(rest, "tune", "shrinx tune sinusoid --algorithm sigma-maml --trials 64 --storage sqlite:///t.db")
    if isinstance(look, int):
        return look

    @dataclass(frozen=True)
    class Options:
        config: Annotated[look.config_type, hint("where trials start from")]  # pyright: ignore[reportInvalidTypeForm]
        preset: Annotated[str, hint(f"one of {', '.join(look.experiment.presets)}")]
        trials: Annotated[int, hint("how many trials to add to the study, 0 to look at those it has")] = 32
        batch: Annotated[int, hint("trials trained together")] = 16
        storage: Annotated[str, hint("an Optuna storage; workers that name the same share the study")] = (
            "sqlite:///tune.db"
        )
        study: Annotated[str | None, hint("name of the study; EXPERIMENT-ALGORITHM by default")] = None
        scatter: Annotated[tuple[str, str] | None, hint("draw these two modules' variances in all trials")] = None
        least: Annotated[float | None, hint("draw only trials that score as well as this")] = None
        figure: Annotated[Path | None, hint("where to draw them; scatter.svg by default")] = None

    options = parse(look, "tune", Options)
    if options.trials < 0 or options.batch < 1:
        raise UserError("--trials must be at least 0 and --batch at least 1.")
    if options.scatter is None and (options.figure is not None or options.least is not None):
        raise UserError("--figure and --least are about the figure that --scatter MODULE MODULE draws: add it.")
    space = look.experiment.module.search_space(options.config)
    try:
        with terminable():
            study = tune(
                look.experiment.module,
                options.config,
                space,
                name=options.study or f"{look.experiment.name}-{look.algorithm}",
                storage=options.storage,
                num_trials=options.trials,
                batch=options.batch,
                seed=options.config.seed,
                console=Console(stderr=True),
            )
    except KeyboardInterrupt:
        print(f"\nshrinx: interrupted; finished trials are in {options.storage}.", file=sys.stderr)
        return 130
    finished = sum(trial.value is not None for trial in study.get_trials())
    if not finished:
        raise UserError("No trial gave a finite score; narrow the search space or lower the inner rate.")
    flags = " ".join(f"--{name.replace('_', '-')} {value:.3g}" for name, value in study.best_params.items())
    print(f"Best of {finished}: {study.best_value:.4g} with\n{flags}")
    if options.scatter is not None:
        from .report.scatter import write_scatter

        print(write_scatter(study, options.scatter, options.figure or Path("scatter.svg"), least=options.least))
    return 0


def run_try(rest: list[str]) -> int:
    """Try given settings on validation tasks."""
    from rich.console import Console

    from .experiments.limits import check_limits
    from .runs.settings import in_words, read_settings
    from .runs.trials import Plan, try_settings

    look = first_look(rest, "try", "shrinx try sinusoid --values mean_rate=1e-3,3e-3 inner_steps=10,20")
    if isinstance(look, int):
        return look

    @dataclass(frozen=True)
    class Options:
        config: Annotated[look.config_type, hint("what trials differ from")]  # pyright: ignore[reportInvalidTypeForm]
        preset: Annotated[str, hint(f"one of {', '.join(look.experiment.presets)}")]
        values: Annotated[
            tuple[str, ...], hint("FIELD=VALUE,VALUE,… for each that varies: trial i has the i-th value of every field")
        ] = ()
        alone: Annotated[tuple[str, ...], hint("also score these modules, each adapted alone")] = ()
        batch: Annotated[int, hint("trials trained together, at most")] = 16
        out: Annotated[Path, hint("the file to write; trials that it has already are not repeated")] = Path(
            "trials.json"
        )

    if rest.count("--values") > 1:
        raise UserError("All fields go behind one --values: --values mean_rate=1e-3,3e-3 inner_steps=10,20.")
    options = parse(look, "try", Options)
    if options.batch < 1:
        raise UserError("--batch must be at least 1.")
    trials = read_settings(options.values, options.config, check_limits)
    plan = Plan(look.experiment.name, look.algorithm, options.preset, options.config, options.alone)
    console = Console(stderr=True)
    try:
        with named_files():
            rows = try_settings(look.experiment.module, plan, trials, options.out, batch=options.batch, console=console)
    except KeyboardInterrupt:
        print(f"\nshrinx: interrupted; the same command goes on with what {options.out} lacks.", file=sys.stderr)
        return 130
    print("\t".join([*rows[0]["scores"], "with"]))
    for row in rows:
        scores = ("none" if score is None else f"{score:.4g}" for score in row["scores"].values())
        print("\t".join([*scores, in_words(row["values"])]))
    return 0
