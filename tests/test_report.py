"""Reports of synthetic runs: every absent, odd and hostile input that a folder can hold, and the page in a browser."""

import base64
import csv
import html
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import warnings
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib", reason="Reports need matplotlib.")

from matplotlib.figure import Figure

from shrinx.report import figures, sentences, tables
from shrinx.report.load import load_run
from shrinx.report.page import render_page
from shrinx.report.write import write_comparison, write_report
from shrinx.runs.errors import UserError

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
HOSTILE = """<script>alert("x")</script> & 'quotes' $w_{ "表" \x00 ](javascript:0)"""


def score(mean, *, seeds, width=0.005):
    """A score as runs write it; JSON has no NaN, so an unknown one is null."""
    values = [None if mean is None else mean + 0.001 * seed for seed in range(seeds)]
    return {"mean": mean, "ci95": width, "over": "seeds" if seeds > 1 else "tasks", "values": values}


def make_result(*, num_modules=4, seeds=3, names=None):
    """A finished run's result in which every second module is selected."""
    names = names or [f"layers/{index}" for index in range(num_modules)]
    steps = [0, 1, 2, 5, 10, 20, 50]
    curve = {"mean": [1 / (1 + step) for step in steps], "ci95": [0.01] * len(steps)}
    return {
        "experiment": "sinusoid",
        "algorithm": "sigma-imaml",
        "preset": "quick",
        "seeds": seeds,
        "seconds": 12.5,
        "metric": {"name": "mean squared error", "lower_is_better": True},
        "modules": [
            {
                "name": name,
                "size": 10 * (index + 1),
                "variance": 1.0 if index % 2 == 0 else 1e-4 / (index + 1),
                "variances": [1.0 if index % 2 == 0 else 1e-4 / (index + 1 + seed) for seed in range(seeds)],
                "selected": index % 2 == 0,
            }
            for index, name in enumerate(names)
        ],
        "test": {
            "before": score(3.0, seeds=seeds),
            "all": score(0.08, seeds=seeds),
            "selected": score(0.07, seeds=seeds),
            "only": {name: score(0.2 + 0.1 * index, seeds=seeds) for index, name in enumerate(names)},
            "subsets": {"last": score(0.5, seeds=seeds)},
        },
        "fraction": 0.045,
        "curves": {"steps": steps, "horizon": 5, "series": dict.fromkeys(("all", "selected", *names), curve)},
        "examples": [
            {
                "x": [-1.0, 0.0, 1.0],
                "truth": [0.0, 1.0, 0.0],
                "support_x": [0.5],
                "support_y": [0.5],
                "predictions": {"all": [0.1, 0.9, None], "selected": [0.0, 1.0, 0.1]},
            }
        ]
        * 3,
        "figures": [
            {
                "name": "width",
                "title": "Error by width",
                "caption": "Wider is better.",
                "kind": "lines",
                "x_label": "width",
                "y_label": "error",
                "x_log": True,
                "y_log": True,
                "marks": [{"x": 4, "y": 0.5, "label": "chosen"}],
                "series": [
                    {
                        "label": "a",
                        "x": [1, 4, 16],
                        "y": [2.0, 0.5, None],
                        "low": [1, 0.4, None],
                        "high": [3, 0.6, None],
                    },
                    {"label": "b", "x": [1, 4], "y": [1.0, 0.7], "low": None, "high": None, "style": "dashed"},
                    {"label": "c", "x": [4], "y": [0.9], "low": None, "high": None, "style": "points"},
                ],
            }
        ],
    }


def make_rows(*, num_modules=4, seeds=3, count=8):
    return [
        {
            "step": 100 * (row + 1),
            "seconds": 0.5 * (row + 1),
            "query_loss": [None if row == 2 else 2.0 / (row + 1) + 0.1 * seed for seed in range(seeds)],
            "num_failed": [0] * (seeds - 1) + [row % 2],
            "log_variance": [[-0.5 * row * (index % 2) for index in range(num_modules)] for _ in range(seeds)],
        }
        for row in range(count)
    ]


