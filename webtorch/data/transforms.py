"""Transforms of images as tensors (..., C, H, W), with torchvision's names. May import floors 0 to 4.

`Compose`, `ToTensor`, `Normalize`, `Resize` and their kind, and the functions they are made of.
Images of Pillow and NumPy arrays (H, W, C) become tensors by `ToTensor`. Random ones draw from the
CPU's default generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.ops.record import TABLE
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor

Size = int | Sequence[int]


def _check(x: object, what: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{what}: img should be Tensor Image. Got {type(x)}: apply ToTensor() before"
        )
    if x.ndim < 2:
        raise ShapeError(f"{what}: an image is (..., C, H, W), got {tuple(x.shape)}")


def _channels(x: Tensor) -> int:
    return x.shape[-3] if x.ndim > 2 else 1


# ---- conversion -----------------------------------------------------------------------------------


def pil_to_tensor(pic: Any) -> Tensor:
    """Return a Pillow image as a tensor (C, H, W) of its own numbers."""
    if not hasattr(pic, "getbands"):
        raise TypeError(f"pic should be PIL Image. Got {type(pic)}")
    if pic.mode in ("1", "P"):
        pic = pic.convert("L" if pic.mode == "1" else "RGB")
    types = {"I": webtorch.int32, "F": webtorch.float32}
    shape = (pic.height, pic.width, len(pic.getbands()))
    flat = from_bytes(pic.tobytes(), shape, types.get(pic.mode, webtorch.uint8), "cpu")
    return flat.permute(2, 0, 1).contiguous()


def to_tensor(pic: Any) -> Tensor:
    """Return an image of Pillow or an array (H, W, C) as (C, H, W); bytes become floats from 0 to 1."""
    if hasattr(pic, "getbands"):
        x = pil_to_tensor(pic)
    elif hasattr(pic, "__array__") and not isinstance(pic, Tensor):
        if pic.ndim not in (2, 3):
            raise ValueError(f"pic should be 2/3 dimensional. Got {pic.ndim} dimensions.")
        x = webtorch.as_tensor(pic)
        x = x.unsqueeze(-1) if x.ndim == 2 else x
        x = x.permute(2, 0, 1).contiguous()
    else:
        raise TypeError(f"pic should be PIL Image or ndarray. Got {type(pic)}")
    return x.to(webtorch.get_default_dtype()) / 255 if x.dtype is webtorch.uint8 else x


def convert_image_dtype(image: Tensor, dtype: Any = None) -> Tensor:
    """Return the image in another type, scaled: bytes are 0 to 255 and floats 0 to 1."""
    _check(image, "convert_image_dtype")
    dtype = dtype or webtorch.float32
    if image.dtype is dtype:
        return image
    floats = image.dtype.is_floating_point, dtype.is_floating_point
    match floats:
        case (True, True):
            return image.to(dtype)
        case (True, False):
            if dtype in (webtorch.int32, webtorch.int64) and image.dtype is webtorch.float32:
                raise RuntimeError(
                    f"The cast from {image.dtype} to {dtype} cannot be performed safely."
                )
            top = webtorch.iinfo(dtype).max
            return (image * (top + 1.0 - 1e-3)).to(dtype)
        case (False, True):
            return image.to(dtype) / webtorch.iinfo(image.dtype).max
    source, target = webtorch.iinfo(image.dtype).max, webtorch.iinfo(dtype).max
    if source > target:
        return webtorch.div(image, (source + 1) // (target + 1), rounding_mode="floor").to(dtype)
    return image.to(dtype) * ((target + 1) // (source + 1))


def normalize(tensor: Tensor, mean: object, std: Any, inplace: bool = False) -> Tensor:
    """Return (image - mean) / std, with one mean and one std for each channel."""
    _check(tensor, "normalize")
    if not tensor.dtype.is_floating_point:
        raise TypeError(f"Input tensor should be a float tensor. Got {tensor.dtype}.")
    if tensor.ndim < 3:
        raise ValueError(
            "Expected tensor to be a tensor image of size (..., C, H, W). Got tensor.size() = "
            f"{tuple(tensor.shape)}"
        )

    def made(v: object) -> Tensor:
        """Return a mean or deviation as a tensor that broadcasts over (C, H, W)."""
        t = webtorch.as_tensor(v, dtype=tensor.dtype, device=tensor.device)
        return t.reshape(-1, 1, 1) if t.ndim == 1 else t

    values = (
        [std] if isinstance(std, (int, float)) else list(std) if not isinstance(std, Tensor) else []
    )
    if any(v == 0 for v in values):
        raise ValueError(
            f"std evaluated to zero after conversion to {tensor.dtype}, leading to division by zero."
        )
    out = (tensor - made(mean)) / made(std)
    return tensor.copy_(out) if inplace else out


# ---- geometry -------------------------------------------------------------------------------------


def crop(img: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Return a window; what lies outside of the image is 0."""
    _check(img, "crop")
    h, w = img.shape[-2:]
    inside = img[..., max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    borders = [
        max(min(-left, width), 0), max(left + width - max(w, left), 0),
        max(min(-top, height), 0), max(top + height - max(h, top), 0),
    ]  # fmt: skip
    return TABLE["pad"](inside, borders) if any(borders) else inside


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    values = tuple(size)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def center_crop(img: Tensor, output_size: Size) -> Tensor:
    """Return the middle of an image; a smaller image gets a border of 0."""
    _check(img, "center_crop")
    height, width = _pair(output_size)
    h, w = img.shape[-2:]
    if width > w or height > h:
        borders = [
            (width - w) // 2 if width > w else 0, (width - w + 1) // 2 if width > w else 0,
            (height - h) // 2 if height > h else 0, (height - h + 1) // 2 if height > h else 0,
        ]  # fmt: skip
        img = TABLE["pad"](img, borders)
        h, w = img.shape[-2:]
    return crop(img, round((h - height) / 2.0), round((w - width) / 2.0), height, width)


def hflip(img: Tensor) -> Tensor:
    """Return the image mirrored, left to right."""
    _check(img, "hflip")
    return img.flip(-1)


def vflip(img: Tensor) -> Tensor:
    """Return the image upside down."""
    _check(img, "vflip")
    return img.flip(-2)


def pad(img: Tensor, padding: Size, fill: float = 0, padding_mode: str = "constant") -> Tensor:
    """Return the image in a border. padding: one number, (x, y), or (left, top, right, bottom)."""
    _check(img, "pad")
    values = [padding] if isinstance(padding, int) else list(padding)
    if len(values) not in (1, 2, 4):
        raise ValueError(
            f"Padding must be an int or a 1, 2, or 4 element tuple, not a {len(values)} element tuple"
        )
    left, top = values[0], values[1 if len(values) > 1 else 0]
    right, bottom = (values[2], values[3]) if len(values) == 4 else (left, top)
    modes = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}
    if padding_mode not in modes:
        raise ValueError(f"Padding mode should be one of {list(modes)}, got {padding_mode!r}")
    if padding_mode == "constant":
        return TABLE["pad"](img, [left, right, top, bottom], value=fill)
    planes = img.reshape((-1, 1, *img.shape[-2:]))
    out = TABLE["pad"](planes.to(webtorch.float32), [left, right, top, bottom], modes[padding_mode])
    return out.reshape((*img.shape[:-2], *out.shape[-2:])).to(img.dtype)


