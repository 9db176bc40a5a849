"""Commands about an experiment, whose options are those of its configuration."""

import argparse
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Look:
    """What the defaults of all other options depend on."""

    experiment: Any
    algorithm: str
    preset: str
    arguments: list[str]

    @property
    def config(self) -> Any:
        return self.experiment.config(self.algorithm, self.preset)

    @property
    def config_type(self) -> Any:
        """For a field of a command's options: its own fields are options without a prefix."""
        import tyro

        return tyro.conf.OmitArgPrefixes[type(self.config)]


def first_look(rest: list[str], command: str, example: str) -> Look | int:
    """Find experiment, algorithm and preset among the arguments, or say how the command is used."""
    from .experiments import EXPERIMENTS, find_experiment

    parser = argparse.ArgumentParser(prog=f"shrinx {command}", add_help=False)
    parser.add_argument("experiment", nargs="?")
    parser.add_argument("--algorithm")
    parser.add_argument("--preset", default="quick")
    known, _ = parser.parse_known_args(rest)
    if known.experiment not in EXPERIMENTS:
        # After an option of the experiment's own, argparse takes that option's value for the experiment.
        known.experiment = next((word for word in rest if word in EXPERIMENTS), known.experiment)
    if known.experiment is None:
        listing = "\n".join(f"  {name:18s} {summary}" for name, (_, summary) in EXPERIMENTS.items())
        print(
            f"usage: shrinx {command} EXPERIMENT [--algorithm A] [--preset P] [options]\n\n"
            f"experiments:\n{listing}\n\n"
            f"example: {example}\n"
            f"`shrinx {command} EXPERIMENT --help` lists every option with its default."
        )
        return 0 if {"-h", "--help"} & set(rest) else 2
    experiment = find_experiment(known.experiment)
    arguments = list(rest)
    arguments.remove(known.experiment)
    return Look(experiment, known.algorithm or experiment.algorithms[0], known.preset, arguments)


def parse(look: Look, command: str, options: Any) -> Any:
    """Read all options: those of the command, and one for every field of the experiment's configuration."""
    import tyro

    from .experiments.limits import check_limits

    look.experiment.config(look.algorithm, look.preset)  # A one-line error if there is no such thing.
    parsed = tyro.cli(
        options,
        prog=f"shrinx {command} {look.experiment.name}",
        description=(look.experiment.module.__doc__ or "").strip(),
        args=look.arguments,
        default=options(config=look.config, preset=look.preset),
    )
    check_limits(parsed.config)
    return parsed


def hint(text: str) -> Any:
    """What `--help` says of an option."""
    import tyro

    return tyro.conf.arg(help=text)
