"""The tool behind `make results`, on made-up runs: what it makes of them, and what it says when something is wrong."""

import json
import re
from pathlib import Path

import pytest

from tools.summary.__main__ import main
from tools.summary.documents import tables_in
from tools.summary.errors import SummaryError
from tools.summary.paper import Groups, Paper, Reference
from tools.summary.rows import collect
from tools.summary.runs import load_run, load_runs
from tools.summary.tables import render_all

CONFIG = {
    "format": 1,
    "experiment": "toy",
    "algorithm": "sigma-maml",
    "preset": "paper",
    "seeds": 2,
    "config": {"steps": 3},
}
ENVIRONMENT = {"command": "shrinx run toy", "commit": "abc", "date": "2026-01-01", "device": "cpu", "jax": "0.10"}
RESULT = {
    "metric": {"name": "error", "lower_is_better": True},
    "modules": [
        {"name": "w", "size": 9, "variance": 0.5, "selected": False},
        {"name": "b", "size": 1, "variance": 2.0, "selected": True},
    ],
    "test": {
        "before": {"mean": 2.0, "ci95": 0.25},
        "all": {"mean": 0.5, "ci95": 0.125},
        "selected": {"mean": 0.75, "ci95": None},
        "only": {"w": {"mean": None, "ci95": None}, "b": {"mean": 0.75, "ci95": None}},
        "subsets": {"first": {"mean": 0.6, "ci95": 0.1}},
    },
    "curves": {
        "steps": [0, 5, 10, 100],
        "horizon": 10,
        "series": {
            "all": {"mean": [2.0, 0.4, 0.5, 0.6], "ci95": [0.1, 0.2, 0.3, 0.4]},
            "w": {"mean": [2.0, 1.0, 1.0, 1.0]},
        },
    },
    "seconds": 12.5,
}
README = "# Toy\n\n<!-- table: modules -->\n<!-- end -->\n\ntext\n\n<!-- table: methods -->\n<!-- end -->\n"
TABLES = """
[modules]
modules = "toy/one"

[methods]
runs = ["toy/one"]
columns = [
  { title = "all", condition = "all" },
  { title = "paper", condition = "all", show = "paper" },
  { title = "goal", condition = "all", show = "goal" },
  { title = "off by", condition = "all", show = "difference" },
  { title = "of", condition = "all", show = "experiment" },
  { title = "fastest", condition = "all, at its best", metric = "steps" },
  { title = "trained", condition = "for ever", metric = "steps", show = "setting" },
  { title = "rate", condition = "none", metric = "rate", show = "setting" },
]
"""
PAPER = """
[[value]]
experiment = "toy"
algorithms = ["sigma-maml"]
condition = "all"
metric = "error"
paper = 0.45
goal = "below 1"
"""


def write_run(folder: Path, config: dict = CONFIG, result: dict = RESULT) -> None:
    folder.mkdir(parents=True)
    for name, value in (("config", config), ("environment", ENVIRONMENT), ("result", result)):
        (folder / f"{name}.json").write_text(json.dumps(value))


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "results" / "toy" / "one")
    (tmp_path / "results" / "toy" / "search").mkdir()  # No run, no row.
    (tmp_path / "results" / "paper.toml").write_text(PAPER)
    (tmp_path / "results" / "tables.toml").write_text(TABLES)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "plain.md").write_text("no table here")
    return tmp_path


def rows(root: Path) -> dict:
    summary = json.loads((root / "results" / "summary.json").read_text())
    return {(row["condition"], row["metric"]): summary["runs"][row["run"]] | row for row in summary["numbers"]}


def test_rows(root, capsys):
    assert main([], root) == 0
    assert capsys.readouterr().out.splitlines() == ["wrote results/summary.json", "wrote README.md"]
    found = rows(root)
    assert {key: row["mean"] for key, row in found.items()} == {
        ("before", "error"): 2.0,
        ("all", "error"): 0.5,
        ("selected", "error"): 0.75,
        ("first", "error"): 0.6,
        ("only w", "error"): None,
        ("only b", "error"): 0.75,
        ("all, at the horizon", "error"): 0.5,
        ("all, at its best", "error"): 0.4,
        ("all, at its best", "steps"): 5,
        ("all, ten times as long", "error"): 0.6,
        ("only w", "share of parameters"): 0.9,
        ("only b", "share of parameters"): 0.1,
        ("selected", "share of parameters"): 0.1,
        ("only w", "variance"): 0.5,
        ("only b", "variance"): 2.0,
        ("run", "seconds"): 12.5,
    }
    assert found["all", "error"] == {
        **{"experiment": "toy", "algorithm": "sigma-maml", "condition": "all", "metric": "error"},
        **{"mean": 0.5, "ci95": 0.125, "seeds": 2, "paper": 0.45, "goal": "below 1", "run": "toy/one"},
        **{"command": "shrinx run toy", "commit": "abc", "device": "cpu", "date": "2026-01-01"},
    }
    assert found["all, at its best", "error"]["ci95"] == 0.2


