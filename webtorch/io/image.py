"""Images: PNG, JPEG and what else Pillow reads, as uint8 tensors (channels, height, width). Floor 6.

Names and shapes are torchvision's. Needs Pillow (`pip install pillow`).
"""

from __future__ import annotations

import enum
import importlib
import io
import math
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.io.safetensors import FilePath, replace_file
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor


class ImageReadMode(enum.Enum):
    """The channels that a reader gives."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


_MODES = {
    ImageReadMode.GRAY: "L", ImageReadMode.GRAY_ALPHA: "LA", ImageReadMode.RGB: "RGB",
    ImageReadMode.RGB_ALPHA: "RGBA",
}  # fmt: skip
_CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


class ImageError(RuntimeError):
    """An image is damaged, or of a format that cannot be read."""


def _pillow(what: str) -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ImportError(f"{what} needs Pillow: pip install pillow", name="PIL") from error


def _mode(mode: Any) -> ImageReadMode:
    return ImageReadMode[mode.upper()] if isinstance(mode, str) else mode


def read_image(
    path: FilePath,
    mode: ImageReadMode | str = ImageReadMode.UNCHANGED,
    apply_exif_orientation: bool = False,
    *,
    device: object = "cpu",
) -> Tensor:
    """Return the image in a file as uint8 (C, H, W), with 1, 2, 3 or 4 channels.

    mode: the wanted channels, such as "RGB"; by default those of the file (a palette becomes RGB or
    RGBA). Raises ImageError for what is no image, or is damaged.
    """
    with open(path, "rb") as stream:
        data = stream.read()
    return _decoded(data, _mode(mode), apply_exif_orientation, os.fspath(path), "read_image").to(
        device
    )


def decode_image(
    input: Tensor | bytes,
    mode: ImageReadMode | str = ImageReadMode.UNCHANGED,
    apply_exif_orientation: bool = False,
) -> Tensor:
    """Return the image in the bytes of a file (bytes, or a 1-d uint8 tensor); see `read_image`."""
    if isinstance(input, Tensor):
        if input.dtype is not webtorch.uint8 or input.ndim != 1:
            raise DTypeError(
                f"decode_image: expected a 1-d uint8 tensor, got {input.dtype} of shape {tuple(input.shape)}"
            )
        data = bytes(memoryview(input._to_bytes())[: input.numel()])
    else:
        data = bytes(input)
    return _decoded(data, _mode(mode), apply_exif_orientation, "the image", "decode_image")


decode_png = decode_jpeg = decode_image


def _decoded(data: bytes, mode: ImageReadMode, turn: bool, name: str, what: str) -> Tensor:
    pillow = _pillow(what)
    try:
        image = pillow.open(io.BytesIO(data))
        image.load()
    except pillow.DecompressionBombError as error:
        raise ImageError(f"{what}: {name}: {error}") from error
    except Exception as error:
        start = data[:8]
        raise ImageError(
            f"{what}: {name} is no image that Pillow reads, or is damaged ({error}); it starts with {start!r}"
        ) from error
    if turn:
        image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
    return pil_to_tensor(image, _MODES.get(mode))


def pil_to_tensor(image: Any, mode: str | None = None) -> Tensor:
    """Return a Pillow image as uint8 (C, H, W); other element types (I;16, F) as int32 and float32."""
    if mode is not None:
        image = image.convert(mode)
    elif image.mode in ("P", "PA"):
        image = image.convert(
            "RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB"
        )
    elif image.mode == "1":
        image = image.convert("L")
    dtype = webtorch.uint8
    if image.mode in ("I", "I;16", "I;16B", "I;16L"):
        image, dtype = image.convert("I"), webtorch.int32
    elif image.mode == "F":
        dtype = webtorch.float32
    channels = len(image.getbands())
    flat = from_bytes(image.tobytes(), (image.height, image.width, channels), dtype, "cpu")
    return flat.permute(2, 0, 1).contiguous()


def to_pil_image(pic: object, mode: str | None = None) -> Any:
    """Return a tensor (C, H, W) or (H, W) as a Pillow image; floats from 0 to 1 become bytes."""
    pillow = _pillow("to_pil_image")
    if not isinstance(pic, Tensor):
        return pillow.fromarray(pic, mode)
    if pic.ndim not in (2, 3):
        raise ValueError(f"pic should be 2/3 dimensional. Got {pic.ndim} dimensions.")
    x = pic.detach().cpu()
    x = x.unsqueeze(0) if x.ndim == 2 else x
    if x.dtype.is_floating_point:
        x = (x * 255).to(webtorch.uint8)
    if x.shape[0] not in _CHANNELS:
        raise ValueError(f"pic should not have > 4 channels. Got {x.shape[0]} channels.")
    if x.dtype is not webtorch.uint8:
        raise TypeError(f"Input type {x.dtype} is not supported")
    data = x.permute(1, 2, 0).contiguous()
    size = (x.shape[2], x.shape[1])
    content = bytes(memoryview(data._to_bytes())[: data.numel()])
    return pillow.frombytes(mode or _CHANNELS[x.shape[0]], size, content)


def _image(input: Tensor, what: str, channels: Sequence[int]) -> object:
    if input.dtype is not webtorch.uint8:
        raise DTypeError(
            f"{what}: the image must be uint8, got {input.dtype}: use (x * 255).clamp(0, 255).to(torch.uint8)"
        )
    if input.ndim != 3 or input.shape[0] not in channels:
        wanted = " or ".join(map(str, channels))
        raise ShapeError(
            f"{what}: the image must be ({wanted}, height, width), got {tuple(input.shape)}"
        )
    return to_pil_image(input)


def _bytes_of(image: Any, form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def encode_png(input: Tensor, compression_level: int = 6) -> Tensor:
    """Return the bytes of a PNG file as a 1-d uint8 tensor. input: uint8 with 1 to 4 channels."""
    if not 0 <= compression_level <= 9:
        raise RuntimeError("Compression level should be between 0 and 9")
    image = _image(input, "encode_png", (1, 2, 3, 4))
    data = _bytes_of(image, "PNG", compress_level=compression_level)
    return from_bytes(data, (len(data),), webtorch.uint8, "cpu")


def encode_jpeg(input: Tensor, quality: int = 75) -> Tensor:
    """Return the bytes of a JPEG file as a 1-d uint8 tensor. input: uint8 with 1 or 3 channels."""
    if not 1 <= quality <= 100:
        raise ValueError("Image quality should be a positive number between 1 and 100")
    data = _bytes_of(_image(input, "encode_jpeg", (1, 3)), "JPEG", quality=quality)
    return from_bytes(data, (len(data),), webtorch.uint8, "cpu")


def _write(data: Tensor, filename: FilePath) -> None:
    content = bytes(memoryview(data._to_bytes())[: data.numel()])

    def write(stream: BinaryIO) -> None:
        """Write the file's bytes."""
        stream.write(content)

    replace_file(filename, write)


