"""What reports say, tabulate and draw is what the runs measured, and no more."""

import base64

import pytest
from report_runs import Page, make_result, make_rows, make_run, read_csv, without

pytest.importorskip("matplotlib", reason="Reports need matplotlib.")

from matplotlib.figure import Figure

from shrinx.report import comparison, held_out_figures, module_figures, sentences, tables, training_figures
from shrinx.report.load import load_run
from shrinx.report.write import write_report


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
    figure = module_figures.variances(result)
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
    assert module_figures.scores(result).axes[0].get_xscale() == "log"
    narrow = result | {"test": without(result["test"], "before")}
    assert module_figures.scores(narrow).axes[0].get_xscale() == "linear"


def scored(mean, width=0.2):
    """Accuracies near the end of what there is, with intervals beyond it."""
    every = {"mean": mean, "ci95": width, "over": "seeds", "values": [mean] * 3}
    result = make_result() | {"metric": {"name": "accuracy", "lower_is_better": False}}
    result["test"] = {"all": every, "selected": every, "only": {}}
    series = {"mean": [mean] * 6 + [0.5], "ci95": [width] * 7}
    result["curves"] |= {"series": {"all": series, "selected": series}}
    return result


@pytest.mark.parametrize("mean", [0.0, 0.97, 1.0])
def test_an_axis_of_accuracies_ends_at_zero_and_one(tmp_path, mean):
    result = scored(mean)
    runs = [load_run(make_run(tmp_path / name, result)) for name in ("a", "b")]
    for drawn, which in (
        (module_figures.scores(result), "x"),
        (held_out_figures.adaptation(result), "y"),
        (comparison.scores(runs, ["a", "b"]), "x"),
        (comparison.adaptation(runs, ["a", "b"]), "y"),
    ):
        low, high = getattr(drawn.axes[0], f"get_{which}lim")()
        assert 0 <= low < mean or mean == low == 0
        assert low < high <= 1
    errors = result | {"metric": {"name": "error", "lower_is_better": True}}
    assert module_figures.scores(errors).axes[0].get_xlim()[0] < mean - 0.2


def test_the_horizon_is_marked():
    axes = held_out_figures.adaptation(make_result()).axes[0]
    assert [5, 5] in [list(line.get_xdata()) for line in axes.lines]
    assert axes.get_xlim() == (0, 50)


def test_thinning_keeps_the_last_row():
    rows = make_rows(count=100)
    for most in (1, 7, 50, 1000):
        kept = training_figures.thin(rows, most)
        assert len(kept) <= most
        assert kept[-1] == rows[-1]


def test_extra_figures_do_not_overwrite_others():
    taken = {"figures": [{"name": name} for name in ("scores", "Width", "width", "../..", "")]}
    assert tables.extra_names(taken) == ["scores-2", "width", "width-2", "figure", "figure-2"]