def make_run(path, result=None, rows=None, *, seeds=3, config=None, command="shrinx run sinusoid"):
    """The folder of a finished run."""
    path.mkdir(parents=True)
    about = {"format": 1, "version": "0.1.0", "experiment": "sinusoid", "algorithm": "sigma-imaml", "preset": "quick"}
    fields = {"num_updates": 800, "layers": [40, 40], "clip": None} if config is None else config
    (path / "config.json").write_text(json.dumps({**about, "seeds": seeds, "config": fields}))
    environment = {"command": command, "commit": "0123456789ab", "date": "2026-01-02T03:04:05+00:00", "device": "cpu"}
    (path / "environment.json").write_text(
        json.dumps(environment | {"python": "3.12", "shrinx": "0.1.0", "jax": "0.10"})
    )
    rows = make_rows(seeds=seeds) if rows is None else rows
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "result.json").write_text(json.dumps(make_result(seeds=seeds) if result is None else result))
    return path


def without(value, *keys):
    return {key: item for key, item in value.items() if key not in keys}


def all_null(value):
    """The same structure with null for every fraction: what a run that diverged leaves."""
    if isinstance(value, dict):
        return {key: all_null(item) for key, item in value.items()}
    if isinstance(value, list):
        return [all_null(item) for item in value]
    return None if isinstance(value, float) else value


def frozen_and_free():
    result = make_result()
    result["modules"][0] |= {"variance": None, "variances": [None] * 3}
    result["modules"][1] |= {"variance": 0.0, "variances": [0.0] * 3}
    return result


def free():
    result = make_result()
    for module in result["modules"]:
        module |= {"variance": None, "variances": [None] * 3, "selected": False}
    return result


def selecting(chosen):
    result = make_result()
    for module in result["modules"]:
        module["selected"] = chosen
    return result


def without_intervals():
    result = make_result(seeds=1)
    test = result["test"]
    for each in (test["all"], test["selected"], test["before"], *test["only"].values(), *test["subsets"].values()):
        each["ci95"] = None
    for series in result["curves"]["series"].values():
        series["ci95"] = [None] * len(series["mean"])
    return result


def accuracy():
    return make_result() | {"metric": {"name": "accuracy", "lower_is_better": False}}


def diverging():
    result = make_result()
    series = result["curves"]["series"]["all"]
    result["curves"]["series"]["all"] = {
        "mean": [*series["mean"][:-2], 1e30, None],
        "ci95": [*series["ci95"][:-2], 1e30, None],
    }
    return result


CASES = {
    "everything": lambda: (make_result(), make_rows(), 3),
    "one seed": lambda: (make_result(seeds=1), make_rows(seeds=1), 1),
    "no intervals": lambda: (without_intervals(), make_rows(seeds=1), 1),
    "one module": lambda: (make_result(num_modules=1), make_rows(num_modules=1), 3),
    "123 modules": lambda: (make_result(num_modules=123), make_rows(num_modules=123), 3),
    "only what must be": lambda: ({}, [], 3),
    "no extras": lambda: (
        without(make_result(), "curves", "examples", "figures", "fraction", "metric", "seconds"),
        [],
        3,
    ),
    "empty parts": lambda: (
        {key: type(value)() for key, value in make_result().items() if key in ("modules", "test")},
        [],
        3,
    ),
    "null parts": lambda: (dict.fromkeys(make_result()), make_rows(), 3),
    "null values": lambda: (all_null(make_result()), all_null(make_rows()), 3),
    "frozen and free modules": lambda: (frozen_and_free(), make_rows(), 3),
    "no prior": lambda: (free(), make_rows(), 3),
    "nothing selected": lambda: (selecting(False), make_rows(), 3),
    "all selected": lambda: (selecting(True), make_rows(), 3),
    "higher is better": lambda: (accuracy(), make_rows(), 3),
    "divergence": lambda: (diverging(), make_rows(), 3),
    "one row": lambda: (make_result(), make_rows(count=1), 3),
    "hostile names": lambda: (make_result(names=[HOSTILE, "b" * 300, "<b>c</b>"]), make_rows(num_modules=3), 3),
    "duplicate names": lambda: (make_result() | {"figures": make_result()["figures"] * 2}, make_rows(), 3),
}


