"""Tab completion: a shell script that needs no Python when a key is pressed.

eval "$(shrinx completion bash)"        in ~/.bashrc
eval "$(shrinx completion zsh)"         in ~/.zshrc
shrinx completion fish | source         in ~/.config/fish/config.fish

A script is a table from context to words, in the shell's own `case`, and a few lines that ask the shell for the
context: the command, the experiment, the word before the cursor and the word at it.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

COMMANDS = ("list", "run", "report", "tune", "try", "data", "bank", "adapt", "say", "completion")
# Options besides those of the experiment's configuration: those that take a value, and those that do not.
SETTINGS = {
    "run": ("--preset", "--seeds", "--out", "--tracker", "--coordinator", "--processes", "--process"),
    "tune": ("--preset", "--trials", "--batch", "--storage", "--study", "--scatter", "--least", "--figure"),
    "try": ("--preset", "--values", "--alone", "--batch", "--out"),
}
FLAGS = {"run": ("--help", "--resume"), "tune": ("--help",), "try": ("--help",)}
# The options of each action on a bank, and those of `adapt` and `say`.
BANK = {
    "create": ("--help", "--run", "--modules", "--seed", "--compression", "--posterior"),
    "list": ("--help",),
    "verify": ("--help",),
    "delete": ("--help",),
    "rename": ("--help",),
    "pack": ("--help",),
    "export": ("--help", "--out", "--replace"),
}
ADAPT = (
    "--help", "--base", "--task", "--data", "--speaker", "--max-steps", "--tolerance", "--learning-rate",
    "--loss-scale", "--replace",
)  # fmt: skip
SAY = ("--help", "--bank", "--voice", "--digits", "--reference", "--temperature", "--seed", "--replace")


@dataclass(frozen=True)
class Rule:
    """Offer these words, or paths, where the context matches and no rule before did. `*` matches anything."""

    command: str
    experiment: str = "*"
    previous: str = "*"
    current: str = "*"
    words: Sequence[str] = ()
    paths: Literal["folders", "files"] | None = None

    @property
    def pattern(self) -> str:
        return ":".join((self.command, self.experiment, self.previous, self.current))


def completion(rest: list[str]) -> int:
    """Print the completion script of a shell."""
    parser = argparse.ArgumentParser(
        prog="shrinx completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=_SCRIPTS, help="whose script to print")
    print(script(parser.parse_args(rest).shell))
    return 0


def script(shell: str) -> str:
    """The completion script for `bash`, `zsh` or `fish`."""
    from .experiments import EXPERIMENTS

    return _SCRIPTS[shell](rules(), tuple(EXPERIMENTS))


def rules() -> Iterator[Rule]:
    """What is offered where, from the experiments there are."""
    from .experiments import EXPERIMENTS, find_experiment
    from .runs.trackers import TRACKERS

    yield Rule("", words=COMMANDS)
    yield Rule("completion", previous="completion", words=tuple(_SCRIPTS))
    yield Rule("list", words=("--help",))
    yield Rule("data", previous="data", words=("list", "fetch", "prepare", "prepare-speech"))
    yield Rule("data", previous="fetch", words=("omniglot",))
    yield Rule("data", previous="prepare", words=("omniglot", "miniimagenet"))
    yield Rule("data", current="-*", words=("--help", "--from", "--splits", "--data-dir", "--replace"))
    yield Rule("data", paths="folders")
    yield from _bank_rules()
    yield Rule("report", previous="--out", paths="folders")
    yield Rule("report", current="-*", words=("--help", "--out"))
    yield Rule("report", paths="folders")
    yield Rule("run", previous="--out", paths="folders")
    yield Rule("try", previous="--out", paths="files")
    yield Rule("run", previous="--tracker", words=tuple(TRACKERS))
    for command in SETTINGS:
        yield Rule(command, experiment="", words=tuple(EXPERIMENTS))
        for name in EXPERIMENTS:
            experiment = find_experiment(name)
            settings, flags = options(command, experiment)
            yield Rule(command, name, "--algorithm", words=experiment.algorithms)
            yield Rule(command, name, "--preset", words=experiment.presets)
            for flag in flags:
                yield Rule(command, name, flag, words=(*settings, *flags))
            yield Rule(command, name, "--*")  # The value of any other option is the user's own.
            yield Rule(command, name, words=(*settings, *flags))


def _bank_rules() -> Iterator[Rule]:
    from .bank.delta import Compression
    from .bank.posterior import Structure

    yield Rule("bank", previous="bank", words=tuple(BANK))
    yield Rule("bank", previous="--compression", words=get_args(Compression))
    yield Rule("bank", previous="--posterior", words=get_args(Structure))
    yield Rule("bank", previous="--out", paths="files")
    yield Rule(
        "bank", current="-*", words=tuple(dict.fromkeys(option for action in BANK.values() for option in action))
    )
    yield Rule("bank", paths="folders")
    yield Rule("adapt", previous="--base", paths="folders")
    yield Rule("adapt", previous="--data", paths="files")
    yield Rule("adapt", words=ADAPT)
    yield Rule("say", previous="--bank", paths="folders")
    yield Rule("say", previous="--reference", paths="files")
    yield Rule("say", current="-*", words=SAY)
    yield Rule("say", paths="files")


def options(command: str, experiment: Any) -> tuple[list[str], list[str]]:
    """All options of `run` or `tune` for an experiment: those that take a value, and those that do not."""
    settings, flags = [*SETTINGS[command]], [*FLAGS[command]]
    config = experiment.config(experiment.algorithms[0], experiment.presets[0])
    for field in fields(config):
        name = field.name.replace("_", "-")
        if isinstance(getattr(config, field.name), bool):
            flags += [f"--{name}", f"--no-{name}"]
        else:
            settings.append(f"--{name}")
    return settings, flags


def _bash(table: Iterable[Rule], experiments: Sequence[str]) -> str:
    return f"""{_cases(table)}
