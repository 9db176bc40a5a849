"""Several runs side by side on one page."""

import json

import pytest
from report_runs import Page, accuracy, all_null, free, make_result, make_rows, make_run, read_csv, with_conditions

pytest.importorskip("matplotlib", reason="Reports need matplotlib.")

from shrinx.report.write import write_comparison, write_report
from shrinx.runs.errors import UserError


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


def test_comparison_of_many_modules_and_no_variances(tmp_path):
    paths = [
        make_run(tmp_path / "many", make_result(num_modules=123), make_rows(num_modules=123)),
        make_run(tmp_path / "free", free()),
        make_run(tmp_path / "null", all_null(make_result()), all_null(make_rows())),
    ]
    assert Page(write_comparison(paths, tmp_path / "out").read_text()).open == []


def test_conditions_of_one_run(tmp_path):
    run = make_run(tmp_path / "run", with_conditions(), make_rows(seeds=18))
    text = Page(write_report(run).read_text()).text
    assert {"slice-k-1", "slice-t-15"} <= {path.stem for path in (run / "figures").iterdir()}
    assert "Where no condition is named, it is T = 15, K = 1." in text
    assert "averaged over six conditions with three seeds each" in text
    assert "T = 15, K = 3 0.3800 ± 0.0050" in text
    rows = read_csv((run / "tables" / "conditions.csv").read_text())
    assert len(rows) == 6 * 3
    assert float(rows[-1]["mean"]) == pytest.approx(0.5)
    assert "query_loss T=5 K=1 seed 2" in (run / "tables" / "training.csv").read_text().splitlines()[0]


def test_conditions_of_several_runs_share_their_figures(tmp_path):
    paths = [make_run(tmp_path / f"run-{shift}", with_conditions(shift=shift)) for shift in (0.0, 0.1)]
    page = write_comparison([*paths, make_run(tmp_path / "other")], tmp_path / "out")
    figures = {path.stem: path.read_text() for path in (tmp_path / "out" / "figures").iterdir()}
    for name in ("slice-k-1", "slice-t-15"):
        assert "run-0.0" in figures[name]
        assert "run-0.1" in figures[name]
        assert "other" not in figures[name]
    assert "T = 5, K = 1 0.2600 ± 0.0050 0.3600 ± 0.0050" in Page(page.read_text()).text
    assert {row["run"] for row in read_csv((tmp_path / "out" / "tables" / "conditions.csv").read_text())} == {
        "run-0.0",
        "run-0.1",
    }


def test_runs_of_other_conditions_of_the_same_method_are_one_line(tmp_path):
    """As long as nothing but the conditions, and the rates of each, differs, and none is in both."""
    others = ((5, 3), (10, 3), (20, 3))
    paths = [
        make_run(tmp_path / "plain", with_conditions(), config={"num_alphabets": 15}),
        make_run(tmp_path / "plain-others", with_conditions(pairs=others), config={"num_alphabets": 5}),
        make_run(tmp_path / "learned", with_conditions(shift=0.1), config={"mean_rate": 0.0, "mean_rates": [2.0] * 6}),
        make_run(
            tmp_path / "learned-others",
            with_conditions(pairs=others, shift=0.1),
            config={"mean_rate": 0.0, "mean_rates": [1.0] * 3},
        ),
        make_run(tmp_path / "again", with_conditions(pairs=others), config={"num_alphabets": 5}),
    ]
    text = Page(write_comparison(paths[:4], tmp_path / "out").read_text()).text
    assert "Condition plain + plain-others learned + learned-others T = 5, K = 1" in text
    assert "T = 20, K = 3 0.4300 ± 0.0050 0.5300 ± 0.0050" in text
    figure = (tmp_path / "out" / "figures" / "slice-k-3.svg").read_text()
    assert "plain + plain-others" in figure
    assert "learned + learned-others" in figure
    text = Page(write_comparison([*paths[:2], paths[4]], tmp_path / "twice").read_text()).text
    assert "Condition plain + plain-others again" in text


def test_conditions_of_two_runs_are_compared_seed_by_seed(tmp_path):
    plain, learned = with_conditions(), with_conditions()
    for condition, better in zip(plain["conditions"], learned["conditions"], strict=True):
        condition["test"]["all"]["values"] = [0.2, 0.5, 0.8]
        better["test"]["all"]["values"] = [0.31, 0.6, 0.89]
    paths = [make_run(tmp_path / name, result) for name, result in (("learned", learned), ("plain", plain))]
    text = Page(write_comparison(paths, tmp_path / "out").read_text()).text
    assert "learned − plain, seed by seed" in text
    assert "T = 5, K = 1 0.2600 ± 0.0050 0.2600 ± 0.0050 0.100 ± 0.025" in text
    learned["conditions"][0]["test"]["all"]["values"] = [0.3]
    fewer = make_run(tmp_path / "fewer", learned)
    text = Page(write_comparison([fewer, paths[1]], tmp_path / "out").read_text()).text
    assert "T = 5, K = 1 0.2600 ± 0.0050 0.2600 ± 0.0050 – T = 10" in text


