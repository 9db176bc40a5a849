"""The pages in a real browser: nothing fails, and all of it fits a phone."""

import html
import json
import re
import shutil
import subprocess

import pytest
from report_runs import CASES, Page, make_run

pytest.importorskip("matplotlib", reason="Reports need matplotlib.")

from shrinx.report.write import write_comparison, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

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
