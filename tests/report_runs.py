"""Synthetic runs, with every absent, odd and hostile thing that a folder can hold, and a reader of their pages."""

import csv
import io
import json
from html.parser import HTMLParser

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
    result = make_result(seeds=seeds) if result is None else result
    (path / "result.json").write_text(json.dumps(result | {"experiment": about["experiment"]}))
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


SLICES = ((5, 1), (10, 1), (15, 1), (20, 1), (15, 3), (15, 15))


def with_conditions(names=("all", "selected", "output"), shift=0.0, pairs=SLICES):
    """Accuracies in the conditions of the paper's two slices, the more the larger T and K are."""
    found = [
        {
            "num_alphabets": alphabets,
            "num_instances": instances,
            "test": {name: score(0.2 + 0.01 * (alphabets + instances) + shift, seeds=3) for name in names},
            "selected": ["layers/0"],
            "variances": {"layers/0": 1.0, "layers/1": None},
        }
        for alphabets, instances in pairs
    ]
    return accuracy() | {"conditions": found, "reference": {"num_alphabets": 15, "num_instances": 1}}


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
    "conditions": lambda: (with_conditions(), make_rows(seeds=18), 3),
    "hostile conditions": lambda: (with_conditions(("all", HOSTILE)), make_rows(), 3),
    "null conditions": lambda: (all_null(with_conditions()), make_rows(), 3),
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


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))
