"""Files of exported programs: PyTorch reads ours, and we read PyTorch's."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.export

import webtorch
import webtorch.fx.export as export
from tests.fx import models_for_export as models
from tests.fx.test_export import LIBRARIES, nodes


def _written(exporter: Any, program: Any, **options: Any) -> io.BytesIO:
    stream = io.BytesIO()
    exporter.save(program, stream, **options)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("name", ["residual", "types", "dropout"])
def test_each_reads_what_the_other_wrote(name: str) -> None:
    results = []
    for lib, exporter in LIBRARIES:
        module, args = models.MODELS[name](lib)
        module.eval()
        state = {k: lib.full_like(v, 0.5) for k, v in module.state_dict().items() if v.ndim}
        module.load_state_dict(state, strict=False)
        program = exporter.export(module, args)
        stream = _written(exporter, program)
        for other, reader in LIBRARIES:
            _, example = models.MODELS[name](other)
            given = [other.tensor(a.tolist(), dtype=getattr(other, str(a.dtype)[6:])) for a in args]
            assert len(given) == len(example)
            stream.seek(0)
            read = reader.load(stream)
            if other is lib is webtorch:
                assert nodes(read) == nodes(program)
                assert str(read.graph_signature) == str(program.graph_signature)
            results.append(torch.tensor(read.module()(*given).tolist()))
        results.append(torch.tensor(module(*args).tolist()))
    # Each of the two programs, read by both, and called as a module.
    for read in (results[:2], results[3:5]):
        torch.testing.assert_close(read[0], read[1])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[3], results[5])


def _nested(lib: Any) -> Any:
    class Nested(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = lib.nn.Linear(3, 2)
            self.same = self.first
            self.register_buffer("kept", lib.ones(2))
            self.register_buffer("left", lib.ones(2) * 2, persistent=False)
            self.plain = lib.ones(2) * 3

        def forward(self, x: Any, y: Any = None, *, k: int = 2) -> Any:
            h = self.first(x) + self.kept + self.left + self.plain + self.same(x) * 0.5
            a, b = h.split([1, 1], 1)
            most, _ = lib.max(h, 1)
            sizes = lib.ones(x.shape[0] * 2 + 1, dtype=lib.int64)
            return {"joined": lib.cat([a, b], 1).sum(-1), "pair": (a.view(a.shape[0], -1), k),
                    "sizes": sizes, "most": most}  # fmt: skip

    module = Nested()
    with lib.no_grad():
        module.first.weight.copy_(lib.arange(6.0).reshape(2, 3))
        module.first.bias.fill_(0.25)
    return module


def _called(lib: Any, program: Any, rows: int) -> Any:
    out = program.module()(lib.arange(3.0 * rows).reshape(rows, 3), k=3)
    pair = out.pop("pair")
    return {**{k: v.tolist() for k, v in out.items()}, "pair": (pair[0].tolist(), pair[1])}


def test_sizes_that_change_and_what_goes_with_a_program() -> None:
    streams = []
    for lib, exporter in LIBRARIES:
        shapes = {"x": {0: exporter.Dim("batch", min=2, max=64)}, "k": None}
        program = exporter.export(
            _nested(lib), (lib.arange(12.0).reshape(4, 3),), {"k": 3}, dynamic_shapes=shapes
        )
        expected = _called(lib, program, 5)
        streams.append(_written(exporter, program, extra_files={"note.txt": "hello"}))
    for lib, exporter in LIBRARIES:
        for stream in streams:
            files = {"note.txt": ""}
            stream.seek(0)
            read = exporter.load(stream, extra_files=files)
            assert files == {"note.txt": "hello"}
            assert _called(lib, read, 5) == expected
            assert [(r.lower, r.upper) for r in read.range_constraints.values()] == [(2, 64)]
            assert {type(p) for _, p in read.named_parameters()} == {lib.nn.Parameter}
            assert sorted(read.constants) == ["left", "plain"]
            if lib is webtorch:
                assert read.state_dict["same.weight"] is read.state_dict["first.weight"]
                # As in PyTorch, 2 is the least size of all that change, and nothing is asked for.
                read.module()(lib.ones(1, 3), k=3)
                with pytest.raises(AssertionError, match=r"x\.size\(\)\[0\] <= 64"):
                    read.module()(lib.ones(65, 3), k=3)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/byteorder", "little")
    with pytest.raises(RuntimeError, match=r"models/model\.json"):
        export.load(path)
    with pytest.raises(TypeError, match="must be an instance of 'ExportedProgram'"):
        export.save(webtorch.nn.Linear(1, 1), path)  # type: ignore[arg-type]
    program = export.export(webtorch.nn.Linear(3, 2), (webtorch.ones(4, 3),))
    export.save(program, path)
    assert export.load(path).module()(webtorch.ones(4, 3)).shape == (4, 2)
