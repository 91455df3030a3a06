"""Every form that images come in gives the pixels that the readers of data give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from polyphony.data import DataError, Options, load
from polyphony.serve.pictures import batches_of, find_pictures, read_pictures


def picture(height=6, width=6, channels=3, seed=0):
    """uint8 [h w c]"""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def as_pixels(images, shape=(3, 6, 6), size=2, resize="crop"):
    return torch.cat(list(batches_of(images, shape, size, resize)))


def test_all_forms_of_the_same_images_are_the_same_pixels(tmp_path):
    several = np.stack([picture(seed=seed) for seed in range(5)])
    expected = several.transpose(0, 3, 1, 2) / 255
    pictures = [Image.fromarray(each) for each in several]
    for number, each in enumerate(pictures):
        each.save(tmp_path / f"{number}.png")
    files = sorted(tmp_path.iterdir())
    forms = {
        "channels last": several,
        "channels first": several.transpose(0, 3, 1, 2),
        "tensor": torch.from_numpy(several),
        "floats": expected.astype(np.float32),
        "doubles": torch.from_numpy(expected).permute(0, 2, 3, 1),
        "pictures": pictures,
        "files": [str(file) for file in files],
        "mixed": [files[0], pictures[1], several[2], several[3].transpose(2, 0, 1), expected[4]],
    }
    for name, images in forms.items():
        np.testing.assert_allclose(as_pixels(images), expected, atol=1e-7, err_msg=name)
    np.testing.assert_allclose(as_pixels(files[1]), expected[1:2], atol=1e-7)
    np.testing.assert_array_equal(
        read_pictures(list(map(str, files)), (3, 6, 6)), several.transpose(0, 3, 1, 2)
    )


def test_grey_and_colour_become_each_other_as_pillow_has_it():
    colour, grey = picture(), picture(channels=1)[..., 0]
    as_grey = np.asarray(Image.fromarray(colour).convert("L")) / 255
    for form in (colour[None], [colour], Image.fromarray(colour)):
        np.testing.assert_allclose(as_pixels(form, (1, 6, 6))[0, 0], as_grey, atol=1e-7)
    np.testing.assert_allclose(as_pixels(colour[None] / 255, (1, 6, 6))[0, 0], as_grey, atol=0.5 / 255 + 1e-6)
    for form in (grey[None], [grey], Image.fromarray(grey), grey[None] / 255):
        np.testing.assert_allclose(as_pixels(form)[0], np.stack(3 * [grey]) / 255, atol=1e-7)


def test_other_sizes_are_cropped_at_the_centre_and_averaged():
    wide = picture(12, 20)
    expected = wide[:, 4:16].reshape(6, 2, 6, 2, 3).mean((1, 3)).transpose(2, 0, 1) / 255
    for form in ([wide], wide[None], Image.fromarray(wide), wide[None].transpose(0, 3, 1, 2)):
        np.testing.assert_allclose(as_pixels(form)[0], expected, atol=1.01 / 255)
    flat = as_pixels([picture(12, 20)], (3, 3, 5))
    np.testing.assert_allclose(
        flat[0], wide.reshape(3, 4, 5, 4, 3).mean((1, 3)).transpose(2, 0, 1) / 255, atol=1.01 / 255
    )


def test_images_are_resized_as_the_reader_of_the_data_does(tmp_path):
    several = np.stack([picture(7, 11, seed=seed) for seed in range(20)])
    np.savez(tmp_path / "mine.npz", images=several, labels=np.arange(20) % 2)
    for label in range(2):
        (tmp_path / "folder" / str(label)).mkdir(parents=True)
    files = [tmp_path / "folder" / str(i % 2) / f"{i:02}.png" for i in range(20)]
    for file, each in zip(files, several, strict=True):
        Image.fromarray(each).save(file)
    for source, resize in (("mine.npz", "squash"), ("folder", "crop")):
        splits = load(str(tmp_path / source), Options(resolution=5))
        assert splits.resize == resize
        read = {
            tuple(each.flatten().tolist())
            for part in (splits.train, splits.valid, splits.test)
            for each in part.images
        }
        as_files = read_pictures(list(map(str, files)), (3, 5, 5), resize)
        assert {tuple(each.flatten().tolist()) for each in as_files} == read
        for form in (several, list(several), [Image.fromarray(each) for each in several], files):
            np.testing.assert_allclose(as_pixels(form, (3, 5, 5), resize=resize), as_files / 255, atol=1e-7)


def test_arrays_may_be_turned_around_and_of_another_machine():
    colour, grey = picture(), picture(channels=1)[..., 0]
    np.testing.assert_allclose(
        as_pixels([colour[..., ::-1]])[0], colour.transpose(2, 0, 1)[::-1] / 255, atol=1e-7
    )
    np.testing.assert_allclose(
        as_pixels((grey / 255).astype(">f4")[None], (1, 6, 6))[0, 0], grey / 255, atol=1e-7
    )


@pytest.mark.parametrize("sides", [(40, 60, 3), (3, 40, 60), (3, 6, 6), (40, 60, 4), (40, 60, 1)])
def test_an_array_that_may_be_one_picture_is_not_taken_for_grey_ones(sides):
    array = np.zeros(sides, np.uint8)
    with pytest.raises(DataError, match=r"may be one picture or \d+ grey ones: put one picture in a list"):
        as_pixels(array)
    if sides[-1] != 4:
        assert len(as_pixels([array])) == 1
    assert len(as_pixels(np.zeros((3, 6, 6), np.uint8), (1, 6, 6))) == 3  # a grey student's own size


def test_a_picture_cut_short_is_one_sentence(tmp_path):
    Image.fromarray(picture(60, 60)).save(tmp_path / "a.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:2000])
    with (
        Image.open(tmp_path / "cut.png") as cut,
        pytest.raises(DataError, match="a picture is not a valid picture"),
    ):
        as_pixels(cut)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no images"),
        (np.zeros((0, 6, 6, 3), np.uint8), "no images"),
        (np.zeros((2, 0, 0), np.uint8), "must have pixels"),
        (np.zeros((2, 6, 6, 3), np.int64), "must be uint8, or floats"),
        (np.full((2, 6, 6, 3), 255.0), r"in \[0, 1\], not from 255 to 255"),
        (np.full((2, 6, 6, 3), np.nan), "not from nan"),
        (np.zeros((2, 6, 6, 4), np.uint8), "of 1 or 3 channels"),
        (np.zeros((2, 5, 5, 3)), "6×6 pixels"),
        (np.zeros(6, np.uint8), "must be"),
        ([7], "not a int"),
        (["nowhere.png"], "nowhere.png"),
        (Image.new("I;16", (6, 6)), "more than 8 bits"),
    ],
)
def test_what_is_no_image_is_one_sentence(images, message):
    with pytest.raises(DataError, match=message):
        as_pixels(images)


def test_a_file_that_is_no_picture_is_named(tmp_path):
    good, bad = tmp_path / "a.png", tmp_path / "b.png"
    Image.fromarray(picture()).save(good)
    bad.write_bytes(b"nothing")
    for read in (lambda: as_pixels([good, bad]), lambda: read_pictures([str(good), str(bad)], (3, 6, 6))):
        with pytest.raises(DataError, match=r"b\.png is not a valid picture"):
            read()


def test_pictures_are_found_in_folders_in_order(tmp_path):
    for name in ("b.png", "a/c.JPG", "notes.txt", ".hidden/d.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    (tmp_path / "lone").touch()
    files = find_pictures([tmp_path / "lone", tmp_path / "in"])
    assert files == [str(tmp_path / name) for name in ("lone", "in/a/c.JPG", "in/b.png")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no pictures"):
        find_pictures([tmp_path / "empty"])
