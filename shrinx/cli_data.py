"""`shrinx data`: what data is there, and how to get the rest."""

import argparse
import sys
from pathlib import Path

import numpy as np

from .cli_actions import Action, run_action
from .data import load_omniglot, miniimagenet, omniglot, speech
from .data.download import download
from .data.images import need_pillow
from .data.location import VARIABLE, data_folder, for_folder
from .data.miniimagenet_source import prepare_miniimagenet
from .data.omniglot_source import ARCHIVES, COMPLETE, HOME, prepare_omniglot
from .data.progress import bar
from .data.speech import HOP, RATE
from .data.speech_source import prepare_speech
from .data.transcripts import LAYOUT
from .runs.errors import UserError

# The last is written last: where it is, all are.
_FILES = {
    "omniglot": (omniglot.FILE,),
    "miniimagenet": (*map(miniimagenet.file_name, miniimagenet.SPLITS), miniimagenet.NAMES),
}
_SPEECH = {"audiomnist": (speech.FILE,)}
_COMMANDS = {"omniglot": omniglot.COMMAND, "miniimagenet": miniimagenet.COMMAND}

_EXAMPLES = f"""examples:
  shrinx data list
  shrinx data fetch omniglot
  shrinx data prepare omniglot --from images_background.zip images_evaluation.zip
  {miniimagenet.COMMAND}
  shrinx data prepare-speech recordings speech.npz"""


def run_data(rest: list[str]) -> int:
    """List, fetch or prepare data."""
    actions = {
        "list": Action(_list, "what is there, and how to get what is missing", _add_folder),
        "fetch": Action(_fetch, "download a data set from its home and prepare it", _add_name),
        "prepare": Action(_prepare, "make the project's files from files you have", _add_sources),
        "prepare-speech": Action(_prepare_speech, "make a file of speech from recordings of your own", _add_recordings),
    }
    return run_action(rest, "data", "Get the images and the speech that experiments need.", _EXAMPLES, actions)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help=f"where data lives; else {VARIABLE}, else the user's cache"
    )


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=_FILES, help="the data set")
    parser.add_argument("--replace", action="store_true", help="write files anew that are there already")
    _add_folder(parser)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    # The name first: after `--from` it would be taken for one of the paths.
    parser.usage = "shrinx data prepare NAME --from PATH [PATH ...] [--splits FOLDER] [--data-dir FOLDER] [--replace]"
    _add_name(parser)
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
        help="omniglot: zips of drawings or folders of them; miniimagenet: one folder of images or pickles",
    )
    parser.add_argument("--splits", type=Path, metavar="FOLDER", help="miniimagenet: train.csv, val.csv and test.csv")


def _add_recordings(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"layout:\n{LAYOUT}\n\nneeds the extra `speech`; "
        "example: shrinx data prepare-speech recordings speech.npz; shrinx run speech --data-dir speech.npz"
    )
    parser.add_argument("recordings", type=Path, metavar="FOLDER", help="a folder of wav files for every speaker")
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write, .npz")
    parser.add_argument("--replace", action="store_true", help="write it anew if it is there already")


def _list(parsed: argparse.Namespace) -> None:
    folder = data_folder(parsed.data_dir)
    commands = {name: for_folder(command, parsed.data_dir) for name, command in _COMMANDS.items()}
    commands["audiomnist"] = speech.command_for(folder / speech.FILE)
    print(f"Data folder: {folder}")
    for name, files in (_FILES | _SPEECH).items():
        present = [folder / file for file in files if (folder / file).is_file()]
        if len(present) == len(files):
            size = sum(path.stat().st_size for path in present)
            print(f"{name:13s} {size / 1e6:,.1f} MB ({', '.join(files)})")
        else:
            print(f"{name:13s} {'incomplete' if present else 'missing'}; get it with `{commands[name]}`")


def _fetch(parsed: argparse.Namespace) -> None:
    folder = data_folder(parsed.data_dir)
    if parsed.name != "omniglot":
        raise UserError(
            f"The images of {parsed.name} are ImageNet's and have no public home to fetch them from; "
            f"get a copy and run `{for_folder(_COMMANDS[parsed.name], parsed.data_dir)}`."
        )
    if (folder / omniglot.FILE).exists() and not parsed.replace:
        load_omniglot(folder)
        print(f"{folder / omniglot.FILE} is there already.")
        return
    need_pillow()
    archives = [folder / "downloads" / name for name in ARCHIVES]
    for path, checksum in zip(archives, ARCHIVES.values(), strict=True):
        with bar(path.name, in_bytes=True) as report:
            download(HOME + path.name, path, sha256=checksum, report=report)
    _write_omniglot(archives, folder)


def _prepare(parsed: argparse.Namespace) -> None:
    folder = data_folder(parsed.data_dir)
    last = folder / _FILES[parsed.name][-1]
    if last.exists() and not parsed.replace:
        raise UserError(f"{last} is there already; add --replace to write it anew.")
    if parsed.name == "omniglot":
        if parsed.splits is not None:
            raise UserError("`--splits` is for miniimagenet; omniglot is split by the experiment's seed.")
        need_pillow()
        _write_omniglot(parsed.sources, folder)
        return
    if len(parsed.sources) != 1:
        raise UserError(f"`--from` takes one folder for miniimagenet, got {len(parsed.sources)} paths.")
    shapes = prepare_miniimagenet(parsed.sources[0], parsed.splits, folder, bar=bar)
    for split, (classes, images) in shapes.items():
        print(f"Wrote {folder / miniimagenet.file_name(split)}: {classes} classes of {images} images.")


def _prepare_speech(parsed: argparse.Namespace) -> None:
    out = parsed.out
    if out.suffix != ".npz":
        raise UserError(f"{out} must end in .npz, by which experiments know a file from a folder.")
    if out.exists() and not parsed.replace:
        raise UserError(f"{out} is there already; add --replace to write it anew.")
    with bar("recordings") as report:
        prepared = prepare_speech(parsed.recordings, out, report=report)
    for line in prepared.left_out:
        print(f"Left out: {line}.", file=sys.stderr)
    digits = prepared.digits
    minutes = len(digits.f0) * HOP / RATE / 60
    fewest = min(int(np.sum(digits.speaker == speaker)) for speaker in digits.speakers)
    print(
        f"Wrote {out}: {len(digits.speakers)} speaker{'s' * (len(digits.speakers) != 1)}, {len(digits.speaker)} "
        f"utterances, {minutes:.1f} minutes; {len(prepared.left_out)} left out. "
        f"Experiments use {fewest} utterances of each, as many as all have."
    )


def _write_omniglot(sources: list[Path], folder: Path) -> None:
    path = folder / omniglot.FILE
    with bar("drawings") as report:
        count = prepare_omniglot(sources, path, report=report)
    print(f"Wrote {path}: {count} characters.")
    if count < COMPLETE:
        print(f"The whole of Omniglot has {COMPLETE}; name both {' and '.join(ARCHIVES)} to have them all.")
