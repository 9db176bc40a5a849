"""Downloads, from a server on this machine."""

import hashlib
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from data_files import BACKGROUND, EVALUATION, write_zip

from shrinx import cli_data
from shrinx.cli import main
from shrinx.data import load_omniglot
from shrinx.data.download import download
from shrinx.runs.errors import UserError

CONTENT = np.random.RandomState(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves files by name; `ranges` says whether it sends parts, `cut` where it breaks off."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.cut = files, True, None
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        content = self.server.files.get(self.path[1:])
        if content is None:
            return self.send_error(404)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server({"file": CONTENT}) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_reports_and_leaves_one_file(server, tmp_path):
    seen = []
    download(server.url + "file", tmp_path / "new" / "file", sha256=SHA256, report=lambda *now: seen.append(now))
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert os.listdir(tmp_path / "new") == ["file"]
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 3


def test_a_file_that_is_there_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    download(server.url + "file", tmp_path / "file", sha256=SHA256)
    (tmp_path / "file").write_bytes(b"something else")
    assert server.requests == []
    download(server.url + "file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    server.cut = 100_000
    with pytest.raises(UserError, match=r"ended after 100,000 of 300,000 bytes; run the same command again"):
        download(server.url + "file", tmp_path / "file", sha256=SHA256)
    assert not (tmp_path / "file").exists()
    server.cut, seen = None, []
    download(server.url + "file", tmp_path / "file", sha256=SHA256, report=lambda *now: seen.append(now))
    assert server.requests == [("/file", None), ("/file", "bytes=100000-")]
    assert seen[0] == (100_000, 300_000)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT[:1000], b"x" * 1000, b"x" * 400_000], ids=["good", "bad", "too long"])
@pytest.mark.parametrize("ranges", [True, False])
def test_leftovers_never_end_up_in_the_file(server, tmp_path, part, ranges):
    server.ranges = ranges
    (tmp_path / "file.part").write_bytes(part)
    if ranges and part == b"x" * 1000:  # The rest is sent, the whole is wrong.
        with pytest.raises(UserError, match="another checksum"):
            download(server.url + "file", tmp_path / "file", sha256=SHA256)
        assert os.listdir(tmp_path) == []
    download(server.url + "file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["file"]


def test_a_complete_part_needs_no_network(tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    download("http://127.0.0.1:1/file", tmp_path / "file", sha256=SHA256)
    assert os.listdir(tmp_path) == ["file"]


def test_a_wrong_file_is_not_kept(server, tmp_path):
    with pytest.raises(UserError, match=r"another checksum .* deleted; try again, or .*`shrinx data prepare`"):
        download(server.url + "file", tmp_path / "file", sha256="0" * 64)
    assert os.listdir(tmp_path) == []


def test_an_http_error_is_one_sentence(server, tmp_path):
    with pytest.raises(UserError, match=r"answered 404 Not Found; try again later"):
        download(server.url + "nothing", tmp_path / "file", sha256=SHA256)


def test_no_network_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
        with pytest.raises(UserError, match=r"No connection to http.*; check the network"):
            download(url, tmp_path / "file", sha256=SHA256)


def test_fetch_then_load(server, tmp_path, monkeypatch, capsys):
    for part, files in (("background", BACKGROUND), ("evaluation", EVALUATION)):
        server.files[f"images_{part}.zip"] = write_zip(tmp_path / f"{part}.zip", files).read_bytes()
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in server.files.items() if name != "file"}
    monkeypatch.setattr(cli_data, "HOME", server.url)
    monkeypatch.setattr(cli_data, "ARCHIVES", checksums)
    monkeypatch.setenv("SHRINX_DATA", str(tmp_path / "data"))
    assert main(["data", "fetch", "omniglot"]) == 0
    captured = capsys.readouterr()
    assert "omniglot28.npz: 5 characters." in captured.out
    assert "The whole of Omniglot has 1623" in captured.out
    assert "images_background.zip" in captured.err
    assert load_omniglot().images.shape == (5, 20, 28, 28)
    server.requests.clear()
    assert main(["data", "fetch", "omniglot"]) == 0
    assert "is there already" in capsys.readouterr().out
    assert server.requests == []
    (tmp_path / "data" / "omniglot28.npz").write_bytes(b"damaged")
    assert main(["data", "fetch", "omniglot"]) == 2
    assert "fetch omniglot --replace" in capsys.readouterr().err
    assert main(["data", "fetch", "omniglot", "--replace"]) == 0
    assert load_omniglot().images.shape == (5, 20, 28, 28)
