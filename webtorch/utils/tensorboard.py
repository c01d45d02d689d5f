"""`torch.utils.tensorboard`: a `SummaryWriter` writes what the package "tensorboard" shows, which must be installed.

What is written is PyTorch's, event by event, but for graphs (`add_graph`): PyTorch draws that of TorchScript,
here it is of the operators that one call of the model runs.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import socket
import time
import wave
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np

from webtorch.functions import public as webtorch
from webtorch.nn.module import Module
from webtorch.utils.drawn_graph import drawn_graph

__all__ = ["FileWriter", "RecordWriter", "SummaryWriter"]

# A message of protobuf's, whose class is made when it is read.
Message: TypeAlias = Any
# A tensor, an array, a list or a number.
Values: TypeAlias = Any
# A number, or what gives one by `int`.
Step: TypeAlias = Any

# PyTorch's types of tensors -> what the message calls them, and the field that holds the numbers.
_STORED = {
    webtorch.float16: ("DT_HALF", "half_val"),
    webtorch.bfloat16: ("DT_BFLOAT16", "half_val"),
    webtorch.float32: ("DT_FLOAT", "float_val"),
    webtorch.float64: ("DT_DOUBLE", "double_val"),
    webtorch.int8: ("DT_INT8", "int_val"),
    webtorch.uint8: ("DT_UINT8", "uint32_val"),
    webtorch.int16: ("DT_INT16", "int_val"),
    webtorch.int32: ("DT_INT32", "int_val"),
    webtorch.int64: ("DT_INT64", "int64_val"),
    webtorch.complex64: ("DT_COMPLEX64", "scomplex_val"),
    webtorch.complex128: ("DT_COMPLEX128", "dcomplex_val"),
    webtorch.bool: ("DT_BOOL", "bool_val"),
}


def _package(module: str) -> Any:
    """Return a module of the package "tensorboard"."""
    return importlib.import_module(f"tensorboard.{module}")


try:
    _package("summary.writer.event_file_writer")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'torch.utils.tensorboard writes files by way of the package "tensorboard", which is not installed '
        f"({error}): pip install tensorboard",
        name=error.name,
    ) from None
_summary = _package("compat.proto.summary_pb2")
_tensor = _package("compat.proto.tensor_pb2")
_shape = _package("compat.proto.tensor_shape_pb2")
_event = _package("compat.proto.event_pb2")
RecordWriter: Any = _package("summary.writer.record_writer").RecordWriter


def _numbers(values: object) -> np.ndarray:
    """Return a tensor, an array or a number as a NumPy array."""
    if isinstance(values, np.ndarray):
        return values
    if np.isscalar(values):
        return np.array([values])
    if isinstance(values, webtorch.Tensor):
        x = values.detach().cpu()
        found: np.ndarray = (x.half() if x.dtype is webtorch.bfloat16 else x).numpy()
        return found
    raise NotImplementedError(f"Got {type(values)}, but numpy array or torch tensor are expected.")


# What events hold.


def _held(tag: str, **content: object) -> Message:
    return _summary.Summary(value=[_summary.Summary.Value(tag=tag, **content)])


def _of_plugin(name: str, content: bytes = b"") -> Message:
    data = _summary.SummaryMetadata.PluginData(plugin_name=name, content=content)
    return _summary.SummaryMetadata(plugin_data=data)


def _message(dtype: str, sizes: Sequence[int] | None, **values: object) -> Message:
    """Return the message of a tensor."""
    if sizes is not None:
        dims = [_shape.TensorShapeProto.Dim(size=size) for size in sizes]
        values["tensor_shape"] = _shape.TensorShapeProto(dim=dims)
    return _tensor.TensorProto(dtype=dtype, **values)


def _scalar(tag: str, value: object, new_style: bool = False, double: bool = False) -> Message:
    found = _numbers(value).squeeze()
    if found.ndim != 0:
        raise AssertionError(
            "Tensor should contain one element (0 dimensions). "
            f"Was given size: {found.size} and {found.ndim} dimensions."
        )
    number = float(found)
    if not new_style:
        return _held(tag, simple_value=number)
    kind = ("DT_DOUBLE", "double_val") if double else ("DT_FLOAT", "float_val")
    return _held(
        tag, tensor=_message(kind[0], None, **{kind[1]: [number]}), metadata=_of_plugin("scalars")
    )


def _whole_tensor(tag: str, tensor: Values) -> Message:
    if tensor.dtype not in _STORED:
        raise ValueError(f"{tag} has unsupported tensor dtype {tensor.dtype}")
    kind, field = _STORED[tensor.dtype]
    flat = tensor.detach().cpu().reshape(-1)
    if field == "half_val":
        # As PyTorch writes them: with the bits of float32.
        numbers = flat.float().view(webtorch.int32).tolist()
    elif tensor.is_complex():
        numbers = webtorch.view_as_real(flat).reshape(-1).tolist()
    else:
        numbers = flat.tolist()
    message = _message(kind, tuple(tensor.shape), **{field: numbers})
    return _held(tag, tensor=message, metadata=_of_plugin("tensor"))


def _default_edges() -> list[float]:
    """Return the edges of histograms' bins by default: each is a tenth further from 0 than the one before."""
    upper = [1e-12]
    while upper[-1] * 1.1 < 1e20:
        upper.append(upper[-1] * 1.1)
    return [*(-edge for edge in reversed(upper)), 0.0, *upper]