def test_rows_of_a_speech_run(tmp_path):
    score, curve = {"mean": 2.0, "ci95": 0.5}, {"mean": [3.0, 2.0, 2.5], "ci95": [0.1, 0.2, 0.3]}
    voice = "all, 80 utterances"
    result = {
        "metric": {"name": "nll", "lower_is_better": True},
        "test": {"subsets": {voice: score}},
        "curves": {"steps": [0, 10, 10_000], "horizon": 100, "series": {voice: curve}},
        "speech": {"stops": {voice: 10}},
    }
    write_run(tmp_path / "toy" / "one", result=result)
    measures = {"similarity": {"all-80": {"mean": 0.8, "ci95": 0.1, "values": [0.8]}, "same speaker": {"mean": 0.9}}}
    (tmp_path / "toy" / "one" / "measures.json").write_text(json.dumps(measures))
    rows = collect([load_run(tmp_path / "toy" / "one")], Paper((), ()))
    assert {(row.condition, row.metric): (row.mean, row.ci95) for row in rows} == {
        (voice, "nll"): (2.0, 0.5),
        (f"{voice}, at its best", "nll"): (2.0, 0.2),
        (f"{voice}, at its best", "steps"): (10, None),
        (f"{voice}, at the last step", "nll"): (2.5, 0.3),
        (voice, "similarity"): (0.8, 0.1),
        ("real, same speaker", "similarity"): (0.9, None),
        (voice, "steps"): (10, None),
        ("run", "seconds"): (None, None),
    }
    (tmp_path / "toy" / "one" / "measures.json").write_text('{"similarity": {"all-80": 3}}')
    with pytest.raises(SummaryError, match="is not what `shrinx run` writes"):
        load_run(tmp_path / "toy" / "one")


def test_tables(root):
    assert main([], root) == 0
    tables = tables_in((root / "README.md").read_text(), "README.md")
    assert tables["modules"].splitlines()[2:] == [
        "| nothing | 0 % |  | 2.00 ± 0.25 |",
        "| all modules | 100 % |  | 0.50 ± 0.12 |",
        "| **the selected: b** | **10 %** |  | **0.75** |",
        "| b alone | 10 % | 2 | 0.75 |",
        "| w alone | 90 % | 0.5 | – |",
    ]
    assert tables["methods"].splitlines() == [
        "| method | all | paper | goal | off by | of | fastest | trained | rate |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| σ-MAML | 0.50 ± 0.12 | 0.45 | below 1 | +0.050 | toy | 5 | 3 | none |",
    ]
    text = (root / "README.md").read_text()
    assert text.startswith("# Toy\n\n<!-- table: modules -->\n\n| what adapts")
    assert "<!-- end -->\n\ntext\n\n<!-- table: methods -->" in text
    assert main([], root) == 0
    assert (root / "README.md").read_text() == text


@pytest.fixture
def pairs(tmp_path):
    """Two runs of two seeds, which are better understood side by side, and one of three."""
    scores = {"one": [0.5, 0.9], "two": [0.25, 0.75], "three": [0.5, 0.5, 0.5]}
    for name, values in scores.items():
        score = {"mean": sum(values) / len(values), "ci95": 1.0, "over": "seeds", "values": values}
        tasks = score | {"over": "tasks"}
        result = {"metric": {"name": "accuracy", "lower_is_better": False}, "test": {"all": score, "before": tasks}}
        write_run(tmp_path / "results" / "toy" / name, result=result)

    def table(first: str, second: str, condition: str) -> str:
        path = tmp_path / "tables.toml"
        path.write_text(f'''[gains]
            pairs = [["toy/{first}", "toy/{second}"]]
            columns = [{{ title = "all of it", condition = "{condition}" }}]''')
        return render_all(path, load_runs(tmp_path / "results"), [])["gains"]

    return table


