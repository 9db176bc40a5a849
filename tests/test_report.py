"""Reports of synthetic runs: every absent, odd and hostile input that a folder can hold gives a page, or a sentence."""

import itertools
import json
import math
import re
import shutil
import warnings
import xml.etree.ElementTree as ElementTree

import pytest
from report_runs import CASES, HOSTILE, Page, all_null, free, make_result, make_rows, make_run, score

pytest.importorskip("matplotlib", reason="Reports need matplotlib.")

from shrinx.report.load import load_run, load_runs
from shrinx.report.page import render_page
from shrinx.report.write import write_comparison, write_report
from shrinx.runs.errors import UserError

RUNS_OF_TWO_KINDS = (("shrunk", make_result()), ("free", free()))


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_run_is_reported(tmp_path, case):
    result, rows, seeds = CASES[case]()
    page = write_report(make_run(tmp_path / "run", result, rows, seeds=seeds))
    assert page == tmp_path / "run" / "report.html"
    found = Page(page.read_text())
    assert found.open == []
    files = sorted((tmp_path / "run" / "figures").glob("*.svg"))
    assert len(found.all("figure")) == len(found.all("figcaption")) == len(files)
    for file in files:
        root = ElementTree.fromstring(file.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox")
        assert root.find("{http://www.w3.org/2000/svg}title").text
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", found.text)


def test_without_a_prior_nothing_is_said_to_be_selected(tmp_path):
    page, other = (write_report(make_run(tmp_path / name, result)).read_text() for name, result in RUNS_OF_TWO_KINDS)
    assert "Modules selected" in page
    assert "Adapting all" in other
    assert "Modules selected" not in other
    assert "Adapting the selected" not in other


def test_the_page_is_self_contained(tmp_path):
    text = write_report(make_run(tmp_path / "run")).read_text()
    found = Page(text)
    assert not found.all("script")
    assert not found.all("img")
    for tag, attrs in found.tags:
        for name in ("src", "href", "xlink:href"):
            if name in attrs:
                assert attrs[name].startswith(("data:", "#")), (tag, attrs[name])
    assert "url(http" not in text
    assert "@import" not in text
    assert str(tmp_path) not in text


def test_headings_and_names_for_readers_who_listen(tmp_path):
    found = Page(write_report(make_run(tmp_path / "run")).read_text())
    assert len(found.all("h1")) == 1
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = {attrs.get("id") for _, attrs in found.tags}
    pictures = [attrs for attrs in found.all("svg") if attrs.get("role") == "img"]
    assert len(pictures) == 7
    assert all(set(attrs["aria-labelledby"].split()) <= ids for attrs in pictures)
    assert all(attrs["aria-label"] for attrs in found.all("div") if attrs.get("role") == "region")


def test_the_page_says_what_was_found(tmp_path):
    text = Page(write_report(make_run(tmp_path / "run")).read_text()).text
    assert "Two of four modules, 4.5 % of the parameters, are task-specific." in text
    assert "Adapting only them gives 0.0700 ± 0.0050, adapting all 0.0800 ± 0.0050 (mean squared error, lower" in text
    assert "The intervals overlap" in text
    assert "over three seeds" in text
    for item in ("shrinx run sinusoid", "0123456789ab", "2026-01-02T03:04:05+00:00", "num_updates", "[40, 40]"):
        assert item in text


def test_one_seed_says_what_its_interval_leaves_out(tmp_path):
    text = Page(write_report(make_run(tmp_path / "run", seeds=1, rows=make_rows(seeds=1))).read_text()).text
    assert "over held-out tasks; there is one seed" in text


def test_everything_is_escaped(tmp_path):
    result = make_result(names=[HOSTILE, "b"])
    result["metric"]["name"] = HOSTILE
    result["test"]["subsets"] = {HOSTILE: score(0.3, seeds=3)}
    result["examples"][0]["predictions"][HOSTILE] = [0.0, 0.0, 0.0]
    for key in ("name", "title", "caption", "x_label", "y_label"):
        result["figures"][0][key] = HOSTILE
    result["figures"][0]["series"][0]["label"] = HOSTILE
    result["figures"][0]["marks"][0]["label"] = HOSTILE
    run = make_run(
        tmp_path / "<i>run", result, make_rows(num_modules=2), config={HOSTILE: HOSTILE, "deep": {HOSTILE: [HOSTILE]}},
        command=HOSTILE,
    )  # fmt: skip
    text = write_report(run).read_text()
    assert not Page(text).all("script")
    assert not Page(text).all("i")
    assert "<script" not in text
    assert "\x00" not in text
    for file in (run / "figures").iterdir():
        ElementTree.fromstring(file.read_text())
        assert re.fullmatch(r"[a-z0-9-]+\.svg", file.name)


def test_the_same_run_gives_the_same_bytes(tmp_path):
    written = []
    for parent in ("first", "second"):
        run = make_run(tmp_path / parent / "run")
        write_report(run)
        before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        write_report(run)
        after = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        assert before == after
        written.append(after)
    assert written[0] == written[1]


def test_a_users_matplotlib_settings_change_nothing(tmp_path):
    import matplotlib

    run = make_run(tmp_path / "run")
    expected = write_report(run).read_text()
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "path"}):
        assert write_report(run).read_text() == expected
        assert matplotlib.rcParams["font.size"] == 30


