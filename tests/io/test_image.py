"""Images, against Pillow and torchvision's words."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import webtorch
from tests.conftest import need_device
from webtorch import io as files
from webtorch.data import transforms as T
from webtorch.errors import DTypeError, ShapeError
from webtorch.io.image import ImageError, to_pil_image


def picture(channels: int, height: int = 5, width: int = 7) -> Any:
    generator = np.random.default_rng(channels)
    return generator.integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_goes_out_and_comes_back(channels: int, tmp_path: Path) -> None:
    pixels = picture(channels)
    x = webtorch.from_numpy(pixels).permute(2, 0, 1)
    files.write_png(x, tmp_path / "x.png")
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "x.png")), pixels.squeeze())
    found = files.read_image(tmp_path / "x.png")
    assert found.dtype is webtorch.uint8 and found.is_contiguous()
    np.testing.assert_array_equal(found.numpy(), x.numpy())


@pytest.mark.parametrize("mode", ["GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"])
def test_wanted_channels_are_pillows(mode: str, tmp_path: Path) -> None:
    names = {"GRAY": "L", "GRAY_ALPHA": "LA", "RGB": "RGB", "RGB_ALPHA": "RGBA"}
    Image.fromarray(picture(4), "RGBA").save(tmp_path / "x.png")
    found = files.read_image(tmp_path / "x.png", files.ImageReadMode[mode])
    expected = np.asarray(Image.open(tmp_path / "x.png").convert(names[mode]))
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy().squeeze(), expected.squeeze())
    again = files.read_image(tmp_path / "x.png", mode.lower())
    assert again.tolist() == found.tolist()


def test_jpeg_palette_and_exif(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 16 * 24 * 3).reshape(16, 24, 3).astype(np.uint8)
    x = webtorch.from_numpy(smooth).permute(2, 0, 1)
    files.write_jpeg(x, tmp_path / "x.jpg", quality=95)
    found = files.read_image(tmp_path / "x.jpg")
    assert (found.int() - x.int()).abs().float().mean() < 4
    content = files.encode_jpeg(x, 95)
    np.testing.assert_array_equal(files.decode_jpeg(content).numpy(), found.numpy())
    Image.fromarray(smooth).quantize(8).save(tmp_path / "p.png")
    expected = np.asarray(Image.open(tmp_path / "p.png").convert("RGB"))
    np.testing.assert_array_equal(
        files.read_image(tmp_path / "p.png").permute(1, 2, 0).numpy(), expected
    )
    turned = Image.fromarray(smooth)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "t.jpg", exif=exif)
    assert tuple(files.read_image(tmp_path / "t.jpg").shape) == (3, 16, 24)
    assert tuple(files.read_image(tmp_path / "t.jpg", apply_exif_orientation=True).shape) == (
        3,
        24,
        16,
    )


def test_what_is_no_image_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"no image at all")
    with pytest.raises(ImageError, match="is no image that Pillow reads"):
        files.read_image(tmp_path / "x.png")
    Image.fromarray(picture(3, 20, 20)).save(tmp_path / "y.png")
    (tmp_path / "y.png").write_bytes((tmp_path / "y.png").read_bytes()[:500])
    with pytest.raises(ImageError, match="damaged"):
        files.read_image(tmp_path / "y.png")
    with pytest.raises(FileNotFoundError):
        files.read_image(tmp_path / "z.png")
    with pytest.raises(DTypeError, match="must be uint8"):
        files.write_png(webtorch.zeros(3, 2, 2), tmp_path / "z.png")
    with pytest.raises(ShapeError, match=r"must be \(1 or 3, height, width\)"):
        files.write_jpeg(webtorch.zeros(4, 2, 2, dtype=webtorch.uint8), tmp_path / "z.jpg")
    with pytest.raises(DTypeError, match="1-d uint8"):
        files.decode_image(webtorch.zeros(3))


def test_grids_and_saved_images(tmp_path: Path) -> None:
    x = webtorch.rand(5, 1, 4, 6, device="cpu")
    grid = files.make_grid(x, nrow=3, padding=1, pad_value=0.5)
    assert tuple(grid.shape) == (3, 2 * 5 + 1, 3 * 7 + 1)
    assert grid[0, 1:5, 1:7].tolist() == x[0, 0].tolist()
    assert grid[2, 6:10, 8:14].tolist() == x[4, 0].tolist()
    assert grid[0, 0, 0] == 0.5 and grid[0, 7, 16] == 0.5
    even = files.make_grid(x * 3 - 1, normalize=True)
    assert float(even.min()) == 0 and float(even.max()) == 1
    files.save_image(x, tmp_path / "g.png", nrow=3)
    found = files.read_image(tmp_path / "g.png")
    expected = files.make_grid(x, nrow=3) * 255
    assert (found.float() - expected).abs().max() <= 0.51
    stream = io.BytesIO()
    files.save_image([x[0], x[1]], stream, format="png")
    assert files.decode_image(stream.getvalue()).shape[0] == 3


def test_resizing_is_pillows() -> None:
    image = Image.fromarray(picture(3, 40, 30))
    x = T.pil_to_tensor(image)
    for mode, name in (
        (Image.Resampling.BILINEAR, "bilinear"),
        (Image.Resampling.BICUBIC, "bicubic"),
    ):
        expected = np.asarray(image.resize((17, 11), mode)).astype(int)
        found = T.resize(x, [11, 17], name).permute(1, 2, 0).numpy().astype(int)
        assert abs(found - expected).max() <= 1
    assert to_pil_image(x).tobytes() == image.tobytes()
    assert tuple(T.resize(x, 15).shape) == (3, 20, 15)
    assert tuple(T.resize(x, 15, max_size=18).shape) == (3, 18, 13)


@pytest.mark.covers("F14")
@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_pixels_are_packed_on_the_device(device: str) -> None:
    need_device(device)
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (2, 4, 3, 5), dtype=np.uint8)
    # A canvas's bytes: red, green, blue, alpha of each pixel, row by row.
    wanted = np.ascontiguousarray(image.transpose(0, 2, 3, 1)).tobytes()
    for x in (
        webtorch.from_numpy(image).to(device),
        webtorch.from_numpy(image.astype(np.float32) / 255).to(device),
    ):
        pixels = files.pack_rgba8(x)
        assert pixels.dtype is webtorch.uint32 and tuple(pixels.shape) == (2, 3, 5)
        assert pixels.device.type == device and pixels.cpu().numpy().tobytes() == wanted
        assert files.unpack_rgba8(pixels).tolist() == image.tolist()
    colours = files.pack_rgba8(webtorch.tensor([[[2.0]], [[-1.0]], [[0.5]]], device=device))
    assert colours.tolist() == [[255 | 128 << 16 | 255 << 24]]
    grey = files.pack_rgba8(webtorch.full((1, 1, 1), 0.2, device=device))
    assert grey.tolist() == [[51 * 0x010101 | 255 << 24]]


def test_what_is_no_image_is_not_packed() -> None:
    for x in (webtorch.ones(2, 3, 3), webtorch.ones(3, 3), webtorch.ones(3, 2, 2).long()):
        with pytest.raises(ImageError, match="pack_rgba8: expected"):
            files.pack_rgba8(x)
    with pytest.raises(ImageError, match="unpack_rgba8: expected"):
        files.unpack_rgba8(webtorch.ones(2, 2))
