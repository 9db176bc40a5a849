"""One HTML page that needs nothing else: no network, no scripts, no files beside it."""

import base64
import json
from collections.abc import Iterable
from html import escape
from typing import Any

from . import sentences
from .conditions import condition_table
from .gallery import Drawing, comparison_drawings, run_drawings
from .goals import by_seed, goals
from .load import LoadedRun
from .numbers import clean, duration, known, percent, short, with_interval
from .players import columns_of, listen
from .sheet import CSS
from .speech import judged
from .svg import inline
from .tables import comparison_tables, run_tables

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
LARGEST_DOWNLOAD = 200_000
"""Tables with more characters than this stay beside the page, in `tables/`."""


def render_page(runs: list[LoadedRun]) -> str:
    """The page of one run, or the page that compares several."""
    if not runs:
        raise ValueError("A page needs at least one run.")
    if len(runs) == 1:
        return run_page(runs[0], run_drawings(runs[0]), run_tables(runs[0]))
    return comparison_page(runs, comparison_drawings(runs), comparison_tables(runs))


def run_page(run: LoadedRun, drawings: Iterable[Drawing], tables: dict[str, str]) -> str:
    """The page of one run, with figures and tables that have been made already."""
    return _document(
        title=_title(run),
        kicker=f"Run {run.name}",
        lead=sentences.headline(run),
        notes=(sentences.spread(run), sentences.reference([run]), _made(run)),
        sections=(
            _key_numbers(run),
            _section("Listen", listen(columns_of([run]))),
            _figures(drawings),
            _section("Numbers", _judged([run]), _conditions([run]), _scores(run), _modules(run), _downloads(tables)),
            _section("Configuration", _settings(run)),
            _section("How to repeat", _repeat(run)),
        ),
    )


def comparison_page(runs: list[LoadedRun], drawings: Iterable[Drawing], tables: dict[str, str]) -> str:
    """The page of several runs, with figures and tables that have been made already."""
    return _document(
        title=", ".join(dict.fromkeys(run.experiment for run in runs)),
        kicker=f"{len(runs)} runs compared",
        lead=sentences.comparison_headline(runs),
        notes=("± is half the 95 % interval of the mean.", sentences.reference(runs)),
        sections=(
            _section("Listen", listen(columns_of(runs))),
            _section("Goals", _goals(runs)),
            _figures(drawings),
            _section(
                "Numbers",
                _judged(runs),
                _conditions(runs),
                _compared_scores(runs),
                _compared_variances(runs),
                _downloads(tables),
            ),
            _section("Configuration", _compared_settings(runs)),
            _section("How to repeat", _compared_repeat(runs)),
        ),
    )


def _document(title: str, kicker: str, lead: str, notes: Iterable[str], sections: Iterable[str]) -> str:
    smaller = "".join(f"<p>{_text(note)}</p>" for note in notes if note)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{_text(title)} – {_text(kicker)}</title>