BROKEN = {
    "missing": (lambda run: shutil.rmtree(run), "does not exist"),
    "a file": (lambda run: (shutil.rmtree(run), run.write_text("")), "is a file"),
    "foreign": (lambda run: (run / "config.json").unlink(), "holds no run"),
    "unfinished": (lambda run: (run / "result.json").unlink(), "not finished"),
    "cut": (lambda run: (run / "result.json").write_text('{"modules": ['), "cannot be read"),
    "not text": (lambda run: (run / "result.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "empty": (lambda run: (run / "result.json").write_text("{}"), "experiment is missing"),
    "a list": (lambda run: (run / "result.json").write_text("[]"), "no JSON object"),
    "another config": (lambda run: (run / "config.json").write_text('{"name": "web-page"}'), "format is missing"),
    "another format": (lambda run: (run / "config.json").write_text('{"format": 99, "experiment": "x"}'), "format 99"),
    "wrong type": (
        lambda run: (run / "result.json").write_text('{"experiment": "x", "modules": [{"name": 3}]}'),
        r"modules\[0\].name is 3",
    ),
    "wrong list": (
        lambda run: (run / "result.json").write_text('{"experiment": "x", "modules": {}}'),
        "modules is no list",
    ),
    "truth as number": (
        lambda run: (run / "result.json").write_text('{"experiment": "x", "test": {"all": {"mean": true}}}'),
        "test.all.mean is True",
    ),
    "uneven": (
        lambda run: (run / "result.json").write_text(
            '{"experiment": "x", "curves": {"steps": [0, 1], "series": {"all": {"mean": [1]}}}}'
        ),
        "has 1 values, not 2",
    ),
    "broken metrics": (lambda run: (run / "metrics.jsonl").write_text('{"loss": 1}\n'), "step is missing"),
    "binary metrics": (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe"), "metrics.jsonl"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_no_finished_run_is_refused(tmp_path, case):
    breaking, message = BROKEN[case]
    run = make_run(tmp_path / "run")
    breaking(run)
    with pytest.raises(UserError, match=message) as error:
        write_report(run)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    assert not (run / "report.html").exists()


def test_a_row_cut_by_a_crash_is_left_out(tmp_path):
    run = make_run(tmp_path / "run")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 90')
    assert len(load_run(run).metrics) == 8


def test_infinite_numbers_are_unknown_numbers(tmp_path):
    run = make_run(tmp_path / "run")
    text = (run / "result.json").read_text().replace("3.0,", "Infinity,").replace("0.07,", "NaN,")
    (run / "result.json").write_text(text)
    assert "nan" not in Page(write_report(run).read_text()).text


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "figures").write_text("in the way")
    with pytest.raises(UserError, match="Cannot write"):
        write_report(run)


def test_render_page_takes_one_run_or_several(tmp_path):
    first, second = load_run(make_run(tmp_path / "a")), load_run(make_run(tmp_path / "b"))
    assert "Run a" in render_page([first])
    assert "2 runs compared" in render_page([first, second])
    with pytest.raises(ValueError, match="at least one"):
        render_page([])


def test_drawing_raises_no_warnings(tmp_path):
    """Also none of those that Python hides by default."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(make_run(tmp_path / "run", all_null(make_result()), all_null(make_rows())))


def test_the_helpers_make_what_runs_write():
    """The synthetic files hold no NaN, which JSON does not have."""
    for case in CASES.values():
        result, rows, _ = case()
        assert json.dumps([result, rows], allow_nan=False)
        assert all(math.isfinite(row["step"]) for row in rows)


@pytest.mark.parametrize(
    ("variances", "said"),
    [
        ((60.0, 60.0, 60.0, 60.0), "All modules have one variance, 60: none is singled out. Adapting all modules"),
        ((1.05, 1.06, 1.07, 1.06), "have not parted: the largest is 1.02 times the smallest, which says nothing yet"),
        ((1.0, 1.0, 1.0, 2.5), "are task-specific."),
    ],
)
def test_variances_that_tell_nothing_apart(tmp_path, variances, said):
    result = make_result()
    for module, variance in zip(result["modules"], variances, strict=True):
        module |= {"variance": variance, "selected": max(variances) < 2 or module["selected"]}
    page = Page(write_report(make_run(tmp_path / "run", result)).read_text())
    assert said in page.text
    have_parted = max(variances) / min(variances) >= 2
    for words in ("Modules selected", "Adapting only"):
        assert (words in page.text) == have_parted
    runs = load_runs([tmp_path / "run", make_run(tmp_path / "other", make_result())])
    assert [any(module.get("selected") for module in run.result["modules"]) for run in runs] == [have_parted, True]
    assert ["selected" in run.result["test"] for run in runs] == [have_parted, True]
    compared = write_comparison([tmp_path / "run", tmp_path / "other"], tmp_path / "compared.html")
    assert "Share selected" in Page(compared.read_text()).text


def test_a_run_whose_held_out_tasks_failed_says_so_first(tmp_path):
    result = make_result()
    result["test"]["all"] |= {"mean": None, "ci95": None}
    text = Page(write_report(make_run(tmp_path / "run", result)).read_text()).text
    assert "Adaptation to held-out tasks failed: scores with all modules adapted are not finite." in text
    assert "task-specific." not in text.split("Adaptation to held-out tasks failed")[0]


@pytest.mark.parametrize(("other", "said"), [(0.9, "They hardly stand out"), (0.1, "varies at least 10 times as much")])
def test_how_far_selected_modules_stand_out(tmp_path, other, said):
    result = make_result()
    for module in result["modules"]:
        module["variance"] = 1.0 if module["selected"] else other
    next(module for module in result["modules"] if not module["selected"])["variance"] = 0.1
    assert said in Page(write_report(make_run(tmp_path / "run", result)).read_text()).text