def _resized(size: Any, height: int, width: int, max_size: int | None) -> tuple[int, int]:
    values = [size] if isinstance(size, int) else list(size)
    if len(values) == 2:
        if max_size is not None:
            raise ValueError(
                "max_size should only be passed if size specifies the length of the smaller edge"
            )
        return values[0], values[1]
    if len(values) != 1:
        raise ValueError("If size is a sequence, it should have 1 or 2 values")
    short, long = (width, height) if width <= height else (height, width)
    new_short = values[0]
    new_long = int(new_short * long / short)
    if max_size is not None:
        if max_size <= new_short:
            raise ValueError(
                f"max_size = {max_size} must be strictly greater than the requested size for the smaller edge "
                f"size = {size}"
            )
        if new_long > max_size:
            new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if width <= height else (new_short, new_long)


def resize(
    img: Tensor,
    size: Size,
    interpolation: str = "bilinear",
    max_size: int | None = None,
    antialias: bool | None = True,
) -> Tensor:
    """Return the image at another size: (height, width), or the length of the shorter edge.

    interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic"; the last two with antialias, as
    Pillow does it. uint8 is computed in float32 and rounded.
    """
    _check(img, "resize")
    mode = getattr(interpolation, "value", interpolation)
    if mode not in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        raise ValueError(f"This interpolation mode is unsupported with Tensor input: {mode!r}")
    height, width = img.shape[-2:]
    target = _resized(size, height, width, max_size)
    if target == (height, width):
        return img
    x = img.reshape((-1, 1, height, width))
    whole = not x.dtype.is_floating_point
    smooth = mode in ("bilinear", "bicubic")
    x = x.to(webtorch.float32) if whole else x
    options = {"align_corners": False, "antialias": bool(antialias)} if smooth else {}
    x = TABLE["interpolate"](x, size=list(target), mode=mode, **options)
    if whole:
        if mode == "bicubic" and img.dtype is webtorch.uint8:
            x = x.clamp(0, 255)
        x = (webtorch.round(x) if smooth else x).to(img.dtype)
    return x.reshape((*img.shape[:-2], *target))


