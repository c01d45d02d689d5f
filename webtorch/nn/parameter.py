"""Parameter and Buffer: tensors that a Module registers when they are assigned to it.

May import the tensor floor only.
"""

from __future__ import annotations

from typing import Any, ClassVar

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import strided
from webtorch.tensors.override import asks, counted, disabled, dispatches
from webtorch.tensors.tensor import Tensor

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "is_lazy"]


class _ParameterMeta(type):
    """A tensor that has the mark of a class counts as one of it, whatever subclass it is of, as in PyTorch."""

    def __instancecheck__(cls, instance: object) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        mark = cls.__dict__.get("_mark")
        return (
            mark is not None
            and isinstance(instance, Tensor)
            and bool(instance.__dict__.get(mark, False))
        )


class Parameter(Tensor, metaclass=_ParameterMeta):
    """A tensor that is a module's parameter: assigned to a Module, it appears in `parameters()`.

    `data` is a tensor (an empty one by default) whose storage the parameter shares.
    """

    _mark = "_is_param"

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        """Return a leaf tensor that shares the storage of `data`."""
        if data is None:
            data = webtorch.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter: data must be a Tensor, not {type(data).__name__}. "
                "Wrap it first: Parameter(webtorch.tensor(data))."
            )
        if asks(type(data)) or dispatches(type(data)) or data.layout is not strided:
            # The class of the data knows more than a Parameter does: the result is one of them.
            out: Any = data.detach().requires_grad_(requires_grad)
            kind: type[Any] = type(out)
            if kind is not type(data):
                raise RuntimeError(
                    f"Creating a Parameter from an instance of type {type(data).__name__} requires that "
                    "detach() returns an instance of the same type, but return type "
                    f"{kind.__name__} was found instead. To use the type as a Parameter, please "
                    "correct the detach() semantics defined by its __torch_dispatch__() implementation."
                )
            out._is_param = True
            return out
        return Tensor._make_subclass(cls, data, requires_grad)

    __torch_function__ = disabled  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """Return a parameter with its own copy of the data, once per `memo`."""
        known = memo.get(id(self))
        if known is not None:
            return known
        # As in PyTorch, the gradient stays behind.
        copied = type(self)(self.data.clone(), self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Pickle as the data and whether it requires a gradient; the gradient stays behind."""
        return _rebuild_parameter, (type(self), self.detach(), self.requires_grad)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Return the tensor's text under PyTorch's headline."""
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor, metaclass=_ParameterMeta):
    """A tensor that a Module registers as a buffer when it is assigned to an attribute.

    A buffer is state that no gradient changes; `persistent=False` leaves it out of `state_dict()`. It is a plain
    tensor with a mark.
    """

    _mark = "_is_buffer"
    persistent: bool
    __torch_function__ = disabled  # type: ignore[assignment]

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Any:
        """Return a tensor that shares the storage of `data` and knows its persistence."""
        if data is None:
            data = webtorch.empty(0)
        out: Any = data.detach().requires_grad_(data.requires_grad)
        out.persistent, out._is_buffer = persistent, True
        return out


def _rebuild_parameter(cls: type[Parameter], data: Tensor, requires_grad: bool) -> Parameter:
    """Return a parameter from what `Parameter.__reduce_ex__` gave."""
    return cls(data, requires_grad)


_NO_SHAPE = (
    "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
    "`load_state_dict` when trying to load an uninitialized parameter into an initialized one. "
    "Call `forward` to initialize the parameters before accessing their attributes."
)


# What a tensor without a shape can be asked, and cast and moved by.
_WITHOUT_SHAPE = frozenset((
    "__get__", "__set__", "__delete__", "__hash__", "char", "copy_", "cpu", "cuda", "detach", "double", "float",
    "get_device", "half", "int", "is_complex", "is_floating_point", "long", "requires_grad_", "short", "size", "to",
))  # fmt: skip


class UninitializedTensorMixin(Tensor):
    """A tensor whose shape is not known yet; `materialize` gives it one and its final class."""

    _becomes: ClassVar[Any]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call what needs no shape. Raises ValueError for all else."""
        if func.__name__ in _WITHOUT_SHAPE:
            return super().__torch_function__(func, types, args, kwargs)
        raise ValueError(
            f"Attempted to use an uninitialized parameter in {func}. This error happens when you are using a "
            f"`LazyModule` or explicitly manipulating `torch.nn.parameter.{cls.__name__}` objects. When using "
            "LazyModules Call `forward` with a dummy batch to initialize the parameters before calling torch "
            "functions"
        )

    def materialize(
        self, shape: object, device: DeviceLike = None, dtype: DType | None = None
    ) -> None:
        """Take uninitialised memory of `shape`, on the device and of the dtype given first."""
        device = self.device if device is None else device
        dtype = self.dtype if dtype is None else dtype
        self.data = webtorch.empty(shape, device=device, dtype=dtype)
        self._living, self.__class__ = counted(self._becomes), self._becomes

    @property
    def shape(self) -> Any:
        """Raise RuntimeError: there is none."""
        raise RuntimeError(_NO_SHAPE)

    def share_memory_(self) -> Any:
        """Raise RuntimeError: there is no memory."""
        raise RuntimeError(
            "Can't share memory on an uninitialized parameter or buffer. Call `forward` to "
            "initialize the parameters before calling `module.share_memory()`."
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Return the name of the class."""
        return f"<{type(self).__name__}>"


class UninitializedParameter(UninitializedTensorMixin, Parameter):  # type: ignore[misc]
    """A parameter whose shape is not known yet: lazy layers have it until their first call."""

    _becomes = Parameter

    def __new__(
        cls, requires_grad: bool = True, device: DeviceLike = None, dtype: DType | None = None
    ) -> UninitializedParameter:
        """Return a parameter without a shape."""
        return Tensor._make_subclass(
            cls, webtorch.empty(0, device=device, dtype=dtype), requires_grad
        )

    def __init__(
        self, requires_grad: bool = True, device: DeviceLike = None, dtype: DType | None = None
    ) -> None:
        """Do nothing: the tensor was complete when `__new__` returned it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedParameter:
        """Return another parameter without a shape, once per `memo`."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.requires_grad, self.device, self.dtype)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Pickle as device, dtype and whether it requires a gradient."""
        return type(self), (self.requires_grad, str(self.device), self.dtype)


class UninitializedBuffer(UninitializedTensorMixin, Buffer):  # type: ignore[misc]
    """A buffer whose shape is not known yet: lazy norms have it until their first call."""

    # A plain tensor, as Buffer makes it.
    _becomes = Tensor

    def __new__(
        cls,
        requires_grad: bool = False,
        device: DeviceLike = None,
        dtype: DType | None = None,
        persistent: bool = True,
    ) -> UninitializedBuffer:
        """Return a buffer without a shape."""
        return Tensor._make_subclass(
            cls, webtorch.empty(0, device=device, dtype=dtype), requires_grad
        )

    def __init__(
        self,
        requires_grad: bool = False,
        device: DeviceLike = None,
        dtype: DType | None = None,
        persistent: bool = True,
    ) -> None:
        """Record whether the buffer belongs to the state dict."""
        self.persistent = persistent

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedBuffer:
        """Return another buffer without a shape, once per `memo`."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(False, self.device, self.dtype, self.persistent)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Pickle as device, dtype and persistence."""
        return type(self), (False, str(self.device), self.dtype, self.persistent)


def is_lazy(param: object) -> bool:
    """Return whether `param` has no shape yet."""
    return isinstance(param, UninitializedTensorMixin)
