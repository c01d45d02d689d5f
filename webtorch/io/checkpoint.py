"""`webtorch.save` and `webtorch.load`: state dicts and checkpoints as safetensors files.

A state dict becomes a file that every reader of safetensors understands. A nested checkpoint, such
as {"model": ..., "optimizer": ..., "epoch": 3}, does too: its tensors are named by their path, and
what else it holds is JSON in the file's metadata. No file holds code, so loading one is safe.

May import the tensor floor and nn.Parameter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeAlias, cast

import webtorch
from webtorch.errors import DeviceError, DTypeError
from webtorch.io import safetensors, tree
from webtorch.io.safetensors import FilePath, RawTensor
from webtorch.io.tree import Leaf, TensorRef
from webtorch.ir import dtype as dtypes
from webtorch.nn.parameter import Parameter
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor

_TREE_KEY = "webtorch.tree"
_DTYPE_NAMES = frozenset(dtype.name for dtype in dtypes.ALL)

Place: TypeAlias = "str | webtorch.device"
MapLocation: TypeAlias = (
    "Place | Mapping[str, Place] | Callable[[Tensor, str], Tensor | None] | None"
)


def save(obj: object, f: FilePath | BinaryIO) -> None:
    """Save `obj` to the path or binary stream `f`, as a safetensors file.

    obj: tensors, numbers, strings, None and element types in nested dicts, lists and tuples; most
    often a state dict. Tensors that share their memory and shape are loaded as one tensor again;
    they are written under each name. A file takes its path's place only when it is complete.

    Raises TypeError, naming the place in `obj`, for anything else: call `state_dict()` first.
    """
    encoded = tree.encode(obj, _leaf)
    records = {name: _record(cast(Tensor, t)) for name, t in encoded.tensors.items()}
    # "pt" is what Hugging Face's loaders ask for: PyTorch's conventions, which are ours.
    metadata = {"format": "pt"}
    if encoded.text is not None:
        metadata[_TREE_KEY] = encoded.text
    if isinstance(f, str | os.PathLike):
        safetensors.save_file(records, f, metadata)
    else:
        safetensors.dump(records, f, metadata, name=_stream_name(f))


def load(
    f: FilePath | BinaryIO,
    map_location: MapLocation = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
) -> object:
    """Load what `save`, or any other writer of safetensors, wrote to the path or stream `f`.

    map_location: the device of the loaded tensors; or a dict from saved to wanted devices; or a
    function of the tensor on the CPU and the name of its device that returns the tensor to use
    (None: as saved). By default tensors return to the device they were saved from; files of other
    programs do not name one and are loaded to the CPU.
    weights_only: has no effect, no file holds more than data. mmap: False reads the file at once.

    Raises SafetensorError (a ValueError) for a damaged file, DTypeError for an element type that
    webtorch lacks, DeviceError where a device is not available here.
    """
    if not isinstance(f, str | os.PathLike):
        view, file = memoryview(f.read()), _stream_name(f)
    elif mmap is False:
        file = os.fspath(f)
        with open(f, "rb") as stream:
            view = memoryview(stream.read())
    else:
        view, file = safetensors.map_file(f), os.fspath(f)
    # Tensors copy their bytes out of the file, so that their alignment in it does not matter.
    header = safetensors.parse_header(view, name=file, allow_misaligned=True)
    records = safetensors.records(view, header, name=file)

    def make(ref: TensorRef) -> Tensor:
        return _rebuild(records[ref.name], ref, map_location, file)

    text = header.metadata.get(_TREE_KEY)
    if text is None:
        return {name: make(TensorRef(name)) for name in records}
    return tree.decode(text, records, make, file=file)


def _leaf(value: object) -> Leaf | None:
    if not isinstance(value, Tensor):
        return None
    identity = (
        id(value._storage),
        value.storage_offset(),
        tuple(value.shape),
        tuple(value.stride()),
        value.dtype.name,
    )
    parameter = isinstance(value, Parameter)
    return Leaf(identity, str(value.device), value.requires_grad, parameter)


def _record(tensor: Tensor) -> RawTensor:
    # The method, not its result: the writer then holds the bytes of one tensor at a time.
    return RawTensor(tensor.dtype.name, tuple(tensor.shape), tensor._to_bytes)


def _rebuild(record: RawTensor, ref: TensorRef, map_location: MapLocation, file: str) -> Tensor:
    if record.dtype not in _DTYPE_NAMES:
        raise DTypeError(
            f"load: {file}: {ref.name!r} is {record.dtype}, which webtorch does not have. "
            "webtorch.io.safetensors.load_file gives its bytes."
        )
    dtype = dtypes.by_name(record.dtype)

    def build(device: Place) -> Tensor:
        data: Any = record.data
        return from_bytes(data, record.shape, dtype, webtorch.device(device))

    def build_as_saved() -> Tensor:
        try:
            return build(ref.device)
        except DeviceError as error:
            raise DeviceError(
                f"load: {file}: {ref.name!r} was saved on {ref.device}, which is not available "
                f'here ({error}). Pass map_location="cpu" to load it to the CPU.'
            ) from error

    match map_location:
        case None:
            tensor = build_as_saved()
        case Mapping():
            wanted = {str(webtorch.device(k)): place for k, place in map_location.items()}
            tensor = build(wanted[ref.device]) if ref.device in wanted else build_as_saved()
        case _ if callable(map_location):
            moved = map_location(build("cpu"), ref.device)
            tensor = build_as_saved() if moved is None else moved
        case _:
            tensor = build(map_location)
    if ref.parameter:
        return Parameter(tensor, ref.requires_grad)
    return tensor.requires_grad_() if ref.requires_grad else tensor


def _stream_name(stream: BinaryIO) -> str:
    return str(getattr(stream, "name", "<stream>"))
