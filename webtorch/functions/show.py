"""What repr(tensor) prints."""

from __future__ import annotations

from typing import Any

from webtorch.functions.joining import cat
from webtorch.tensors.above import give
from webtorch.tensors.batching import place_of, unbatch
from webtorch.tensors.forward import tangent_of
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.printing import Fetch, Nested, format_tensor
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor


def show_tensor(x: Tensor, contents: Any = None) -> str:
    """Return PyTorch's text of a tensor. Reads from the device only the elements that are printed; `contents`: what
    is printed for them.
    """
    if x._levels:
        return _show_batched(x)
    fn = x.grad_fn
    name = None if fn is None else fn.title.removeprefix("torch::autograd::")
    kind = type(x).__name__
    text = format_tensor(
        fetcher(x) if contents is None else contents, x._shape, x.dtype.name, device=str(x.device),
        requires_grad=x.requires_grad, grad_fn=name, tangent=_tangent(x) if mode.forward else None,
        class_name="tensor" if kind in ("Tensor", "Parameter") else kind, default_dtype_name=get_default_dtype().name,
    )  # fmt: skip
    # A parameter of a subclass, also one that Parameter(x) made of an x of a class of tensors.
    below = kind != "Parameter" and any(c.__name__ == "Parameter" for c in type(x).__mro__)
    return f"Parameter({text})" if below or x.__dict__.get("_is_param") else text


def _tangent(x: Tensor) -> str | None:
    """Return the text of a tangent of the innermost level."""
    tangent = tangent_of(x, mode.forward[-1])
    return None if tangent is None else show_tensor(tangent)


def fetcher(x: Tensor) -> Fetch | None:
    """Return what reads the elements that are printed; None of a tensor without values."""

    def fetch(edge: int | None) -> Nested:
        """Return the elements as nested lists, of long dims the ends alone."""
        with no_grad():
            part = x.detach()
            if edge is not None:
                for d, size in enumerate(x._shape):
                    if size > 2 * edge:
                        part = _ends(part, d, edge)
            return part.tolist()

    return None if x._storage.runtime.kind == "meta" else fetch


def _show_batched(x: Tensor) -> str:
    """Return what vmap maps over, level by level, with all examples inside."""
    number, size, _ = x._levels[-1]
    running = [v.number for v in mode.vmaps]
    depth = running.index(number) + 1 if number in running else -1
    dim = place_of(x, number)
    with no_grad():
        inner = show_tensor(unbatch(x, dim, number, size))
    text = "\n".join("    " + line for line in inner.split("\n"))
    return f"BatchedTensor(lvl={depth}, bdim={dim}, value=\n{text}\n)"


def _ends(x: Tensor, dim: int, count: int) -> Tensor:
    return cat([x.narrow(dim, 0, count), x.narrow(dim, x._shape[dim] - count, count)], dim)


give(show=show_tensor)
