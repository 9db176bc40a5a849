"""miniImageNet: from folders and pickles to files, and from the files to arrays."""

import json
import os
import pickle

import numpy as np
import pytest
from data_files import check_pictures, dump, image_files, write_caches, write_files, write_lists
from PIL import Image

from shrinx.data import load_miniimagenet
from shrinx.data.image_lists import find_images, read_lists
from shrinx.data.miniimagenet_source import prepare_miniimagenet, read_image
from shrinx.data.pickles import load_arrays
from shrinx.runs.errors import UserError


@pytest.mark.parametrize("layout", ["flat", "classes", "splits"])
def test_miniimagenet_from_folders(tmp_path, layout):
    source, lists = write_files(tmp_path / "images", image_files(layout)), write_lists(tmp_path / "lists")
    shapes = prepare_miniimagenet(source, lists, tmp_path / "out")
    assert shapes == {"train": (2, 3), "validation": (1, 3), "test": (2, 3)}
    check_pictures(tmp_path / "out")


def test_the_originals_file_names_are_taken_by_class(tmp_path):
    source, lists = write_files(tmp_path / "images", image_files("original", images=4)), write_lists(tmp_path / "lists")
    with pytest.warns(UserWarning, match="none of the file names in the splits"):
        prepare_miniimagenet(source, lists, tmp_path / "out")
    check_pictures(tmp_path / "out")


def test_the_smallest_class_decides(tmp_path):
    source = write_files(tmp_path / "images", image_files("classes", images=4))
    lists = write_lists(tmp_path / "lists", train=[("n0300000003.png", "n03")])
    with pytest.warns(
        UserWarning, match=r"miniimagenet-train.npy gets the first 3 images of each class: n01 has no more"
    ):
        prepare_miniimagenet(source, lists, tmp_path / "out")
    check_pictures(tmp_path / "out")


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_large_pictures_of_any_kind_are_made_small(tmp_path, mode):
    ramp = np.broadcast_to(np.linspace(0, 255, 500).astype(np.uint8)[None, :, None], (300, 500, 3))
    Image.fromarray(ramp).convert(mode).save(tmp_path / "ramp.jpg", quality=95)
    small = read_image(tmp_path / "ramp.jpg")
    assert small.shape == (84, 84, 3)
    expected = np.broadcast_to(255 * (np.arange(84) + 0.5)[None, :, None] / 84, (84, 84, 3))
    assert np.abs(small - expected).max() < 8


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"val.csv": None}, r"There is no .*val.csv; the folder of the splits holds"),
        ({"val.csv": b"name,class\na,b\n"}, r"val.csv is not a table with the columns filename and label"),
        ({"val.csv": b"\xff\xfe\x00"}, r"val.csv is not a table with the columns filename and label"),
        ({"val.csv": b""}, r"val.csv lists no images"),
        ({"val.csv": b"filename,label\n"}, r"val.csv lists no images"),
        ({"val.csv": b"filename,label\na.png,n01\na.png,n01\n"}, r"val.csv: class 'n01' has an image twice"),
        ({"val.csv": b"filename,label\na.png\n"}, r"val.csv: class None has an image twice or a line without"),
        ({"val.csv": b"filename,label\na.png,n05\n"}, r"lacks 1 of the 13 images in the splits, such as a.png"),
        ({"val.csv": b"filename,label\nn0100000000.png,n01\n"}, r"Class n01 is in train and in validation"),
    ],
)
def test_bad_lists(tmp_path, lists, message):
    source, folder = write_files(tmp_path / "images", image_files("classes")), write_lists(tmp_path / "lists")
    for name, content in lists.items():
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare_miniimagenet(source, folder, tmp_path / "out")
    with pytest.raises(UserError, match="There is no"):
        load_miniimagenet(tmp_path / "out")


def test_a_name_in_several_folders_counts_in_its_class_only(tmp_path):
    source = write_files(tmp_path / "images", {f"{label}/1.png": b"" for label in ("n01", "n02", "n03")})
    lists = {"train": {"n01": ["1.png"]}, "validation": {"n02": ["n02/1.png"]}, "test": {"n03": ["1.png"]}}
    found = find_images(source, lists)
    assert found["validation"]["n02"] == [source / "n02" / "1.png"]
    with pytest.raises(UserError, match=r"lacks 1 of the 4 images .* nor any listed image of class n04"):
        find_images(source, lists | {"test": {"n03": ["1.png"], "n04": ["1.png"]}})


def test_a_class_of_one_image_is_too_few(tmp_path):
    source, lists = write_files(tmp_path / "images", image_files("classes")), write_lists(tmp_path / "lists")
    table = (lists / "train.csv").read_text().splitlines()
    label = table[1].split(",")[1]
    kept = [row for row in table if not row.endswith(f",{label}")] + [table[1]]
    (lists / "train.csv").write_text("\n".join(kept) + "\n")
    with pytest.raises(UserError, match=f"Class {label} has 1 image; a task needs at least 2 of every class"):
        prepare_miniimagenet(source, lists, tmp_path / "out")


