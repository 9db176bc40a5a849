"""What pages are made of: the document around them, sections, figures, tables and links that carry their files."""

import base64
import json
from collections.abc import Iterable
from html import escape
from typing import Any

from .conditions import condition_table
from .gallery import Drawing
from .load import LoadedRun
from .numbers import clean
from .sheet import CSS
from .speech import judged
from .svg import inline

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
LARGEST_DOWNLOAD = 200_000
"""Tables with more characters than this stay beside the page, in `tables/`."""


def document(title: str, kicker: str, lead: str, notes: Iterable[str], sections: Iterable[str]) -> str:
    smaller = "".join(f"<p>{text(note)}</p>" for note in notes if note)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{text(title)} – {text(kicker)}</title>
<style>
{CSS}</style>
</head>
<body>
<main>
<header>
<p class="kicker">{text(kicker)}</p>
<h1>{text(title)}</h1>
<p class="lead">{text(lead)}</p>
<div class="notes">{smaller}</div>
</header>
{"".join(sections)}</main>
</body>
</html>
"""


def text(value: Any) -> str:
    """Escaped, on one line, and with quantities that do not break before or after their sign."""
    escaped = escape(clean(value))
    for sign in "±×%":
        escaped = escaped.replace(f" {sign}", f"\u00a0{sign}").replace(f"{sign} 10", f"{sign}\u00a010")
    return escaped.replace("± ", "±\u00a0")


def section(title: str, *parts: str) -> str:
    body = "".join(parts)
    name = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{text(title)}</h2>\n{body}</section>\n' if body else ""


def figures(drawings: Iterable[Drawing]) -> str:
    cards = "".join(
        f'<figure id="figure-{text(drawing.name)}">\n<h3>{text(drawing.title)}</h3>\n{inline(drawing.svg)}\n'
        f"<figcaption>{text(drawing.caption)}</figcaption>\n</figure>\n"
        for drawing in drawings
    )
    return section("Figures", f'<div class="figures">\n{cards}</div>\n') if cards else ""


def table(
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
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr{" class=marked" if index in chosen else ""}><th scope="row">{text(row[0])}</th>'
        + "".join(f"<td>{text(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for index, row in enumerate(rows)
    )
    title = f"<h3>{text(label)}</h3>\n" if heading else ""
    return (
        f'{title}<div class="{kinds}" role="region" tabindex="0" aria-label="{text(label)}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def downloads(tables: dict[str, str]) -> str:
    """Links that carry their tables with them."""
    links = []
    for name, content in tables.items():
        if len(content) <= LARGEST_DOWNLOAD:
            data = base64.b64encode(content.encode()).decode()
            links.append(
                f'<a download="{text(name)}" href="data:text/csv;charset=utf-8;base64,{data}">{text(name)}</a>'
            )
        else:
            links.append(f"tables/{text(name)} (too large for this page)")
    return f'<p class="downloads">At full precision: {", ".join(links)}.</p>\n' if links else ""


def command(run: LoadedRun) -> str:
    """The command as it was typed: spaces inside quotes must survive copying."""
    return escape("".join(c if c.isprintable() else " " for c in str(run.environment["command"])))


def value(setting: Any) -> str:
    if setting is None:
        return "none"
    return setting if isinstance(setting, str) else json.dumps(setting, ensure_ascii=False)


def judged_voices(runs: list[LoadedRun]) -> str:
    """What the measures say of the voices of speech runs."""
    header, rows = judged(runs)
    return table("Voices of test speakers, mean over speakers", header, rows)


def condition_scores(runs: list[LoadedRun]) -> str:
    """The scores of runs that have several conditions."""
    many = [run for run in runs if run.result.get("conditions")]
    what = ", all modules adapted" if len(many) > 1 else "".join(f" of {clean(run.name)}" for run in many)
    return table(f"Held-out scores in every condition{what}", *condition_table(many))