def _histogram(tag: str, given: Values, bins: Values, max_bins: int | None) -> Message:
    values = _numbers(given).astype(float).reshape(-1)
    if not values.size:
        raise ValueError("The input has no element.")
    counts, edges = np.histogram(values, bins=bins)
    if max_bins is not None and len(counts) > max_bins:
        together = len(counts) // max_bins
        counts = np.concatenate([counts, np.zeros(-len(counts) % together, counts.dtype)])
        counts = counts.reshape(-1, together).sum(-1)
        edges = np.concatenate([edges[:-1:together], edges[-1:]])
    used = np.nonzero(counts)[0]
    if not used.size:
        raise ValueError("The histogram is empty, please file a bug report.")
    first, end = int(used[0]), int(used[-1]) + 1
    # Only the upper edges of bins are shown, so that an empty bin comes first.
    before = counts[first - 1 : first] if first else [0]
    histogram = _summary.HistogramProto(
        min=values.min(), max=values.max(), num=len(values), sum=values.sum(), sum_squares=values.dot(values),
        bucket_limit=edges[first : end + 1].tolist(), bucket=[*map(int, before), *counts[first:end].tolist()],
    )  # fmt: skip
    return _held(tag, histo=histogram)


def _side_by_side(images: np.ndarray, columns: int = 8) -> np.ndarray:
    """Return images (N, C, H, W) of 1 or 3 channels as one (3, H, W), with so many in a row."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise AssertionError("Input should be a 4D numpy array with 3 channels")
    count, _, height, width = images.shape
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    whole = np.zeros((rows * columns, 3, height, width), images.dtype)
    whole[:count] = images
    cells = whole.reshape(rows, columns, 3, height, width).transpose(2, 0, 3, 1, 4)
    return cells.reshape(3, rows * height, columns * width)


def _pixels(given: object, dims: str) -> np.ndarray:
    """Return a picture, or several, as bytes (H, W, C); `dims` says what the dims are."""
    x = _numbers(given)
    factor = 1 if x.dtype == np.uint8 else 255
    if len({*dims}) != len(dims):
        raise AssertionError(
            f"You can not use the same dimension shorthand twice. input_format: {dims}"
        )
    if x.ndim != len(dims):
        raise AssertionError(
            "size of input tensor and input format are different. "
            f"tensor shape: {x.shape}, input_format: {dims}"
        )
    dims = dims.upper()
    wanted = {4: "NCHW", 3: "HWC", 2: "HW"}[len(dims)]
    x = x.transpose([dims.index(name) for name in wanted])
    if x.ndim == 4:
        x = _side_by_side(x).transpose(1, 2, 0)
    elif x.ndim == 2 or x.shape[2] == 1:
        x = np.repeat(x.reshape(*x.shape[:2], 1), 3, 2)
    return (x.astype(np.float32) * factor).clip(0, 255).astype(np.uint8)


def _png(
    pixels: np.ndarray, boxes: Values = None, labels: Values = None, rescale: float = 1
) -> Message:
    """Return a picture (H, W, C) as the message of its file, with boxes drawn on it."""
    from PIL import Image, ImageDraw, ImageFont

    height, width, channels = pixels.shape
    image = Image.fromarray(pixels)
    for number, box in enumerate(() if boxes is None else boxes):
        draw = ImageDraw.Draw(image)
        left, top, right, bottom = map(float, box)
        corners = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
        draw.line(corners, width=2, fill="Red")
        if labels is not None:
            font = ImageFont.load_default()
            x, y, *size = font.getbbox(labels[number])
            size = [size[0] - x, size[1] - y]
            margin = math.ceil(0.05 * size[1])
            ground = [(left, bottom - size[1] - 2 * margin), (left + size[0], bottom)]
            draw.rectangle(ground, fill="Red")
            at = left + margin, bottom - size[1] - margin
            draw.text(at, labels[number], fill="black", font=font)
    size = int(width * rescale), int(height * rescale)
    file = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(file, format="PNG")
    return _summary.Summary.Image(
        height=height, width=width, colorspace=channels, encoded_image_string=file.getvalue()
    )


def _sound(tag: str, given: object, rate: int) -> Message:
    x = _numbers(given).squeeze()
    if abs(x).max() > 1:
        print("warning: audio amplitude out of range, auto clipped.")  # noqa: T201
        x = x.clip(-1, 1)
    if x.ndim != 1:
        raise AssertionError("input tensor should be 1 dimensional.")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes((x * np.iinfo(np.int16).max).astype("<i2").tobytes())
    audio = _summary.Summary.Audio(
        sample_rate=rate, num_channels=1, length_frames=len(x), encoded_audio_string=file.getvalue(),
        content_type="audio/wav",
    )  # fmt: skip
    return _held(tag, audio=audio)


def _film(tag: str, given: Values, rate: float) -> Message:
    """Return pictures (N, T, C, H, W) as a moving one, in which N stand side by side."""
    from moviepy import ImageSequenceClip  # type: ignore[import-not-found]

    x = _numbers(given)
    factor = 1 if x.dtype == np.uint8 else 255
    count = 1 << (len(x) - 1).bit_length()
    x = np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]), x.dtype)])
    rows = 2 ** ((len(given).bit_length() - 1) // 2)
    times, channels, height, width = x.shape[1:]
    x = x.reshape(rows, count // rows, times, channels, height, width).transpose(2, 0, 4, 1, 5, 3)
    frames = x.reshape(times, rows * height, -1, channels).astype(np.float32) * factor
    import tempfile

    # In a folder: Windows opens no file twice.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "clip.gif")
        clip = ImageSequenceClip(list(frames.clip(0, 255).astype(np.uint8)), fps=rate)
        clip.write_gif(path, logger=None)
        with open(path, "rb") as file:
            data = file.read()
    image = _summary.Summary.Image(
        height=frames.shape[1],
        width=frames.shape[2],
        colorspace=channels,
        encoded_image_string=data,
    )
    return _held(tag, image=image)


def _text(tag: str, text: str) -> Message:
    data = _package("plugins.text.plugin_data_pb2").TextPluginData(version=0)
    message = _message("DT_STRING", (1,), string_val=[text.encode()])
    metadata = _of_plugin("text", data.SerializeToString())
    return _held(f"{tag}/text_summary", tensor=message, metadata=metadata)


def _curve(tag: str, parts: np.ndarray, thresholds: int) -> Message:
    """Return how precise and how complete what is found is, for so many thresholds."""
    data = _package("plugins.pr_curve.plugin_data_pb2").PrCurvePluginData(
        version=0, num_thresholds=thresholds
    )
    message = _message("DT_FLOAT", parts.shape, float_val=parts.reshape(-1).tolist())
    metadata = _of_plugin("pr_curves", data.SerializeToString())
    return _held(tag, tensor=message, metadata=metadata)


def _counted(labels: Values, predictions: Values, thresholds: int, weights: Values) -> np.ndarray:
    """Return what is found rightly and wrongly, and left out rightly and wrongly, above each threshold, and rates."""
    true, found = _numbers(labels).astype(np.float64), _numbers(predictions)
    weights = 1.0 if weights is None else weights
    bins = np.floor(found * (thresholds - 1)).astype(np.int32)

    def above(weighted: Values) -> np.ndarray:
        """Return the sum of weights from each threshold on."""
        limits = (0, thresholds - 1)
        count, _ = np.histogram(bins, bins=thresholds, range=limits, weights=weighted)
        return np.cumsum(count[::-1])[::-1]

    tp, fp = above(true * weights), above((1.0 - true) * weights)
    tn, fn = fp[0] - fp, tp[0] - tp
    precision, recall = tp / np.maximum(1e-7, tp + fp), tp / np.maximum(1e-7, tp + fn)
    return np.stack((tp, fp, tn, fn, precision, recall))


def _layout(layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> Message:
    """Return which scalars are shown in one chart."""
    pages = _package("plugins.custom_scalar.layout_pb2")
    categories = []
    for title, charts in layout.items():
        made = []
        for name, (kind, tags) in charts.items():
            if kind == "Margin":
                if len(tags) != 3:
                    raise AssertionError("len(tags) != 3")
                value, lower, upper = tags
                series = pages.MarginChartContent.Series(value=value, lower=lower, upper=upper)
                content = {"margin": pages.MarginChartContent(series=[series])}
            else:
                content = {"multiline": pages.MultilineChartContent(tag=tags)}
            made.append(pages.Chart(title=name, **content))
        categories.append(pages.Category(title=title, chart=made))
    data = pages.Layout(category=categories).SerializeToString()
    message = _message("DT_STRING", (), string_val=[data])
    return _held("custom_scalars__config__", tensor=message, metadata=_of_plugin("custom_scalars"))


def _mesh(tag: str, vertices: object, colors: object, faces: object, config: object) -> Message:
    """Return points in space with colors, and the triangles between them."""
    metadata = _package("plugins.mesh.metadata")
    kinds = _package("plugins.mesh.plugin_data_pb2").MeshPluginData
    given = [
        (webtorch.as_tensor(x), kind)
        for x, kind in ((vertices, kinds.VERTEX), (faces, kinds.FACE), (colors, kinds.COLOR))
        if x is not None
    ]
    parts = metadata.get_components_bitmask([kind for _, kind in given])
    said = "{}" if config is None else json.dumps(config, sort_keys=True)
    values = [
        _summary.Summary.Value(
            tag=metadata.get_instance_name(tag, kind),
            tensor=_message("DT_FLOAT", x.shape[:3], float_val=x.reshape(-1).tolist()),
            metadata=metadata.create_summary_metadata(
                tag, None, kind, parts, tuple(x.shape), None, json_config=said
            ),
        )
        for x, kind in given
    ]
    return _summary.Summary(value=values)


def _hyperparameters(given: Values, metrics: Any, domains: Any) -> list[Any]:
    """Return what a run was given, which metrics it has, and that it succeeded."""
    for name, value in (("hparam_dict", given), ("metric_dict", metrics)):
        if not isinstance(value, dict):
            raise TypeError(f"parameter: {name} should be a dictionary, nothing logged.")
    domains = domains or {}
    if not isinstance(domains, dict):
        raise TypeError("parameter: hparam_domain_discrete should be a dictionary, nothing logged.")
    for name, domain in domains.items():
        fits = name in given and isinstance(domain, list)
        if not (fits and all(isinstance(d, type(given[name])) for d in domain)):
            raise TypeError(
                f"parameter: hparam_domain_discrete[{name}] should be a list of same type as hparam_dict[{name}]."
            )
    api, names = _package("plugins.hparams.api_pb2"), _package("plugins.hparams.metadata")
    data = _package("plugins.hparams.plugin_data_pb2")
    values = importlib.import_module("google.protobuf.struct_pb2")
    start, infos = data.SessionStartInfo(), []
    for name, value in given.items():
        if value is None:
            continue
        field, kind = "number_value", "DATA_TYPE_FLOAT64"
        if isinstance(value, str):
            field, kind = "string_value", "DATA_TYPE_STRING"
        elif isinstance(value, webtorch.Tensor):
            value = _numbers(value)[0]
        elif not isinstance(value, (int, float)):
            raise ValueError("value should be one of int, float, str, bool, or torch.Tensor")
        setattr(start.hparams[name], field, value)
        domain = None
        if name in domains:
            listed = [values.Value(**{field: d}) for d in domains[name]]
            domain = values.ListValue(values=listed)
        type_ = api.DataType.Value(kind)
        infos.append(api.HParamInfo(name=name, type=type_, domain_discrete=domain))
    measured = [api.MetricInfo(name=api.MetricName(tag=name)) for name in metrics]
    experiment = api.Experiment(hparam_infos=infos, metric_infos=measured)
    end = data.SessionEndInfo(status=api.Status.Value("STATUS_SUCCESS"))
    found = []
    for tag, content in (
        (names.EXPERIMENT_TAG, {"experiment": experiment}),
        (names.SESSION_START_INFO_TAG, {"session_start_info": start}),
        (names.SESSION_END_INFO_TAG, {"session_end_info": end}),
    ):
        held = data.HParamsPluginData(version=names.PLUGIN_DATA_VERSION, **content)
        found.append(_held(tag, metadata=_of_plugin(names.PLUGIN_NAME, held.SerializeToString())))
    return found


class FileWriter:
    """Writes events to a file of a folder."""

    def __init__(
        self, log_dir: Any, max_queue: int = 10, flush_secs: int = 120, filename_suffix: str = ""
    ) -> None:
        """Open a file."""
        writer = _package("summary.writer.event_file_writer").EventFileWriter
        self.event_writer: Any = writer(str(log_dir), max_queue, flush_secs, filename_suffix)

    def get_logdir(self) -> str:
        """Return the folder."""
        return str(self.event_writer.get_logdir())

    def add_event(self, event: Message, step: Step = None, walltime: float | None = None) -> None:
        """Write an event."""
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        self.event_writer.add_event(event)

    def add_summary(
        self, summary: Message, global_step: Step = None, walltime: float | None = None
    ) -> None:
        """Write a summary."""
        self.add_event(_event.Event(summary=summary), global_step, walltime)

    def flush(self) -> None:
        """Write what waits."""
        self.event_writer.flush()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.event_writer.close()

    def reopen(self) -> None:
        """Open another file of the folder, after `close`."""
        self.event_writer.reopen()


class SummaryWriter:
    """Writes numbers, histograms, pictures, sounds, texts and hyperparameters to a folder, for TensorBoard to show."""

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        """Take the folder; without one it is runs/DATE_HOST and the comment."""
        if not log_dir:
            now = datetime.now().strftime("%b%d_%H-%M-%S")
            log_dir = os.path.join("runs", f"{now}_{socket.gethostname()}{comment}")
        self.log_dir = log_dir
        self.purge_step, self.max_queue = purge_step, max_queue
        self.flush_secs, self.filename_suffix = flush_secs, filename_suffix
        self.file_writer: FileWriter | None = None
        self.all_writers: dict[str, FileWriter] | None = None
        self._get_file_writer()
        self.default_bins = _default_edges()

    def _open(self, folder: object) -> FileWriter:
        return FileWriter(folder, self.max_queue, self.flush_secs, self.filename_suffix)

    def _get_file_writer(self) -> FileWriter:
        if self.all_writers is None or self.file_writer is None:
            writer = self.file_writer = self._open(self.log_dir)
            self.all_writers = {writer.get_logdir(): writer}
            if self.purge_step is not None:
                kind = _event.SessionLog
                start = kind(status=kind.START)
                writer.add_event(_event.Event(step=self.purge_step, file_version="brain.Event:2"))
                writer.add_event(_event.Event(step=self.purge_step, session_log=start))
                self.purge_step = None
        return self.file_writer

    def get_logdir(self) -> Message:
        """Return the folder."""
        return self.log_dir

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: Step = None,
    ) -> None:
        """Write hyperparameters and what they gave, to a folder of their own."""
        if type(hparam_dict) is not dict or type(metric_dict) is not dict:
            raise TypeError("hparam_dict and metric_dict should be dictionary.")
        parts = _hyperparameters(hparam_dict, metric_dict, hparam_domain_discrete)
        folder = os.path.join(self._get_file_writer().get_logdir(), run_name or str(time.time()))
        with SummaryWriter(folder) as writer:
            for part in parts:
                writer._get_file_writer().add_summary(part, global_step)
            for name, value in metric_dict.items():
                writer.add_scalar(name, value, global_step)

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: Step = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Write a number."""
        held = _scalar(tag, scalar_value, new_style, double_precision)
        self._get_file_writer().add_summary(held, global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Step = None,
        walltime: float | None = None,
    ) -> None:
        """Write numbers of one chart, each to a folder of its own."""
        walltime = time.time() if walltime is None else walltime
        folder = self._get_file_writer().get_logdir()
        assert self.all_writers is not None
        for tag, number in tag_scalar_dict.items():
            place = f"{folder}/{main_tag.replace('/', '_')}_{tag}"
            if place not in self.all_writers:
                self.all_writers[place] = self._open(place)
            self.all_writers[place].add_summary(_scalar(main_tag, number), global_step, walltime)

    def add_tensor(
        self, tag: str, tensor: Values, global_step: Step = None, walltime: float | None = None
    ) -> None:
        """Write all elements of a tensor."""
        self._get_file_writer().add_summary(_whole_tensor(tag, tensor), global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: object,
        global_step: Step = None,
        bins: object = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Write how numbers are distributed."""
        edges = self.default_bins if isinstance(bins, str) and bins == "tensorflow" else bins
        held = _histogram(tag, values, edges, max_bins)
        self._get_file_writer().add_summary(held, global_step, walltime)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Values,
        bucket_counts: Values,
        global_step: Step = None,
        walltime: float | None = None,
    ) -> None:
        """Write a histogram that has been counted."""
        if len(bucket_limits) != len(bucket_counts):
            raise ValueError("len(bucket_limits) != len(bucket_counts), see the document.")
        held = _summary.HistogramProto(
            min=min, max=max, num=num, sum=sum, sum_squares=sum_squares, bucket_limit=bucket_limits,
            bucket=bucket_counts,
        )  # fmt: skip
        self._get_file_writer().add_summary(_held(tag, histo=held), global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: object,
        global_step: Step = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Write a picture; `dataformats` says which dims are channels, height and width."""
        held = _held(tag, image=_png(_pixels(img_tensor, dataformats)))
        self._get_file_writer().add_summary(held, global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: object,
        global_step: Step = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Write several pictures side by side, eight in a row."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_image_with_boxes(
        self,
        tag: str,
        img_tensor: Values,
        box_tensor: Values,
        global_step: Step = None,
        walltime: float | None = None,
        rescale: float = 1,
        dataformats: str = "CHW",
        labels: Values = None,
    ) -> None:
        """Write a picture with boxes (left, top, right, bottom) on it, which may have labels."""
        labels = [labels] if isinstance(labels, str) else labels
        boxes = _numbers(box_tensor)
        if labels is not None and len(labels) != len(boxes):
            labels = None
        held = _png(_pixels(img_tensor, dataformats), boxes, labels, rescale)
        self._get_file_writer().add_summary(_held(tag, image=held), global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: Step = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Write a figure of Matplotlib, or several."""
        pyplot = importlib.import_module("matplotlib.pyplot")
        canvas_of = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg

        def drawn(one: object) -> np.ndarray:
            """Return the picture (H, W, 3) of a figure."""
            canvas = canvas_of(one)
            canvas.draw()
            pixels = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
            if close:
                pyplot.close(one)
            return pixels

        several = isinstance(figure, list)
        pixels = np.stack([drawn(one) for one in figure]) if several else drawn(figure)
        self.add_image(tag, pixels, global_step, walltime, "NHWC" if several else "HWC")

    def add_video(
        self,
        tag: str,
        vid_tensor: Values,
        global_step: Step = None,
        fps: float = 4,
        walltime: float | None = None,
    ) -> None:
        """Write moving pictures (N, T, C, H, W), side by side; needs the package "moviepy"."""
        self._get_file_writer().add_summary(_film(tag, vid_tensor, fps), global_step, walltime)

    def add_audio(
        self,
        tag: str,
        snd_tensor: object,
        global_step: Step = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """Write a sound (1, L) of numbers from -1 to 1."""
        self._get_file_writer().add_summary(
            _sound(tag, snd_tensor, sample_rate), global_step, walltime
        )

    def add_text(
        self, tag: str, text_string: str, global_step: Step = None, walltime: float | None = None
    ) -> None:
        """Write a text."""
        self._get_file_writer().add_summary(_text(tag, text_string), global_step, walltime)

    def add_graph(
        self,
        model: Module,
        input_to_model: object = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
    ) -> None:
        """Write the graph of a model: the operators of a call with `input_to_model`, in the modules that call them."""
        graph = _package("compat.proto.graph_pb2").GraphDef()
        graph.versions.producer = 22
        for name, kind, read, shapes in drawn_graph(model, input_to_model):
            node = graph.node.add(name=name, op=kind, input=read)
            for shape in shapes:
                one = node.attr["_output_shapes"].list.shape.add()
                for size in shape:
                    one.dim.add(size=size)
        if verbose:
            print(graph)  # noqa: T201
        self._get_file_writer().add_event(_event.Event(graph_def=graph.SerializeToString()))

    def add_embedding(
        self,
        mat: Values,
        metadata: Any = None,
        label_img: Values = None,
        global_step: Step = None,
        tag: str = "default",
        metadata_header: Any = None,
    ) -> None:
        """Write points (N, D), their labels and their pictures, for the projector to show."""
        points, step = _numbers(mat), str(0 if global_step is None else global_step).zfill(5)
        encoded = tag.replace("%", "%25").replace("/", "%2f").replace("\\", "%5c")
        place = f"{step}/{encoded}"
        root = self._get_file_writer().get_logdir()
        folder = os.path.join(root, place)
        if os.path.isdir(folder):
            print(  # noqa: T201
                "warning: Embedding dir exists, did you set global_step for add_embedding()?"
            )
        os.makedirs(folder, exist_ok=True)
        kinds = _package("plugins.projector.projector_config_pb2")
        info = kinds.EmbeddingInfo(tensor_name=f"{tag}:{step}", tensor_path=f"{place}/tensors.tsv")
        if metadata is not None:
            if len(points) != len(metadata):
                raise AssertionError("#labels should equal with #data points")
            rows = [metadata_header, *metadata] if metadata_header else metadata
            if metadata_header and len(metadata_header) != len(metadata[0]):
                raise AssertionError(
                    "len of header must be equal to the number of columns in metadata"
                )
            lines = ["\t".join(map(str, row)) if metadata_header else str(row) for row in rows]
            _write(folder, "metadata.tsv", "\n".join(lines) + "\n")
            info.metadata_path = f"{place}/metadata.tsv"
        if label_img is not None:
            if len(points) != len(label_img):
                raise AssertionError("#images should equal with #data points")
            whole = _side_by_side(_numbers(label_img), math.ceil(len(label_img) ** 0.5))
            _, height, width = whole.shape
            square = np.zeros((3, width, width))
            square[:, :height] = whole
            pixels = (square * 255).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
            _write(folder, "sprite.png", _png(pixels).encoded_image_string)
            info.sprite.image_path = f"{place}/sprite.png"
            info.sprite.single_image_dim.extend([label_img.shape[3], label_img.shape[2]])
        if points.ndim != 2:
            raise AssertionError("mat should be 2D, where mat.size(0) is the number of data points")
        lines = ["\t".join(str(x.item()) for x in row) + "\n" for row in points]
        _write(folder, "tensors.tsv", "".join(lines))
        if not hasattr(self, "_projector_config"):
            self._projector_config = kinds.ProjectorConfig()
        self._projector_config.embeddings.extend([info])
        printed = importlib.import_module("google.protobuf.text_format")
        _write(root, "projector_config.pbtxt", printed.MessageToString(self._projector_config))

    def add_pr_curve(
        self,
        tag: str,
        labels: object,
        predictions: object,
        global_step: Step = None,
        num_thresholds: int = 127,
        weights: object = None,
        walltime: float | None = None,
    ) -> None:
        """Write how precise and complete predictions from 0 to 1 of labels 0 and 1 are."""
        count = min(num_thresholds, 127)
        held = _curve(tag, _counted(labels, predictions, count, weights), count)
        self._get_file_writer().add_summary(held, global_step, walltime)

    def add_pr_curve_raw(
        self,
        tag: str,
        true_positive_counts: object,
        false_positive_counts: object,
        true_negative_counts: object,
        false_negative_counts: object,
        precision: object,
        recall: object,
        global_step: Step = None,
        num_thresholds: int = 127,
        weights: object = None,
        walltime: float | None = None,
    ) -> None:
        """Write such a curve that has been counted."""
        parts = (
            true_positive_counts, false_positive_counts, true_negative_counts, false_negative_counts,
            precision, recall,
        )  # fmt: skip
        held = _curve(tag, np.stack([_numbers(part) for part in parts]), min(num_thresholds, 127))
        self._get_file_writer().add_summary(held, global_step, walltime)

    def add_custom_scalars_multilinechart(
        self, tags: list[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Show several scalars as lines of one chart."""
        self.add_custom_scalars({category: {title: ["Multiline", tags]}})

    def add_custom_scalars_marginchart(
        self, tags: list[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Show a scalar between two others."""
        if len(tags) != 3:
            raise AssertionError(f"Expected 3 tags, got {len(tags)}.")
        self.add_custom_scalars({category: {title: ["Margin", tags]}})

    def add_custom_scalars(self, layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        """Say which scalars are shown together: category -> title -> ["Multiline" or "Margin", tags]."""
        self._get_file_writer().add_summary(_layout(layout))

    def add_mesh(
        self,
        tag: str,
        vertices: object,
        colors: object = None,
        faces: object = None,
        config_dict: object = None,
        global_step: Step = None,
        walltime: float | None = None,
    ) -> None:
        """Write points in space (B, N, 3), their colors, and triangles between them."""
        held = _mesh(tag, vertices, colors, faces, config_dict)
        self._get_file_writer().add_summary(held, global_step, walltime)

    def flush(self) -> None:
        """Write what waits."""
        for writer in (self.all_writers or {}).values():
            writer.flush()

    def close(self) -> None:
        """Write what waits, and close the files. The next call opens others."""
        for writer in (self.all_writers or {}).values():
            writer.flush()
            writer.close()
        self.file_writer = self.all_writers = None

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(folder: str, name: str, content: str | bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
