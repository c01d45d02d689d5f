"""What a `SummaryWriter` writes, beside PyTorch's: the same events and files, byte by byte."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

pytest.importorskip("tensorboard")


def written(folder: Path) -> list[tuple[str, bytes]]:
    """Return the records of the files of events without the times, and other files."""
    loader: Any = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        place = path.parent.relative_to(folder).as_posix()
        if not path.name.startswith("events"):
            found.append((f"{place}/{path.name}", path.read_bytes()))
            continue
        for event in loader.LegacyEventFileLoader(str(path)).Load():
            event.wall_time = 0.0
            event.ClearField("source_metadata")
            found.append((place, event.SerializeToString(deterministic=True)))
    return found


RNG = np.random.default_rng(0)
SAMPLES, LABELS = RNG.standard_normal(40), RNG.integers(0, 2, 20)
PICTURES, BYTES = RNG.random((3, 3, 4, 5)).astype(np.float32), RNG.integers(0, 256, (6, 5))
CHANCES, PLACES = RNG.random(20), RNG.standard_normal((1, 4, 3)).astype(np.float32)

TYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
)  # fmt: skip
WRITERS: dict[str, Callable[[Any, Any], object]] = {
    "scalar": lambda lib, w: (
        w.add_scalar("loss", lib.tensor(2.5), 3),
        w.add_scalar("loss", 1, 4, new_style=True),
        w.add_scalar("loss", np.float64(0.1), 5, new_style=True, double_precision=True),
    ),
    "scalars": lambda lib, w: w.add_scalars("a/b", {"a": 1, "b": lib.tensor([2.0])}, 4),
    "tensors": lambda lib, w: [
        w.add_tensor(str(dtype), lib.tensor([[0, 1, 1]]).to(getattr(lib, dtype)), 1)
        for dtype in TYPES
    ],
    "histograms": lambda lib, w: (
        w.add_histogram("weights", lib.tensor(SAMPLES), 1),
        w.add_histogram("bf16", lib.tensor(SAMPLES).bfloat16(), 1),
        w.add_histogram("zeros", lib.zeros(3), 1),
        w.add_histogram("few", SAMPLES, 1, bins=7),
        w.add_histogram("auto", SAMPLES, 1, bins="auto", max_bins=2),
        w.add_histogram("together", SAMPLES, 1, bins=10, max_bins=4),
        w.add_histogram_raw("counted", 0, 1, 3, 2.0, 1.0, [0.5, 1.0], [1, 2], 2),
    ),
    "pictures": lambda lib, w: (
        w.add_image("chw", lib.tensor(PICTURES[0]), 2),
        w.add_image("hwc", PICTURES[0].transpose(1, 2, 0), 2, dataformats="HWC"),
        w.add_image("hw", lib.tensor(BYTES.astype(np.uint8)), 2, dataformats="HW"),
        w.add_images("several", lib.tensor(PICTURES), 2),
        w.add_images("grey", lib.tensor(np.tile(PICTURES[:, :1], (4, 1, 1, 1))), 2),
    ),
    "boxes": lambda lib, w: w.add_image_with_boxes(
        "boxes", lib.ones(3, 30, 40), lib.tensor([[2.0, 3.0, 20.0, 25.0]]), 1, rescale=2, labels="cat"
    ),
    "sound": lambda lib, w: w.add_audio("sound", lib.tensor(PICTURES[0, 0, :1]), 1, sample_rate=8000),
    "text": lambda lib, w: w.add_text("note", "a text", 5),
    "curves": lambda lib, w: (
        w.add_pr_curve("curve", lib.tensor(LABELS), lib.tensor(CHANCES), 1, num_thresholds=9),
        w.add_pr_curve("weighed", LABELS, CHANCES, 1, weights=CHANCES),
        w.add_pr_curve_raw("raw", *(lib.tensor([1.0, n]) for n in range(6)), 2, 2),
    ),
    "layouts": lambda lib, w: (
        w.add_custom_scalars_multilinechart(["a", "b"]),
        w.add_custom_scalars_marginchart(["a", "b", "c"], "page", "chart"),
    ),
    "mesh": lambda lib, w: w.add_mesh(
        "mesh", lib.tensor(PLACES), lib.ones(1, 4, 3), lib.zeros(1, 2, 3), {"b": 1, "a": 2}, 1
    ),
    "hyperparameters": lambda lib, w: w.add_hparams(
        {"lr": 0.1, "name": "adam", "on": True, "none": None, "t": lib.tensor([2.0])},
        {"accuracy": 0.5}, {"lr": [0.1, 0.2], "name": ["adam", "sgd"]}, "run", 1,
    ),
    "embedding": lambda lib, w: (
        w.add_embedding(lib.tensor(PLACES[0]), ["a", 1, "c", 2.5], lib.ones(4, 3, 2, 2), 2, "a/b%"),
        w.add_embedding(PLACES[0], [[1, 2]] * 4, metadata_header=["x", "y"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_events_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter as Theirs

    from webtorch.utils.tensorboard import SummaryWriter

    for lib, kind in ((torch, Theirs), (webtorch, SummaryWriter)):
        with kind(str(tmp_path / lib.__name__), purge_step=2) as writer:
            WRITERS[name](lib, writer)
            writer.flush()
    found = written(tmp_path / "webtorch")
    assert len(found) >= 3
    assert found == written(tmp_path / "torch")


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "webtorch.utils.tensorboard"
    for module in [m for m in sys.modules if re.match(rf"tensorboard\.|{re.escape(name)}", m)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
        importlib.import_module(name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_graph_has_pytorch_operators_in_pytorch_modules(tmp_path: Path) -> None:
    """The names of nodes differ; what the operators are, in which modules, and their shapes do not."""
    accumulator: Any = importlib.import_module(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = {}
    for lib in (torch, webtorch):
        inner = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.ReLU())
        model = lib.nn.Sequential(inner, lib.nn.Softmax(1))
        writer: Any = importlib.import_module(f"{lib.__name__}.utils.tensorboard").SummaryWriter
        with writer(tmp_path / lib.__name__) as one:
            one.add_graph(model, lib.ones(2, 3))
        events = accumulator.EventAccumulator(str(tmp_path / lib.__name__))
        events.Reload()
        nodes = {node.name: node for node in events.Graph().node}
        found[lib] = sorted(
            (name.rpartition("/")[0], node.op, [d.size for s in node.attr["_output_shapes"].list.shape for d in s.dim])
            for name, node in nodes.items()
            if node.op.startswith("aten::")
        )  # fmt: skip
    assert found[torch] == found[webtorch]
    assert all(name in nodes for node in nodes.values() for name in node.input)
    linear = next(n for n in nodes.values() if n.op == "aten::linear")
    assert list(linear.input) == [
        "input/0",
        *(f"Sequential/Sequential[0]/Linear[0]/{p}" for p in ("weight", "bias")),
    ]