def resized_crop(
    img: Tensor,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Size,
    interpolation: str = "bilinear",
    antialias: bool | None = True,
) -> Tensor:
    """Return a window of the image at another size."""
    return resize(crop(img, top, left, height, width), _pair(size), interpolation, None, antialias)


# ---- colour ---------------------------------------------------------------------------------------


def _top(x: Tensor) -> float:
    return 1.0 if x.dtype.is_floating_point else float(webtorch.iinfo(x.dtype).max)


def rgb_to_grayscale(img: Tensor, num_output_channels: int = 1) -> Tensor:
    """Return 0.2989 R + 0.587 G + 0.114 B, in one channel or three."""
    _check(img, "rgb_to_grayscale")
    if num_output_channels not in (1, 3):
        raise ValueError("num_output_channels should be either 1 or 3")
    if _channels(img) == 3:
        r, g, b = img.unbind(-3)
        img = (0.2989 * r + 0.587 * g + 0.114 * b).to(img.dtype).unsqueeze(-3)
    elif _channels(img) != 1:
        raise TypeError(
            f"Input image tensor permitted channel values are 1 or 3, but found {_channels(img)}"
        )
    return img.expand((*img.shape[:-3], 3, *img.shape[-2:])) if num_output_channels == 3 else img


def _three(img: Tensor, what: str) -> tuple[Tensor, Tensor, Tensor]:
    _check(img, what)
    if _channels(img) != 3:
        raise TypeError(f"{what}: 3 channels are wanted, the image has {_channels(img)}")
    if not img.dtype.is_floating_point:
        raise DTypeError(
            f"{what}: floats from 0 to 1 are wanted, got {img.dtype}: convert_image_dtype first"
        )
    r, g, b = img.unbind(-3)
    return r, g, b


def rgb_to_hsv(img: Tensor) -> Tensor:
    """Return hue, saturation and value, all from 0 to 1, of a float image."""
    r, g, b = _three(img, "rgb_to_hsv")
    top, low = img.amax(-3), img.amin(-3)
    gray = top == low
    span = top - low
    ones = webtorch.ones_like(top)
    saturation = span / webtorch.where(gray, ones, top)
    divisor = webtorch.where(gray, ones, span)
    rc, gc, bc = (top - r) / divisor, (top - g) / divisor, (top - b) / divisor
    hue = webtorch.where(top == r, bc - gc, webtorch.where(top == g, 2.0 + rc - bc, 4.0 + gc - rc))
    return webtorch.stack((webtorch.fmod(hue / 6.0 + 1.0, 1.0), saturation, top), -3)