def write_png(input: Tensor, filename: FilePath, compression_level: int = 6) -> None:
    """Write a PNG file; see `encode_png`."""
    _write(encode_png(input, compression_level), filename)


def write_jpeg(input: Tensor, filename: FilePath, quality: int = 75) -> None:
    """Write a JPEG file; see `encode_jpeg`."""
    _write(encode_jpeg(input, quality), filename)


def make_grid(
    tensor: Tensor | Sequence[Tensor],
    nrow: int = 8,
    padding: int = 2,
    normalize: bool = False,
    value_range: tuple[float, float] | None = None,
    scale_each: bool = False,
    pad_value: float = 0.0,
) -> Tensor:
    """Return images (N, C, H, W), `nrow` in a row, as one image; as torchvision.utils.make_grid."""
    if not isinstance(tensor, Tensor):
        if not all(isinstance(t, Tensor) for t in tensor):
            raise TypeError(f"tensor or list of tensors expected, got {type(tensor)}")
        tensor = webtorch.stack(list(tensor))
    x: Any = tensor
    rank = x.ndim
    if x.ndim == 2:
        x = x.unsqueeze(0)
    if x.ndim == 3:
        x = x.unsqueeze(0)
    if x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    if normalize:
        if value_range is not None and not isinstance(value_range, tuple):
            raise TypeError(
                "value_range has to be a tuple (min, max) if specified. min and max are numbers"
            )
        dims = (1, 2, 3) if scale_each else (0, 1, 2, 3)
        low: Any = x.amin(dims, True) if value_range is None else value_range[0]
        high: Any = x.amax(dims, True) if value_range is None else value_range[1]
        span = high - low
        span = span.clamp(min=1e-5) if isinstance(span, Tensor) else max(span, 1e-5)
        x = (x if value_range is None else x.clamp(low, high)) - low
        x = x / span
    if rank < 4 or x.shape[0] == 1:
        return x.squeeze(0)
    count = x.shape[0]
    columns = min(nrow, count)
    rows = math.ceil(count / columns)
    height, width = x.shape[2] + padding, x.shape[3] + padding
    grid = x.new_full((x.shape[1], height * rows + padding, width * columns + padding), pad_value)
    for k in range(count):
        top, left = (k // columns) * height + padding, (k % columns) * width + padding
        grid[:, top : top + height - padding, left : left + width - padding] = x[k]
    return grid


def pack_rgba8(input: Tensor) -> Tensor:
    """Return pixels (..., H, W), uint32, of images (..., C, H, W): what a canvas, a texture or a window shows.

    Red is the lowest byte, then green, blue and alpha, which is 255 where there are three channels or one
    (grey). Floats are from 0 to 1 and rounded; uint8 is taken as it is. It is computed on the
    image's device: a quarter of the bytes is read back. Raises ImageError for other shapes and dtypes.
    """
    if input.ndim < 3 or input.shape[-3] not in (1, 3, 4):
        raise ImageError(
            f"pack_rgba8: expected (..., C, H, W) with 1, 3 or 4 channels, got {tuple(input.shape)}"
        )
    if input.dtype.is_floating_point:
        bytes_ = (input.detach().clamp(0, 1) * 255 + 0.5).floor().to(webtorch.uint32)
    elif input.dtype is webtorch.uint8:
        bytes_ = input.to(webtorch.uint32)
    else:
        raise ImageError(f"pack_rgba8: expected floats or uint8, got {input.dtype}")
    parts = list(bytes_.unbind(-3))
    red, green, blue = parts[:3] if len(parts) > 1 else parts * 3
    alpha = parts[3] if len(parts) == 4 else webtorch.full_like(red, 255)
    return red | green << 8 | blue << 16 | alpha << 24


def unpack_rgba8(pixels: Tensor) -> Tensor:
    """Return images (..., 4, H, W), uint8, of pixels (..., H, W), uint32 or int32; see `pack_rgba8`."""
    if pixels.dtype not in (webtorch.uint32, webtorch.int32) or pixels.ndim < 2:
        raise ImageError(
            f"unpack_rgba8: expected (..., H, W) of uint32, got {tuple(pixels.shape)} of {pixels.dtype}"
        )
    return webtorch.stack([pixels >> shift & 255 for shift in (0, 8, 16, 24)], -3).to(
        webtorch.uint8
    )


def save_image(
    tensor: Tensor | Sequence[Tensor], fp: object, format: str | None = None, **kwargs: Any
) -> None:
    """Write images from 0 to 1 as one file, in a grid; `kwargs` are those of `make_grid`."""
    grid = make_grid(tensor, **kwargs)
    data = (grid * 255 + 0.5).clamp(0, 255).to(webtorch.uint8)
    to_pil_image(data).save(fp, format=format)
