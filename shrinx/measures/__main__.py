"""python -m shrinx.measures runs/speech-sigma-reptile-paper: judge the voices of a speech run into measures.json."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..data.progress import bar
from ..runs.errors import UserError
from ..runs.files import write_json
from .judge import FILE, MEASURES, judge


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shrinx.measures",
        description="Judge the voices of a speech run.",
        epilog="Example: python -m shrinx.measures runs/sigma-reptile --only similarity",
    )
    parser.add_argument("run", type=Path, help="its folder")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="these measures only")
    parsed = parser.parse_args(arguments)
    file = parsed.run / FILE
    # What was measured before stays, and what is measured is kept at once: the whole takes minutes.
    kept = _read(file)
    try:
        with bar("Judging voices") as report:
            for measure, scores in judge(parsed.run, parsed.only, report):
                kept[measure] = scores
                write_json(file, kept)
    except UserError as error:
        print(f"shrinx: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        left = "; or leave that measure out with --only" if len(parsed.only) > 1 else ""
        print(f"shrinx: {error.name} is missing: pip install 'shrinx[speech-metrics]'{left}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"shrinx: interrupted; finished measures are in {file}.", file=sys.stderr)
        return 130
    for measure in parsed.only:
        for method, score in kept[measure].items():
            print(f"{measure:15s} {method:16s} {_shown(score['mean'])} ± {_shown(score['ci95'])}")
    return 0


def _read(file: Path) -> dict[str, Any]:
    """The measures of before; none if there are none or nobody can read them."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
