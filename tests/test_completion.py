"""Tab completion, in the shells themselves."""

import re
import shutil
import subprocess

import pytest

from shrinx.cli import main
from shrinx.cli_completion import ADAPT, BANK, COMMANDS, options, script
from shrinx.experiments import EXPERIMENTS, find_experiment

SINUSOID = find_experiment("sinusoid")
RUN_OPTIONS = {option for part in options("run", SINUSOID) for option in part}

# Words on the line, the last one being completed -> what is offered.
LINES = [
    ([""], set(COMMANDS)),
    (["re"], {"report"}),
    (["completion", ""], {"bash", "zsh", "fish"}),
    (["completion", "bash", ""], set()),
    (["run", ""], set(EXPERIMENTS)),
    (["tune", ""], set(EXPERIMENTS)),
    (["run", "sinus"], {"sinusoid"}),
    (["run", "sinusoid", "--algorithm", ""], set(SINUSOID.algorithms)),
    (["tune", "sinusoid", "--algorithm", "sigma-i"], {"sigma-imaml"}),
    (["run", "sinusoid", "--preset", ""], set(SINUSOID.presets)),
    (["run", "sinusoid", "--tracker", ""], {"tensorboard", "wandb", "mlflow"}),
    (["run", "sinusoid", "--seeds", ""], set()),
    (["run", "sinusoid", ""], RUN_OPTIONS),
    (["run", "sinusoid", "--preset", "quick", "--num-u"], {"--num-updates"}),
    (["run", "sinusoid", "--resume", "--tr"], {"--tracker"}),
    (["tune", "sinusoid", "--re"], {"--regulariser"}),
    (["report", ""], {"one run", "other"}),
    (["report", "other", "on"], {"one run"}),
    (["report", "--"], {"--out", "--help"}),
    (["run", "sinusoid", "--out", "oth"], {"other"}),
    (["bank", ""], set(BANK)),
    (["bank", "verify", "o"], {"one run", "other"}),
    (["bank", "create", "other", "--co"], {"--compression"}),
    (["bank", "create", "other", "--compression", ""], {"float16", "bfloat16", "int8"}),
    (["bank", "create", "other", "--posterior", ""], {"diagonal", "full"}),
    (["adapt", "--base", ""], {"one run", "other"}),
    (["adapt", "--data", "one"], {"one run", "onefile"}),
    (["adapt", "--base", "other", "--t"], {"--task", "--tolerance"}),
    (["data", "prep"], {"prepare", "prepare-speech"}),
    (["say", "--bank", "o"], {"one run", "other"}),
    (["say", "--bank", "other", "--d"], {"--digits"}),
    (["say", "one"], {"one run", "onefile"}),
]


@pytest.fixture
def folder(tmp_path):
    for name in ("one run", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "onefile").write_text("")
    return tmp_path


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def written(tmp_path_factory, text: str) -> str:
    """In a file outside the folder that is completed in; an argument may have no more than 128 KB."""
    file = tmp_path_factory.mktemp("shell") / "script"
    file.write_text(text)
    return str(file)


def test_bash(folder, tmp_path_factory):
    """With an empty PATH: nothing but the shell itself is asked."""
    asked = "\n".join(
        f"COMP_WORDS=(shrinx {' '.join(map(repr, words))}); COMP_CWORD={len(words)}; COMPREPLY=(); _shrinx; "
        'printf "%s|" "${COMPREPLY[@]}"; echo'
        for words, _ in LINES
    )
    command = [shell("bash"), "--norc", "-u", written(tmp_path_factory, f"{script('bash')}\n{asked}\n")]
    done = subprocess.run(command, cwd=folder, env={"PATH": ""}, capture_output=True, text=True, check=True)
    offered = [set(line.split("|")) - {""} for line in done.stdout.splitlines()]
    assert offered == [expected for _, expected in LINES]
    assert not done.stderr


def test_fish(folder, tmp_path_factory):
    asked = "\n".join(f"complete -C 'shrinx {' '.join(words)}' | string join '|'; echo end" for words, _ in LINES)
    command = [shell("fish"), "--no-config", written(tmp_path_factory, f"{script('fish')}\n{asked}\n")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    offered = [set(part.strip().split("|")) - {""} for part in done.stdout.split("end\n")[:-1]]
    assert [{word.rstrip("/") for word in words} for words in offered] == [expected for _, expected in LINES]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_parses(tmp_path, capsys, name):
    assert main(["completion", name]) == 0
    printed = capsys.readouterr().out
    assert printed == script(name) + "\n"
    (tmp_path / "script").write_text(printed)
    done = subprocess.run([shell(name), "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_the_options_are_those_of_the_help(capsys, command, experiment):
    shown = shown_options(capsys, command, experiment)
    assert shown == {option for part in options(command, find_experiment(experiment)) for option in part}


@pytest.mark.parametrize("command", [("adapt",), *(("bank", action) for action in BANK)], ids=" ".join)
def test_the_options_of_banks_are_those_of_the_help(capsys, command):
    assert shown_options(capsys, *command) == set(ADAPT if command == ("adapt",) else BANK[command[1]])


def shown_options(capsys, *command):
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    listed = re.findall(r"^\W*((?:-h, )?--[a-z][a-z-]*(?:, --[a-z-]+)*)", capsys.readouterr().out, flags=re.MULTILINE)
    return {option for line in listed for option in line.split(", ") if option != "-h"}


def test_the_actions_on_banks_are_those_of_the_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bank", "--help"])
    assert "{" + ",".join(BANK) + "}" in capsys.readouterr().out


def test_the_commands_are_those_of_the_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "{" + ",".join(COMMANDS) + "}" in capsys.readouterr().out


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "tcsh"])
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
