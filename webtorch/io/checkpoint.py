"""`webtorch.save` and `webtorch.load`: state dicts and checkpoints, as PyTorch's files or safetensors.

A file is in PyTorch's format (.pt, .pth and any other name), which `torch.load` reads, unless its
name ends in .safetensors. There a state dict becomes a file that every reader of safetensors
understands. A nested checkpoint, such as {"model": ..., "optimizer": ..., "epoch": 3}, does too: its
tensors are named by their path, and what else it holds is JSON in the file's metadata. No code is
run from a file of either format unless it is loaded with weights_only=False, so loading one is safe.

May import the tensor floor and nn.Parameter.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, TypeAlias, cast

from webtorch.errors import DeviceError, DTypeError
from webtorch.functions import public as webtorch
from webtorch.functions.creation import from_file
from webtorch.io import old_file, pytorch_file, safetensors, tree
from webtorch.io.options import MAP_SHARED, chosen, of_thread, packages
from webtorch.io.safetensors import FilePath, RawTensor
from webtorch.io.tree import Leaf, TensorRef
from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType
from webtorch.nn.parameter import Parameter
from webtorch.ops.purity import warn
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor

_TREE_KEY = "webtorch.tree"
_DTYPE_NAMES = frozenset(dtype.name for dtype in (*dtypes.ALL, *dtypes.COMPLEX))

Place: TypeAlias = "str | webtorch.device"
MapLocation: TypeAlias = (
    "Place | Mapping[str, Place] | Callable[[Tensor, str], Tensor | None] | None"
)


def save(
    obj: object,
    f: FilePath | BinaryIO,
    pickle_module: object = None,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Save `obj` to the path or binary stream `f`: as safetensors where the path ends in
    .safetensors, else as the zip file that `torch.save` writes and `torch.load` reads.

    obj: tensors, numbers, strings, None and element types in nested dicts, lists and tuples; most
    often a state dict, or a dict of several. In PyTorch's format whatever pickles may be saved too,
    such as a whole Module; only `load(weights_only=False)` reads it. PyTorch's format keeps views
    of one storage together (and saves all of it). In safetensors, tensors that share their memory and
    shape are loaded as one tensor again; they are written under each name. A file takes its path's
    place only when it is complete. `pickle_module` and `pickle_protocol` have no effect: what is
    written is the same, and no pickler runs.

    Raises PicklingError for what does not pickle and, for safetensors, TypeError for what is no data,
    naming the place in `obj`: call `state_dict()` first.
    """
    if not (isinstance(f, str | os.PathLike) or hasattr(f, "write")):
        raise AttributeError(
            "expected 'f' to be string, path, or a file-like object with a 'write' attribute"
        )
    if not _use_new_zipfile_serialization:
        if of_thread.skip_data:
            raise RuntimeError(
                "Cannot use skip_data=True with _use_new_zipfile_serialization=False"
            )
        if isinstance(f, str | os.PathLike):
            safetensors.replace_file(f, lambda stream: old_file.dump(obj, stream))
        else:
            old_file.dump(obj, f)
            f.flush()
    elif _is_safetensors(f):
        _save_safetensors(obj, f)
    elif isinstance(f, str | os.PathLike):
        safetensors.replace_file(f, lambda stream: _save_pytorch(obj, stream))
    else:
        _save_pytorch(obj, f)


def _is_safetensors(f: FilePath | BinaryIO) -> bool:
    return isinstance(f, str | os.PathLike) and os.fspath(f).lower().endswith(".safetensors")


def _save_pytorch(obj: object, stream: BinaryIO) -> None:
    # Through memory where a stream may not go back, such as gzip's: an archive's sizes stand before its bytes.
    plain = isinstance(stream, (io.BytesIO, io.BufferedWriter, io.BufferedRandom, io.FileIO))
    target = stream if plain and stream.seekable() else io.BytesIO()
    pytorch_file.dump(obj, target)
    if isinstance(target, io.BytesIO) and target is not stream:
        stream.write(target.getvalue())
    stream.flush()


def _save_safetensors(obj: object, f: FilePath | BinaryIO) -> None:
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


