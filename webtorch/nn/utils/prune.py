"""`nn.utils.prune`: parameters with a mask, chosen at random, by size, or given. May import nn's base files.

A pruned parameter `weight` becomes the parameter `weight_orig` and the buffer `weight_mask`; before each forward their
product is put in its place.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.nn.module import Module
from webtorch.nn.utils.convert_parameters import parameters_to_vector
from webtorch.tensors.tensor import Tensor


class BasePruningMethod(ABC):
    """A way of choosing a mask: subclasses define compute_mask and PRUNING_TYPE (unstructured, structured, global)."""

    _tensor_name: str
    PRUNING_TYPE: str

    def __call__(self, module: Module, inputs: object) -> None:
        """Put the masked parameter in its place: the hook that runs before forward."""
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return a mask for scores `t`, which keeps 0 what default_mask has 0."""

    def apply_mask(self, module: Module) -> Tensor:
        """Return the parameter times its mask."""
        mask = getattr(module, f"{self._tensor_name}_mask")
        orig = getattr(module, f"{self._tensor_name}_orig")
        return mask.to(dtype=orig.dtype) * orig

    @classmethod
    def apply(
        cls,
        module: Module,
        name: str,
        *args: object,
        importance_scores: Tensor | None = None,
        **kwargs: object,
    ) -> BasePruningMethod:
        """Prune a parameter of a module, on top of what it is pruned by already. Returns the method, a hook."""
        hooks = module._forward_pre_hooks
        old = [
            key
            for key, hook in hooks.items()
            if isinstance(hook, BasePruningMethod) and hook._tensor_name == name
        ]
        if len(old) > 1:
            raise AssertionError(
                f"Avoid adding multiple pruning hooks to the same tensor {name} of module {module}. "
                "Use a PruningContainer."
            )
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        before: object = hooks[old[0]] if old else None
        if before is not None:
            container = before if isinstance(before, PruningContainer) else PruningContainer(before)
            container.add_pruning_method(method)
            method = container
        orig = getattr(module, name)
        if importance_scores is not None and importance_scores.shape != orig.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as parameter {name} of {module}, got "
                f"{importance_scores.shape} vs {orig.shape}"
            )
        scores = orig if importance_scores is None else importance_scores
        # Nothing of the module is changed before the mask is there.
        if before is None:
            default_mask = webtorch.ones_like(orig.detach())
        else:
            default_mask = getattr(module, f"{name}_mask").detach().clone()
        mask = method.compute_mask(scores.detach(), default_mask=default_mask)
        if before is None:
            module.register_parameter(f"{name}_orig", orig)
            del module._parameters[name]
        else:
            del hooks[old[0]]
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """Return a tensor times the mask for it, or for its scores."""
        if importance_scores is not None and importance_scores.shape != t.shape:
            raise AssertionError(
                "importance_scores should have the same shape as tensor t, got "
                f"{importance_scores.shape} vs {t.shape}"
            )
        mask = webtorch.ones_like(t) if default_mask is None else default_mask
        scores = t if importance_scores is None else importance_scores
        return t * self.compute_mask(scores, default_mask=mask)

    def remove(self, module: Module) -> None:
        """Make the masked values the parameter again. The hook itself stays: prune.remove takes it away."""
        name = self._tensor_name
        values = self.apply_mask(module).detach()
        if hasattr(module, name):
            delattr(module, name)
        orig: Any = module._parameters.pop(f"{name}_orig")
        orig.data = values
        del module._buffers[f"{name}_mask"]
        setattr(module, name, orig)


