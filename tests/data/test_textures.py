from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from polyphony.data.textures import (
    Draws,
    bilinear,
    frost_sheets,
    mirrored,
    motion_blur,
    plasma,
    reflected,
    shifted,
    zoomed,
)

RNG = np.random.default_rng(4)
X = RNG.random((3, 12, 12, 2), dtype=np.float32)


def draws(*indexes: int) -> Draws:
    return Draws(0, "fog", 3, indexes)


def test_a_stream_depends_on_seed_corruption_severity_and_index_alone() -> None:
    first = draws(4, 9).normal(5)
    assert np.array_equal(first[1], draws(9).normal(5)[0])
    others = [Draws(1, "fog", 3, [9]), Draws(0, "snow", 3, [9]), Draws(0, "fog", 2, [9]), draws(8)]
    for other in others:
        assert not np.array_equal(first[1], other.normal(5)[0])


def test_draws_have_their_distributions() -> None:
    many = draws(*range(200))
    normal, uniform = many.normal(500), many.uniform(-2, 6, 500)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert uniform.min() >= -2
    assert uniform.max() < 6
    assert abs(uniform.mean() - 2) < 0.05
    assert np.unique(many.below(3, 50)).tolist() == [0, 1, 2]
    counts = many.poisson(np.full((200, 500), 7.0))
    assert abs(counts.mean() - 7) < 0.05
    assert abs(counts.var() - 7) < 0.15


def test_shifting_is_a_gather_with_repeated_edges() -> None:
    down, right = np.array([1, -3, 0]), np.array([0, 2, -20])
    got = shifted(X, down, right)
    for i in range(3):
        for y in range(12):
            for x in range(12):
                source = X[i, min(max(y + down[i], 0), 11), min(max(x + right[i], 0), 11)]
                assert np.array_equal(got[i, y, x], source)


def test_motion_blur_of_a_point_is_its_kernel_against_the_motion() -> None:
    point = np.zeros((2, 21, 21, 1), np.float32)
    point[:, 10, 10] = 1
    got = motion_blur(point, 3, 1.5, np.array([0.0, -90.0]))[..., 0]
    weights = np.exp(-(np.arange(7.0) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    np.testing.assert_allclose(got[0, 10, 10:3:-1], weights, rtol=1e-6)
    np.testing.assert_allclose(got[1, 10:17, 10], weights, rtol=1e-6)
    np.testing.assert_allclose(got.sum((1, 2)), 1, rtol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.06, 1.25, 1.75, 2.25])
def test_zoom_is_scipys_linear_zoom_of_the_middle(factor: float) -> None:
    got = zoomed(X, factor)
    for i in range(3):
        visible = int(np.ceil(12 / factor))
        start = (12 - visible) // 2
        middle = X[i, start : start + visible, start : start + visible]
        enlarged = ndimage.zoom(middle, (factor, factor, 1), order=1)
        trim = (enlarged.shape[0] - 12) // 2
        np.testing.assert_allclose(got[i], enlarged[trim : trim + 12, trim : trim + 12], atol=1e-5)


def naive_plasma(noise: np.ndarray, decay: float) -> np.ndarray:
    """Diamond-square on a wrapping map, cell by cell."""
    size = len(noise)
    cloud, step, amplitude = np.zeros((size, size)), size, 100.0
    while step >= 2:
        half = step // 2
        centres = [(y, x) for y in range(half, size, step) for x in range(half, size, step)]
        for y, x in centres:
            around = [cloud[(y + a) % size, (x + b) % size] for a in (-half, half) for b in (-half, half)]
            cloud[y, x] = sum(around) / 4 + amplitude**2 * noise[y, x]
        edges = [(y - half, x) for y, x in centres] + [(y, x - half) for y, x in centres]
        for y, x in edges:
            around = [
                cloud[(y + a) % size, (x + b) % size]
                for a, b in ((half, 0), (-half, 0), (0, half), (0, -half))
            ]
            cloud[y, x] = sum(around) / 4 + amplitude**2 * noise[y, x]
        step, amplitude = half, amplitude / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


@pytest.mark.parametrize(("side", "decay"), [(8, 3.0), (16, 1.75)])
def test_plasma_is_diamond_square(side: int, decay: float) -> None:
    got, noise = plasma(draws(2, 5), side, decay), draws(2, 5).uniform(-1, 1, side, side).astype(np.float64)
    for i in range(2):
        np.testing.assert_allclose(got[i], naive_plasma(noise[i], decay), atol=1e-5)


def test_plasma_of_another_side_is_cut_from_the_next_power_of_two() -> None:
    clouds = plasma(draws(1), 12, 2)
    assert clouds.shape == (1, 12, 12)
    assert np.array_equal(clouds, plasma(draws(1), 16, 2)[:, :12, :12])


@settings(derandomize=True, max_examples=20)
@given(seed=st.integers(0, 1000))
@pytest.mark.parametrize(("border", "mode"), [(mirrored, "mirror"), (reflected, "reflect")])
def test_bilinear_is_scipys_linear_interpolation(border, mode: str, seed: int) -> None:
    rows, columns = np.random.default_rng(seed).uniform(-9, 20, (2, 3, 12, 12))
    got = bilinear(X, rows, columns, border)
    for i in range(3):
        for c in range(2):
            expected = ndimage.map_coordinates(X[i, :, :, c], [rows[i], columns[i]], order=1, mode=mode)
            np.testing.assert_allclose(got[i, :, :, c], expected, atol=1e-5)


def test_frost_has_the_photographs_colour_and_contrast_and_is_the_same_every_time() -> None:
    sheets = frost_sheets()
    assert sheets.min() >= 0
    assert sheets.max() <= 255
    grey = sheets.mean(3)
    np.testing.assert_allclose(grey.mean((1, 2)), [131, 207, 207, 152, 123], atol=1)
    np.testing.assert_allclose(grey.std((1, 2)), [18, 22, 22, 29, 43], atol=1)
    assert (np.diff(sheets.mean((1, 2)), axis=1) > 0).all()  # bluish
    steps = np.abs(np.diff(grey, axis=2)).mean((1, 2)) / grey.std((1, 2))
    pieces = grey[:, :256, :256].reshape(5, 8, 32, 8, 32).mean((2, 4)).std((1, 2)) / grey.std((1, 2))
    assert ((steps > 0.5) & (steps < 1)).all()  # rough, but not white noise, whose steps are 1.13 and …
    assert (pieces > 0.3).all()  # … whose 32×32 pieces differ by 0.03: photographs have 0.36 to 0.6
    first = sheets.copy()
    frost_sheets.cache_clear()
    assert np.array_equal(frost_sheets(), first)
