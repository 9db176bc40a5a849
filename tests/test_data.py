"""Where data lives, and the command `shrinx data`."""

import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    BACKGROUND,
    EVALUATION,
    check_pictures,
    image_files,
    omniglot_arrays,
    write_caches,
    write_files,
    write_lists,
    write_zip,
)

from shrinx import cli_data
from shrinx.cli import main
from shrinx.data import data_folder, load_miniimagenet, load_omniglot
from shrinx.runs.errors import UserError


@pytest.mark.parametrize(
    ("argument", "shrinx_data", "cache", "expected"),
    [
        ("/argument", "/named", "/cache", "/argument"),
        ("~/argument", None, None, "/home/somebody/argument"),
        (None, "/named", "/cache", "/named"),
        (None, "~/named", None, "/home/somebody/named"),
        (None, "", "/cache", "/cache/shrinx"),
        (None, None, "/cache", "/cache/shrinx"),
        (None, None, "relative", "/home/somebody/.cache/shrinx"),
        (None, None, None, "/home/somebody/.cache/shrinx"),
    ],
)
def test_the_data_folder(monkeypatch, argument, shrinx_data, cache, expected):
    monkeypatch.setenv("HOME", "/home/somebody")
    for name, value in (("SHRINX_DATA", shrinx_data), ("XDG_CACHE_HOME", cache)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert data_folder(argument) == Path(expected)


@pytest.mark.parametrize(
    ("load", "file", "command"),
    [
        (load_omniglot, "omniglot28.npz", "shrinx data fetch omniglot"),
        (load_miniimagenet, "miniimagenet.json", "shrinx data prepare miniimagenet --from FOLDER --splits FOLDER"),
    ],
)
def test_a_missing_file_names_the_command_that_gets_it(tmp_path, load, file, command):
    with pytest.raises(UserError, match=command) as raised:
        load(tmp_path)
    assert str(tmp_path / file) in str(raised.value)


def shrinx(capsys, *arguments: object) -> tuple[int, str, str]:
    try:
        code = main(["data", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_prepare_replaces_only_when_told(tmp_path, capsys):
    archive = write_zip(tmp_path / "a.zip", BACKGROUND)
    arguments = ("prepare", "omniglot", "--from", archive, "--data-dir", tmp_path)
    assert shrinx(capsys, *arguments)[0] == 0
    before = (tmp_path / "omniglot28.npz").read_bytes()
    write_zip(archive, EVALUATION)
    code, _, err = shrinx(capsys, *arguments)
    assert (code, "add --replace" in err) == (2, True)
    assert (tmp_path / "omniglot28.npz").read_bytes() == before
    assert shrinx(capsys, *arguments, "--replace")[0] == 0
    assert load_omniglot(tmp_path).alphabet.tolist() == ["Tengwar", "Tengwar"]


def test_list_says_what_is_there_and_how_to_get_the_rest(tmp_path, capsys):
    code, out, _ = shrinx(capsys, "list", "--data-dir", tmp_path)
    assert code == 0
    assert str(tmp_path) in out
    assert f"missing; get it with `shrinx data fetch omniglot --data-dir {tmp_path}`" in out
    assert f"get it with `shrinx data prepare-speech AudioMNIST/data {tmp_path / 'audiomnist16k.npz'}`" in out
    np.savez(tmp_path / "omniglot28.npz", **omniglot_arrays(100))
    (tmp_path / "miniimagenet-train.npy").touch()
    out = shrinx(capsys, "list", "--data-dir", tmp_path)[1]
    assert "1.6 MB (omniglot28.npz)" in out
    assert "incomplete; get it with `shrinx data prepare miniimagenet" in out


def test_miniimagenet_by_the_command(tmp_path, capsys):
    source, lists = write_files(tmp_path / "images", image_files("flat")), write_lists(tmp_path / "lists")
    code, out, _ = shrinx(
        capsys, "prepare", "miniimagenet", "--from", source, "--splits", lists, "--data-dir", tmp_path
    )
    assert code == 0
    assert "miniimagenet-train.npy: 2 classes of 3 images." in out
    check_pictures(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: {list,fetch,prepare,prepare-speech}"),
        (("get", "omniglot"), "invalid choice: 'get'"),
        (("fetch",), "the following arguments are required: name"),
        (("fetch", "cifar"), "choose from"),
        (("fetch", "miniimagenet"), "no public home to fetch them from; get a copy and run `shrinx data prepare mini"),
        (("prepare", "omniglot"), "the following arguments are required: --from"),
        (("prepare", "omniglot", "--from", "nothing.zip"), "There is no nothing.zip"),
        (("prepare", "omniglot", "--from", "a.zip", "--splits", "b"), "`--splits` is for miniimagenet"),
        (("prepare", "miniimagenet", "--from", "a", "b"), "takes one folder for miniimagenet, got 2 paths"),
        (("prepare", "miniimagenet", "--from", "a"), "There is no folder a."),
        (("prepare", "miniimagenet", "--from", "."), "if it holds images, add `--splits FOLDER`"),
        (("prepare", "miniimagenet", "--from", "caches", "--splits", "."), "split already; leave `--splits` out"),
        (("prepare", "miniimagenet", "--from", "one"), "lacks mini-imagenet-cache-val.pkl; all three"),
    ],
)
def test_wrong_usage_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHRINX_DATA", str(tmp_path / "data"))
    write_caches(tmp_path / "caches")
    write_files(tmp_path / "one", {"mini-imagenet-cache-train.pkl": b""})
    code, out, err = shrinx(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path, capsys):
    archive = write_zip(tmp_path / "a.zip", BACKGROUND)
    code, _, err = shrinx(capsys, "prepare", "omniglot", "--from", archive, "--data-dir", archive / "data")
    assert code == 2
    assert "shrinx: Cannot read or write" in err
    assert "mend that, or name another" in err


@pytest.mark.parametrize("arguments", [("fetch", "omniglot"), ("prepare", "omniglot", "--from", "a.zip")])
def test_pillow_is_asked_for_before_the_work(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr(cli_data, "download", lambda *_, **__: pytest.fail("downloaded"))
    code, _, err = shrinx(capsys, *arguments, "--data-dir", tmp_path)
    assert code == 2
    assert "pip install 'shrinx[images]'" in err
