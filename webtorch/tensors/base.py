"""What a tensor is: shape, strides, type, place and memory, as PyTorch asks for them. Floor 4."""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from inspect import getattr_static
from itertools import count
from typing import TYPE_CHECKING, Any

from webtorch.dispatch.call import plays
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.ir.view import format_order, is_contiguous, lies_in, numel
from webtorch.tensors.above import ask
from webtorch.tensors.absent import Absent
from webtorch.tensors.device import device, device_of
from webtorch.tensors.formats import strided
from webtorch.tensors.layouts import Layouts
from webtorch.tensors.made_by import MadeBy
from webtorch.tensors.methods import TensorMethods
from webtorch.tensors.modes import mode
from webtorch.tensors.size import Size
from webtorch.tensors.storage import Counter, Storage
from webtorch.tensors.tape import GradFn

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor


# What a tensor that a script has promised lacks until somebody looks (`webtorch.scripts`).
LATE = frozenset((
    "_storage", "_counter", "_grad_fn", "_output_nr", "_base", "_base_version", "_history", "_accumulate",
))  # fmt: skip


def wraps(x: TensorBase) -> bool:
    """Whether a tensor wraps others (`_make_wrapper_subclass`): it has no data of its own."""
    return "_shown_device" in x.__dict__


def refuse_wrapped(name: str, x: TensorBase) -> None:
    """Raise NotImplementedError where a tensor wraps others: what maps a function sees memory that this one lacks."""
    if wraps(x):
        raise NotImplementedError(
            f"{name}: there is no rule for a {type(x).__name__}, which wraps other tensors; give the function plain "
            "tensors, as the parts of a DTensor (`to_local()`) are"
        )


_identities = count(1)


def _aside(_: object) -> None:
    """Mark a reference by its callback: one without is the same object as a user's."""


def reference_aside(t: TensorBase) -> weakref.ref[Any]:
    """Return a weak reference of the machinery's own, which users' rules do not count."""
    return weakref.ref(t, _aside)


def is_referred_to(t: TensorBase) -> bool:
    """Whether somebody else has a weak reference to a tensor."""
    return any(r.__callback__ is not _aside for r in weakref.getweakrefs(t))