def hsv_to_rgb(img: Tensor) -> Tensor:
    """Return red, green and blue of hue, saturation and value from 0 to 1."""
    h, s, v = _three(img, "hsv_to_rgb")
    # f(n) = v - v s max(0, min(k, 4 - k, 1)), k = (n + 6 h) mod 6; n = 5, 3, 1 (Smith, 1978).
    parts = []
    for n in (5.0, 3.0, 1.0):
        k = webtorch.remainder(h * 6.0 + n, 6.0)
        parts.append(v - v * s * webtorch.minimum(k, 4.0 - k).clamp(0, 1))
    return webtorch.stack(parts, -3)


def _blend(a: Tensor, b: Tensor, ratio: float) -> Tensor:
    return (ratio * a + (1.0 - ratio) * b).clamp(0, _top(a)).to(a.dtype)


def _factor(value: float, name: str) -> None:
    if value < 0:
        raise ValueError(f"{name} ({value}) is not non-negative.")


def adjust_brightness(img: Tensor, brightness_factor: float) -> Tensor:
    """Return the image times a factor, within its range."""
    _factor(brightness_factor, "brightness_factor")
    _check(img, "adjust_brightness")
    return _blend(img, webtorch.zeros_like(img), brightness_factor)


def adjust_contrast(img: Tensor, contrast_factor: float) -> Tensor:
    """Return the image blended with its mean gray."""
    _factor(contrast_factor, "contrast_factor")
    _check(img, "adjust_contrast")
    gray = rgb_to_grayscale(img) if _channels(img) == 3 else img
    wide = gray if gray.dtype.is_floating_point else gray.to(webtorch.float32)
    return _blend(img, wide.mean((-3, -2, -1), keepdim=True), contrast_factor)


def adjust_saturation(img: Tensor, saturation_factor: float) -> Tensor:
    """Return the image blended with its gray form."""
    _factor(saturation_factor, "saturation_factor")
    _check(img, "adjust_saturation")
    return img if _channels(img) == 1 else _blend(img, rgb_to_grayscale(img), saturation_factor)


def adjust_hue(img: Tensor, hue_factor: float) -> Tensor:
    """Return the image with its hues turned by a part of the circle, from -0.5 to 0.5."""
    if not -0.5 <= hue_factor <= 0.5:
        raise ValueError(f"hue_factor ({hue_factor}) is not in [-0.5, 0.5].")
    _check(img, "adjust_hue")
    if _channels(img) == 1:
        return img
    hsv = rgb_to_hsv(convert_image_dtype(img))
    h, s, v = hsv.unbind(-3)
    out = hsv_to_rgb(webtorch.stack((webtorch.remainder(h + hue_factor, 1.0), s, v), -3))
    return convert_image_dtype(out, img.dtype)


def adjust_gamma(img: Tensor, gamma: float, gain: float = 1) -> Tensor:
    """Return gain * image ** gamma, with values taken from 0 to 1."""
    if gamma < 0:
        raise ValueError("Gamma should be a non-negative real number")
    _check(img, "adjust_gamma")
    x = convert_image_dtype(img) if not img.dtype.is_floating_point else img
    return convert_image_dtype((gain * x**gamma).clamp(0, 1), img.dtype)


# ---- classes --------------------------------------------------------------------------------------


def _uniform(low: float, high: float) -> float:
    return float(webtorch.rand((), device="cpu").item()) * (high - low) + low


def _integer(low: int, high: int) -> int:
    return int(webtorch.randint(low, high, (), device="cpu").item())