def test_a_broken_picture_leaves_what_was_there(tmp_path):
    files = image_files("classes")
    source = write_files(tmp_path / "images", files | {"n09/n0900000001.png": b"broken"})
    lists = write_lists(tmp_path / "lists")
    prepare_miniimagenet(write_files(tmp_path / "good", files), lists, tmp_path / "out")
    with pytest.raises(UserError, match=r"n0900000001.png is not a readable image \(of no known format\)"):
        prepare_miniimagenet(source, lists, tmp_path / "out")
    check_pictures(tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_lists_with_a_byte_order_mark(tmp_path):
    folder = write_lists(tmp_path / "lists")
    (folder / "val.csv").write_bytes(b"\xef\xbb\xbf" + (folder / "val.csv").read_bytes())
    assert list(read_lists(folder)["validation"]) == ["n05"]


@pytest.mark.parametrize("change", ["json", "names", "dtype", "shape", "truncated", "pickle", "several"])
def test_a_foreign_miniimagenet_file_is_one_sentence(tmp_path, change):
    source, lists = write_files(tmp_path / "images", image_files("flat")), write_lists(tmp_path / "lists")
    prepare_miniimagenet(source, lists, tmp_path)
    array, names = tmp_path / "miniimagenet-train.npy", tmp_path / "miniimagenet.json"
    images = np.load(array)
    if change == "json":
        names.write_text("[")
    elif change == "names":
        names.write_text(json.dumps(json.loads(names.read_text()) | {"train": ["n01"]}))
    elif change == "truncated":
        array.write_bytes(array.read_bytes()[:-1])
    elif change == "several":
        with open(array, "wb") as file:
            np.savez(file, images=images)
    else:
        np.save(
            array, {"dtype": images.astype(float), "shape": images[:, :, 1:], "pickle": images.astype(object)}[change]
        )
    with pytest.raises(
        UserError, match=r"miniimagenet.* is damaged or not miniImageNet \(.*--replace --data-dir .*`\.$"
    ):
        load_miniimagenet(tmp_path)


@pytest.mark.parametrize("form", ["python 2", 2, 3, 4, 5])
def test_miniimagenet_from_pickles(tmp_path, form):
    prepare_miniimagenet(write_caches(tmp_path, form), None, tmp_path / "out")
    check_pictures(tmp_path / "out")


@pytest.mark.parametrize("form", ["python 2", 2, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "é"]},
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        [np.int64(3), np.array(["x"])],
    ],
    ids=["plain", "array", "fortran", "scalars"],
)
def test_pickles_of_arrays_are_read(tmp_path, form, value):
    (tmp_path / "file").write_bytes(dump(value, form))
    if form == "python 2" and "é" in str(value):
        value = {"a": [1, 2.5, None, True, "é".encode().decode("latin1")]}
    np.testing.assert_equal(load_arrays(tmp_path / "file"), value)


class Evil:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("function", [os.mkdir, os.system, eval, getattr, __import__, np.load, np.testing.measure])
def test_a_pickle_runs_nothing(tmp_path, monkeypatch, protocol, function):
    monkeypatch.chdir(tmp_path)
    argument = {os.system: "mkdir evil", eval: "__import__('os').mkdir('evil')"}.get(function, "evil")
    (tmp_path / "file").write_bytes(pickle.dumps({"image_data": Evil(function, argument)}, protocol))
    with pytest.raises(UserError, match=r"file is not a pickle of arrays alone \(it asks for "):
        load_arrays(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


def test_a_pickle_runs_no_codec(tmp_path):
    (tmp_path / "file").write_bytes(b"c_codecs\nencode\n(Vnames\nVrot13\ntR.")
    with pytest.raises(UserError, match="not a text encoding"):
        load_arrays(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps({"a": np.zeros(100)})[:-20]])
def test_a_broken_pickle_is_one_sentence(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=r"file is not a pickle of arrays alone"):
        load_arrays(tmp_path / "file")


GOOD = {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"n05": [0, 1]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "does not hold `image_data` and `class_dict`"),
        ({"image_data": GOOD["image_data"]}, "does not hold `image_data` and `class_dict`"),
        (GOOD | {"class_dict": [1]}, "does not hold `image_data` and `class_dict`"),
        (GOOD | {"image_data": np.zeros((2, 84, 84, 3))}, r"`image_data` is not an array uint8\[images, 84, 84, 3\]"),
        (GOOD | {"image_data": np.zeros((2, 28, 28), np.uint8)}, r"`image_data` is not an array"),
        (GOOD | {"image_data": "text"}, r"`image_data` is not an array"),
        (GOOD | {"class_dict": {"n05": [2]}}, "`class_dict` does not list rows of `image_data` for class n05"),
        (GOOD | {"class_dict": {"n05": [-1]}}, "`class_dict` does not list rows"),
        (GOOD | {"class_dict": {"n05": [0.5]}}, "`class_dict` does not list rows"),
        (GOOD | {"class_dict": {"n05": {"lbl": [0]}}}, "`class_dict` does not list rows"),
        (GOOD | {"class_dict": {"n05": []}}, "`class_dict` does not list rows"),
        (GOOD | {"class_dict": {}}, "`class_dict` is empty"),
        (GOOD | {"class_dict": {"n01": [0, 1]}}, "Class n01 is in train and in validation"),
    ],
)
def test_pickles_of_another_kind(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        prepare_miniimagenet(write_caches(tmp_path, val=content), None, tmp_path / "out")
