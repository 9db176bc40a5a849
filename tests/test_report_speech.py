"""Reports of speech runs: players, spectrograms, curves and measures, of one run and of several, and in a browser."""

import base64
import html
import json
import re
import shutil
import struct

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="Reports need matplotlib.")

from report_runs import make_run
from speech_files import HOP, RATE, tone
from test_report_browser import browse, needs_browser, page_errors

from shrinx.data.audio import decode
from shrinx.report import players
from shrinx.report.load import load_run
from shrinx.report.players import g711, wav_uri
from shrinx.report.speech import judged, spectrogram
from shrinx.report.write import write_comparison, write_report
from shrinx.runs.errors import UserError

FRAMES = 30
METHODS = ("all-80", "selected-80", "all-40")


def make_result(methods):
    steps = [0, 1, 10]
    names = [f"{method.partition('-')[0]}, {method.partition('-')[2]} utterances" for method in methods]
    score = {"mean": 2.0, "ci95": 0.1, "over": "tasks", "values": [2.0]}
    curve = {"mean": [3, 2, 1], "ci95": [0.1] * 3}
    return {
        "metric": {"name": "negative log-likelihood (nats per sample)", "lower_is_better": True},
        "seconds": 1.0,
        "fraction": 0.2,
        "modules": [{"name": "input", "size": 3, "variance": 1.0, "variances": [1.0], "selected": True}],
        "test": {"before": score, "all": score, "selected": score, "subsets": dict.fromkeys(names, score)},
        "curves": {
            "steps": steps,
            "horizon": 1,
            "series": dict.fromkeys(names, curve),
        },
        "figures": [
            {
                "name": "blocks",
                "title": "Variance of each layer",
                "caption": "By block.",
                "series": [{"label": "skip", "x": [0, 1], "y": [1.0, 2.0]}],
            }
        ],
        "speech": {"stops": dict.fromkeys(names, 10)},
    }


def speech_run(path, methods=METHODS, *, speakers=(7, 3), strings=1, measured=True, algorithm=None):
    make_run(path, make_result(methods), [], seeds=1)
    if algorithm is not None:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"experiment": "speech", "algorithm": algorithm}))
    (path / "voices").mkdir()
    common = {
        "speakers": np.array(speakers),
        "lengths": np.full((len(speakers), strings), FRAMES),
        "digits": np.array([[[string, 1] for string in range(strings)] for _ in speakers]),
    }
    for number, method in enumerate(("reference", *methods)):
        samples = np.stack([[tone(number, FRAMES + 5, 0) for _ in range(strings)] for _ in speakers])
        name = method if method == "reference" else f"{method}-spoken-test00"
        np.savez(path / "voices" / f"{name}.npz", samples=samples, **common)
    if measured:
        values = [0.5 + 0.1 * row for row in range(len(speakers))]
        score = {"mean": 0.5, "ci95": 0.1, "values": values}
        judgements = {"similarity": ("same speaker", "other speakers", *methods), "predicted-mos": ("real", *methods)}
        measures = {measure: dict.fromkeys(names, score) for measure, names in judgements.items()}
        (path / "measures.json").write_text(json.dumps(measures))
    return path


def sounds(text):
    """The wav files inside a page."""
    return [base64.b64decode(found) for found in re.findall(r'<audio [^>]*src="data:audio/wav;base64,([^"]+)"', text)]


def telephone(levels):
    """G.711's own decoder."""
    bits = 255 - levels.astype(int)
    size = ((((bits & 15) << 3) + 132) << ((bits >> 4) & 7)) - 132
    return np.where(bits & 128, -size, size) / 32768


def test_sound_inside_a_page_is_the_voice(tmp_path):
    text = write_report(speech_run(tmp_path / "run")).read_text()
    found = sounds(text)
    assert len(found) == 2 * (1 + len(METHODS))
    for number, wav in enumerate(found[:4]):
        kind, channels, rate = struct.unpack("<HHI", wav[20:28])
        assert (wav[:4], wav[8:12], kind, channels, rate) == (b"RIFF", b"WAVE", 7, 1, RATE)
        assert len(wav) == 8 + struct.unpack("<I", wav[4:8])[0]
        data = np.frombuffer(wav[wav.index(b"data") + 8 :], np.uint8)
        # In the order of the page: the real speaker, 80 utterances, 40.
        np.testing.assert_allclose(telephone(data), decode(tone(number, FRAMES, 0)[: FRAMES * HOP]), atol=0.02)