class Transform:
    """Base: a call of it transforms an image. Prints its options."""

    def __call__(self, img: Any) -> Any:
        """Return the transformed image."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({shown})"


class Compose(Transform):
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], object]]) -> None:
        """Take the transforms."""
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        """Apply them in order."""
        for t in self.transforms:
            img = t(img)
        return img

    def __repr__(self) -> str:
        return "Compose(\n" + "".join(f"    {t}\n" for t in self.transforms) + ")"


class ToTensor(Transform):
    """An image of Pillow, or an array (H, W, C), as a float tensor (C, H, W) from 0 to 1."""

    def __call__(self, pic: Any) -> Tensor:
        """Convert."""
        return to_tensor(pic)


class PILToTensor(Transform):
    """An image of Pillow as a tensor (C, H, W) of its own numbers."""

    def __call__(self, pic: Any) -> Tensor:
        """Convert."""
        return pil_to_tensor(pic)


class ConvertImageDtype(Transform):
    """Another element type, scaled."""

    def __init__(self, dtype: object) -> None:
        """Take the type."""
        self.dtype = dtype

    def __call__(self, img: Tensor) -> Tensor:
        """Convert."""
        return convert_image_dtype(img, self.dtype)


class Lambda(Transform):
    """A function."""

    def __init__(self, lambd: Callable[[Any], object]) -> None:
        """Take it."""
        if not callable(lambd):
            raise TypeError(f"Argument lambd should be callable, got {type(lambd).__name__}")
        self.lambd = lambd

    def __call__(self, img: Any) -> Any:
        """Apply it."""
        return self.lambd(img)


class Normalize(Transform):
    """(image - mean) / std for each channel."""

    def __init__(self, mean: object, std: object, inplace: bool = False) -> None:
        """Take one mean and one std for each channel."""
        self.mean, self.std, self.inplace = mean, std, inplace

    def __call__(self, tensor: Tensor) -> Tensor:
        """Normalise."""
        return normalize(tensor, self.mean, self.std, self.inplace)


class Resize(Transform):
    """Another size; see `resize`."""

    def __init__(
        self,
        size: Size,
        interpolation: str = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        """Take (height, width), or the length of the shorter edge."""
        self.size, self.interpolation = size, interpolation
        self.max_size, self.antialias = max_size, antialias

    def __call__(self, img: Tensor) -> Tensor:
        """Resize."""
        return resize(img, self.size, self.interpolation, self.max_size, self.antialias)


class CenterCrop(Transform):
    """The middle."""

    def __init__(self, size: Size) -> None:
        """Take (height, width) or one number."""
        self.size = _pair(size)

    def __call__(self, img: Tensor) -> Tensor:
        """Crop."""
        return center_crop(img, self.size)


class Pad(Transform):
    """A border; see `pad`."""

    def __init__(self, padding: Size, fill: float = 0, padding_mode: str = "constant") -> None:
        """Take the widths."""
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode

    def __call__(self, img: Tensor) -> Tensor:
        """Pad."""
        return pad(img, self.padding, self.fill, self.padding_mode)


class RandomCrop(Transform):
    """A window at a random place."""

    def __init__(
        self,
        size: Size,
        padding: Any = None,
        pad_if_needed: bool = False,
        fill: float = 0,
        padding_mode: str = "constant",
    ) -> None:
        """Take the window's size; `padding` goes around the image before."""
        self.size, self.padding, self.pad_if_needed = _pair(size), padding, pad_if_needed
        self.fill, self.padding_mode = fill, padding_mode

    def __call__(self, img: Tensor) -> Tensor:
        """Crop."""
        if self.padding is not None:
            img = pad(img, self.padding, self.fill, self.padding_mode)
        height, width = self.size
        if self.pad_if_needed:
            short = max(0, width - img.shape[-1]), max(0, height - img.shape[-2])
            if any(short):
                img = pad(img, list(short), self.fill, self.padding_mode)
        h, w = img.shape[-2:]
        if h < height or w < width:
            raise ValueError(
                f"Required crop size {(height, width)} is larger than input image size {(h, w)}"
            )
        return crop(img, _integer(0, h - height + 1), _integer(0, w - width + 1), height, width)


class _Flip(Transform):
    _flip: Callable[[Tensor], Tensor]

    def __init__(self, p: float = 0.5) -> None:
        """Take the probability."""
        self.p = p

    def __call__(self, img: Tensor) -> Tensor:
        """Flip, or not."""
        return type(self)._flip(img) if _uniform(0, 1) < self.p else img


class RandomHorizontalFlip(_Flip):
    """The mirror image, with a probability."""

    _flip = staticmethod(hflip)


class RandomVerticalFlip(_Flip):
    """The image upside down, with a probability."""

    _flip = staticmethod(vflip)


