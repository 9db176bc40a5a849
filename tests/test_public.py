"""Every public name is documented, with an example that runs (the examples are tests themselves)."""

import inspect
from pathlib import Path

import pytest

import shrinx as sx

PUBLIC = [name for name in vars(sx) if not name.startswith("_") and not inspect.ismodule(getattr(sx, name))]
# Results and interfaces: made by other names, whose examples show them.
WITHOUT_EXAMPLE = {"AbstractAdjoint", "AbstractMetaGradient", "AbstractRule", "AbstractSolver"} | {
    "Adapted",
    "LearnerInfo",
    "LearnerState",
    "LinearStats",
    "Selection",
}
DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name):
    text = inspect.getdoc(getattr(sx, name))
    assert text
    assert len(text) > 40
    assert (">>>" in text) or name in WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", PUBLIC)
def test_reference_page(name):
    assert f"shrinx.{name}\n" in (DOCS / "api.md").read_text()


def test_glossary_covers_the_papers_symbols():
    text = (DOCS / "glossary.md").read_text()
    for symbol in ("φ", "θ", "σ", "`prior.mean`", "`prior.log_variance`", "`adapted.params`", "`task.support`"):
        assert symbol in text