class TensorBase(Layouts, TensorMethods):
    """What a tensor is, without what is computed with it: a view on a storage, and its place in a graph."""

    __slots__ = (
        "__dict__", "__weakref__", "_accumulate", "_base", "_base_version", "_counter", "_grad", "_grad_fn",
        "_history", "_hooks", "_inference", "_late", "_living", "_offset",
        "_output_nr", "_post_accumulate", "_requires_grad", "_retains", "_shape", "_storage",
        "_strides", "_whole", "dtype",
    )  # fmt: skip

    __array_priority__ = 1000

    dtype: DType

    # What a computed result has before anybody looks at it (`webtorch.scripts.late`); other tensors have nothing there.
    _late: Any
    # What counts a tensor whose class is to be asked while it lives (`override.counted`); others have nothing there.
    _living: object

    # The dimensions that vmap hides: (number of the level, size, stride). Few tensors have any, and
    # keep them in their `__dict__`: the others pay nothing.
    _levels: tuple[tuple[int, int, int], ...] = ()

    # Of a view that must not be overwritten where gradients are recorded: how it was made.
    _made_by: MadeBy | None = None

    def _adopt(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        whole: bool,
    ) -> None:
        self._storage = storage
        # What counts the writes that backward must know of: the storage, but for `.data`.
        self._counter: Storage | Counter = storage
        self._shape = shape
        self._strides = strides
        self._offset = offset
        # Whether the view is the whole storage in order, so that its value is the storage's node.
        self._whole = whole
        self.dtype = storage.dtype
        self._requires_grad = False
        self._grad_fn: GradFn | None = None
        self._output_nr = 0
        self._grad: Tensor | None = None
        # For a differentiable view: the tensor it is a view of, and the count of writes for which its gradient
        # function stands.
        self._base: Tensor | None = None
        self._base_version = 0
        # Counts how often an in-place operation gave this tensor a new gradient function.
        self._history = 0
        self._hooks: OrderedDict[int, Callable[..., Any]] | None = None
        self._post_accumulate: OrderedDict[int, Callable[..., object]] | None = None
        self._retains = False
        self._accumulate: weakref.ref[Any] | None = None
        self._inference = mode.inference

    def __dir__(self) -> list[str]:
        """Return the names of what there is."""
        cls = type(self)
        names = [n for n in object.__dir__(self) if n not in ("_late", "_living", "volatile")]
        return [n for n in names if type(getattr_static(cls, n, None)) is not Absent]

    @property
    @plays("fact")
    def shape(self) -> Size:
        """The sizes."""
        return tuple.__new__(Size, self._shape)

    @plays("fact")
    def size(self, dim: int | None = None) -> Any:
        """Return the sizes, or the size of one dimension."""
        if dim is None:
            return tuple.__new__(Size, self._shape)
        rank = len(self._shape)
        if not -max(rank, 1) <= dim < max(rank, 1) or rank == 0:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-max(rank, 1)}, "
                f"{max(rank, 1) - 1}], but got {dim})"
            )
        return self._shape[dim]

    @plays("fact")
    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, or one of them."""
        return self._strides if dim is None else self._strides[dim]

    @plays("fact")
    def storage_offset(self) -> int:
        """Return where the first element lies in the storage, in elements."""
        return self._offset

    @plays("fact")
    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self._shape)

    ndimension = dim

    @property
    @plays("fact")
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @plays("fact")
    def numel(self) -> int:
        """Return the number of elements."""
        return numel(self._shape)

    nelement = numel

    @plays("fact")
    def element_size(self) -> int:
        """Return the size of one element in bytes."""
        return self.dtype.itemsize

    @property
    @plays("fact")
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return self.dtype.itemsize

    @property
    @plays("fact")
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.numel() * self.dtype.itemsize

    @plays("fact")
    def is_contiguous(self, memory_format: object = None) -> bool:
        """Return whether the elements lie in row-major order, or in that of a memory format."""
        if memory_format is not None and "channels_last" in str(memory_format):
            if self._levels:
                raise RuntimeError(
                    "NYI: querying is_contiguous inside of vmap for memory_format other than torch.contiguous_format"
                )
            rank = len(self._shape)
            order = format_order(memory_format, 5 if str(memory_format).endswith("3d") else 4)
            return (
                order is not None
                and len(order) == rank
                and lies_in(self._shape, self._strides, order)
            )
        return is_contiguous(self._shape, self._strides)

    @plays("fact")
    def is_floating_point(self) -> bool:
        """Return whether the dtype is a floating-point type."""
        return self.dtype.is_floating_point

    @plays("fact")
    def is_complex(self) -> bool:
        """Return whether the dtype is a complex type."""
        return self.dtype.is_complex

    @plays("fact")
    def is_signed(self) -> bool:
        """Return whether the dtype can hold negative values."""
        return self.dtype.is_signed

    @property
    @plays("place")
    def device(self) -> device:
        """The device that holds the tensor."""
        runtime = self._storage.runtime
        # One that wraps others says where these are.
        shown = self.__dict__.get("_shown_device") if runtime.kind == "meta" else None
        return device_of(runtime) if shown is None else shown

    @plays("place")
    def get_device(self) -> int:
        """Return the device index; -1 on the CPU."""
        return self._storage.runtime.index if self.is_webgpu else -1

    @property
    @plays("place")
    def is_webgpu(self) -> bool:
        """Whether the tensor is on a WebGPU device."""
        kind = self._storage.runtime.name
        return kind == "webgpu" or (kind == "meta" and self.device.type == "webgpu")

    @property
    @plays("place")
    def is_cpu(self) -> bool:
        """Whether the tensor is on the CPU."""
        kind = self._storage.runtime.name
        return kind == "cpu" or (kind == "meta" and self.device.type == "cpu")

    @property
    def _in_host_memory(self) -> bool:
        """Whether the processor computes what is done with the tensor (`stand_in_for_cpu`)."""
        return self._storage.runtime.kind == "cpu"

    @property
    @plays("place")
    def is_meta(self) -> bool:
        """Whether the tensor has no values, only shape and type."""
        return self._storage.runtime.kind == "meta" and self.device.type == "meta"

    is_cuda = is_sparse = is_sparse_csr = is_nested = is_quantized = is_mkldnn = False

    is_ipu = is_maia = is_mps = is_mtia = is_vulkan = is_xla = is_xpu = False

    layout = strided

    def data_ptr(self) -> int:
        """Return a number that is equal for tensors with the same first element in the same
        storage; 0 without elements.
        """
        if 0 in self._shape:
            return 0
        return self.untyped_storage().data_ptr() + self._offset * self.dtype.itemsize

    @property
    def _cdata(self) -> int:
        """A number of what the tensor is, which goes to another with `swap_tensors`."""
        own = self.__dict__
        if "_identity" not in own:
            own["_identity"] = next(_identities)
        return own["_identity"]

    def _typed_storage(self) -> object:
        return ask("typed")(
            wrap_storage=ask("untyped")(self._storage), dtype=self.dtype, _internal=True
        )

    def _fix_weakref(self) -> None:
        pass

    def _lazy_clone(self) -> object:
        """Return a copy that shares the memory until one of the two is written."""
        storage = self._storage.clone_lazily()
        whole = type(self)._from_storage(  # type: ignore[attr-defined]
            storage, self._shape, self._strides, self._offset, self._whole, self.dtype
        )
        return whole

    @plays("fact")
    def is_neg(self) -> bool:
        """Return False: no tensor is a lazily negated view."""
        return False

    @plays("fact")
    def is_conj(self) -> bool:
        """Return False: conj() makes a tensor of its own."""
        return False

    def untyped_storage(self) -> Any:
        """Return the memory that this tensor and its views share."""
        return ask("untyped")(self._storage)

    def storage(self) -> Any:
        """Return the memory as elements of this type. Deprecated in PyTorch: `untyped_storage()` is what stays."""
        return ask("typed")(wrap_storage=self.untyped_storage(), dtype=self.dtype)

    def storage_type(self) -> Any:
        """Return the class of storages of this type."""
        return ask("storage_type")(self)

    def is_set_to(self, tensor: Tensor) -> bool:
        """Return whether both tensors are the same view of the same storage."""
        return (self._storage, self._shape, self._strides, self._offset) == (
            tensor._storage,
            tensor._shape,
            tensor._strides,
            tensor._offset,
        )

    @property
    def _version(self) -> int:
        if self._inference:
            raise RuntimeError("Inference tensors do not track version counter.")
        return self._counter.version

    @plays("fact")
    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a 0-d tensor")
        return self._shape[0]

    @plays("fact")
    def is_distributed(self) -> bool:
        """Return False: a tensor lies in one process."""
        return False

    @plays("fact")
    def is_inference(self) -> bool:
        """Return whether the tensor was made in inference mode."""
        return self._inference

    @property
    def output_nr(self) -> int:
        """Which output of its gradient function this tensor is."""
        return self._output_nr

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    @plays("fact")
    def retains_grad(self) -> bool:
        """Whether retain_grad was called."""
        return self._retains

    @property
    def volatile(self) -> bool:
        """False, with PyTorch's warning: what it said belongs to `no_grad` since."""
        warnings.warn(
            "volatile was removed (Variable.volatile is always False)", stacklevel=user_depth()
        )
        return False

    def is_pinned(self, device: object = None) -> bool:
        """Return False: host memory is never pinned."""
        return False

    def is_shared(self) -> bool:
        """Return False: no tensor is in memory that processes share."""
        return False