class RandomResizedCrop(Transform):
    """A window of random area and ratio, resized."""

    def __init__(
        self,
        size: Size,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: str = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        """Take the size, and the ranges of the area and of width / height."""
        self.size, self.scale, self.ratio = _pair(size), scale, ratio
        self.interpolation, self.antialias = interpolation, antialias

    def _window(self, h: int, w: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = h * w * _uniform(*self.scale)
            aspect = math.exp(_uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < width <= w and 0 < height <= h:
                return _integer(0, h - height + 1), _integer(0, w - width + 1), height, width
        aspect = min(max(w / h, self.ratio[0]), self.ratio[1])
        width = w if w / h <= aspect else round(h * aspect)
        height = h if w / h >= aspect else round(w / aspect)
        return (h - height) // 2, (w - width) // 2, height, width

    def __call__(self, img: Tensor) -> Tensor:
        """Crop and resize."""
        window = self._window(*img.shape[-2:])
        return resized_crop(img, *window, self.size, self.interpolation, self.antialias)


class Grayscale(Transform):
    """Gray, in one channel or three."""

    def __init__(self, num_output_channels: int = 1) -> None:
        """Take the number of channels."""
        self.num_output_channels = num_output_channels

    def __call__(self, img: Tensor) -> Tensor:
        """Convert."""
        return rgb_to_grayscale(img, self.num_output_channels)


class RandomGrayscale(Transform):
    """Gray, with a probability; the number of channels stays."""

    def __init__(self, p: float = 0.1) -> None:
        """Take the probability."""
        self.p = p

    def __call__(self, img: Tensor) -> Tensor:
        """Convert, or not."""
        return rgb_to_grayscale(img, _channels(img)) if _uniform(0, 1) < self.p else img


class ColorJitter(Transform):
    """Random brightness, contrast, saturation and hue, in random order."""

    def __init__(
        self, brightness: object = 0, contrast: object = 0, saturation: object = 0, hue: object = 0
    ) -> None:
        """Take numbers x, for factors from 1 - x to 1 + x (hue: -x to x), or ranges."""
        self.brightness = self._range(brightness, "brightness")
        self.contrast = self._range(contrast, "contrast")
        self.saturation = self._range(saturation, "saturation")
        self.hue = self._range(hue, "hue", 0.0, (-0.5, 0.5))

    @staticmethod
    def _range(
        value: Any, name: str, center: float = 1.0, bounds: tuple[float, float] = (0.0, math.inf)
    ) -> tuple[float, float] | None:
        if isinstance(value, (int, float)):
            if value < 0:
                raise ValueError(f"If {name} is a single number, it must be non negative.")
            low, high = center - value, center + value
            low = max(low, 0.0) if center else low
        else:
            low, high = value
        if not bounds[0] <= low <= high <= bounds[1]:
            raise ValueError(f"{name} values should be between {bounds}, but got {[low, high]}.")
        return None if low == high == center else (low, high)

    def __call__(self, img: Tensor) -> Tensor:
        """Adjust."""
        steps = [
            (adjust_brightness, self.brightness), (adjust_contrast, self.contrast),
            (adjust_saturation, self.saturation), (adjust_hue, self.hue),
        ]  # fmt: skip
        for i in webtorch.randperm(4, device="cpu").tolist():
            function, limits = steps[i]
            if limits is not None:
                img = function(img, _uniform(*limits))
        return img


class RandomApply(Transform):
    """Several transforms, or none of them, with a probability."""

    def __init__(self, transforms: Sequence[Callable[[Any], object]], p: float = 0.5) -> None:
        """Take the transforms and the probability."""
        self.transforms, self.p = transforms, p

    def __call__(self, img: Any) -> Any:
        """Apply them, or not."""
        if _uniform(0, 1) < self.p:
            for t in self.transforms:
                img = t(img)
        return img


class RandomChoice(Transform):
    """One of several transforms."""

    def __init__(self, transforms: Sequence[Callable[[Any], object]]) -> None:
        """Take the transforms."""
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        """Apply one."""
        return self.transforms[_integer(0, len(self.transforms))](img)
