"""Every public name is documented, with an example that runs (the examples are tests themselves)."""

import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shrinx as sx

PUBLIC = [name for name in vars(sx) if not name.startswith("_") and not inspect.ismodule(getattr(sx, name))]
DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name):
    text = inspect.getdoc(getattr(sx, name))
    assert text
    assert len(text) > 40
    assert ">>>" in text


@pytest.mark.parametrize("name", PUBLIC)
def test_reference_page(name):
    assert f"shrinx.{name}\n" in (DOCS / "api.md").read_text()


def test_glossary_covers_the_papers_symbols():
    text = (DOCS / "glossary.md").read_text()
    for symbol in ("φ", "θ", "σ", "`prior.mean`", "`prior.log_variance`", "`adapted.params`", "`task.support`"):
        assert symbol in text


def test_the_readmes_example_runs(capsys, tmp_path, monkeypatch):
    """The code of the README, with fewer updates."""
    text = (DOCS.parent / "README.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    assert "range(4000)" in code
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code.replace("range(4000)", "range(20)"), "README.md", "exec"), {})
    assert "of the parameters" in capsys.readouterr().out
    assert sx.Bank.open("bank").names() == ("alice", "bob")


def test_the_guides_solver_works():
    text = (DOCS / "index.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "class" in block)
    scope = {"sx": sx, "jax": jax, "jnp": jnp}
    exec(compile(code, "index.md", "exec"), scope)
    solver = scope["ProximalMomentum"](0.1)
    for dtype in ("float32", "bfloat16"):
        prior = sx.Prior.create(jnp.zeros(1, dtype))
        data = jnp.array([2.0], dtype)
        adapted = sx.adapt(lambda p, x: 0.5 * jnp.sum((p - x) ** 2), prior, data, solver, num_steps=300)
        assert float(adapted.params[0]) == pytest.approx(1.0, abs=0.2)
