"""One HTML page that needs nothing else: no network, no scripts, no files beside it."""

from collections.abc import Iterable
from typing import Any

from . import markup, sentences
from .gallery import Drawing, comparison_drawings, run_drawings
from .load import LoadedRun
from .numbers import clean, duration, have_parted, known, percent, short, with_interval
from .players import columns_of, listen
from .side_by_side import comparison_page
from .tables import comparison_tables, run_tables


def render_page(runs: list[LoadedRun]) -> str:
    """The page of one run, or the page that compares several."""
    if not runs:
        raise ValueError("A page needs at least one run.")
    if len(runs) == 1:
        return run_page(runs[0], run_drawings(runs[0]), run_tables(runs[0]))
    return comparison_page(runs, comparison_drawings(runs), comparison_tables(runs))


def run_page(run: LoadedRun, drawings: Iterable[Drawing], tables: dict[str, str]) -> str:
    """The page of one run, with figures and tables that have been made already."""
    return markup.document(
        title=_title(run),
        kicker=f"Run {run.name}",
        lead=sentences.headline(run),
        notes=(sentences.spread(run), sentences.reference([run]), _made(run)),
        sections=(
            _key_numbers(run),
            markup.section("Listen", listen(columns_of([run]))),
            markup.figures(drawings),
            markup.section(
                "Numbers",
                markup.judged_voices([run]),
                markup.condition_scores([run]),
                _scores(run),
                _modules(run),
                markup.downloads(tables),
            ),
            markup.section("Configuration", _settings(run)),
            markup.section("How to repeat", _repeat(run)),
        ),
    )


def _title(run: LoadedRun) -> str:
    return f"{run.experiment}, {run.algorithm}" if run.algorithm else run.experiment


def _made(run: LoadedRun) -> str:
    preset = run.config.get("preset")
    seeds = "one seed" if run.seeds == 1 else f"{run.seeds} seeds"
    took = duration(run.result.get("seconds"))
    date = clean(run.environment.get("date") or "")[:10]
    parts = (f"Preset {clean(preset)}" if preset else "", seeds, "" if took == "–" else took, date)
    return ", ".join(filter(None, parts)).capitalize() + "."


def _key_numbers(run: LoadedRun) -> str:
    test = run.result.get("test") or {}
    modules = run.result.get("modules") or []
    chosen = sum(bool(module.get("selected")) for module in modules)
    free = len(modules) > 1 and not have_parted(modules)
    facts = [
        (what, with_interval(test[key]))
        for key, what in (
            ("before", "Before adaptation"),
            ("all", "Adapting all"),
            ("selected", "Adapting the selected"),
        )
        if test.get(key) and not (free and key == "selected")
    ]
    if modules and not free:
        facts.append(("Modules selected", f"{chosen} of {len(modules)}"))
    if known([run.result.get("fraction")]) and not free:
        facts.append(("Parameters selected", percent(run.result["fraction"])))
    items = "".join(f"<div><dt>{markup.text(what)}</dt><dd>{markup.text(value)}</dd></div>" for what, value in facts)
    return f'<dl class="facts" aria-label="Key numbers">{items}</dl>\n' if items else ""


def _scores(run: LoadedRun) -> str:
    test = run.result.get("test") or {}
    names = {"before": "nothing (before adaptation)", "all": "all modules", "selected": "selected modules"}
    rows = [(names[key], test[key]) for key in names if test.get(key)]
    alone = test.get("only") or {}
    # A set of one module is there under its own name.
    sets = {name: score for name, score in (test.get("subsets") or {}).items() if name not in alone}
    rows += [*(test.get("also") or {}).items(), *sets.items()]
    rows += [(f"only {name}", score) for name, score in alone.items()]
    metric = (run.result.get("metric") or {}).get("name") or "score"
    widths = any(len(score.get("values") or ()) > 1 for _, score in rows)
    table = [[name, with_interval(score), *([_range(score)] if widths else [])] for name, score in rows]
    header = ["Adapted", metric.capitalize(), *(["Range over seeds"] if widths else [])]
    return markup.table(f"Held-out {metric}; {sentences.better(run.result)}", header, table)


def _range(score: dict[str, Any]) -> str:
    values = sorted(known(score.get("values")))
    return f"{short(values[0])} to {short(values[-1])}" if values else "–"


def _modules(run: LoadedRun) -> str:
    modules = run.result.get("modules") or []
    rows = [
        [
            module["name"],
            "–" if module.get("size") is None else f"{module['size']:,}".replace(",", "\u202f"),
            "no prior" if module.get("variance") is None else short(module["variance"]),
            "yes" if module.get("selected") else "no",
        ]
        for module in modules
    ]
    marked = [index for index, module in enumerate(modules) if module.get("selected")]
    return markup.table(
        "Modules, in the network's order", ["Module", "Parameters", "Variance", "Selected"], rows, marked
    )


def _settings(run: LoadedRun) -> str:
    asked = {key: run.config[key] for key in ("experiment", "algorithm", "preset", "seeds") if key in run.config}
    rows = [[key, markup.value(value)] for key, value in {**asked, **(run.config.get("config") or {})}.items()]
    return markup.table("Every setting of the run", ["Setting", "Value"], rows, words=True, heading=False)


def _repeat(run: LoadedRun) -> str:
    shown = f"<pre><code>{markup.command(run)}</code></pre>\n" if run.environment.get("command") else ""
    rows = [[key, markup.value(value)] for key, value in run.environment.items() if key != "command"]
    return shown + markup.table("Where and with what it was run", ["What", "Value"], rows, words=True, heading=False)
