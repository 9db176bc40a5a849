"""The benchmarks compute the same with every library at hand, and report what was measured."""

import dataclasses
import importlib
from typing import Any, cast

import jax
import numpy as np
import pytest

from benchmarks.cases import CASES
from benchmarks.driver import MismatchError, check_losses, make_row
from benchmarks.gpu.driver import Worker, make_rows
from benchmarks.libraries import LIBRARIES
from benchmarks.report import fill, merge, table


def losses(library, case):
    """Of two passes: the second one starts from what the first one learned."""
    module = importlib.import_module(f"benchmarks.libraries.{LIBRARIES[library].module}")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        advance = module.ALGORITHMS[case.algorithm](case)
        return np.concatenate([advance(), advance()])


# Not on images: grouped convolutions take minutes without the compiler's optimisations. `make bench` compares losses.
@pytest.mark.parametrize("name", ["sinusoid-maml-5", "sinusoid-imaml", "sinusoid-reptile", "adapt-1"])
def test_shrinx_and_plain_jax_learn_the_same(name):
    case = CASES[name]()
    case = dataclasses.replace(
        case,
        num_steps=min(case.num_steps, 5),
        batches=case.batches[:1],
        # So strong that the system is definite: at negative curvature shrinx stops the linear solve, others go on.
        regularisation=25 * case.regularisation,
    )
    np.testing.assert_allclose(losses("shrinx", case), losses("jax", case), rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_cases_are_named_as_they_are_listed_and_are_repeatable(name):
    case, again = CASES[name](), CASES[name]()
    assert case.name == name
    jax.tree.map(np.testing.assert_array_equal, (case.params, case.batches), (again.params, again.batches))


def test_different_losses_are_an_error():
    case = CASES["adapt-1"]()
    check_losses(case, {"shrinx": [1.0, 5.0], "jax": [1.0001, 7.0]})
    with pytest.raises(MismatchError, match=r"adapt-1: the first loss is 1\.1 with jax, 1 with shrinx"):
        check_losses(case, {"shrinx": [1.0], "jax": [1.1]})


def row(case="adapt-1", library="shrinx", seconds=0.5):
    first = {"version": "1", "device": "cpu", "losses": [2.0, 1.0], "wall_s": 22.0, "cpu_s": 11.0}
    measured = [{"meta_steps": 1, "cpu_s": seconds * x, "wall_s": 2 * seconds * x, "peak_mb": 7.2} for x in (9, 1, 1)]
    return make_row(CASES[case](), library, first, measured)


def test_a_row_has_medians_and_what_the_first_pass_took_beyond_a_later_one():
    found = row()
    assert (found["meta_steps_per_cpu_s"], found["meta_steps_per_s"], found["peak_mb"]) == (2.0, 1.0, 7)
    assert (found["first_call_s"], found["first_call_cpu_s"]) == (2.0, 1.0)  # A pass has 20 meta-steps.


def test_new_rows_replace_those_of_their_cases():
    old = [row("adapt-1"), row("adapt-1", "jax"), row("sinusoid-imaml")]
    found = merge(old, [row("adapt-1", seconds=0.25)])
    assert [(r["case"], r["library"], r["meta_steps_per_cpu_s"]) for r in found] == [
        ("sinusoid-imaml", "shrinx", 2.0),
        ("adapt-1", "shrinx", 4.0),
    ]


def test_the_table_says_how_many_times_faster():
    lines = table([row(), row(library="jax", seconds=1.5)]).splitlines()
    assert "| 3× |" in lines[3]
    assert "×" not in lines[2]


def test_a_table_is_put_between_its_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: speed -->\nold\n<!-- bench end -->\nafter\n")
    fill(page, "speed", "| new |\n")
    assert page.read_text() == "before\n<!-- bench: speed -->\n\n| new |\n\n<!-- bench end -->\nafter\n"
    with pytest.raises(ValueError, match="bench: other"):
        fill(page, "other", "")


def gpu_worker(library, answers, tmp_path):
    complaints = tmp_path / library
    complaints.write_text("" if answers else "No module named torch")
    return Worker(library, "gradient", cast(Any, None), cast(Any, None), complaints, answers)


def test_a_row_of_the_gpu_says_whether_it_computed_the_same(tmp_path):
    turns = [{"steps": 20, "wall_s": seconds, "cpu_s": 0.01, "peak_mb": 7.2} for seconds in (0.9, 0.02, 0.02)]
    first = {"version": "1", "device": "GPU", "check": [2.0, 10.0], "wall_s": 5.0, "cpu_s": 4.0}
    answers = {"shrinx": [first, *turns], "torch-eager": [first | {"check": [2.1, 10.0]}, *turns], "torch-graphs": []}
    own, other, missing = make_rows([gpu_worker(library, said, tmp_path) for library, said in answers.items()])
    assert (own["ms"], own["meta_steps_per_s"], own["agrees"], own["turns"]) == (1.0, 1000.0, True, 3)
    assert not other["agrees"]
    assert missing["missing"] == "No module named torch"
