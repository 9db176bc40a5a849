"""Omniglot: from archives to a file, and from the file to arrays."""

import numpy as np
import pytest
from data_files import BACKGROUND, EVALUATION, drawing, omniglot_arrays, png, write_files, write_zip

from shrinx.data import load_omniglot
from shrinx.data.omniglot_source import prepare_omniglot, shrink_drawing
from shrinx.runs.errors import UserError


def weights(by_area: bool) -> np.ndarray:
    """How much each of 105 pixels counts in each of 28: by the area they share, or alike if its centre is inside."""
    left, right = np.arange(28)[:, None] * 3.75, np.arange(1, 29)[:, None] * 3.75
    pixel = np.arange(105)[None]
    if by_area:
        shared = np.clip(np.minimum(pixel + 1, right) - np.maximum(pixel, left), 0, None)
    else:
        shared = ((left < pixel + 0.5) & (pixel + 0.5 <= right)).astype(float)
    return shared / shared.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_small_pixel_is_the_mean_of_the_large_ones_it_covers(seed):
    ink = drawing(seed)
    small = shrink_drawing(png(ink), "name").astype(float)
    box, area = (weight @ (255.0 * ink) @ weight.T for weight in (weights(by_area=False), weights(by_area=True)))
    assert np.abs(small - box).max() <= 1  # Two roundings, one per direction.
    assert np.abs(small - area).mean() < 4  # Pixels on the border count in full or not at all: the shape stays.
    assert small.max() > 200


@pytest.mark.parametrize("seed", range(3))
def test_shrinking_is_the_exact_area_where_pixels_do_not_straddle_the_border(seed):
    # 15 large pixels are 4 small ones.
    blocks = np.kron(np.random.RandomState(seed).rand(7, 7) < 0.5, np.ones((15, 15), bool))
    area = weights(by_area=True) @ (255.0 * blocks) @ weights(by_area=True).T
    np.testing.assert_allclose(shrink_drawing(png(blocks), "name"), area, atol=1e-9)


@pytest.mark.parametrize("form", ["zips", "folder of both", "two folders", "zip and folder", "with other files"])
def test_omniglot_from_zips_and_folders(tmp_path, form):
    both = write_files(tmp_path / "both", BACKGROUND | EVALUATION)
    zips = [write_zip(tmp_path / "a.zip", EVALUATION), write_zip(tmp_path / "b.zip", BACKGROUND)]
    other = {"__MACOSX/images_background/Latin/character01/._0001_01.png": b"?", "images_background/notes.png": b"?"}
    sources = {
        "zips": zips,
        "folder of both": [both],
        "two folders": [both / "images_background", both / "images_evaluation"],
        "zip and folder": [zips[1], both / "images_evaluation"],
        "with other files": [write_zip(tmp_path / "c.zip", other | EVALUATION | BACKGROUND)],
    }[form]
    seen = []
    report = lambda *now: seen.append(now)  # noqa: E731
    assert prepare_omniglot(sources, tmp_path / "out" / "omniglot28.npz", report=report) == 5
    assert seen[-1] == (100, 100)
    data = load_omniglot(tmp_path / "out")
    assert data.alphabet.tolist() == ["Greek", "Latin", "Latin", "Tengwar", "Tengwar"]
    assert data.character.tolist() == [f"character{number:02d}" for number in (1, 1, 2, 1, 2)]
    assert data.is_background.tolist() == [True, True, True, False, False]
    with np.load(tmp_path / "out" / "omniglot28.npz") as stored:
        assert stored["char_id"].tolist() == [3, 1, 2, 4, 5]
        assert stored["char_id"].dtype == np.int32
    for row, number in enumerate((3, 1, 2, 4, 5)):
        for index in (1, 2, 20):
            expected = shrink_drawing(png(drawing(100 * number + index)), "name")
            np.testing.assert_array_equal(data.images[row, index - 1], expected)


FIRST = "images_background/Latin/character01/0001_01.png"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"holds no drawing such as images_background/Latin"),
        ({"Latin/character01/0001_01.png": png(drawing(0))}, r"holds no drawing such as"),
        (
            {name: data for name, data in BACKGROUND.items() if name != FIRST},
            r"Latin/character01 has 19 drawings, not 20",
        ),
        (BACKGROUND | {FIRST: png(np.zeros((28, 28), bool))}, r"0001_01.png has 28x28 pixels; .* 105x105"),
        (BACKGROUND | {FIRST: b"no image"}, r"0001_01.png is not a readable image"),
        (BACKGROUND | {FIRST.replace("background", "background_small1"): b""}, r"is the same drawing as"),
    ],
    ids=["empty", "wrong names", "one missing", "wrong size", "broken image", "twice"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_bad_sources_of_omniglot(tmp_path, files, message, zipped):
    source = write_zip(tmp_path / "a.zip", files) if zipped else write_files(tmp_path, files)
    with pytest.raises(UserError, match=message):
        prepare_omniglot([source], tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("content", [None, b"no zip", "truncated"])
def test_bad_archives_of_omniglot(tmp_path, content):
    if content == "truncated":
        content = write_zip(tmp_path / "whole.zip", BACKGROUND).read_bytes()[:2000]
    if content is not None:
        (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"There is no .*a.zip|a.zip is not a readable zip"):
        prepare_omniglot([tmp_path / "a.zip"], tmp_path / "out.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"images": None},
        {"alphabet": None},
        {"images": np.zeros((3, 20, 28, 28), np.float32)},
        {"images": np.zeros((3, 20, 28, 28), np.uint16)},
        {"images": np.zeros((3, 20, 105, 105), np.uint8)},
        {"images": np.uint8(1)},
        {"alphabet": np.array(["Latin"] * 2)},
        {"alphabet": np.arange(3)},
        {"alphabet": np.array(["Latin"] * 3, object)},
        {"is_background": np.zeros(3, np.int64)},
    ],
)
def test_a_foreign_omniglot_file_is_one_sentence(tmp_path, change):
    arrays = {name: array for name, array in (omniglot_arrays() | change).items() if array is not None}
    np.savez(tmp_path / "omniglot28.npz", **arrays)
    with pytest.raises(UserError, match=r"omniglot28.npz is damaged or not Omniglot \(.*--replace --data-dir .*`\.$"):
        load_omniglot(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "flipped", "one array"])
def test_a_damaged_omniglot_file_is_one_sentence(tmp_path, damage):
    path = tmp_path / "omniglot28.npz"
    np.savez_compressed(path, **omniglot_arrays())
    data = path.read_bytes()
    if damage == "one array":
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    else:
        middle = data[:150] + bytes(255 - byte for byte in data[150:160]) + data[160:]
        path.write_bytes({"empty": b"", "text": b"hello", "truncated": data[:-100], "flipped": middle}[damage])
    with pytest.raises(UserError, match=r"omniglot28.npz is damaged or not Omniglot"):
        load_omniglot(tmp_path)
