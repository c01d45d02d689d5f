"""Transforms of images, against their definitions in NumPy, colorsys and Pillow."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance

import webtorch
from webtorch.data import transforms as T


@pytest.fixture
def image() -> webtorch.Tensor:
    return webtorch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 7), dtype=np.uint8))


@pytest.mark.covers("F16")
def test_a_pipeline_as_programs_write_it(image: webtorch.Tensor) -> None:
    pixels = Image.fromarray(image.permute(1, 2, 0).numpy())
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    pipeline = T.Compose(
        [T.ToTensor(), T.CenterCrop((5, 3)), T.RandomHorizontalFlip(p=0), T.Normalize(mean, std)]
    )
    middle = image.numpy()[:, 2:7, 2:5] / 255
    expected = (middle - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(pipeline(pixels).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert "CenterCrop(size=(5, 3))" in repr(pipeline)
    array = T.ToTensor()(image.permute(1, 2, 0).numpy())
    np.testing.assert_allclose(array.numpy(), image.numpy() / 255, rtol=1e-6)


def test_windows_and_borders(image: webtorch.Tensor) -> None:
    x = image.numpy()
    padded = np.pad(x, ((0, 0), (2, 2), (3, 3)))
    np.testing.assert_array_equal(T.crop(image, -2, -3, 13, 13).numpy(), padded)
    np.testing.assert_array_equal(T.center_crop(image, 11).numpy()[:, 1:-1, 2:-2], x)
    np.testing.assert_array_equal(T.hflip(image).numpy(), x[..., ::-1])
    np.testing.assert_array_equal(T.vflip(image).numpy(), x[:, ::-1])
    np.testing.assert_array_equal(
        T.pad(image, [1, 2, 3, 0], 5).numpy(),
        np.pad(x, ((0, 0), (2, 0), (1, 3)), constant_values=5),
    )
    np.testing.assert_array_equal(
        T.pad(image, 2, padding_mode="reflect").numpy(),
        np.pad(x, ((0, 0), (2, 2), (2, 2)), mode="reflect"),
    )


@pytest.mark.covers("F16")
def test_colours(image: webtorch.Tensor) -> None:
    x = T.convert_image_dtype(image)
    hsv = T.rgb_to_hsv(x)
    expected = [colorsys.rgb_to_hsv(*p) for p in x.permute(1, 2, 0).reshape(-1, 3).tolist()]
    np.testing.assert_allclose(hsv.permute(1, 2, 0).reshape(-1, 3).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(T.hsv_to_rgb(hsv).numpy(), x.numpy(), atol=1e-5)
    pixels = Image.fromarray(image.permute(1, 2, 0).numpy())
    gray = T.rgb_to_grayscale(image).numpy()[0].astype(int)
    assert abs(gray - np.asarray(pixels.convert("L")).astype(int)).max() <= 1
    assert tuple(T.rgb_to_grayscale(image, 3).shape) == (3, 9, 7)
    bright = np.asarray(ImageEnhance.Brightness(pixels).enhance(1.4)).astype(int)
    found = T.adjust_brightness(image, 1.4).permute(1, 2, 0).numpy().astype(int)
    assert abs(found - bright).max() <= 1
    vivid = np.asarray(ImageEnhance.Color(pixels).enhance(0.4)).astype(int)
    found = T.adjust_saturation(image, 0.4).permute(1, 2, 0).numpy().astype(int)
    assert abs(found - vivid).max() <= 2
    np.testing.assert_allclose(T.adjust_hue(x, 1 / 3).numpy(), x[[2, 0, 1]].numpy(), atol=1e-5)
    np.testing.assert_allclose(T.adjust_gamma(x, 2).numpy(), x.numpy() ** 2, rtol=1e-5)


def test_types_are_scaled(image: webtorch.Tensor) -> None:
    wide = T.convert_image_dtype(image, webtorch.int16)
    assert wide.tolist() == (image.int() * 128).tolist()
    assert T.convert_image_dtype(wide, webtorch.uint8).tolist() == image.tolist()
    back = T.convert_image_dtype(T.convert_image_dtype(image), webtorch.uint8)
    assert back.tolist() == image.tolist()


def test_random_transforms_stay_within_their_ranges(image: webtorch.Tensor) -> None:
    webtorch.manual_seed(0)
    x = T.convert_image_dtype(image)
    crops = {tuple(T.RandomCrop(3)(image)[0, 0].tolist()) for _ in range(20)}
    assert len(crops) > 5
    assert tuple(T.RandomCrop(12, padding=1, pad_if_needed=True)(image).shape) == (3, 12, 12)
    flips = [T.RandomVerticalFlip()(image).tolist() == image.tolist() for _ in range(40)]
    assert 8 < sum(flips) < 32
    for _ in range(5):
        assert tuple(T.RandomResizedCrop(4)(image).shape) == (3, 4, 4)
        jittered = T.ColorJitter(0.5, 0.5, 0.5, 0.2)(x)
        assert (
            jittered.shape == x.shape and 0 <= float(jittered.min()) <= float(jittered.max()) <= 1
        )
    assert T.RandomApply([T.Lambda(lambda v: v * 0)], p=1)(x).sum() == 0
    assert T.RandomChoice([T.RandomGrayscale(p=1)])(x).shape == x.shape


def test_wrong_calls_are_refused_in_torchvisions_words(image: webtorch.Tensor) -> None:
    with pytest.raises(TypeError, match="should be a float tensor"):
        T.Normalize([0.5], [0.5])(image)
    with pytest.raises(ValueError, match="division by zero"):
        T.normalize(T.convert_image_dtype(image), [0.5], [0.0])
    with pytest.raises(ValueError, match="is larger than input image size"):
        T.RandomCrop(20)(image)
    with pytest.raises(TypeError, match="should be PIL Image or ndarray"):
        T.ToTensor()("picture")
    with pytest.raises(TypeError, match="should be Tensor Image"):
        T.Resize(3)(np.zeros((3, 4, 4)))
    with pytest.raises(ValueError, match="interpolation mode is unsupported"):
        T.resize(image, 3, "lanczos")
    with pytest.raises(ValueError, match="non negative"):
        T.ColorJitter(brightness=-1)
    with pytest.raises(RuntimeError, match="cannot be performed safely"):
        T.convert_image_dtype(T.convert_image_dtype(image), webtorch.int32)