class PruningContainer(BasePruningMethod):
    """Several methods of one parameter; the last one works on what the others have kept."""

    def __init__(self, *args: Any) -> None:
        self._pruning_methods: tuple[Any, ...] = ()
        if len(args) == 1:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod | None) -> None:
        """Add a method of the same parameter."""
        if method is not None and not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method is not None and self._tensor_name != method._tensor_name:
            raise ValueError(
                "Can only add pruning methods acting on the parameter named "
                f"'{self._tensor_name}' to PruningContainer {self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: Any) -> Any:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the last method's mask of what is left."""
        method = self._pruning_methods[-1]
        mask = default_mask.to(dtype=t.dtype)
        where: object
        match method.PRUNING_TYPE:
            case "unstructured":
                where = default_mask == 1
            case "structured":
                if not hasattr(method, "dim"):
                    raise AttributeError(
                        'Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.'
                    )
                rank = t.dim()
                dim = method.dim + rank if method.dim < 0 else method.dim
                if dim < 0:
                    raise IndexError(f"Index is out of bounds for tensor with dimensions {rank}")
                kept = default_mask.sum(dim=[d for d in range(rank) if d != dim]) != 0
                where = tuple(kept if d == dim else slice(None) for d in range(rank))
            case "global":
                where = (slice(None),) * t.dim()
            case other:
                raise ValueError(f"Unrecognized PRUNING_TYPE {other}")
        part = method.compute_mask(t[where], default_mask=default_mask[where])
        mask = mask.clone()
        mask[where] = part.to(dtype=mask.dtype)
        return mask


class Identity(BasePruningMethod):
    """A mask of ones."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask as it is."""
        return default_mask

    @classmethod
    def apply(cls, module: Module, name: str) -> BasePruningMethod:  # type: ignore[override]
        """Give `module.name` a mask of ones; return the method."""
        return super().apply(module, name)


class _ByAmount(BasePruningMethod):
    """What prunes a number, or a fraction, of elements or channels."""

    def __init__(self, amount: float) -> None:
        _validate_pruning_amount_init(amount)
        self.amount = amount

    def _count(self, size: int) -> int:
        count = _compute_nparams_toprune(self.amount, size)
        _validate_pruning_amount(count, size)
        return count


class _Unstructured(_ByAmount):
    PRUNING_TYPE = "unstructured"

    def _lowest(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask without the elements of the lowest scores."""
        count = self._count(t.numel())
        if not count:
            return default_mask.clone()
        places = webtorch.topk(self._lowest(t).reshape(-1), count, largest=False).indices
        mask = default_mask.clone().reshape(-1)
        mask[places] = 0
        return mask.reshape(default_mask.shape)


class RandomUnstructured(_Unstructured):
    """Elements at random."""

    def _lowest(self, t: Tensor) -> Tensor:
        return webtorch.rand(t.shape, device=t.device)

    @classmethod
    def apply(cls, module: Module, name: str, amount: float) -> BasePruningMethod:  # type: ignore[override]
        """Mask `amount` random elements of `module.name`; return the method."""
        return super().apply(module, name, amount=amount)


class L1Unstructured(_Unstructured):
    """The smallest elements."""

    def _lowest(self, t: Tensor) -> Tensor:
        return t.detach().abs()

    @classmethod
    def apply(  # type: ignore[override]
        cls, module: Module, name: str, amount: float, importance_scores: Tensor | None = None
    ) -> BasePruningMethod:
        """Mask the `amount` smallest elements, by `importance_scores` if given; return the method."""
        return super().apply(module, name, amount=amount, importance_scores=importance_scores)


class _Structured(_ByAmount):
    PRUNING_TYPE = "structured"
    dim: int

    def _sizes(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask without the channels along `dim` of the lowest scores.

        Raises ValueError for a vector, IndexError for a dim that the tensor does not have.
        """
        if t.dim() <= 1:
            raise ValueError(
                "Structured pruning can only be applied to multidimensional tensors. "
                f"Found tensor of shape {t.shape} with {t.dim()} dims"
            )
        if self.dim >= t.dim():
            raise IndexError(f"Invalid index {self.dim} for tensor of size {t.shape}")
        size = t.shape[self.dim]
        count = self._count(size)
        if not count:
            return default_mask
        kept = webtorch.topk(self._sizes(t), size - count, largest=True).indices
        mask = webtorch.zeros_like(t.detach()).index_fill(self.dim, kept, 1)
        return mask * default_mask.to(dtype=mask.dtype)


class RandomStructured(_Structured):
    """Channels along a dim, at random."""

    def __init__(self, amount: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _sizes(self, t: Tensor) -> Tensor:
        return webtorch.rand(t.shape[self.dim], device=t.device)

    @classmethod
    def apply(cls, module: Module, name: str, amount: float, dim: int = -1) -> BasePruningMethod:  # type: ignore[override]
        """Mask `amount` random channels along `dim`; return the method."""
        return super().apply(module, name, amount=amount, dim=dim)


class LnStructured(_Structured):
    """The channels along a dim of the smallest n-norm."""

    def __init__(self, amount: float, n: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.n = n
        self.dim = dim

    def _sizes(self, t: Tensor) -> Tensor:
        others = [d for d in range(t.dim()) if d != self.dim % t.dim()]
        return webtorch.norm(t.detach(), p=self.n, dim=others)

    @classmethod
    def apply(  # type: ignore[override]
        cls,
        module: Module,
        name: str,
        amount: float,
        n: float,
        dim: int,
        importance_scores: Tensor | None = None,
    ) -> BasePruningMethod:
        """Mask the `amount` channels along `dim` of the smallest n-norm; return the method."""
        return super().apply(
            module, name, amount=amount, n=n, dim=dim, importance_scores=importance_scores
        )


class CustomFromMask(BasePruningMethod):
    """A given mask."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the product of both masks. Raises AssertionError unless they have one shape."""
        if default_mask.shape != self.mask.shape:
            raise AssertionError(
                f"default_mask shape {default_mask.shape} must match self.mask shape {self.mask.shape}"
            )
        return default_mask * self.mask.to(dtype=default_mask.dtype)

    @classmethod
    def apply(cls, module: Module, name: str, mask: Tensor) -> BasePruningMethod:  # type: ignore[override]
        """Give `module.name` a mask of its own; return the method."""
        return super().apply(module, name, mask=mask)


def identity(module: Module, name: str) -> Module:
    """Give a parameter a mask of ones. Returns the module."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune elements at random: `amount` of them, or that fraction. Returns the module."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Module, name: str, amount: float, importance_scores: Tensor | None = None
) -> Module:
    """Prune the smallest elements, or those of the smallest scores. Returns the module."""
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prune channels along a dim at random. Returns the module."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module,
    name: str,
    amount: float,
    n: float,
    dim: int,
    importance_scores: Tensor | None = None,
) -> Module:
    """Prune the channels along a dim of the smallest n-norm. Returns the module."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: object,
) -> None:
    """Prune elements of several parameters, pairs of a module and a name, as if they were one tensor."""
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    pairs = list(parameters)
    scores = {} if importance_scores is None else importance_scores
    if not isinstance(scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    whole = [(module, name, getattr(module, name)) for module, name in pairs]
    values = parameters_to_vector([scores.get((m, name), t) for m, name, t in whole])
    masks = [getattr(m, f"{name}_mask", webtorch.ones_like(t.detach())) for m, name, t in whole]
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            f'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method {pruning_method} '
            f"of type {method.PRUNING_TYPE}"
        )
    mask = PruningContainer(method).compute_mask(values.detach(), parameters_to_vector(masks))
    start = 0
    for module, name, t in whole:
        custom_from_mask(module, name, mask=mask[start : start + t.numel()].view_as(t))
        start += t.numel()


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune by a mask. Returns the module."""
    CustomFromMask.apply(module, name, mask)
    return module


def remove(module: Module, name: str) -> Module:
    """Make pruning of a parameter permanent: the masked values become the parameter. Returns the module."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(
        f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
    )


def is_pruned(module: Module) -> bool:
    """Return whether a module, or one below it, is pruned."""
    return any(
        isinstance(hook, BasePruningMethod)
        for _, one in module.named_modules()
        for hook in one._forward_pre_hooks.values()
    )


def _validate_pruning_amount_init(amount: float) -> None:
    if not isinstance(amount, numbers.Real):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    whole = isinstance(amount, numbers.Integral)
    if amount < 0 or (not whole and float(amount) > 1.0):
        raise ValueError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
        )


def _validate_pruning_amount(amount: float, tensor_size: int) -> None:
    if isinstance(amount, numbers.Integral) and int(amount) > tensor_size:
        raise ValueError(
            f"amount={amount} should be smaller than the number of parameters to prune={tensor_size}"
        )


def _compute_nparams_toprune(amount: Any, tensor_size: int) -> int:
    """Return how many a number or a fraction asks for."""
    return int(amount) if isinstance(amount, numbers.Integral) else round(amount * tensor_size)
