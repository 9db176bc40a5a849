"""python -m shrinx.measures runs/speech-sigma-reptile-paper: judge the voices of a speech run into measures.json."""

import argparse
import sys
from pathlib import Path

from ..runs.errors import UserError
from ..runs.files import write_json
from .judge import FILE, MEASURES, judge


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shrinx.measures", description="Judge the voices of a speech run.")
    parser.add_argument("run", type=Path, help="its folder")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="these measures only")
    parsed = parser.parse_args(arguments)
    try:
        result = judge(parsed.run, parsed.only)
    except UserError as error:
        print(f"shrinx: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"shrinx: {error.name} is missing: pip install 'shrinx[speech-metrics]'.", file=sys.stderr)
        return 2
    write_json(parsed.run / FILE, result)
    for measure, methods in result.items():
        for method, score in methods.items():
            print(f"{measure:15s} {method:16s} {_shown(score['mean'])} ± {_shown(score['ci95'])}")
    return 0


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