def test_any_two_of_several_runs_are_compared_seed_by_seed(tmp_path):
    paths = []
    for name, values in (("first", [0.31, 0.6, 0.89]), ("second", [0.2, 0.5, 0.8]), ("third", [0.2, 0.5])):
        result = accuracy()
        result["test"]["all"] = {"mean": 0.5, "ci95": 0.7, "over": "seeds", "values": values}
        paths.append(make_run(tmp_path / name, result))
    other = make_run(tmp_path / "other", accuracy(), config={"num_test_tasks": 7})
    text = Page(write_comparison([*paths, other], tmp_path / "out").read_text()).text
    assert "first − second 0 ± 0 0.100 ± 0.025 0 ± 0 " in text
    # Other numbers of seeds leave a gap, other held-out tasks are not compared.
    assert "first − third 0 ± 0 – 0 ± 0 " in text
    assert "first − other" not in text
    assert (
        "Differences, seed by seed" not in Page(write_comparison([paths[0], other], tmp_path / "out").read_text()).text
    )


def test_intervals_of_different_kinds_are_told_apart(tmp_path):
    several, single = make_result(), make_result(seeds=1)
    single["test"]["all"]["over"] = single["test"]["selected"]["over"] = "tasks"
    paths = [
        make_run(tmp_path / "several", several),
        make_run(tmp_path / "single", single, make_rows(seeds=1), seeds=1),
    ]
    text = Page(write_comparison(paths, tmp_path / "out").read_text()).text
    assert "several: ± is half the 95 % interval of the mean over three seeds." in text
    assert "single: ± is half the 95 % interval of the mean over held-out tasks" in text


def test_the_best_of_two_is_told_by_seeds_where_intervals_overlap(tmp_path):
    def page(**settings):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        paths = []
        for name, values in (("plain", [0.2, 0.5, 0.8]), ("learned", [0.31, 0.6, 0.89])):
            result = accuracy()
            result["test"]["all"] = {"mean": sum(values) / 3, "ci95": 0.7, "over": "seeds", "values": values}
            paths.append(make_run(folder / name, result))
        config = json.loads((paths[0] / "config.json").read_text())
        config["config"] |= settings
        (paths[0] / "config.json").write_text(json.dumps(config))
        return Page(write_comparison(paths, folder / "out").read_text()).text

    ahead, overlaps = (
        "Seed by seed, it is ahead of plain by 0.100 ± 0.025.",
        "Its interval overlaps with that of plain.",
    )
    assert ahead in page()
    assert overlaps not in page()
    assert ahead not in page(seed=7)
    assert overlaps in page(num_test_tasks=7)
    assert overlaps in page(queries_at_once=1)


def test_runs_of_different_experiments_are_not_ranked(tmp_path):
    paths = [
        make_run(tmp_path / "many", with_conditions(), make_rows(seeds=18)),
        make_run(tmp_path / "one", accuracy()),
    ]
    config = json.loads((paths[1] / "config.json").read_text())
    (paths[1] / "config.json").write_text(json.dumps(config | {"experiment": "other"}))
    text = Page(write_comparison(paths, tmp_path / "out").read_text()).text
    assert "is best" not in text
    assert "Where no condition of many is named, it is T = 15, K = 1." in text
    assert "Held-out scores in every condition of many" in text


@pytest.mark.parametrize("instances", [1, 3])
def test_runs_are_ranked_by_scores_of_the_same_condition(tmp_path, instances):
    """What a run of many conditions is scored by is one of them."""
    other = with_conditions() | {"reference": {"num_alphabets": 15, "num_instances": instances}}
    results = {"few": with_conditions(), "many": other}
    paths = [make_run(tmp_path / name, result, make_rows(seeds=18)) for name, result in results.items()]
    assert ("is best" in Page(write_comparison(paths, tmp_path / "out").read_text()).text) == (instances == 1)


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
    with pytest.raises(UserError, match="named twice"):
        write_comparison([run, other, tmp_path / "other" / ".." / "run"], tmp_path / "out")
