"""`shrinx bank` and `shrinx adapt`: adapted tasks on disk, from the command line."""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import get_args

import jax

from ._averaging import with_rate
from .bank.adapting import adapt_task
from .bank.bank import Bank, TaskInfo
from .bank.delta import Compression
from .bank.errors import BankError
from .bank.posterior import Structure
from .bank.verify import verify
from .cli_actions import Action, named_files, run_action
from .cli_voices import add_say, enrol_voices, say_digits
from .data.progress import bar
from .runs.errors import UserError

_EXAMPLES = """examples:
  shrinx bank create voices --run runs/demo
  shrinx adapt --base voices --task alice --data alice.npz
  shrinx bank list voices
  shrinx bank verify voices
  shrinx bank export voices alice --out alice.safetensors"""


_ADAPTING = """examples:
  shrinx adapt --base voices --task alice --data alice.npz
  shrinx adapt --base voices --task alice --data recordings/alice          a voice, in a bank of a speech run
  shrinx adapt --base voices --task bob --data speech.npz --speaker 12

Enrol no voice without the consent of whose it is."""


def run_bank(rest: list[str]) -> int:
    """Make, look at and change banks."""
    actions = {
        "create": Action(_create, "make a bank from a finished run", _add_run),
        "list": Action(_list, "list the tasks with their sizes (the exit code is 1 if some are damaged)", _add_bank),
        "verify": Action(
            _verify, "read every file and name the damaged ones with their tasks (then the exit code is 1)", _add_bank
        ),
        "delete": Action(_delete, "remove a task for good", partial(_add_bank, names=("NAME",))),
        "rename": Action(_rename, "give a task another name", partial(_add_bank, names=("OLD", "NEW"))),
        "pack": Action(_pack, "put all tasks into one file", _add_bank),
        "export": Action(_export, "write a task as a plain checkpoint (safetensors)", _add_checkpoint),
    }
    description = "A bank is a folder with one shared model and, for every task, only what changed."
    with _named_mistakes():
        return run_action(rest, "bank", description, _EXAMPLES, actions)


def run_adapt(rest: list[str]) -> int:
    """Adapt to a task and put it into a bank."""
    parser = argparse.ArgumentParser(
        prog="shrinx adapt",
        description="Adapt the task-specific modules of a bank to a task, until the posterior objective has converged.",
        epilog=_ADAPTING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", type=Path, required=True, metavar="DIR", help="a bank made by `shrinx bank create`")
    parser.add_argument("--task", nargs="+", required=True, metavar="NAME", help="the task, or several at once")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="its arrays in an npz file; for several tasks each with a leading axis, one entry per task; for a voice "
        "a folder of its recordings, or a file that `shrinx data prepare-speech` wrote",
    )
    parser.add_argument("--speaker", nargs="+", metavar="WHO", help="voices: which of a file's speakers, one per task")
    parser.add_argument(
        "--max-steps", type=int, metavar="N", help="stop here at the latest; 10,000, for voices as long as the run did"
    )
    parser.add_argument("--tolerance", type=float, default=1e-4, help="stop when a hundred steps change this little")
    parser.add_argument("--learning-rate", type=float, metavar="RATE", help="the solver's; the run's by default")
    parser.add_argument(
        "--loss-scale",
        type=float,
        default=1.0,
        help="factor of the loss, for a bank that keeps posteriors",
    )
    parser.add_argument("--replace", action="store_true", help="adapt anew to a task that the bank has already")
    parsed = parser.parse_args(rest)
    with _named_mistakes(), named_files():
        _adapt(parsed)
    return 0


def run_say(rest: list[str]) -> int:
    """Let a voice speak."""
    parser = argparse.ArgumentParser(
        prog="shrinx say",
        description="Let a voice of a bank say digits. For research: no production speech, and nobody's voice without "
        "their consent.",
        epilog="example: shrinx say --bank voices --voice alice --digits 31415 out.wav",
    )
    add_say(parser)
    parsed = parser.parse_args(rest)
    with _named_mistakes(), named_files():
        say_digits(parsed)
    return 0


def _adapt(parsed: argparse.Namespace) -> None:
    from .bank.from_run import read_data, setup_of
    from .voices.model import is_of_voices

    bank = Bank.open(parsed.base)
    known = [name for name in parsed.task if name in bank]
    if known and not parsed.replace:
        raise UserError(f"{parsed.base} has a task {known[0]!r} already; name another, or add --replace.")
    if is_of_voices(bank):
        enrol_voices(bank, parsed)
        return
    if parsed.speaker:
        raise UserError(f"`--speaker` is for voices; the bank in {parsed.base} holds none.")
    setup = setup_of(bank)
    solver = setup.averaged(setup.learner.solver)
    if parsed.learning_rate is not None:
        solver = with_rate(solver, parsed.learning_rate)
    names = parsed.task[0] if len(parsed.task) == 1 else parsed.task
    sample = setup.learner.sample
    data = read_data(parsed.data, setup, None if len(parsed.task) == 1 else len(parsed.task))
    with bar("steps", before="compiling") as watch:
        report = adapt_task(
            bank,
            setup.loss_fn,
            names,
            data,
            solver,
            max_steps=10_000 if parsed.max_steps is None else parsed.max_steps,
            tolerance=parsed.tolerance,
            key=None if sample is None else jax.random.key(0),
            sample=sample,
            loss_scale=parsed.loss_scale,
            report=watch,
        )
    for name, steps, loss, converged in zip(report.names, report.num_steps, report.loss, report.converged, strict=True):
        end = "converged" if converged else "not converged (raise --max-steps)"
        print(f"{_shown(name)}: loss {loss:.4g}, {end} after {steps:,} steps.")


