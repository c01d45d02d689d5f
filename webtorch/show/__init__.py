"""`webtorch.show`: tensors as pictures, numbers as curves, without matplotlib. Floor 6; standard library only.

    webtorch.show.image(x)                        # (H, W), (C, H, W) or a batch, as a grid
    webtorch.show.plot({"loss": losses})          # curves

In the playground a picture appears at once; with `key`, in the place of the one that had the key
before. In Jupyter it is shown as the value of a cell; anywhere, `.save("file.png")` writes it.
After `%load_ext webtorch.show` a notebook shows tensors that are pictures as such, beside their numbers.
"""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from webtorch.show.charts import Series, line_chart

# Who shows drawings at once: the playground adds itself.
displays: list[Callable[[Drawing], object]] = []
# The colours that a page gives the chart's classes; a drawing that stands alone brings them along.
_STYLE = (
    "<style>.chart{max-width:640px!important;background:#fff;font:12px system-ui,sans-serif;fill:#5f5c57}"
    ".chart .grid,.chart .axis{stroke:#e6e3dd;fill:none}.chart .line{fill:none;stroke-width:2}.line.s0{stroke:#2c5fd6}"
    ".line.s1{stroke:#c2410c}.line.s2{stroke:#15803d}.dot.s0{fill:#2c5fd6}.dot.s1{fill:#c2410c}"
    ".dot.s2{fill:#15803d}.legend span{margin-left:1em}.swatch{display:inline-block;width:14px;height:3px;"
    "margin-right:6px;vertical-align:3px;background:currentColor}.swatch.s0{color:#2c5fd6}"
    ".swatch.s1{color:#c2410c}.swatch.s2{color:#15803d}</style>"
)


# What notebooks know tensors by: their class is above.
_TENSOR = "webtorch", "Tensor"


class Drawing:
    """A picture: `data` is PNG bytes, or the HTML of a figure with an SVG, as `mime` says."""

    def __init__(self, mime: str, data: bytes | str, title: str, key: str) -> None:
        self.mime = mime
        self.data = data
        self.title = title
        self.key = key
        for display in displays:
            display(self)

    def save(self, path: str | Path) -> None:
        """Write a PNG file, or an SVG file for curves."""
        if isinstance(self.data, bytes):
            Path(path).write_bytes(self.data)
        else:
            Path(path).write_text(self._alone(), encoding="utf-8")

    def _alone(self) -> str:
        assert isinstance(self.data, str)
        svg = self.data[self.data.index("<svg") : self.data.index("</svg>")] + "</svg>"
        head, _, rest = svg.partition(">")
        return f'{head} xmlns="http://www.w3.org/2000/svg">{_STYLE}{rest}'

    def _repr_png_(self) -> bytes | None:
        return self.data if isinstance(self.data, bytes) else None

    def _repr_html_(self) -> str | None:
        return _STYLE + self.data if isinstance(self.data, str) else None

    def __repr__(self) -> str:
        return f"<{self.mime} {self.title!r}>" if self.title else f"<{self.mime}>"