def _refuse_others(view: memoryview, file: str, f: FilePath | BinaryIO) -> None:
    """Raise, as PyTorch does, for what is no file of tensors."""
    if not len(view):
        raise EOFError(f"Ran out of input: {file} is empty")
    if bytes(view[8:9]) != b"{" and not _is_safetensors(f):
        raise pytorch_file.CheckpointError(
            f"Weights only load failed: {file} is neither a file of PyTorch's nor one of safetensors"
        )


def load(
    f: FilePath | BinaryIO,
    map_location: MapLocation = None,
    pickle_module: object = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: object,
) -> Any:
    """Load what `save`, `torch.save` or any writer of safetensors wrote to the path or stream `f`.

    map_location: the device of the loaded tensors; or a dict from saved to wanted devices; or a
    function of a tensor on the CPU and the name of its device that returns the tensor to use
    (None: as saved); for PyTorch's files the tensor is a flat storage. By default tensors return to
    the device they were saved from; files of other programs do not name one and are loaded to the
    CPU, except those that PyTorch wrote from CUDA, which need a map_location.
    weights_only: False makes objects of any class in a file of PyTorch's format, which runs code that
    the file names: only for files that you trust. Otherwise, also by default, only data is read, and
    classes given to `torch.serialization.add_safe_globals`.
    mmap: False reads the file at once; True leaves the tensors on the CPU in the file's memory (see
    `torch.serialization.set_default_mmap_options`). `pickle_module` unpickles with weights_only=False, and is
    given `pickle_load_args`; `encoding` of these is that of texts that Python 2 wrote.

    Raises SafetensorError (a ValueError) or CheckpointError (a pickle.UnpicklingError) for a damaged
    file or one that holds more than data, DTypeError for an element type that webtorch lacks,
    DeviceError where a device is not available here.
    """
    weights_only = _only_weights(weights_only, pickle_module)
    if of_thread.skip_data:
        raise RuntimeError(
            "`torch.load` called within a torch.serialization.skip_data context manager is not supported yet. Please "
            "call torch.load outside the skip_data context manager."
        )
    options = {**pickle_load_args, **({"module": pickle_module} if pickle_module else {})}
    shared = chosen.flags == MAP_SHARED
    if not isinstance(f, str | os.PathLike):
        view, file = _all_of(f), _stream_name(f)
        if mmap and bytes(view[: len(pytorch_file.ZIP)]) == pytorch_file.ZIP:
            raise ValueError("f must be a file path in order to use the mmap argument")
    elif mmap:
        file = os.fspath(f)
        bytes_there: Any = from_file(file, shared, os.path.getsize(f), dtype=dtypes.uint8).numpy()
        view = memoryview(bytes_there)
    elif mmap is False:
        file = os.fspath(f)
        with open(f, "rb") as stream:
            view = memoryview(stream.read())
    else:
        view, file = safetensors.map_file(f), os.fspath(f)
    opening = bytes(view[: len(old_file.MAGIC)])
    place = partial(_place_storage, map_location, file, mmap is True)
    if opening.startswith(pytorch_file.ZIP):
        return pytorch_file.load(view, file, place, not weights_only, mmap is True, **options)
    if mmap and not _is_safetensors(f):
        raise RuntimeError(
            "mmap can only be used with files saved with `torch.save(_use_new_zipfile_serialization=True), "
            "please torch.save your checkpoint with this option in order to use mmap."
        )
    if opening == old_file.MAGIC:
        old = old_file.OldArchive(view, file)
        if not isinstance(f, str | os.PathLike) and old.end < len(view):
            # Another one may follow.
            f.seek(old.end - len(view), os.SEEK_CUR)
        return pytorch_file.load_from(old, place, not weights_only, **options)
    _refuse_others(view, file, f)
    # Tensors copy their bytes out of the file, so that their alignment in it does not matter.
    header = safetensors.parse_header(view, name=file, allow_misaligned=True)
    records = safetensors.records(view, header, name=file)

    def make(ref: TensorRef) -> Tensor:
        """Return the tensor that a reference of the checkpoint's structure names."""
        return _rebuild(records[ref.name], ref, map_location, file)

    text = header.metadata.get(_TREE_KEY)
    if text is None:
        return {name: make(TensorRef(name)) for name in records}
    return tree.decode(text, records, make, file=file)