def test_gains_seed_by_seed(pairs):
    # 12.706, Student's t of one degree of freedom, times the standard error of 25 and 15 points.
    assert pairs("one", "two", "all").splitlines() == [
        "| gain in points | all of it |",
        "| --- | --- |",
        "| σ-MAML over σ-MAML | +20.0 ± 63.5 |",
    ]


@pytest.mark.parametrize(
    ("first", "second", "condition", "message"),
    [
        ("one", "three", "all", "pairs toy/one and toy/three of other seeds"),
        ("one", "two", "before", "asks for 'before' seed by seed, which toy/one has not; known: all"),
        ("one", "four", "all", "names results/toy/four, which is not there"),
    ],
)
def test_runs_that_are_no_pair(pairs, first, second, condition, message):
    with pytest.raises(SummaryError, match=re.escape(message)):
        pairs(first, second, condition)


@pytest.fixture
def grid(tmp_path):
    """Two pairs of runs with a condition each, and a table of both that may name the first one twice."""

    def table(*names: str) -> str:
        for name, alphabets, mean in (("one", 5, 0.5), ("two", 5, 0.25), ("three", 10, 0.75), ("four", 10, 0.5)):
            score = {"mean": mean, "ci95": 0.0, "over": "seeds", "values": [mean, mean]}
            condition = {"num_alphabets": alphabets, "num_instances": 1, "test": {"all": score}, "variances": {}}
            result = {
                "metric": {"name": "accuracy", "lower_is_better": False},
                "test": {"all": score},
                "conditions": [{**condition, "selected": []}],
            }
            write_run(tmp_path / "results" / "toy" / name, result=result)
        path = tmp_path / "tables.toml"
        pairs = ", ".join(f'["toy/{first}", "toy/{second}"]' for first, second in (name.split() for name in names))
        path.write_text(f'[grid]\npairs = [{pairs}]\ndown = ["K = 1"]\nacross = ["T = 5", "T = 10"]')
        return render_all(path, load_runs(tmp_path / "results"), [])["grid"]

    return table


def test_gains_in_all_conditions_of_two_methods(grid):
    assert grid("one two", "three four").splitlines() == [
        "| σ-MAML over σ-MAML, points | T = 5 | T = 10 |",
        "| --- | --- | --- |",
        "| K = 1 | +25.0 | +25.0 |",
    ]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["one two"], "asks for 'T=10 K=1, all' seed by seed, which toy/one has not"),
        (["one two", "one two", "three four"], "'grid' has 'T=5 K=1, all' in several pairs of runs"),
    ],
)
def test_a_grid_has_every_condition_once(grid, pairs, message):
    with pytest.raises(SummaryError, match=re.escape(message)):
        grid(*pairs)