class Page(HTMLParser):
    """What the tests need of a page: every tag with its attributes, the text, and whether tags close."""

    VOID = ("meta", "link", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


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


@pytest.mark.parametrize(
    ("first", "second", "lower", "expected"),
    [
        ((0.1, 0.01), (0.2, 0.01), True, "better"),
        ((0.1, 0.01), (0.2, 0.01), False, "worse"),
        ((0.1, 0.06), (0.2, 0.06), True, "level"),
        ((0.1, None), (0.2, 0.01), True, None),
        ((None, 0.1), (0.2, 0.01), True, None),
    ],
)
def test_a_difference_is_claimed_only_beyond_the_intervals(first, second, lower, expected):
    a, b = ({"mean": mean, "ci95": width} for mean, width in (first, second))
    assert sentences.compare(a, b, lower) == expected


def test_wide_intervals_are_not_taken_for_agreement(tmp_path):
    result = make_result(seeds=2)
    result["test"]["all"]["ci95"] = result["test"]["selected"]["ci95"] = 0.9
    run = load_run(make_run(tmp_path / "run", result, make_rows(seeds=2), seeds=2))
    assert "too wide to tell" in sentences.headline(run)
    assert "costs nothing" not in sentences.headline(run)


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


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_tables_hold_the_exact_numbers(tmp_path):
    run = make_run(tmp_path / "run")
    write_report(run)
    result, rows = make_result(), make_rows()
    table = {path.stem: read_csv(path.read_text()) for path in (run / "tables").iterdir()}
    assert set(table) == {"scores", "modules", "curves", "training", "variances", "width"}

    scores = {(row["kind"], row["adapted"]): row for row in table["scores"]}
    assert float(scores["all", "all"]["mean"]) == result["test"]["all"]["mean"]
    for name, expected in result["test"]["only"].items():
        row = scores["only", name]
        assert [float(row[f"seed {seed}"]) for seed in range(3)] == expected["values"]
        assert (float(row["mean"]), float(row["ci95"]), row["over"]) == (expected["mean"], expected["ci95"], "seeds")

    for row, module in zip(table["modules"], result["modules"], strict=True):
        assert (row["module"], int(row["size"])) == (module["name"], module["size"])
        assert float(row["variance"]) == module["variance"]
        assert [float(row[f"variance seed {seed}"]) for seed in range(3)] == module["variances"]
        assert row["selected"] == ("true" if module["selected"] else "false")

    assert [float(row["all mean"]) for row in table["curves"]] == result["curves"]["series"]["all"]["mean"]
    assert [int(row["steps"]) for row in table["curves"]] == result["curves"]["steps"]
    assert table["training"][2]["query_loss seed 0"] == ""
    assert float(table["training"][3]["query_loss seed 1"]) == rows[3]["query_loss"][1]
    assert int(table["training"][3]["num_failed seed 2"]) == 1
    assert float(table["variances"][5]["layers/3 seed 2"]) == rows[5]["log_variance"][2][3]
    assert [row["y"] for row in table["width"] if row["series"] == "a"] == ["2.0", "0.5", ""]


def test_downloads_are_the_tables(tmp_path):
    run = make_run(tmp_path / "run")
    links = Page(write_report(run).read_text()).all("a")
    assert len(links) == 6
    for link in links:
        kind, data = link["href"].split(",", 1)
        assert kind == "data:text/csv;charset=utf-8;base64"
        assert base64.b64decode(data) == (run / "tables" / link["download"]).read_bytes()


def test_a_large_table_stays_beside_the_page(tmp_path):
    rows = make_rows(num_modules=123, count=300)
    run = make_run(tmp_path / "run", make_result(num_modules=123), rows)
    text = write_report(run).read_text()
    assert "tables/variances.csv (too large for this page)" in text
    assert (run / "tables" / "variances.csv").stat().st_size > 200_000
    assert len(text) < 2_000_000


def test_figures_show_the_numbers():
    result = make_result()
    figure = figures.variances(result)
    assert isinstance(figure, Figure)
    [axes] = figure.axes
    assert axes.get_xscale() == "log"
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([module["variance"] for module in result["modules"]])
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
    dots = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert [list(line.get_xdata()) for line in dots] == [module["variances"] for module in result["modules"]]


def test_a_score_axis_is_logarithmic_when_the_spread_is_large():
    result = make_result()
    assert figures.scores(result).axes[0].get_xscale() == "log"
    narrow = result | {"test": without(result["test"], "before")}
    assert figures.scores(narrow).axes[0].get_xscale() == "linear"


def test_the_horizon_is_marked():
    axes = figures.adaptation(make_result()).axes[0]
    assert [5, 5] in [list(line.get_xdata()) for line in axes.lines]
    assert axes.get_xlim() == (0, 50)


def test_thinning_keeps_the_last_row():
    rows = make_rows(count=100)
    for most in (1, 7, 50, 1000):
        kept = figures.thin(rows, most)
        assert len(kept) <= most
        assert kept[-1] == rows[-1]


def test_extra_figures_do_not_overwrite_others():
    taken = {"figures": [{"name": name} for name in ("scores", "Width", "width", "../..", "")]}
    assert tables.extra_names(taken) == ["scores-2", "width", "width-2", "figure", "figure-2"]


BROKEN = {
    "missing": (lambda run: shutil.rmtree(run), "does not exist"),
    "a file": (lambda run: (shutil.rmtree(run), run.write_text("")), "is a file"),
    "foreign": (lambda run: (run / "config.json").unlink(), "holds no run"),
    "unfinished": (lambda run: (run / "result.json").unlink(), "not finished"),
    "cut": (lambda run: (run / "result.json").write_text('{"modules": ['), "cannot be read"),
    "not text": (lambda run: (run / "result.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "a list": (lambda run: (run / "result.json").write_text("[]"), "no JSON object"),
    "another config": (lambda run: (run / "config.json").write_text('{"name": "web-page"}'), "format is missing"),
    "another format": (lambda run: (run / "config.json").write_text('{"format": 99, "experiment": "x"}'), "format 99"),
    "wrong type": (
        lambda run: (run / "result.json").write_text('{"modules": [{"name": 3}]}'),
        r"modules\[0\].name is 3",
    ),
    "wrong list": (lambda run: (run / "result.json").write_text('{"modules": {}}'), "modules is no list"),
    "truth as number": (
        lambda run: (run / "result.json").write_text('{"test": {"all": {"mean": true}}}'),
        "test.all.mean is True",
    ),
    "uneven": (
        lambda run: (run / "result.json").write_text('{"curves": {"steps": [0, 1], "series": {"all": {"mean": [1]}}}}'),
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


def test_comparison(tmp_path):
    other = make_result(num_modules=3)
    other["test"]["all"]["mean"] = 0.5
    paths = [
        make_run(tmp_path / "a" / "run"),
        make_run(tmp_path / "b" / "run", other, config={"num_updates": 900}),
        make_run(tmp_path / "single", make_result(seeds=1), make_rows(seeds=1), seeds=1),
        make_run(tmp_path / "bare", {}, []),
    ]
    page = write_comparison(paths, tmp_path / "out")
    found = Page(page.read_text())
    assert page == tmp_path / "out" / "report.html"
    assert not (tmp_path / "a" / "run" / "report.html").exists()
    assert (
        "Adapting all modules, run (1) is best, with 0.0800 ± 0.0050. Its interval overlaps with that of single"
        in found.text
    )
    for name in ("run (1)", "run (2)", "single", "bare"):
        assert name in found.text
    names = {path.stem for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"variances", "scores-1-mean-squared-error", "adaptation-1-mean-squared-error"} <= names
    scores = read_csv((tmp_path / "out" / "tables" / "scores.csv").read_text())
    assert {(row["run"], row["adapted"]): float(row["mean"]) for row in scores}["run (2)", "all"] == 0.5
    variances = read_csv((tmp_path / "out" / "tables" / "variances.csv").read_text())
    assert variances[3]["run (2)"] == ""
    assert float(variances[1]["run (1)"]) == make_result()["modules"][1]["variance"]
    before = page.read_bytes()
    assert write_comparison(paths, tmp_path / "out").read_bytes() == before


def test_a_comparison_can_be_a_page_alone(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    page = write_comparison(runs, tmp_path / "new" / "compared.html")
    assert list((tmp_path / "new").iterdir()) == [page]
    assert page.read_text() == write_comparison(runs, tmp_path / "out").read_text()


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "figures").write_text("in the way")
    with pytest.raises(UserError, match="Cannot write"):
        write_report(run)


def test_comparison_of_many_modules_and_no_variances(tmp_path):
    paths = [
        make_run(tmp_path / "many", make_result(num_modules=123), make_rows(num_modules=123)),
        make_run(tmp_path / "free", free()),
        make_run(tmp_path / "null", all_null(make_result()), all_null(make_rows())),
    ]
    assert Page(write_comparison(paths, tmp_path / "out").read_text()).open == []


def test_a_comparison_is_refused_where_it_would_destroy_or_say_nothing(tmp_path):
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    with pytest.raises(UserError, match="at least two"):
        write_comparison([run], tmp_path / "out")
    for out in (run, run / "report.html"):
        with pytest.raises(UserError, match="the report of a run"):
            write_comparison([run, other], out)
    with pytest.raises(UserError, match="is no page"):
        write_comparison([run, other], run / "config.json")
    with pytest.raises(UserError, match="does not exist"):
        write_comparison([run, tmp_path / "nowhere"], tmp_path / "out")


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


MEASURE = """<!DOCTYPE html><body style="margin:0">
<iframe id="page" src="{page}" style="border:0;width:375px;height:800px">
</iframe><pre id="measured"></pre><script>
document.getElementById("page").onload = () => {{
  const inner = document.getElementById("page").contentDocument;
  const boxes = [...inner.querySelectorAll("figure svg[role=img]")].map(svg => svg.getBoundingClientRect());
  const small = [...inner.querySelectorAll("figure svg text")].map(text => text.getBoundingClientRect().height);
  document.getElementById("measured").textContent = JSON.stringify({{
    client: inner.documentElement.clientWidth,
    scroll: inner.documentElement.scrollWidth,
    figures: boxes.map(box => [box.left, box.right, box.width, box.height]),
    smallest: small.length ? Math.min(...small.filter(height => height > 0)) : null,
    title: inner.title,
  }});
}};
</script></body>"""


def browse(tmp_path, url, *options):
    """Open a page in a browser without a window; its document after loading, and what it logged."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0",
        "--hide-scrollbars", "--virtual-time-budget=5000", "--window-size=1200,900", *options, url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def page_errors(log):
    """Lines that the page, not the browser, is to blame for."""
    return [line for line in log.splitlines() if "CONSOLE" in line or "Refused to" in line]


def measure(tmp_path, page):
    """Sizes in a frame as wide as a phone (a window cannot be that narrow), and what was logged."""
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(MEASURE.format(page=page.as_uri()))
    framed = browse(tmp_path, wrapper.as_uri(), "--allow-file-access-from-files", "--dump-dom")
    text = re.search(r'<pre id="measured">(.*?)</pre>', framed.stdout, re.DOTALL)[1]
    return json.loads(html.unescape(text)), page_errors(framed.stderr)


needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="No chromium or chrome on PATH: install one to check pages in a browser."
)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("case", ["everything", "123 modules", "hostile names", "comparison"])
def test_in_a_browser(tmp_path, case):
    if case == "comparison":
        runs = [make_run(tmp_path / name) for name in ("first", "a-second-run-with-quite-a-long-name", "third")]
        page = write_comparison(runs, tmp_path / "out")
    else:
        result, rows, seeds = CASES[case]()
        page = write_report(make_run(tmp_path / "run", result, rows, seeds=seeds))
    expected = len(Page(page.read_text()).all("figure"))
    alone = browse(tmp_path, page.as_uri(), "--dump-dom")
    assert page_errors(alone.stderr) == []
    assert len(re.findall(r"<figure\b", alone.stdout)) == expected > 0

    measured, errors = measure(tmp_path, page)
    assert errors == []
    assert measured["client"] == 375
    assert measured["scroll"] <= 375
    assert len(measured["figures"]) == expected
    for left, right, width, height in measured["figures"]:
        assert left >= 0
        assert right <= 375
        assert width > 300
        assert height > 50
    assert measured["smallest"] > 7.5


@pytest.mark.slow
@needs_browser
def test_the_browser_would_notice(tmp_path):
    """A page that is too wide and fails is seen as such: the test above can fail."""
    page = tmp_path / "bad.html"
    page.write_text('<div style="width:900px">wide</div><script>nothing.here</script>')
    measured, errors = measure(tmp_path, page)
    assert measured["scroll"] >= 900
    assert "nothing is not defined" in " ".join(errors)


def test_the_helpers_make_what_runs_write():
    """The synthetic files hold no NaN, which JSON does not have."""
    for case in CASES.values():
        result, rows, _ = case()
        assert json.dumps([result, rows], allow_nan=False)
        assert all(math.isfinite(row["step"]) for row in rows)
