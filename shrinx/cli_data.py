"""`shrinx data`: what data is there, and how to get the rest."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .data import load_omniglot, miniimagenet, omniglot
from .data.download import download
from .data.images import need_pillow
from .data.location import VARIABLE, data_folder
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
_COMMANDS = {"omniglot": omniglot.COMMAND, "miniimagenet": miniimagenet.COMMAND}

_EXAMPLES = f"""examples:
  shrinx data list
  shrinx data fetch omniglot
  shrinx data prepare omniglot --from images_background.zip images_evaluation.zip
  {miniimagenet.COMMAND}
  shrinx data prepare-speech recordings speech.npz"""


def run_data(rest: list[str]) -> int:
    """List, fetch or prepare data."""
    parsed = _parser().parse_args(rest)
    folder = data_folder(getattr(parsed, "data_dir", None))
    try:
        parsed.action(parsed, folder)
    except OSError as error:
        name, reason = error.filename or folder, error.strerror or error
        raise UserError(f"Cannot read or write {name} ({reason}); mend that, or name another folder.") from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shrinx data",
        description="Get the images and the speech that experiments need.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="{list,fetch,prepare,prepare-speech}")
    listing = actions.add_parser("list", help="what is there, and how to get what is missing")
    listing.set_defaults(action=_list)
    fetching = actions.add_parser("fetch", help="download a data set from its home and prepare it")
    fetching.set_defaults(action=_fetch)
    preparing = actions.add_parser(
        "prepare",
        help="make the project's files from files you have",
        usage="shrinx data prepare NAME --from PATH [PATH ...] [--splits FOLDER] [--data-dir FOLDER] [--replace]",
    )
    preparing.set_defaults(action=_prepare)
    for part in (fetching, preparing):
        part.add_argument("name", choices=_FILES, help="the data set")
        part.add_argument("--replace", action="store_true", help="write files anew that are there already")
    preparing.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
        help="omniglot: zips of drawings or folders of them; miniimagenet: one folder of images or pickles",
    )
    preparing.add_argument(
        "--splits", type=Path, metavar="FOLDER", help="miniimagenet: train.csv, val.csv and test.csv"
    )
    _add_speech(actions)
    for part in (listing, fetching, preparing):
        part.add_argument(
            "--data-dir", type=Path, metavar="FOLDER", help=f"where data lives; else {VARIABLE}, else the user's cache"
        )
    return parser


def _add_speech(actions: Any) -> None:
    speech = actions.add_parser(
        "prepare-speech",
        help="make a file of speech from recordings of your own",
        description="Make a file of speech from recordings (extra `speech`).",
        epilog=f"layout:\n{LAYOUT}\n\n"
        "example: shrinx data prepare-speech recordings speech.npz; shrinx run speech --data-dir speech.npz",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    speech.set_defaults(action=_prepare_speech)
    speech.add_argument("recordings", type=Path, metavar="FOLDER", help="a folder of wav files for every speaker")
    speech.add_argument("out", type=Path, metavar="OUT", help="the file to write, .npz")
    speech.add_argument("--replace", action="store_true", help="write it anew if it is there already")


def _list(parsed: argparse.Namespace, folder: Path) -> None:
    print(f"Data folder: {folder}")
    for name, files in _FILES.items():
        present = [folder / file for file in files if (folder / file).is_file()]
        if len(present) == len(files):
            size = sum(path.stat().st_size for path in present)
            print(f"{name:13s} {size / 1e6:,.1f} MB ({', '.join(files)})")
        else:
            print(f"{name:13s} {'incomplete' if present else 'missing'}; get it with `{_COMMANDS[name]}`")


def _fetch(parsed: argparse.Namespace, folder: Path) -> None:
    if parsed.name != "omniglot":
        raise UserError(
            f"The images of {parsed.name} are ImageNet's and have no public home to fetch them from; "
            f"get a copy and run `{_COMMANDS[parsed.name]}`."
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


def _prepare(parsed: argparse.Namespace, folder: Path) -> None:
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


def _prepare_speech(parsed: argparse.Namespace, folder: Path) -> None:
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
