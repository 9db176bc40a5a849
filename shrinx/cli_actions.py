"""Commands that have actions, such as `shrinx bank list`: how they are read, and what is said of files that fail."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from .runs.errors import UserError


@dataclass(frozen=True)
class Action:
    """What an action does with its arguments, in words and in code."""

    run: Callable[[argparse.Namespace], int | None]
    """Returns the exit code if it is not 0."""
    help: str
    arguments: Callable[[argparse.ArgumentParser], object]
    """Adds what can be typed behind it."""


def run_action(rest: list[str], command: str, description: str, examples: str, actions: Mapping[str, Action]) -> int:
    """Run the one of `actions` that the words `rest` behind `command` begin with."""
    parser = argparse.ArgumentParser(
        prog=f"shrinx {command}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(required=True, metavar=f"{{{','.join(actions)}}}")
    for name, action in actions.items():
        part = parts.add_parser(name, help=action.help, description=f"{action.help[0].upper()}{action.help[1:]}.")
        part.set_defaults(action=action)
        action.arguments(part)
    parsed = parser.parse_args(rest)
    with named_files():
        return parsed.action.run(parsed) or 0


@contextmanager
def named_files() -> Iterator[None]:
    """Inside, a file that cannot be read or written is named in one sentence."""
    try:
        yield
    except BrokenPipeError:  # No file: whoever reads the output has gone.
        raise
    except OSError as error:
        name, reason = error.filename or "a file", error.strerror or error
        raise UserError(f"Cannot read or write {name} ({reason}); mend that, or name another.") from error