_shrinx() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command= experiment= offered= paths= word
  if [ "$COMP_CWORD" -gt 1 ]; then
    command="${{COMP_WORDS[1]}}"
    for word in "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"; do
      case "$word" in {"|".join(experiments)}) experiment="$word" ;; esac
    done
  fi
  _shrinx_offer "$command:$experiment:$previous:$current"
  case "$offered" in /) paths=-d ;; .) paths=-f ;; esac
  if [ "$paths" ]; then
    local IFS=$'\\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen "$paths" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
  fi
}}
complete -F _shrinx shrinx"""


def _zsh(table: Iterable[Rule], experiments: Sequence[str]) -> str:
    return f"""{_cases(table)}
_shrinx() {{
  local current="$words[CURRENT]" previous="$words[CURRENT-1]"
  local command= experiment= offered= word
  if (( CURRENT > 2 )); then
    command="$words[2]"
    for word in "${{(@)words[3,CURRENT-1]}}"; do
      case "$word" in {"|".join(experiments)}) experiment="$word" ;; esac
    done
  fi
  _shrinx_offer "$command:$experiment:$previous:$current"
  case "$offered" in
    /) _files -/ ;;
    .) _files ;;
    *) compadd -- ${{=offered}} ;;
  esac
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
compdef _shrinx shrinx"""


def _cases(table: Iterable[Rule]) -> str:
    """The table for bash and zsh: sets `offered`, where a lone slash means folders and a lone dot files."""

    def offer(rule: Rule) -> str:
        return " ".join(rule.words) if rule.paths is None else {"folders": "/", "files": "."}[rule.paths]

    cases = "\n".join(f"    {rule.pattern}) offered='{offer(rule)}' ;;" for rule in table)
    return f"""_shrinx_offer() {{
  case "$1" in
{cases}
  esac
}}"""


def _fish(table: Iterable[Rule], experiments: Sequence[str]) -> str:
    def offer(rule: Rule) -> str:
        if rule.paths is not None:
            return {"folders": "__fish_complete_directories $current ''", "files": "__fish_complete_path $current"}[
                rule.paths
            ]
        return f"printf '%s\\n' {' '.join(rule.words)}" if rule.words else "true"

    cases = "\n".join(f"        case '{rule.pattern}'\n            {offer(rule)}" for rule in table)
    return f"""function __shrinx_offer
    set -l tokens (commandline -opc)
    set -l current (commandline -ct)
    set -l command ''
    set -l experiment ''
    if test (count $tokens) -gt 1
        set command $tokens[2]
    end
    for token in $tokens
        if contains -- $token {" ".join(experiments)}
            set experiment $token
        end
    end
    switch "$command:$experiment:$tokens[-1]:$current"
{cases}
    end
end
complete -c shrinx -f -a '(__shrinx_offer)'"""


_SCRIPTS: dict[str, Callable[[Iterable[Rule], Sequence[str]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