def test_loudest_and_odd_waves():
    wave = np.linspace(-1, 1, 1001).astype(np.float32)
    np.testing.assert_allclose(telephone(g711(wave)), wave, atol=0.021)
    assert base64.b64decode(wav_uri(wave).partition(",")[2])[-1] == 0  # Files are filled up to an even size.


def test_one_run_has_numbers_under_every_player(tmp_path):
    run = speech_run(tmp_path / "run")
    page = write_report(run)
    text = html.unescape(page.read_text())
    assert text.count("<h3>Speaker ") == 2
    assert "<h3>Speaker 7: 0 1</h3>" in text
    assert "similarity 0.5, predicted mos 0.5" in text
    assert "selected modules, 80 utterances" in text
    figures = set(re.findall(r'<figure id="figure-([^"]+)"', text))
    assert {"steps", "similarity", "spectrograms", "blocks"} <= figures
    assert "adaptation" not in figures
    header, rows = judged([load_run(run)])
    assert header[2:] == ["Similarity", "Predicted MOS", "Digits understood"]
    assert [row[0] for row in rows][:3] == [
        "all modules, 80 utterances",
        "selected modules, 80 utterances",
        "all modules, 40 utterances",
    ]
    assert "Lowest and last: all, 80 utterances 1 and 1;" in text
    table = (run / "tables" / "measures.csv").read_text().splitlines()
    assert table[0] == "run,measure,voice,mean,ci95,speaker 0,speaker 1"
    assert table[1] == "run,similarity,same speaker,0.5,0.1,0.5,0.6"
    assert rows[0] == [rows[0][0], "2.00 ± 0.10", "0.50 ± 0.10", "0.50 ± 0.10", "–"]
    assert [row[0] for row in rows][3:] == ["real speaker", "real, same speaker", "real, other speakers"]
    before = page.read_bytes()
    assert write_report(run).read_bytes() == before


def test_several_runs_speak_the_same_strings(tmp_path):
    runs = [
        speech_run(tmp_path / "sigma"),
        speech_run(tmp_path / "reptile", ("all-80",), speakers=(3, 7), measured=False),
        speech_run(tmp_path / "strangers", ("all-80",), speakers=(1, 2)),
    ]
    text = html.unescape(write_comparison(runs, tmp_path / "all.html").read_text())
    # Two of sigma, one of reptile, and the real one; strangers know neither speaker.
    assert len(sounds(text)) == 2 * 4
    assert text.count("<p>sigma, selected modules</p>") == 2
    assert text.count("<p>reptile</p>") == 2
    assert "<p>strangers</p>" not in text
    figures = re.findall(r'<figure id="figure-([^"]+)"', text)
    assert {"steps-80", "steps-40", "blocks-sigma", "blocks-reptile", "similarity", "spectrograms"} <= set(figures)
    assert len(set(figures)) == len(figures)


def test_the_page_says_which_goals_are_missed(tmp_path):
    paths = [speech_run(tmp_path / name, algorithm=name) for name in ("sigma-reptile", "reptile", "sea-all")]
    shutil.rmtree(paths[0] / "voices")  # Numbers outlive the sound.
    text = write_comparison(paths, tmp_path / "all").read_text()
    assert "What must hold on test speakers (seed 0; sigma-reptile, reptile, sea-all)" in text
    row = r'<tr( class=marked)?><th scope="row">([^<]+)</th><td>{}[^<]*</td><td>([^<]*)</td></tr>'
    similarity = re.search(row.format("Similarity to the real speaker, 80 utterances"), text)
    assert similarity.groups()[:2] == (" class=marked", "missed")
    assert "σ-Reptile: 0.50\u00a0±\u00a00.10;" in similarity[3]
    assert similarity[3].endswith("not σ-Reptile &gt; SEA-All; the real speaker&#x27;s own 0.5 is 0 above σ-Reptile")
    likelihood = re.search(row.format("Negative log-likelihood after adapting to 80 utterances"), text)
    assert likelihood.groups()[:2] == (None, "not measured")
    assert likelihood[3].endswith("SEA-Emb: no run of sea-emb")
    table = (tmp_path / "all" / "tables" / "goals.csv").read_text().splitlines()
    assert table[0] == "seed,goal,verdict,measured"
    assert "0,σ-Reptile stores at most 20 % of the parameters per voice,met,20 %" in table