def _only_weights(asked: bool | None, module: object) -> bool:
    """Return whether a file may hold only data: as asked, or as the environment has it."""
    chosen = module is None if asked is None else asked
    true = ("1", "y", "yes", "true")
    force = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower() in true
    force_not = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0").lower() in true
    if force and force_not:
        raise RuntimeError(
            "Only one of `TORCH_FORCE_WEIGHTS_ONLY_LOAD` or `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD` should be set, but "
            "both were set."
        )
    if force:
        chosen = True
    elif force_not and asked is None:
        warn(
            "Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD detected, since the`weights_only` argument was "
            "not explicitly passed to `torch.load`, forcing weights_only=False."
        )
        chosen = False
    if chosen and module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    return chosen


def _all_of(stream: Any) -> memoryview:
    """Return what is left in a stream."""
    try:
        seek, start = stream.seek, stream.tell()
        end = seek(0, os.SEEK_END)
        end = stream.tell() if end is None else end
        stream.seek(start)
    except (io.UnsupportedOperation, AttributeError) as error:
        raise type(error)(
            f"{error}. You can only torch.load from a file that is seekable. Please pre-load the data into a buffer "
            "like io.BytesIO and try to load from it instead."
        ) from None
    if not hasattr(stream, "readinto"):
        return memoryview(stream.read())
    data = bytearray(max(end - start, 0))
    view, at = memoryview(data), 0
    while at < len(data) and (count := stream.readinto(view[at:])):
        at += count
    return view[:at]


def _place_storage(
    map_location: MapLocation,
    file: str,
    mapped: bool,
    count: int,
    dtype: DType,
    data: memoryview,
    device: str,
) -> Tensor:
    def build(where: Place) -> Tensor:
        """Return the storage's numbers as a 1-d tensor on a device."""
        if mapped and count and webtorch.device(where).type == "cpu":
            return webtorch.frombuffer(data, dtype=dtype)
        return from_bytes(data, (count,), dtype, webtorch.device(where))

    return _placed(build, "a tensor", device, map_location, file)


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
        """Return the record's numbers as a tensor on a device."""
        data: Any = record.data
        return from_bytes(data, record.shape, dtype, webtorch.device(device))

    tensor = _placed(build, repr(ref.name), ref.device, map_location, file)
    if ref.parameter:
        return Parameter(tensor, ref.requires_grad)
    return tensor.requires_grad_() if ref.requires_grad else tensor


def _placed(
    build: Callable[[Place], Tensor], what: str, device: str, map_location: MapLocation, file: str
) -> Tensor:
    """Return what `build` makes on the device that `map_location` wants for one saved on `device`."""

    def restored(where: Place) -> Tensor:
        """Return it where a program's function brings it, else on the device."""
        for _, _, bring in packages:
            found = bring(build("cpu"), str(where))
            if isinstance(found, Tensor):
                return found
        return build(where)

    def build_as_saved() -> Tensor:
        """Return it on the device that it was saved on. Raises DeviceError if that is not here."""
        try:
            return restored(device)
        except (DeviceError, RuntimeError) as error:
            if not isinstance(error, DeviceError) and _is_device(device):
                raise
            raise DeviceError(
                f"{_elsewhere(device)}load: {file}: {what} was saved on {device}, which is not available "
                f'here ({error}). Pass map_location="cpu" to load it to the CPU.'
            ) from error

    match map_location:
        case None:
            return build_as_saved()
        case Mapping():
            wanted = {str(k): place for k, place in map_location.items()}
            return restored(wanted[device]) if device in wanted else build_as_saved()
        case _ if callable(map_location):
            moved = map_location(build("cpu"), device)
            return build_as_saved() if moved is None else moved
        case _:
            return restored(map_location)


def _elsewhere(device: str) -> str:
    """Return PyTorch's sentence about a device that is not here, "" for one that webtorch has."""
    kind = device.partition(":")[0]
    if kind not in ("cuda", "xpu", "mps", "hpu"):
        return ""
    return (
        f"Attempting to deserialize object on a {kind.upper()} device but torch.{kind}.is_available() is False. If "
        "you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map "
        "your storages to the CPU.\n\n"
    )


def _is_device(device: str) -> bool:
    """Whether webtorch has such a device, though perhaps not here."""
    try:
        webtorch.device(device)
    except RuntimeError:
        return False
    return True


def _stream_name(stream: BinaryIO) -> str:
    return str(getattr(stream, "name", "<stream>"))