def image(
    x: object, *, title: str = "", key: str = "", scale: int = 0, columns: int = 0
) -> Drawing:
    """Show a tensor or nested lists as a picture, or a batch as a grid of pictures.

    Shapes: (H, W); (C, H, W) or (H, W, C) with C of 1 (grey), 3 (red, green, blue) or 4; (N, C, H, W). uint8 is
    0 to 255, bool black and white; other numbers are taken as 0 to 1 if they lie there, else stretched from their
    smallest to their largest. `scale` enlarges each element to that many pixels (0: to a size that is seen).
    Raises ValueError for other shapes.
    """
    values, shape, kind = _numbers(x)
    if len(shape) == 2:
        shape = (1, 1, *shape)
    elif len(shape) == 3 and shape[0] in (1, 3, 4):
        shape = (1, *shape)
    elif len(shape) == 3 and shape[2] in (1, 3, 4):
        h, w, c = shape
        values = [values[(i * w + j) * c + k] for k in range(c) for i in range(h) for j in range(w)]
        shape = (1, c, h, w)
    if len(shape) != 4 or shape[1] not in (1, 3, 4) or 0 in shape:
        raise ValueError(
            f"show.image: shape {list(shape)} is no picture: (H, W), (C, H, W), (H, W, C) or (N, C, H, W) with "
            "C of 1, 3 or 4, and not empty"
        )
    levels = _levels(values, kind)
    n, c, h, w = shape
    columns = min(columns or math.ceil(math.sqrt(n)), n)
    scale = scale or max(1, min(28, 384 // max(w * columns, h)))
    gap = max(2, scale // 2) if n > 1 else 0
    between = b"\x80" * (gap * c)
    lines: list[bytes] = []
    width = columns * w * scale + (columns - 1) * gap
    blank = b"\x80" * (width * c)
    for first in range(0, n, columns):
        if first:
            lines += [blank] * gap
        for i in range(h):
            line = bytearray()
            for number in range(first, first + columns):
                if number > first:
                    line += between
                if number >= n:
                    line += b"\x80" * (c * w * scale)
                    continue
                rows = [levels[((number * c + k) * h + i) * w :][:w] for k in range(c)]
                if c == 1:
                    for level in rows[0]:
                        line += bytes((level,)) * scale
                else:
                    for pixel in zip(*rows):
                        line += bytes(pixel) * scale
            lines += [bytes(line)] * scale
    return Drawing("image/png", _png(width, c, lines), title, key)


def plot(
    *values: object,
    title: str = "",
    key: str = "",
    x_label: str = "",
    y_label: str = "",
    log: bool = False,
) -> Drawing:
    """Show curves: `plot(y)`, `plot(x, y)`, or `plot({"train": y1, "test": y2})` for several with names.

    Values are lists of numbers or 1-d tensors; `log` makes the vertical axis logarithmic.
    """
    if not 1 <= len(values) <= 2:
        raise TypeError("show.plot: plot(y), plot(x, y) or plot({name: y, ...})")
    curves = values[-1] if isinstance(values[-1], Mapping) else {"": values[-1]}
    xs = _numbers(values[0])[0] if len(values) == 2 else None
    series = []
    for name, ys in curves.items():
        heights = _numbers(ys)[0]
        places = xs if xs is not None else list(range(len(heights)))
        if len(places) != len(heights):
            raise ValueError(f"show.plot: {len(places)} places for {len(heights)} values {name!r}")
        series.append(Series(str(name), *_thinned(places, heights), marked=len(heights) < 30))
    text = line_chart(series, title=title, x_label=x_label, y_label=y_label, log_y=log)
    if not text:
        raise ValueError("show.plot: there is no finite value to show")
    return Drawing("text/html", text, title, key)


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most some hundred points: a curve has no more pixels."""
    step = max(1, len(xs) // 400)
    return list(xs[::step]), list(ys[::step])


def _numbers(x: object) -> tuple[list[float], tuple[int, ...], str]:
    """Return flat values, the shape and the element type's name of a tensor, array or nested lists."""
    kind = str(getattr(x, "dtype", "float")).rpartition(".")[2]
    if hasattr(x, "detach"):
        x = x.detach()
    nested = x.tolist() if hasattr(x, "tolist") else x
    shape: list[int] = []
    flat: object = nested
    while isinstance(flat, (list, tuple)):
        shape.append(len(flat))
        flat = flat[0] if flat else None
    values: Any = [nested]
    for _ in shape:
        values = [v for part in values for v in part]
    return [float(getattr(v, "item", lambda v=v: v)()) for v in values], tuple(shape), kind


def _levels(values: list[float], kind: str) -> bytes:
    if kind == "uint8":
        return bytes(map(int, values))
    finite = [v for v in values if math.isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    span = (high - low) or 1.0
    return bytes(
        min(255, max(0, round(255 * (v - low) / span))) if math.isfinite(v) else 0 for v in values
    )


def _png(width: int, channels: int, lines: list[bytes]) -> bytes:
    """Return a PNG file (W3C, Portable Network Graphics) of lines of 8-bit samples."""
    colour = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, len(lines), 8, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + line for line in lines), 6)
    out = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", head), (b"IDAT", body), (b"IEND", b"")):
        out += struct.pack(">I", len(data)) + name + data
        out += struct.pack(">I", zlib.crc32(name + data))
    return out


def load_ipython_extension(shell: Any) -> None:
    """Show tensors that are pictures as such: `%load_ext webtorch.show` in a notebook calls this."""
    shell.display_formatter.formatters["text/html"].for_type_by_name(*_TENSOR, _as_html)


def unload_ipython_extension(shell: Any) -> None:
    """Show numbers again: `%unload_ext webtorch.show`."""
    shell.display_formatter.formatters["text/html"].pop(".".join(_TENSOR), None)


def _as_html(x: Any) -> str | None:
    """Return a picture with its numbers folded away, or None for what is no picture: text is shown then."""
    shape, kind = tuple(x.shape), str(x.dtype).rpartition(".")[2]
    is_picture = len(shape) in (3, 4) and shape[-3] in (1, 3) and min(shape[-2:]) >= 8
    if not is_picture or not 0 < x.numel() <= 1 << 20 or x.device.type == "meta":
        return None
    if kind != "uint8" and not x.is_floating_point():
        return None
    data = image(x).data
    assert isinstance(data, bytes)
    source = base64.b64encode(data).decode("ascii")
    about = f"{kind}[{', '.join(map(str, shape))}]"
    return (
        f'<img alt="{about}" src="data:image/png;base64,{source}">'
        f"<details><summary>{about}</summary><pre>{html.escape(repr(x))}</pre></details>"
    )
