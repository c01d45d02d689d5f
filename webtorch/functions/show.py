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
    if x._levels or (mode.transforms and x._requires_grad):
        tracking = [t.number for t in mode.transforms if t.tracks(x)]
        if tracking or x._levels:
            return _show_wrapped(x, tracking)
    try:
        fn = x.grad_fn
        name = None if fn is None else fn.title.removeprefix("torch::autograd::")
    except RuntimeError:
        # A view that gradients cannot follow through a write to its base.
        name = "Invalid"
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


def _show_wrapped(x: Tensor, tracking: list[int]) -> str:
    """Return what transforms see, the innermost first: what is differentiated, and what vmap maps over with all
    examples inside.
    """
    number = max([*tracking, *(n for n, _, _ in x._levels)])
    running = sorted(t.number for t in (*mode.vmaps, *mode.transforms))
    depth = running.index(number) + 1 if number in running else -1
    rest = [n for n in tracking if n != number]
    title, inner = f"GradTrackingTensor(lvl={depth}, ", x
    if len(rest) == len(tracking):
        dim = place_of(x, number)
        title = f"BatchedTensor(lvl={depth}, bdim={dim}, "
        with no_grad():
            inner = unbatch(x, dim, number, next(size for n, size, _ in x._levels if n == number))
    shown = _show_wrapped(inner, rest) if rest or inner._levels else show_tensor(inner.detach())
    text = "\n".join("    " + line for line in shown.split("\n"))
    return f"{title}value=\n{text}\n)"


def _ends(x: Tensor, dim: int, count: int) -> Tensor:
    return cat([x.narrow(dim, 0, count), x.narrow(dim, x._shape[dim] - count, count)], dim)


give(show=show_tensor)
