"""The Tensor: a view on a storage, with its place in the autograd graph. Floor 4.

Operations are not written here: `webtorch.functions.bind` adds a method for every entry of the op
table.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from webtorch.dispatch.call import plays
from webtorch.errors import DTypeError, NoCudaError, NoValuesError
from webtorch.ir.dtype import TYPE_NAMES, DType, Scalar, bool_, int64, of_python
from webtorch.ir.graph import Node, window
from webtorch.ir.lines import is_user_asking, user_line
from webtorch.ir.view import (
    contiguous_strides,
    format_order,
    format_strides,
    is_contiguous,
    memory_order,
    numel,
    strides_like,
)
from webtorch.ops import primitive
from webtorch.ops.bits import reinterpreted
from webtorch.ops.layout import suggests_channels_last
from webtorch.ops.purity import warn, warn_once
from webtorch.ops.record import TABLE
from webtorch.runtime.realize import Runtime, open_runtimes
from webtorch.tensors import override
from webtorch.tensors.above import ask, give
from webtorch.tensors.arrays import as_numpy, nest, see
from webtorch.tensors.base import TensorBase
from webtorch.tensors.device import DeviceLike, device, device_of, resolve
from webtorch.tensors.engine import TensorHook, backward_of
from webtorch.tensors.formats import strided
from webtorch.tensors.handle import RemovableHandle, add_hook
from webtorch.tensors.host import bindings, tracing
from webtorch.tensors.made_by import NO_GRAD
from webtorch.tensors.modes import hides_gradient, in_transform, mode, transforms
from webtorch.tensors.size import Size
from webtorch.tensors.storage import Counter, Left, Storage
from webtorch.tensors.tape import (
    GradFn,
    Source,
    attach,
    retain,
    shown,
)

if TYPE_CHECKING:
    import numpy as np


class Tensor(TensorBase):
    """An n-dimensional array on a device. Use `webtorch.tensor(...)` and the functions of
    `webtorch` to make one.
    """

    __slots__ = ()
    # As PyTorch's says "torch": libraries look for it.
    __module__ = "webtorch"

    def __new__(cls, data: object = None, *sizes: object, device: DeviceLike = None) -> Any:
        """Make a tensor: Tensor(2, 3), or of a Size, is uninitialised, Tensor([..]) holds data."""
        if isinstance(data, (bool, float)):
            raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
        if isinstance(data, (int, Size)):
            made = TABLE["empty"](data, *sizes, device=device)
        elif sizes:
            raise TypeError(
                f"Tensor(): takes sizes or one sequence, not {type(data).__name__} and {len(sizes)} more"
            )
        elif data is None:
            made = TABLE["empty"](0, device=device)
        elif isinstance(data, Tensor):
            if device is not None:
                raise RuntimeError(
                    "Legacy tensor constructor of the form torch.Tensor(tensor, device=device) is not supported.  Use "
                    "torch.tensor(...) or torch.as_tensor(...) instead."
                )
            # Another view of it, with its history.
            return data.as_subclass(cls)
        elif hasattr(data, "_seen_as"):
            # On the memory of a storage.
            made = TABLE["empty"](0, device=device).set_(data)
        else:
            made = TABLE["tensor"](data, dtype=ask("get_default_dtype")(), device=device)
        return made if cls is Tensor else Tensor._make_subclass(cls, made)

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing: the tensor was complete when `__new__` returned it."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Note a subclass: one that is asked for kernels is asked for functions where it says so only."""
        super().__init_subclass__(**kwargs)
        mine: Any = cls.__torch_function__
        if override.dispatches(cls) and getattr(mine, "__func__", None) is _KEEPS_CLASS:
            cls.__torch_function__ = override.disabled  # type: ignore[method-assign]
        shown: Any = cls.__dict__.get("dtype")
        if isinstance(shown, property) and shown.fset is None:
            # A user's property hides the type, which a tensor of the class has all the same.
            cls.dtype = shown.setter(_SET_DTYPE)  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function that met a tensor of this class; its results are of this class, too.

        Returns NotImplemented where an argument's class is no base of this one.
        """
        return override.keep_class(cls, func, types, args, kwargs or {})

    @classmethod
    def _from_storage(
        cls,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        whole: bool,
        dtype: DType | None = None,
        levels: tuple[tuple[int, int, int], ...] = (),
    ) -> Tensor:
        self = object.__new__(Tensor)
        self._adopt(storage, shape, strides, offset, whole)
        if dtype is not None:
            # A complex tensor counts its shape and strides in pairs of the storage's real numbers.
            self.dtype = dtype
        if levels:
            self._levels, self._whole = levels, False
        return self

    @classmethod
    def _from_node(cls, node: Node, runtime: Runtime, owned: bool = True) -> Tensor:
        """Return a tensor with new storage whose value is `node`; of one that is not `owned` see `Storage.unowned`."""
        if node.dtype in runtime.bounds:
            check_type(node.dtype, node.shape, runtime)
        self = object.__new__(Tensor)
        storage = Storage(node, runtime) if owned else Storage.unowned(node, runtime)
        self._adopt(storage, node.shape, contiguous_strides(node.shape), 0, True)
        return self

    @staticmethod
    def _make_wrapper_subclass(
        cls: type[Any],
        size: Sequence[int],
        strides: Sequence[int] | None = None,
        storage_offset: int | None = None,
        memory_format: object = None,
        dtype: DType | None = None,
        layout: object = None,
        device: DeviceLike = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
        *_: object,
        **__: object,
    ) -> Any:
        """Return a tensor of a class, which has no data: the `__torch_dispatch__` of the class computes."""
        shown = device_of(resolve(device))
        if strides is None:
            data = TABLE["empty"](tuple(size), dtype=dtype, device="meta")
        else:
            data = TABLE["empty_strided"](tuple(size), tuple(strides), dtype=dtype, device="meta")
        self = Tensor._make_subclass(cls, data, requires_grad)
        self.__dict__["_shown_device"] = shown
        return self

    @staticmethod
    def _make_subclass(cls: type[Any], data: Tensor, require_grad: bool = False) -> Any:
        """Return a tensor of class `cls` that shares the storage of `data`."""
        counted = override.counted(cls)
        if data.layout is not strided:
            raise NotImplementedError(
                f"{cls.__name__}: a tensor of layout {data.layout} has no memory that another class could share"
            )
        self = object.__new__(cls)
        self._adopt(data._storage, data._shape, data._strides, data._offset, data._whole)
        self._counter, self.dtype = data._counter, data.dtype
        self._living, self._inference = counted, data._inference
        if data._levels:
            self._levels = data._levels
        if require_grad:
            # The class is not asked about what it is still making.
            with override.Switch(classes=False, modes=False):
                self.requires_grad_(True)
        return self

    def _pairs(self) -> Tensor:
        """Return a complex tensor's real and imaginary parts along a last dim, outside autograd."""
        real = self.dtype.to_real()
        shape = (*self._shape, 2)
        strides, offset = (*[2 * s for s in self._strides], 1), 2 * self._offset
        whole = (
            offset == 0
            and numel(shape) == self._storage.elements
            and is_contiguous(shape, strides)
            and self._storage.dtype is real
        )
        levels = tuple([(n, size, 2 * stride) for n, size, stride in self._levels])
        out = Tensor._from_storage(self._storage, shape, strides, offset, whole, real, levels)
        out._counter, out._inference = self._counter, self._inference
        return out

    def _flat_node(self) -> Node:
        """Return the value of the storage as elements of this tensor's type, of which it is another's."""
        if self.dtype.is_complex:
            # What takes complex tensors reads their parts.
            raise DTypeError(f"not implemented for '{self.dtype.legacy}'")
        return reinterpreted(self._storage.node, self.dtype)

    def _node(self) -> Node:
        """Return the value as a graph node of this tensor's shape."""
        node = self._storage.node
        if self._whole:
            if node.shape == self._shape:
                return node
            return Node("view", (node,), (self._strides, 0), (), self._shape, self.dtype)
        if self.dtype is not node.dtype:
            node = self._flat_node()
        if self._levels:
            raise RuntimeError(
                "vmap: this operation has no rule for a tensor with a hidden dimension; write it "
                "with other operations, or call it outside of vmap"
            )
        return window(node, self._shape, self._strides, self._offset, self.dtype)

    @plays("parts")
    def __iter__(self) -> Iterator[Tensor]:
        if not self._shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    @plays("parts")
    def __reversed__(self) -> Tensor:
        """Return the tensor with the elements of its first dimension in reverse order."""
        return self.flip(0) if self.dim() else self

    @plays("parts")
    def __contains__(self, element: object) -> bool:
        if not isinstance(element, (Tensor, bool, int, float, complex)) and (
            not hasattr(element, "item") or hasattr(element, "__setitem__")
        ):
            raise RuntimeError(
                "Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
                f"{type(element)}."
            )
        return bool((self == element).any().item())

    # ---- autograd
    # ------------------------------------------------------------------------------------------------

    @property
    @plays("flag")
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for this tensor."""
        base, found = self._base, self._requires_grad
        if not found and base is not None:
            # A view says what its base says, and may be a leaf of no graph.
            found = base._requires_grad and self.dtype.has_gradient
        return found and not (transforms.count and is_user_asking() and hides_gradient(self))

    @requires_grad.setter
    @plays("parts")
    def requires_grad(self, value: bool) -> None:
        """Set whether gradients are recorded. Raises RuntimeError for a tensor that is no leaf."""
        if not isinstance(value, bool):
            raise RuntimeError("requires_grad must be a bool")
        if value and not self._is_end:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        self.requires_grad_(value)

    @requires_grad.deleter
    @plays("fact")
    def requires_grad(self) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("requires_grad must be a bool")

    @plays("mark")
    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Start or stop recording gradients for this leaf."""
        if in_transform() and requires_grad:
            raise RuntimeError(
                "You are attempting to call Tensor.requires_grad_() (or perhaps using "
                "torch.autograd.functional.* APIs) inside of a function being transformed by a "
                "functorch transform. This is unsupported, please attempt to use the functorch "
                "transforms (e.g. grad, vjp, jacrev, jacfwd, hessian) or call requires_grad_() "
                "outside of a function being transformed instead."
            )
        if not self._is_end:
            if requires_grad:
                return self
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph "
                "that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if requires_grad and not self.dtype.has_gradient:
            raise RuntimeError(
                "only Tensors of floating point dtype can require gradients, and this one is of "
                f"{self.dtype}: convert it first, as in x.float().requires_grad_()"
            )
        if requires_grad and self._inference and not mode.inference:
            raise RuntimeError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not "
                "allowed."
            )
        if tracing.active and self._requires_grad != bool(requires_grad):
            tracing.touch_history(self)
        self._requires_grad = bool(requires_grad)
        bindings.modules += 1
        return self

    @property
    def _is_end(self) -> bool:
        """Whether no function gave the tensor, as far as is known before writes to its base are looked at."""
        fn = self._grad_fn
        return fn is None or type(fn) is Source

    @property
    @plays("flag")
    def is_leaf(self) -> bool:
        """Whether the tensor is the start of a graph: made by the user, or needing no gradient."""
        if self._base is not None:
            self._refresh_view()
        fn = self._grad_fn
        if fn is not None and transforms.count and is_user_asking() and hides_gradient(self):
            return True
        return fn is None or type(fn) is Source

    @property
    def grad_fn(self) -> GradFn | None:
        """The gradient function that made this tensor, if any."""
        if self._base is not None:
            self._refresh_view()
        fn = self._grad_fn
        if fn is not None and transforms.count and is_user_asking() and hides_gradient(self):
            return None
        return None if fn is None or type(fn) is Source else shown(fn)

    @property
    @plays("gradient")
    def grad(self) -> Tensor | None:
        """The accumulated gradient, or None."""
        if tracing.active:
            tracing.touch_grad(self)
        if self._grad is None and self._grad_fn is not None and not self._retains:
            warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute "
                "won't be populated during autograd.backward(). If you indeed want the .grad field to be "
                "populated for a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor. If you access the "
                "non-leaf Tensor by mistake, make sure you access the leaf Tensor instead."
            )
        return self._grad

    @grad.setter
    @plays("gradient")
    def grad(self, value: Tensor | None) -> None:
        """Set the gradient, of this tensor's shape, dtype and device, or None."""
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(
                    "assigned grad expected to be a Tensor or None but got grad of type "
                    f"{type(value).__name__}"
                )
            if value is self:
                raise RuntimeError("can't assign Variable as its own grad")
            start = "attempting to assign a gradient"
            if value.dtype is not self.dtype:
                raise RuntimeError(
                    f"{start} with dtype '{value.dtype.c_name}' to a tensor with grad_dtype "
                    f"'{self.dtype.legacy}'. The gradient must match the tensor's grad_dtype (defaults to the "
                    "tensor's dtype)."
                )
            if value._storage.runtime is not self._storage.runtime:
                raise RuntimeError(
                    f"{start} with device type '{value.device.type}' to a tensor with device type "
                    f"'{self.device.type}'. Please ensure that the gradient and the tensor are on the same device"
                )
            if value._shape != self._shape:
                raise RuntimeError(
                    f"{start} of size '{list(value._shape)}' to a tensor of size '{list(self._shape)}'. Please ensure "
                    "that the gradient and the tensor are the same size"
                )
        if tracing.active:
            tracing.touch_grad(self, reads=False)
        self._grad = value

    @grad.deleter
    @plays("parts")
    def grad(self) -> None:
        """Set the gradient to None."""
        self.grad = None

    @property
    @plays("alias")
    def data(self) -> Tensor:
        """The same storage without autograd: backward does not notice what is written through it."""
        if self._levels:
            raise RuntimeError("accessing `data` under vmap transform is not allowed: use detach()")
        out = self.detach()
        out._counter = Counter()
        return out

    @data.deleter
    @plays("fact")
    def data(self) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("Deleting tensor data is not allowed. Delete tensor instead!")

    @data.setter
    @plays("alias")
    def data(self, value: Tensor) -> None:
        """Let this tensor share the memory, shape and strides of another. Its writes are counted as before."""
        if not isinstance(value, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
        if [n for n, _, _ in self._levels] != [n for n, _, _ in value._levels]:
            raise RuntimeError(
                "mutating directly with `.data` under vmap transform is not allowed: use copy_"
            )
        if self._requires_grad and not value.dtype.has_gradient:
            raise RuntimeError(
                "data set to a tensor that requires gradients must be floating point or complex dtype"
            )
        if value._storage is not self._storage:
            bindings.change()
            if self._counter is self._storage:
                self._counter = Left(self._storage)
        self._storage = value._storage
        self._shape, self._strides, self._offset, self._whole = (
            value._shape,
            value._strides,
            value._offset,
            value._whole,
        )
        self.dtype = value.dtype
        if self._levels != value._levels:
            self._levels = value._levels

    def _refuse_write(self, written: str = "is being") -> NoReturn:
        """Raise RuntimeError for a write, with gradients, of a view for which PyTorch has none."""
        made_by = self._made_by
        assert made_by is not None
        fn = self._grad_fn
        source = "A view"
        if fn is not None:
            name = fn.name().rpartition("Backward")[0]
            source = f"Output {made_by.number} of {name} is a view"
        if made_by.mode or fn is None:
            where = made_by if made_by.mode else NO_GRAD
            source += " of a view which" if fn is not None else ""
            text = (
                f"{source} was created in {where.mode} mode and {written} modified {where.wrong}."
            )
        else:
            text = f"{source} and {written} modified inplace."
        raise RuntimeError(f"{text} {made_by.advice}")

    def _refresh_view(self) -> None:
        """Bring the gradient function of a view up to date with in-place writes to its base."""
        base, version = self._base, self._counter.version
        assert base is not None
        if version != self._base_version and (self._grad_fn is not None or base._requires_grad):
            if self._made_by is not None:
                self._refuse_write("its base or another view of its base has been")
            self._base_version = version
            ask("strided_gradient")(self, base)

    def _untouched(self) -> Storage:
        """Return the storage, or where it has tangents one of the same value that has none. Tangents belong to
        storages; a write to one is a write to both.
        """
        storage = self._storage
        if any(self in level or level.open_to_users for level in mode.forward):
            storage = Storage(storage.share(), storage.runtime)
            mode.forward[-1].pair(storage, self._storage)
        return storage

    @plays("operation")
    def detach(self) -> Tensor:
        """Return a tensor on the same storage that needs no gradient."""
        out = Tensor._from_storage(
            self._untouched() if transforms.count else self._storage,
            self._shape,
            self._strides,
            self._offset,
            self._whole,
            self.dtype,
            self._levels,
        )
        out._counter, out._inference = self._counter, self._inference
        return out

    def detach_(self) -> Tensor:
        """Cut this tensor from the graph."""
        if self._base is not None:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        if tracing.active:
            tracing.touch_history(self)
        if self._grad_fn is not None:
            self._grad_fn.detached = (*self._grad_fn.detached, self._output_nr)
        self._storage = self._untouched()
        self._grad_fn, self._requires_grad, self._output_nr = None, False, 0
        return self

    @plays("backward")
    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Compute the gradients of this tensor for the leaves of its graph and add them to their
        `.grad`.
        """
        backward_of(self, gradient, retain_graph, create_graph, inputs)

    def retain_grad(self) -> None:
        """Keep `.grad` for this non-leaf tensor too."""
        if not self.requires_grad:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        if in_transform():
            raise RuntimeError(
                "You are attempting to call Tensor.retain_grad() inside of a function being transformed by a functorch "
                "transform. This is unsupported, please attempt to use the functorch transforms (e.g. grad, vjp, "
                "jacrev, jacfwd, hessian) or call retain_grad() outside of a function being transformed instead."
            )
        if self._is_end or self.is_leaf or self._retains:
            return
        self._retains = True
        retain(self)

    @plays("hook")
    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call `hook(grad)` when the gradient of this tensor is computed; what it returns replaces
        the gradient.
        """
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        fn = self.grad_fn
        if fn is None and type(self._grad_fn) is Source:
            fn = self._grad_fn
        if fn is None:
            self._refuse_hook()
            if self._hooks is None:
                self._hooks = OrderedDict()
            return add_hook(self._hooks, hook)
        return fn.register_tensor_hook(TensorHook(hook, self._output_nr))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call `hook(self)` after `.grad` of this leaf has been added to."""
        if not self.is_leaf:
            raise RuntimeError(
                "post accumulate grad hooks cannot be registered on non-leaf tensors"
            )
        self._refuse_hook()
        if self._post_accumulate is None:
            self._post_accumulate = OrderedDict()
        return add_hook(self._post_accumulate, hook)

    def _refuse_hook(self) -> None:
        storage = self._storage
        if tracing.active and (
            storage.node.kind == "buffer" or storage in storage.runtime.overwritten
        ):
            tracing.refuse("it registers a hook on a tensor from outside")

    # ---- reading
    # -------------------------------------------------------------------------------------------------

    def _contents(self, into: memoryview | None = None) -> bytes | bytearray | memoryview:
        """Return this tensor's elements, row-major and little-endian, in the dtype's size: in `into`, memory of that
        size, where it is given. Waits for the device.
        """
        if self._levels:
            self._refuse_reading()
        count = numel(self._shape)
        if not count:
            return b""
        if tracing.active:
            self._note_reading()
        storage = self._storage
        backend: Any = storage.runtime.backend
        if self._whole:
            return backend.download(storage.realize().buffer, into=into)
        if (
            backend.reads_parts
            and self.dtype is storage.dtype
            and is_contiguous(self._shape, self._strides)
        ):
            return backend.download(storage.realize().buffer, self._offset, count, into=into)
        return backend.download(_materialize(self)._storage.realize().buffer, into=into)

    _to_bytes = _contents

    def _note_reading(self) -> None:
        """While a capture runs: refuse to read, also what is in memory already, for a replay would
        not read it.
        """
        runtime = self._storage.runtime
        if runtime.capturing:
            runtime.realize()
        tracing.refuse(f"it reads a tensor on {self.device}, from which a program cannot read")

    def _refuse_reading(self) -> NoReturn:
        """Raise PyTorch's error for reading the values of a tensor that vmap maps over."""
        raise RuntimeError(
            "vmap: It looks like you're calling .item() on a Tensor. We don't support vmap over "
            "calling .item() on a Tensor, please try to rewrite what you're doing with other "
            "operations. If error is occurring somewhere inside PyTorch internals, please file a "
            "bug report."
        )

    async def _contents_async(self) -> bytes | bytearray | memoryview:
        if not numel(self._shape):
            return b""
        coming = self._arriving()
        backend = self._storage.runtime.backend
        backend.waited += backend.limits.is_gpu
        return await coming

    def _arriving(
        self, into: memoryview | None = None
    ) -> Awaitable[bytes | bytearray | memoryview]:
        """Begin to read the elements, of which there are some, and return what waits for them."""
        return self._storage.runtime.backend.download_async(self._in_memory(), into=into)

    def _coming(self) -> Callable[[], Any]:
        """Begin to read the elements, of which there are some, from a device that works by itself; return what waits
        for them as nested lists. What is given to the device later is not waited for.
        """
        backend = self._storage.runtime.backend
        backend.waited += backend.limits.is_gpu
        read: Any = self._arriving()
        return lambda: nest(self._numbers(read.result()), self._shape)

    def _in_memory(self) -> Any:
        """Submit what the elements wait for, and return the device's memory that holds them, row-major. Another thread
        may read it later: what overwrites the tensor takes other memory.
        """
        whole = self if self._whole else _materialize(self)
        if tracing.active:
            self._note_reading()
        node = whole._storage.realize()
        node.shared = True
        return node.buffer

    def _numbers(self, contents: bytes | bytearray | memoryview) -> list[Scalar]:
        return self.dtype.from_bytes(memoryview(contents)[: self.numel() * self.dtype.itemsize])

    @plays("reader")
    def item(self) -> Scalar:
        """Return the value of a tensor with one element. Waits for the device."""
        self._check_one_element()
        return self._numbers(self._contents())[0]

    async def item_async(self) -> Scalar:
        """Return the value of a tensor with one element; other coroutines run meanwhile."""
        self._check_one_element()
        return self._numbers(await self._contents_async())[0]

    def _check_one_element(self) -> None:
        if self.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {self.numel()} elements cannot be converted to Scalar: .tolist() gives all of them"
            )
        if self.is_meta:
            raise NoValuesError(
                "Tensor.item() cannot be called on meta tensors: they have no values. A function "
                "compiled without device='meta' returns them"
            )

    @plays("reader")
    def tolist(self) -> Any:
        """Return the values as nested lists (a number for a 0-d tensor)."""
        return nest(self._numbers(self._contents()), self._shape)

    async def tolist_async(self) -> Any:
        """Return the values as nested lists; other coroutines run meanwhile."""
        return nest(self._numbers(await self._contents_async()), self._shape)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """Return the values as a NumPy array. On the CPU, the two share their memory.

        A write to one is seen in the other. For as long as an array sees it, what is done with
        this memory is computed when it is called. With `force`, a copy from any device. Raises
        RuntimeError for tensors that need gradients and TypeError for tensors that are not on the
        CPU, unless `force`.
        """
        if self._levels:
            raise RuntimeError(
                "Cannot access data pointer of Tensor that doesn't have storage: vmap maps over it"
            )
        if not force:
            if mode.grad and self.requires_grad:
                raise RuntimeError(
                    "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                    "instead."
                )
            if not self.is_cpu:
                raise TypeError(
                    f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() "
                    "to copy the tensor to host memory first."
                )
        if self._in_host_memory:
            return see(self)
        array = as_numpy(self._contents(), self)
        # A write to a copy of what a program calls "cpu" (`stand_in_for_cpu`) would be lost.
        array.flags.writeable = force
        return array

    async def numpy_async(self) -> np.ndarray:
        """Return the values as a NumPy array, from any device; other coroutines run meanwhile."""
        return as_numpy(await self._contents_async(), self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"a tensor of {self.dtype} cannot be seen as {dtype} without a copy"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self,
        *,
        stream: int | None = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule that shares the memory of a CPU tensor.

        Raises BufferError where no other library can see the memory, as PyTorch does for tensors that
        require gradients.
        """
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if not self.is_cpu:
            raise BufferError(
                f"__dlpack__: the tensor is on {self.device}, whose memory other libraries cannot see. "
                "Use tensor.cpu()"
            )
        if stream is not None and type(stream) is not int:
            raise TypeError("stream must be ``int`` or ``none``")
        # The CPU has no streams: -1, which asks for no order, is all the same.
        stream = None if stream == -1 else stream
        return self.numpy().__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's number of the device: (1, 0) for the CPU. Raises BufferError otherwise."""
        if not self.is_cpu:
            raise BufferError(
                f"__dlpack_device__: DLPack has no number for {self.device}. Use tensor.cpu()"
            )
        return (1, 0)

    def __array_wrap__(
        self, array: Any, context: object = None, return_scalar: bool = False
    ) -> Tensor:
        """Make the result of a NumPy function on tensors a tensor again; truth values are uint8, as in PyTorch."""
        if array.dtype == bool:
            array = array.astype("uint8")
        return TABLE["from_numpy"](array if array.ndim else array.copy()).to(self.device)

    def __await__(self) -> Any:
        return self._ready().__await__()

    async def _ready(self) -> Tensor:
        self._storage.realize()
        await asyncio.sleep(0)
        return self

    @plays("reader")
    def __bool__(self) -> bool:
        if self._levels:
            raise RuntimeError(
                "vmap: It looks like you're attempting to use a Tensor in some data-dependent "
                "control flow. We don't support that yet, please file an issue at "
                "https://github.com/pytorch/pytorch/issues ."
            )
        count = self.numel()
        if count == 0:
            raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
        if count > 1:
            raise RuntimeError(
                "Boolean value of Tensor with more than one value is ambiguous: "
                f"shape {list(self._shape)}. Use .any() or .all()"
            )
        return bool(self.item())

    @plays("reader")
    def __float__(self) -> float:
        if self.requires_grad:
            warn_once(
                "Converting a tensor with requires_grad=True to a scalar may lead to unexpected behavior. "
                "Consider using tensor.detach() first."
            )
        return float(self._real_only())

    @plays("reader")
    def __int__(self) -> int:
        return int(self._real_only())

    # Python 2's name.
    __long__ = __int__

    def _real_only(self) -> Scalar:
        value = self._only()
        if isinstance(value, complex):
            if value.imag:
                raise RuntimeError(
                    "value cannot be converted to type double without overflow: its imaginary part "
                    f"is {value.imag}. Use .real"
                )
            return value.real
        return value

    def _only(self) -> Scalar:
        if self.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return self.item()

    @plays("reader")
    def __index__(self) -> int:
        if not (self.dtype.is_integral or self.dtype is bool_) or self.numel() != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    @plays("reader")
    def __complex__(self) -> complex:
        return complex(self._only())

    @plays("reader")
    def __repr__(self, *, tensor_contents: object = None) -> str:
        return str(ask("show")(self, tensor_contents))

    @plays("reader")
    def __format__(self, spec: str) -> str:
        # A 0-d tensor formats as its number, also without a spec; subclasses show their own repr.
        if not self._shape and type(self) is Tensor and not self.is_meta:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    # ---- moving
    # --------------------------------------------------------------------------------------------------

    @plays("operation")
    def to(self, *args: object, **kwargs: object) -> Tensor:
        """Return the tensor with another dtype, device or memory format: to(dtype),
        to(device, dtype), to(other).
        """
        memory_format = kwargs.pop("memory_format", None)
        target, dtype, copy = parse_to(args, kwargs)
        out = self
        if target is not None:
            runtime = resolve(target)
            if runtime is not self._storage.runtime:
                # Convert on the side where both types exist.
                if dtype is not None and self.dtype in runtime.bounds and dtype is not self.dtype:
                    out = primitive.cast_to(out, dtype)
                out = _transfer(out, runtime)
        if dtype is not None and dtype is not out.dtype:
            out = primitive.cast_to(out, dtype)
        if memory_format is not None and "preserve" not in str(memory_format):
            out = _in_format(out, memory_format, out is not self)
        return out.clone() if copy and out is self else out

    @plays("operation")
    def cpu(self) -> Tensor:
        """Return the tensor on the CPU."""
        return self.to("cpu")

    @plays("operation")
    def webgpu(self, device: int | str | None = None) -> Tensor:
        """Return the tensor on a WebGPU device."""
        return self.to(
            "webgpu"
            if device is None
            else f"webgpu:{device}"
            if isinstance(device, int)
            else device
        )

    @plays("operation")
    def cuda(self, *args: object, **kwargs: object) -> Tensor:
        """Raise: there is no CUDA here."""
        raise NoCudaError(
            "Torch not compiled with CUDA enabled (Tensor.cuda): webtorch has the devices 'cpu' and "
            "'webgpu'; use .to('webgpu')"
        )

    @plays("parts")
    def type(self, dtype: object = None, non_blocking: bool = False) -> Any:
        """Return the legacy type name, or the tensor cast to `dtype`."""
        if dtype is None:
            return f"torch.{self.dtype.legacy}Tensor"
        if of_python(dtype) is not dtype:
            # Which of two floats is meant?
            dtype = getattr(dtype, "__name__", "")
        if isinstance(dtype, str):
            for found, name in TYPE_NAMES.items():
                if dtype.removeprefix("torch.") == f"{name}Tensor":
                    return self.to(found)
            raise ValueError(f"invalid type: {dtype!r}; pass a dtype such as torch.float32")
        if dtype is Tensor:
            return self.to(ask("get_default_dtype")())
        return self.to(getattr(dtype, "dtype", dtype))

    def pin_memory(self, device: object = None) -> Tensor:
        """Return the tensor itself: host memory needs no pinning here."""
        return self

    def share_memory_(self) -> Tensor:
        """Return the tensor itself: threads share memory already."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment.  If you were attempting to deepcopy a module, this may be "
                "because of a torch.nn.utils.weight_norm usage, see "
                "https://github.com/pytorch/pytorch/pull/103001"
            )
        import copy
        import copyreg

        out: Any = object.__new__(type(self))
        out._living = override.counted(type(self))
        out._adopt(
            self._storage._copied(memo), self._shape, self._strides, self._offset, self._whole
        )
        out.dtype, out._requires_grad = self.dtype, self._requires_grad
        memo[id(self)] = out
        if self._grad is not None:
            out._grad = self._grad.__deepcopy__(memo)
        for name, value in self.__dict__.items():
            out.__dict__[name] = copy.deepcopy(value, memo)
        if "__slots__" in vars(type(self)) and type(self) is not Tensor:
            for name in copyreg._slotnames(type(self)):  # type: ignore[attr-defined]
                if name not in TensorBase.__slots__ and hasattr(self, name):
                    setattr(out, name, copy.deepcopy(getattr(self, name), memo))
        return out

    def as_subclass(self, cls: builtins.type[Any]) -> Any:
        """Return the tensor as an instance of a subclass. Operations on it give such tensors, unless
        the class's `__torch_function__` says otherwise.
        """
        counted = override.counted(cls)
        with override.Switch(classes=False):
            out = primitive.as_view(
                self, self._shape, self._strides, self._offset, _itself, (), "Alias"
            )
        try:
            out.__class__ = cls
        except TypeError:
            # Objects of a class with slots of its own lie in memory in another way.
            plain, out = out, object.__new__(cls)
            for name in TensorBase.__slots__:
                if name != "__weakref__" and hasattr(plain, name):
                    setattr(out, name, getattr(plain, name))
        out._living = counted
        return out

    def __copy__(self) -> Tensor:
        """Return a leaf that shares the memory and has the same attributes."""
        out = Tensor._make_subclass(type(self), self.detach(), False)
        out._requires_grad = self.requires_grad
        out.__dict__.update(self.__dict__)
        return out

    def __reduce_ex__(self, protocol: object) -> Any:
        # The elements as they lie in memory, so that the strides of a dense layout come back.
        strides = strides_like(self._shape, self._strides)
        order = memory_order(self._shape, strides)
        dense = self.detach().permute(order)
        state = (
            (type(self), dict(self.__dict__)) if type(self) is not Tensor or self.__dict__ else None
        )
        return _rebuild, (
            b"" if self.is_meta else bytes(dense._contents()),
            self._shape,
            order,
            self.dtype,
            str(self.device),
            self.requires_grad,
            state,
        )

    def __hash__(self) -> int:
        return id(self)

    # Comparisons are elementwise; `bind` adds the operators of the table.
    @plays("parts")
    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        raise NotImplementedError

    @plays("parts")
    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        raise NotImplementedError


def check_type(dtype: DType, shape: Sequence[int], runtime: Runtime) -> None:
    """Raise DTypeError where a device has no tensor of a type and a shape."""
    bound = runtime.bounds.get(dtype)
    if bound is None or (bound >= 0 and numel(shape) <= bound):
        return
    how = "" if bound < 0 else f" in more than {bound} elements"
    why = "floats" if dtype.is_complex else "floats and integers and packed smaller types"
    instead = "complex64" if dtype.is_complex else "float32" if dtype.has_gradient else "int32"
    here, on_processor = str(device_of(runtime)), "keep the tensor on the CPU"
    if runtime.name != runtime.kind:
        here, on_processor = runtime.kind, "run the program with --device cpu, on the processor"
    raise DTypeError(
        f"{dtype} is not available on {here}{how}: WebGPU has 32-bit {why}. Use "
        f".to(torch.{instead}) first, or {on_processor}."
        + (
            " WEBTORCH_FLOAT64=words has it computed from its bits, in any number of elements."
            if dtype.has_gradient
            else ""
        )
    )


def _materialize(x: Tensor) -> Tensor:
    """Return a contiguous copy in its own storage, outside autograd: of a complex tensor, its parts."""
    if x.dtype.is_complex:
        x = x._pairs()
        if x._whole:
            return x
    return Tensor._from_node(
        Node(
            "map", (x._node(),), (primitive.IDENTITY, "t", x.dtype.compute), (), x._shape, x.dtype
        ),
        x._storage.runtime,
    )


def _in_format(x: Tensor, memory_format: Any, moved: bool) -> Tensor:
    """Return x in a memory format. What has one channel, or one element for each, may lie in two: PyTorch makes a copy
    unless the strides say which, or x was `moved` into them.
    """
    if x._levels:
        return x.contiguous(memory_format=memory_format)
    order = format_order(memory_format, len(x._shape))
    inner = suggests_channels_last((x._shape, x._strides))
    if moved:
        dims = order or tuple(range(len(x._shape)))
        there = x._strides == format_strides(x._shape, dims)
    else:
        there = inner is (order is not None)
    return x if there else x.clone(memory_format=memory_format)


def _transfer(x: Tensor, runtime: Runtime) -> Tensor:
    """Return a copy on another device. Differentiable."""
    check_type(x.dtype, x._shape, runtime)
    if x.dtype.is_complex:
        return primitive.paired(_transfer(primitive.pairs(x), runtime))
    home = x._storage.runtime
    if home.kind == runtime.kind == "webgpu":
        # Reading waits for one card: the others start with what is theirs, so that all work meanwhile.
        for each in open_runtimes():
            if each.kind == "webgpu":
                each.flush()
    strides = strides_like(x._shape, x._strides)
    order = None if is_contiguous(x._shape, strides) else memory_order(x._shape, strides)
    if runtime.kind == "meta":
        node = Node("empty", (), (), (), x._shape, x.dtype)
        out = Tensor._from_storage(Storage(node, runtime), x._shape, strides, 0, order is None)
    elif order is None:
        out = ask("from_contents")(x.detach()._contents(), x._shape, x.dtype, runtime)
    else:
        # The dims keep their order in memory.
        source = x.detach().permute(order)
        there = ask("from_contents")(source._contents(), source._shape, x.dtype, runtime)
        out = Tensor._from_storage(there._storage, x._shape, strides, 0, False)
    return attach(out, "ToCopy", (x,), _transfer_back, (), (home,))


def _transfer_back(g: Tensor, home: Runtime) -> tuple[Tensor]:
    return (_transfer(g, home),)


def _itself(g: Tensor) -> Tensor:
    return g


def parse_to(
    args: tuple[object, ...], kwargs: dict[str, Any]
) -> tuple[DeviceLike, DType | None, bool]:
    """Return the device, the type and whether to copy, as `Tensor.to` is asked."""
    target: DeviceLike = kwargs.pop("device", None)
    dtype: DType | None = of_python(kwargs.pop("dtype", None))
    if not isinstance(dtype, DType | None):
        raise TypeError(
            f"to(): argument 'dtype' must be torch.dtype, not {type(dtype).__name__}: {dtype!r}"
        )
    copy = bool(kwargs.pop("copy", False))
    other = kwargs.pop("other", None)
    kwargs.pop("non_blocking", None)
    if kwargs:
        raise TypeError(f"to() received an invalid keyword argument {next(iter(kwargs))!r}")
    for a in map(of_python, args):
        if isinstance(a, DType):
            dtype = a
        elif isinstance(a, Tensor):
            other = a
        elif isinstance(a, (str, device)) or (isinstance(a, int) and not isinstance(a, bool)):
            target = a
        elif a is not None and not isinstance(a, bool):
            raise TypeError(
                f"to() received an invalid combination of arguments - got {type(a).__name__}, but "
                f"expected a dtype, device or Tensor: {a!r}"
            )
    if other is not None:
        target, dtype = other.device, other.dtype
    return target, dtype, copy


def _rebuild(
    contents: bytes,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    dtype: DType,
    where: str,
    requires_grad: bool,
    state: tuple[type[Tensor], dict[str, object]] | None,
) -> Tensor:
    lying = tuple([shape[d] for d in order])
    if where == "meta":
        out = primitive.empty(lying, dtype, where)
    else:
        out = ask("from_bytes")(contents, lying, dtype, where)
    if order != tuple(range(len(order))):
        inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
        out = out.permute(inverse).detach()
    if state is not None:
        kind, attributes = state
        out = Tensor._make_subclass(kind, out)
        out.__dict__.update(attributes)
    return out.requires_grad_(requires_grad)


_KEEPS_CLASS: Any = vars(Tensor)["__torch_function__"].__func__
_SET_DTYPE: Any = vars(TensorBase)["dtype"].__set__
override.know(Tensor, Size)
give(tensor_on=Tensor._from_storage)

__all__ = ["Size", "Tensor", "check_type", "int64", "user_line"]