def test_a_page_holds_no_more_sound_than_it_may(tmp_path, monkeypatch):
    run = speech_run(tmp_path / "run", speakers=(1, 2, 3, 4, 5, 6), strings=3)
    text = write_report(run).read_text()
    assert text.count("<h3>Speaker ") == players.MOST_SPEAKERS * players.MOST_STRINGS
    monkeypatch.setattr(players, "LARGEST", 40_000)
    text = write_report(run).read_text()
    assert text.count("<h3>Speaker ") == 2
    assert "8 more strings are in the folders of the runs" in text
    assert sum(len(base64.b64encode(sound)) for sound in sounds(text)) < 40_000


def test_a_run_that_nobody_judged_is_heard(tmp_path):
    run = speech_run(tmp_path / "run", measured=False)
    text = write_report(run).read_text()
    assert len(sounds(text)) == 8
    assert judged([load_run(run)]) == ([], [])
    assert 'id="figure-similarity"' not in text


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("measures.json", b"{", "measures.json cannot be read"),
        ("measures.json", b'{"similarity": {"all-80": 3}}', "is not what shrinx.measures writes"),
        ("voices/reference.npz", b"no zip", "voices holds a file that cannot be read"),
        ("voices/all-80-spoken-test00.npz", b"", "voices holds a file that cannot be read"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path, file, content, message):
    run = speech_run(tmp_path / "run")
    (run / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        write_report(run)


def test_a_spectrogram_shows_where_the_tone_is():
    decibels, extent = spectrogram(decode(tone(5, 60, 0)))
    kilohertz = np.argmax(decibels, axis=0) * extent[3] / len(decibels)
    np.testing.assert_allclose(kilohertz, 3.0, atol=0.1)
    assert decibels.max() == 0
    assert spectrogram(np.zeros(10, np.float32))[0].shape[1] == 1


LISTEN = """<!DOCTYPE html><body><iframe id="page" width="375" height="700" src="{page}"></iframe>
<pre id="measured"></pre>
<script>
document.getElementById("page").onload = () => {{
  const inner = document.getElementById("page").contentDocument;
  const players = [...inner.querySelectorAll("audio")];
  const measure = () => {{ document.getElementById("measured").textContent = JSON.stringify({{
    scroll: inner.documentElement.scrollWidth,
    seconds: players.map(player => player.duration),
    errors: players.map(player => player.error && player.error.message).filter(Boolean),
  }}); }};
  const ready = player => player.readyState > 0 ? 0 : new Promise(done => {{
    player.onloadedmetadata = player.onerror = done; }});
  Promise.all(players.map(ready)).then(measure);
}};
</script></body>"""


@pytest.mark.slow
@needs_browser
def test_in_a_browser_it_can_be_heard(tmp_path):
    page = write_comparison([speech_run(tmp_path / name) for name in ("one", "two")], tmp_path / "out" / "all.html")
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(LISTEN.format(page=page.as_uri()))
    opened = browse(tmp_path, wrapper.as_uri(), "--allow-file-access-from-files", "--dump-dom")
    assert page_errors(opened.stderr) == []
    text = re.search(r'<pre id="measured">(.*?)</pre>', opened.stdout, re.DOTALL)[1]
    measured = json.loads(html.unescape(text))
    assert measured["errors"] == []
    assert measured["seconds"] == pytest.approx([FRAMES * HOP / RATE] * 2 * 5, rel=0.01)
    assert measured["scroll"] <= 375