def _add_bank(parser: argparse.ArgumentParser, names: tuple[str, ...] = ()) -> None:
    parser.add_argument("bank", type=Path, metavar="DIR", help="the bank's folder")
    for name in names:
        parser.add_argument(name.lower(), metavar=name, help="a task's name")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_bank(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="the run's folder")
    parser.add_argument("--modules", nargs="+", default=[], metavar="M", help="task-specific, or all; the run's own")
    parser.add_argument("--seed", type=int, default=0, help="which of the runs trained together, from 0")
    parser.add_argument("--compression", choices=get_args(Compression), help="keep tasks smaller, with a small error")
    parser.add_argument("--posterior", choices=get_args(Structure), help="also keep how sure the parameters are")


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    _add_bank(parser, ("NAME",))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the checkpoint")
    parser.add_argument("--replace", action="store_true", help="write it anew if it is there already")


def _create(parsed: argparse.Namespace) -> None:
    from .bank.from_run import bank_from_run
    from .report.numbers import have_parted
    from .runs.folder import read_json

    bank = bank_from_run(
        parsed.run,
        parsed.bank,
        modules=parsed.modules,
        seed=parsed.seed,
        compression=parsed.compression,
        posterior=parsed.posterior,
    )
    modules = bank.prior.modules
    count = sum(modules.sizes[index] for index in modules.indices(bank.selected))
    print(f"{parsed.bank}: {count:,} of {sum(modules.sizes):,} parameters per task ({_named(bank)}).")
    chosen_by_variance = not parsed.modules and len(bank.selected) < len(modules)
    if chosen_by_variance and not have_parted(read_json(parsed.run / "result.json")["modules"]):
        print(
            f"The variances of {parsed.run} have hardly parted, so that other modules may do as well or better: train "
            "longer, or name some with --modules.",
            file=sys.stderr,
        )


def _list(parsed: argparse.Namespace) -> int:
    bank = Bank.open(parsed.bank)
    with warnings.catch_warnings(action="ignore"):  # Of what is said below.
        names = bank.names()
    count, damaged, unnamed = 0, 0, bank.unnamed()
    for name in names:
        try:
            told = _in_words(bank.info(name))
        except BankError as error:
            if name not in bank:
                continue  # Deleted meanwhile.
            damaged, told = damaged + 1, f"damaged: {_shown(str(error))}"
        count += 1
        print(f"{_shown(name):24s} {told}")
    for damage in unnamed:
        print(f"{'of unknown name':24s} damaged: {_shown(damage.reason)}")
    said = f", {damaged:,} of them damaged" if damaged else ""
    print(f"{count:,} task{'s' * (count != 1)} in {parsed.bank}{said}.")
    return 1 if damaged or unnamed else 0


def _in_words(info: TaskInfo) -> str:
    error = "" if info.encoding == "exact" else f", error {info.error:.1%}"
    return f"{info.size:10,d} bytes, {info.encoding}{error}{', posterior' * info.has_posterior}"


def _verify(parsed: argparse.Namespace) -> int:
    damages = verify(parsed.bank)
    for damage in damages:
        file = _shown(str(damage.file))
        print(f"{file}: {_shown(damage.reason)}")
        if damage.tasks:
            print(f"{file}: damaged task{'s' * (len(damage.tasks) != 1)} {', '.join(map(_shown, damage.tasks))}")
    print(
        f"{len(damages)} damaged file{'s' * (len(damages) != 1)}: put back a copy, or adapt damaged tasks anew, or "
        "delete them."
        if damages
        else f"{parsed.bank} is as it was written."
    )
    return 1 if damages else 0


def _delete(parsed: argparse.Namespace) -> None:
    Bank.open(parsed.bank).delete(parsed.name)


def _rename(parsed: argparse.Namespace) -> None:
    Bank.open(parsed.bank).rename(parsed.old, parsed.new)


def _pack(parsed: argparse.Namespace) -> None:
    Bank.open(parsed.bank).pack()


def _export(parsed: argparse.Namespace) -> None:
    if parsed.out.exists() and not parsed.replace:
        raise UserError(f"{parsed.out} is there already; name another file, or add --replace.")
    Bank.open(parsed.bank).export(parsed.name, parsed.out, replace=parsed.replace)


@contextmanager
def _named_mistakes() -> Iterator[None]:
    """Inside, an argument that the library refuses is named as one that was typed."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


def _named(bank: Bank) -> str:
    """The task-specific modules, in one line."""
    names = bank.selected
    if len(names) == len(bank.prior.modules):
        return "all modules"
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)