@pytest.mark.parametrize("part", ["table", "summary", "missing", "run"])
def test_drift_is_detected_and_mended(root, capsys, part):
    assert main([], root) == 0
    assert main(["--check"], root) == 0
    readme, summary = root / "README.md", root / "results" / "summary.json"
    if part == "table":
        readme.write_text(readme.read_text().replace("| 0.45 |", "| 0.54 |"))
        expected = ["README.md: table 'methods' is not what the runs say; mend it with: make results"]
    elif part == "summary":
        summary.write_text(summary.read_text().replace("0.125", "0.0125"))
        expected = ["results/summary.json is not what the runs say; mend it with: make results"]
    elif part == "missing":
        summary.unlink()
        expected = ["results/summary.json is missing; mend it with: make results"]
    else:
        path = root / "results" / "toy" / "one" / "result.json"
        path.write_text(path.read_text().replace('"mean": 2.0', '"mean": 3.0'))
        expected = ["results/summary.json is not what", "README.md: table 'modules' is not what"]
    before = readme.read_text()
    capsys.readouterr()
    assert main(["--check"], root) == 1
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == len(expected)
    assert all(problem.startswith(start) for problem, start in zip(problems, expected, strict=True))
    assert readme.read_text() == before
    assert main([], root) == 0
    assert main(["--check"], root) == 0


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("results/toy/one/result.json", "{", "result.json cannot be read"),
        ("results/toy/one/result.json", "[]", "result.json holds no JSON object"),
        ("results/toy/one/result.json", None, "result.json is missing: finish the run"),
        ("results/toy/one/environment.json", "{}", "is not what `shrinx run` writes (no 'command'); run it again"),
        ("results/toy/one/result.json", '{"test": {"all": 3}}', "is not what `shrinx run` writes"),
        ("results/toy/one/config.json", json.dumps({**CONFIG, "experiment": "other"}), "holds a run of 'other'; move"),
        ("results/paper.toml", "[[value]", "paper.toml cannot be read"),
        ("results/paper.toml", PAPER + "color = 1", "paper.toml has an entry that is none"),
        ("results/paper.toml", PAPER.replace('"all"', '"al"'), "speaks of the 'error' of 'al', which toy/one has not"),
        ("results/tables.toml", TABLES.replace("toy/one", "toy/two"), "'modules' names results/toy/two, which is not"),
        ("results/tables.toml", TABLES.replace('"all" }', '"al" }'), "'methods' asks for 'al' (error), which toy/one"),
        ("results/tables.toml", TABLES.replace("goal", "gaol"), "a column that shows 'gaol'; known: measured,"),
        ("results/tables.toml", TABLES.replace("modules =", "module ="), "'modules' must have `modules`, a run"),
        ("results/tables.toml", TABLES.replace("[methods]", "[m]"), "shows table 'methods', which results/tables"),
        ("results/tables.toml", TABLES + '\n[more]\nmodules = "toy/one"', "'more' of results/tables.toml is shown now"),
        ("README.md", README[: README.rindex("<!-- end")], "README.md: table 'methods' has no `<!-- end -->` after"),
        ("README.md", README.replace("<!-- end -->", "", 1), "README.md:8: table 'modules' has no `<!-- end -->` bef"),
        ("docs/plain.md", "a\n<!-- end -->", "docs/plain.md:2: `<!-- end -->` ends no table"),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["write", "check"])
def test_one_sentence_for_each_mistake(root, capsys, file, text, message, arguments):
    path = root / file
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert main(arguments, root) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (root / "results" / "summary.json").exists()


def test_groups_of_modules_and_rates(tmp_path):
    rates = [{"name": "w", "rate": 0.1}, {"name": "b", "rate": 0.3}]
    write_run(tmp_path / "toy" / "one", result={**RESULT, "rates": rates})
    run = load_run(tmp_path / "toy" / "one")
    found = {
        (row.condition, row.metric): row.mean
        for row in collect([run], Paper(groups=(Groups("toy", "b/w", ("b",), ("w",)),)))
    }
    assert found["b/w", "variance ratio"] == 4.0
    assert found["b/w", "rate ratio"] == pytest.approx(3.0)
    assert found["only b", "rate"] == 0.3


def test_every_condition_has_its_rows(tmp_path):
    found = {
        "num_alphabets": 15,
        "num_instances": 1,
        "test": {"all": {"mean": 0.5, "ci95": 0.1}},
        "variances": {"w": None},
    }
    write_run(tmp_path / "toy" / "one", result={**RESULT, "conditions": [found, {**found, "num_alphabets": 5}]})
    rows = {(row.condition, row.metric): row for row in collect([load_run(tmp_path / "toy" / "one")], Paper())}
    assert (rows["T=15 K=1, all", "error"].mean, rows["T=15 K=1, all", "error"].ci95) == (0.5, 0.1)
    assert rows["T=5 K=1, only w", "variance"].mean is None
    assert rows["all", "error"].mean == 0.5


@pytest.mark.parametrize(
    ("preset", "named", "paper"),
    [
        ("paper", {}, 0.45),
        ("quick", {}, None),
        ("tuned", {"preset": "tuned"}, 0.45),
        ("paper", {"preset": "tuned"}, None),
    ],
)
def test_the_paper_is_compared_with_runs_of_one_preset_only(tmp_path, preset, named, paper):
    write_run(tmp_path / "toy" / "one", config={**CONFIG, "preset": preset})
    references = (Reference("toy", ("sigma-maml",), "all", "error", paper=0.45, **named),)
    rows = collect([load_run(tmp_path / "toy" / "one")], Paper(references))
    assert {row.paper for row in rows if (row.condition, row.metric) == ("all", "error")} == {paper}


def test_a_result_may_hold_less(tmp_path):
    write_run(tmp_path / "toy" / "one", result={"seconds": 3})
    assert [(row.metric, row.mean) for row in collect([load_run(tmp_path / "toy" / "one")], Paper())] == [
        ("seconds", 3)
    ]
