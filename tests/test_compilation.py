"""Compiled programs are kept where they should be, and nowhere if they should not."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shrinx.runs import compilation
from shrinx.runs.compilation import keep_programs, trim


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """JAX's settings as a user has them who has never heard of the cache, restored afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.delenv("SHRINX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation.reset_cache()


@pytest.mark.usefixtures("settings")
def test_programs_are_kept_in_the_users_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "SHORTEST_SECONDS", 0.0)
    jax.jit(lambda x: x + 1)(1.0)  # A program made before must not decide that there is no folder.
    place = keep_programs()
    assert place is not None
    assert place.is_relative_to(tmp_path / "cache" / "shrinx" / "programs")
    jax.jit(lambda x: 3 * x + 7)(1.0)
    assert list(place.glob("*-cache"))


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("word", ["off", "OFF", "0"])
def test_the_variable_turns_it_off(monkeypatch, tmp_path, word):
    monkeypatch.setenv("SHRINX_CACHE", word)
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("settings")
def test_the_variable_names_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SHRINX_CACHE", str(tmp_path / "here"))
    place = keep_programs()
    assert place is not None
    assert place.parent == tmp_path / "here"


@pytest.mark.usefixtures("settings")
def test_a_folder_given_to_jax_is_left_alone(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")


@pytest.mark.usefixtures("settings")
def test_a_place_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    assert keep_programs(tmp_path / "file") is None
    assert jax.config.jax_compilation_cache_dir is None


def test_the_oldest_programs_go_first_and_nothing_else(tmp_path):
    for age, name in enumerate(("new-cache", "middle-cache", "old-cache", "old-notes")):
        path = tmp_path / name
        path.write_bytes(bytes(10))
        os.utime(path, (1000 - age, 1000 - age))
    trim(tmp_path, 20)
    assert {path.name for path in tmp_path.iterdir()} == {"new-cache", "middle-cache", "old-notes"}


def test_importing_the_library_imports_no_extra():
    """`import shrinx` is quick because plots, tables and experiments are imported where they are used."""
    extras = {"matplotlib", "optuna", "rich", "tyro", "PIL", "shrinx.experiments", "shrinx.report", "shrinx.runs.meta"}
    code = f"import sys, shrinx; print(sorted({extras!r} & set(sys.modules)))"
    root = Path(__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
