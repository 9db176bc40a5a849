"""Figures as SVG text: the same bytes for the same figure, alone in a file or inside a page."""

import io
import re
import warnings
from html import escape

from matplotlib.figure import Figure

from .numbers import clean
from .style import FONT, INK, MUTED, PAPER, RULE, style

_FONTS = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_THEME = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)"}


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as a file of its own. Identifiers start with `name`, so that several fit into one page."""
    buffer = io.StringIO()
    with style(), warnings.catch_warnings():
        # A name may be in any script. Readers' fonts draw it even if the one used for the layout cannot.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r"\s*<!DOCTYPE.*?>", "", text, count=1, flags=re.DOTALL)
    text = text.replace(f"'{FONT}'", _FONTS)
    text = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    words = {"title": escape(clean(title)), "desc": escape(clean(description))}
    label = "\n".join(f'<{kind} id="{name}-{kind}">{text}</{kind}>' for kind, text in words.items())
    described = f'<svg role="img" aria-labelledby="{name}-title {name}-desc" '
    return re.sub(r"<svg ([^>]*)>", lambda match: f"{described}{match[1]}>\n{label}", text, count=1)


def inline(svg: str) -> str:
    """The same figure for a page: as wide as its container and in the page's colours."""
    text = svg[svg.index("<svg") :]
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height|version|xmlns(:\w+)?)="[^"]*"', "", opening)
    for colour, variable in _THEME.items():
        rest = rest.replace(colour, variable)
    return f"{opening}>{rest}".strip()