<style>
{CSS}</style>
</head>
<body>
<main>
<header>
<p class="kicker">{_text(kicker)}</p>
<h1>{_text(title)}</h1>
<p class="lead">{_text(lead)}</p>
<div class="notes">{smaller}</div>
</header>
{"".join(sections)}</main>
</body>
</html>
"""


def _text(value: Any) -> str:
    """Escaped, on one line, and with quantities that do not break before or after their sign."""
    text = escape(clean(value))
    for sign in "±×%":
        text = text.replace(f" {sign}", f"\u00a0{sign}").replace(f"{sign} 10", f"{sign}\u00a010")
    return text.replace("± ", "±\u00a0")


def _command(run: LoadedRun) -> str:
    """The command as it was typed: spaces inside quotes must survive copying."""
    return escape("".join(c if c.isprintable() else " " for c in str(run.environment["command"])))


def _title(run: LoadedRun) -> str:
    return f"{run.experiment}, {run.algorithm}" if run.algorithm else run.experiment


def _made(run: LoadedRun) -> str:
    preset = run.config.get("preset")
    seeds = "one seed" if run.seeds == 1 else f"{run.seeds} seeds"
    took = duration(run.result.get("seconds"))
    date = clean(run.environment.get("date") or "")[:10]
    parts = (f"Preset {clean(preset)}" if preset else "", seeds, "" if took == "–" else took, date)
    return ", ".join(filter(None, parts)).capitalize() + "."


def _section(title: str, *parts: str) -> str:
    body = "".join(parts)
    name = title.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{_text(title)}</h2>\n{body}</section>\n' if body else ""
    )


def _key_numbers(run: LoadedRun) -> str:
    test = run.result.get("test") or {}
    modules = run.result.get("modules") or []
    chosen = sum(bool(module.get("selected")) for module in modules)
    facts = [
        (what, with_interval(test[key]))
        for key, what in (
            ("before", "Before adaptation"),
            ("all", "Adapting all"),
            ("selected", "Adapting the selected"),
        )
        if test.get(key)
    ]
    if modules:
        facts.append(("Modules selected", f"{chosen} of {len(modules)}"))
    if known([run.result.get("fraction")]):
        facts.append(("Parameters selected", percent(run.result["fraction"])))
    items = "".join(f"<div><dt>{_text(what)}</dt><dd>{_text(value)}</dd></div>" for what, value in facts)
    return f'<dl class="facts" aria-label="Key numbers">{items}</dl>\n' if items else ""


def _figures(drawings: Iterable[Drawing]) -> str:
    cards = "".join(
        f'<figure id="figure-{_text(drawing.name)}">\n<h3>{_text(drawing.title)}</h3>\n{inline(drawing.svg)}\n'
        f"<figcaption>{_text(drawing.caption)}</figcaption>\n</figure>\n"
        for drawing in drawings
    )
    return _section("Figures", f'<div class="figures">\n{cards}</div>\n') if cards else ""


def _table(
    label: str,
    header: list[str],
    rows: list[list[Any]],
    marked: Iterable[int] = (),
    *,
    words: bool = False,
    heading: bool = True,
) -> str:
    """A table that scrolls inside its own box where the screen is narrow. The first column names the row.

    Cells with `words` may break into several lines; numbers may not.
    """
    if not rows:
        return ""
    chosen = set(marked)
    kinds = " ".join(["table", *(["words"] if words else []), *(["tall"] if len(rows) > 30 else [])])
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr{" class=marked" if index in chosen else ""}><th scope="row">{_text(row[0])}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for index, row in enumerate(rows)
    )
    title = f"<h3>{_text(label)}</h3>\n" if heading else ""
    return (
        f'{title}<div class="{kinds}" role="region" tabindex="0" aria-label="{_text(label)}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _scores(run: LoadedRun) -> str:
    test = run.result.get("test") or {}
    names = {"before": "nothing (before adaptation)", "all": "all modules", "selected": "selected modules"}
    rows = [(names[key], test[key]) for key in names if test.get(key)]
    rows += [*(test.get("subsets") or {}).items()]
    rows += [(f"only {name}", score) for name, score in (test.get("only") or {}).items()]
    metric = (run.result.get("metric") or {}).get("name") or "score"
    widths = any(len(score.get("values") or ()) > 1 for _, score in rows)
    table = [[name, with_interval(score), *([_range(score)] if widths else [])] for name, score in rows]
    header = ["Adapted", metric.capitalize(), *(["Range over seeds"] if widths else [])]
    return _table(f"Held-out {metric}; {sentences.better(run.result)}", header, table)


def _goals(runs: list[LoadedRun]) -> str:
    """What speech runs must show, and whether they do; those that do not are marked, and say so."""
    tables = []
    for seed, methods in by_seed(runs).items():
        found = goals(methods)
        rows = [[goal.verdict, goal.text, goal.measured] for goal in found]
        missed = [index for index, goal in enumerate(found) if goal.met is False]
        label = f"What must hold on test speakers (seed {seed}; {', '.join(run.name for run in methods.values())})"
        tables.append(_table(label, ["Verdict", "Goal", "Measured"], rows, missed, words=True))
    return "".join(tables)


def _judged(runs: list[LoadedRun]) -> str:
    """What the measures say of the voices of speech runs."""
    header, rows = judged(runs)
    return _table("Voices of test speakers, mean over speakers", header, rows)


def _conditions(runs: list[LoadedRun]) -> str:
    """The scores of runs that have several conditions."""
    what = "" if len(runs) == 1 else ", all modules adapted"
    return _table(f"Held-out scores in every condition{what}", *condition_table(runs))


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
    return _table("Modules, in the network's order", ["Module", "Parameters", "Variance", "Selected"], rows, marked)


def _downloads(tables: dict[str, str]) -> str:
    """Links that carry their tables with them."""
    links = []
    for name, text in tables.items():
        if len(text) <= LARGEST_DOWNLOAD:
            data = base64.b64encode(text.encode()).decode()
            links.append(
                f'<a download="{_text(name)}" href="data:text/csv;charset=utf-8;base64,{data}">{_text(name)}</a>'
            )
        else:
            links.append(f"tables/{_text(name)} (too large for this page)")
    return f'<p class="downloads">At full precision: {", ".join(links)}.</p>\n' if links else ""


def _settings(run: LoadedRun) -> str:
    asked = {key: run.config[key] for key in ("experiment", "algorithm", "preset", "seeds") if key in run.config}
    rows = [[key, _value(value)] for key, value in {**asked, **(run.config.get("config") or {})}.items()]
    return _table("Every setting of the run", ["Setting", "Value"], rows, words=True, heading=False)


def _repeat(run: LoadedRun) -> str:
    shown = f"<pre><code>{_command(run)}</code></pre>\n" if run.environment.get("command") else ""
    rows = [[key, _value(value)] for key, value in run.environment.items() if key != "command"]
    return shown + _table("Where and with what it was run", ["What", "Value"], rows, words=True, heading=False)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _compared_scores(runs: list[LoadedRun]) -> str:
    metrics = [clean((run.result.get("metric") or {}).get("name") or "score") for run in runs]
    same = len(set(metrics)) == 1
    rows = []
    for run, metric in zip(runs, metrics, strict=True):
        test = run.result.get("test") or {}
        scores = (with_interval(test.get(kind)) for kind in ("before", "all", "selected"))
        effort = (run.seeds, duration(run.result.get("seconds")))
        name = [run.name, run.algorithm or "–", *([] if same else [metric])]
        rows.append([*name, *scores, percent(run.result.get("fraction")), *effort])
    header = [
        "Run",
        "Algorithm",
        *([] if same else ["Metric"]),
        "Before",
        "All",
        "Selected",
        "Share selected",
        "Seeds",
        "Time",
    ]
    return _table(
        f"Held-out {metrics[0]}; {sentences.better(runs[0].result)}" if same else "Held-out scores", header, rows
    )


def _compared_variances(runs: list[LoadedRun]) -> str:
    found = [{module["name"]: module for module in run.result.get("modules") or ()} for run in runs]
    names = list(dict.fromkeys(name for modules in found for name in modules))
    rows = [[name, *(_variance(modules.get(name)) for modules in found)] for name in names]
    return _table("Variance of each module; * selected", ["Module", *(run.name for run in runs)], rows)


def _variance(module: dict[str, Any] | None) -> str:
    if module is None:
        return "–"
    value = "no prior" if module.get("variance") is None else short(module["variance"])
    return f"{value} *" if module.get("selected") else value


def _compared_settings(runs: list[LoadedRun]) -> str:
    asked = ("experiment", "algorithm", "preset", "seeds")
    settings = [{key: run.config.get(key) for key in asked} | (run.config.get("config") or {}) for run in runs]
    return _side_by_side("Every setting; those that differ come first and are marked", "Setting", runs, settings)


def _compared_repeat(runs: list[LoadedRun]) -> str:
    commands = "".join(
        f"<h3>{_text(run.name)}</h3>\n<pre><code>{_command(run)}</code></pre>\n"
        for run in runs
        if run.environment.get("command")
    )
    others = [{key: value for key, value in run.environment.items() if key != "command"} for run in runs]
    return commands + _side_by_side("Where and with what; what differs comes first and is marked", "What", runs, others)


def _side_by_side(label: str, what: str, runs: list[LoadedRun], found: list[dict[str, Any]]) -> str:
    """A column per run, rows that differ first."""
    keys = list(dict.fromkeys(key for each in found for key in each))
    table = {key: [_value(each[key]) if key in each else "–" for each in found] for key in keys}
    differing = [key for key in keys if len(set(table[key])) > 1]
    rows = [[key, *table[key]] for key in [*differing, *(key for key in keys if key not in differing)]]
    return _table(label, [what, *(run.name for run in runs)], rows, range(len(differing)), words=True)
