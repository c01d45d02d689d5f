"""`webtorch.autograd.functional`: derivatives of functions, as PyTorch has them. May import floor 4.

All of it is reverse mode. A Jacobian times a vector is the derivative of (cotangent times Jacobian) for the cotangent,
which costs two backward passes (the "double backwards trick", J. Townsend, 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from webtorch.functions.creation import ones_like, zeros, zeros_like
from webtorch.functions.joining import stack
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import enable_grad, mode
from webtorch.tensors.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Tensors = tuple[Tensor, ...]


def _construct_standard_basis_for(
    tensors: Sequence[Tensor], tensor_numels: Sequence[int]
) -> tuple[Tensor, ...]:
    """Return for each tensor its columns of the identity of all elements together, in its type and on its device."""
    if not tensors or len(tensors) != len(tensor_numels):
        raise AssertionError("there must be tensors, and a number of elements of each")
    total, first, found = sum(tensor_numels), 0, []
    for x, count in zip(tensors, tensor_numels, strict=True):
        chunk = zeros((total, count), dtype=x.dtype, device=x.device)
        chunk.diagonal(-first).fill_(1)
        found.append(chunk)
        first += count
    return tuple(found)


def _tuple(given: Any, what: str, name: str) -> tuple[bool, Tensors]:
    """Return whether a tuple was given, and a tuple of tensors."""
    several = isinstance(given, tuple)
    found = given if several else (given,)
    for i, x in enumerate(found):
        if not isinstance(x, Tensor):
            at = f"the value at index {i}" if several else f"the given {what}"
            raise TypeError(
                f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but {at} has type "
                f"{type(x)}."
            )
    return several, found


def _start(inputs: Tensors, create_graph: bool) -> Tensors:
    """Return inputs to differentiate for: parts of the caller's graph, or leaves of their own."""
    return tuple(
        x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_()
        for x in inputs
    )


def _finish(results: Sequence[Tensor], create_graph: bool) -> Tensors:
    return tuple(results) if create_graph else tuple(r.detach() for r in results)


def _check_strict(outputs: Tensors, strict: bool) -> None:
    for i, y in enumerate(outputs):
        if strict and not y.requires_grad:
            raise RuntimeError(
                f"Output {i} of the user-provided function does not require gradients. The outputs must be computed "
                "in a differentiable manner from the input when running in strict mode."
            )


class _Strict(NamedTuple):
    """What a strict call says of gradients, where none has come and where one does not depend on anything."""

    missing: str
    constant: str


_MODE = "This is not allowed in strict mode"
_RECORDED = f"{_MODE} when create_graph=True."
_UNUSED = f"The output of the user-provided function is independent of input {{i}}. {_MODE}."
_OF_JACOBIAN = (
    f"The jacobian of the user-provided function is independent of input {{i}}. {_RECORDED}"
)
_OF_HESSIAN = (
    f"The hessian of the user-provided function is independent of input {{i}}. {_RECORDED}"
)
_BACK = _Strict(_UNUSED, _OF_JACOBIAN)
_PULLED = _Strict(
    _UNUSED,
    "The gradient with respect to input {i} is independent of the inputs of the user-provided function. "
    f"{_MODE}.",
)
_PUSHED = _Strict(
    "The gradient with respect to the input is independent of entry {i} in the grad_outputs when using the double "
    f"backward trick to compute forward mode gradients. {_MODE}.",
    _OF_JACOBIAN,
)
_SLOPE = _Strict(
    _UNUSED,
    "While computing the hessian, found that the jacobian of the user-provided function with respect to input {i} is "
    f"independent of the input. {_MODE}. You should ensure that your function is twice differentiable and that the "
    "jacobian depends on the inputs (this would be violated by a linear function for example).",
)
_TWICE = _Strict(
    f"The jacobian of the user-provided function is independent of input {{i}}. {_MODE}.",
    _OF_HESSIAN,
)
_TWICE_PUSHED = _Strict(
    f"The hessian of the user-provided function is independent of entry {{i}} in the grad_jacobian. {_MODE} as it "
    "prevents from using the double backward trick to replace forward mode AD.",
    _OF_HESSIAN,
)


def _gradients(
    outputs: Sequence[Tensor],
    inputs: Tensors,
    cotangents: Sequence[Tensor | None],
    create_graph: bool,
    strict: _Strict | None = None,
) -> Tensors:
    """Return the gradients of `outputs` for `inputs`; zeros where nothing depends on an input."""
    pairs = [(y, v) for y, v in zip(outputs, cotangents, strict=True) if y.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if pairs:
        found = grad(
            [y for y, _ in pairs],
            list(inputs),
            [v for _, v in pairs],
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
        )
    for i, g in enumerate(found if strict is not None else ()):
        assert strict is not None
        if g is None:
            raise RuntimeError(strict.missing.format(i=i))
        if create_graph and not g.requires_grad:
            raise RuntimeError(strict.constant.format(i=i))
    return tuple(zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True))


def _vectors(v: object, like: Tensors, several: bool, name: str) -> Tensors:
    """Return the vectors to multiply with: as given, in the shapes of `like`, or 1 for a single number."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            what = (
                "user-provided function returns"
                if name == "vjp"
                else "input to the user-provided function is"
            )
            raise RuntimeError(
                f"The vector v can only be None if the {what} a single Tensor with a single element."
            )
        return (ones_like(like[0]),)
    _, vectors = _tuple(v, "v", name)
    if len(vectors) != len(like):
        raise RuntimeError(
            f"v is a tuple of invalid length: should be {len(like)} but got {len(vectors)}."
            if several
            else "The given v should contain a single Tensor."
        )
    for i, (x, t) in enumerate(zip(vectors, like, strict=True)):
        if x.shape != t.shape:
            at = f"Entry {i} in v" if several else "v"
            raise RuntimeError(f"{at} has invalid size: should be {t.shape} but got {x.shape}.")
    return vectors


def _run(func: Callable[..., object], inputs: Tensors, name: str) -> tuple[bool, Tensors]:
    return _tuple(func(*inputs), "outputs of the user-provided function", name)


def _packed(several: bool, found: Sequence[object]) -> object:
    return tuple(found) if several else found[0]


def vjp(
    func: Callable[..., object],
    inputs: object,
    v: object = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs) and `v` times its Jacobian. `v` has the shapes of the outputs."""
    with enable_grad():
        several, inputs = _tuple(inputs, "inputs", "vjp")
        points = _start(inputs, create_graph)
        many, outputs = _run(func, points, "vjp")
        _check_strict(outputs, strict)
        vectors = _vectors(v, outputs, many, "vjp")
        found = _gradients(outputs, points, vectors, create_graph, _BACK if strict else None)
    return (
        _packed(many, _finish(outputs, create_graph)),
        _packed(several, _finish(found, create_graph)),
    )


def jvp(
    func: Callable[..., object],
    inputs: object,
    v: object = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs) and its Jacobian times `v`. `v` has the shapes of the inputs."""
    with enable_grad():
        several, inputs = _tuple(inputs, "inputs", "jvp")
        points = _start(inputs, create_graph)
        vectors = _vectors(v, points, several, "jvp")
        many, outputs = _run(func, points, "jvp")
        _check_strict(outputs, strict)
        # Linear in these: their values do not matter.
        cotangents = tuple(zeros_like(y).requires_grad_() for y in outputs)
        pulled = _gradients(outputs, points, cotangents, True, _PULLED if strict else None)
        pushed = _PUSHED if strict else None
        found = _gradients(pulled, cotangents, vectors, create_graph, pushed)
    return (
        _packed(many, _finish(outputs, create_graph)),
        _packed(many, _finish(found, create_graph)),
    )


def jacobian(
    func: Callable[..., object],
    inputs: object,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of func at `inputs`: shape (*output shape, *input shape); tuples where func takes or
    returns tuples, outputs outside.

    `vectorize` and `strategy` are PyTorch's: the result is the same, computed in reverse mode.
    """
    _check_strategy("jacobian", strategy, vectorize, strict, create_graph)
    with enable_grad():
        several, inputs = _tuple(inputs, "inputs", "jacobian")
        points = _start(inputs, create_graph)
        many, outputs = _run(func, points, "jacobian")
        _check_strict(outputs, strict)
        rows: list[Any] = []
        for o, y in enumerate(outputs):
            unused = (
                f"Output {o} of the user-provided function is independent of input {{i}}. {_MODE}."
            )
            rules = _Strict(unused, _OF_JACOBIAN.format(i=o)) if strict else None
            parts: list[list[Tensor]] = [[] for _ in points]
            flat = y.reshape(-1)
            for i in range(y.numel()):
                for part, g in zip(
                    parts,
                    _gradients((flat[i],), points, (None,), create_graph, rules),
                    strict=True,
                ):
                    part.append(g)
            blocks = [
                (
                    stack(part) if part else zeros(0, *x.shape, dtype=y.dtype, device=x.device)
                ).reshape(tuple(y.shape) + tuple(x.shape))
                for part, x in zip(parts, points, strict=True)
            ]
            rows.append(_packed(several, _finish(blocks, create_graph)))
    return _packed(many, rows)


def _check_strategy(
    name: str, strategy: str, vectorize: bool, strict: bool, create_graph: bool
) -> None:
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more '
            'outputs than inputs, "forward-mode" tends to be more performant. Otherwise, prefer to use '
            '"reverse-mode".'
        )
    if strategy == "forward-mode" and mode.vmaps:
        raise RuntimeError("Batching rule not implemented for aten::_make_dual")
    if strategy == "forward-mode" and create_graph:
        raise NotImplementedError(
            f'torch.autograd.functional.{name}: `create_graph=True` and `strategy="forward-mode"` are not supported '
            'together (yet). Please either set `create_graph=False` or `strategy="reverse-mode"`.'
        )
    if strategy == "forward-mode" and not vectorize:
        raise NotImplementedError(
            f"Computing {name.capitalize()} using forward-AD or forward-over-reverse Hessian is only implemented for "
            "`vectorize=True`."
        )
    if vectorize and strict:
        raise RuntimeError(
            f"torch.autograd.functional.{name}: `strict=True` and `vectorized=True` are not supported together. "
            "Please either set `strict=False` or `vectorize=False`."
        )


def _number(func: Callable[..., object], points: Tensors, name: str) -> Tensor:
    """Return func(*points), which must be one number."""
    many, outputs = _run(func, points, name)
    if many or outputs[0].numel() != 1:
        raise RuntimeError(
            f"The function given to {name} should return a single Tensor"
            if many
            else f"The Tensor returned by the function given to {name} should contain a single element"
        )
    return outputs[0].squeeze()


def hessian(
    func: Callable[..., object],
    inputs: object,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the second derivatives of func, which returns one number: shape (*input shape, *input shape); a
    tuple of tuples for a tuple of inputs.
    """
    several, inputs = _tuple(inputs, "inputs", "hessian")

    def slope(*points: Tensor) -> Tensors:
        """Return the gradient, recorded."""
        points = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in points)
        y = _number(func, points, "hessian")
        _check_strict((y,), strict)
        found = _gradients((y,), points, (None,), True)
        for i, g in enumerate(found):
            if strict and not g.requires_grad:
                raise RuntimeError(_SLOPE.constant.format(i=i))
        return found

    _check_strategy("hessian", outer_jacobian_strategy, vectorize, strict, create_graph)
    found = jacobian(slope, inputs, create_graph=create_graph, strict=strict)
    return found if several else found[0][0]


def vhp(
    func: Callable[..., object],
    inputs: object,
    v: object = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs), one number, and `v` times its Hessian."""
    return _with_hessian("vhp", func, inputs, v, create_graph, strict)


def hvp(
    func: Callable[..., object],
    inputs: object,
    v: object = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs), one number, and its Hessian times `v`."""
    return _with_hessian("hvp", func, inputs, v, create_graph, strict)


def _with_hessian(
    name: str,
    func: Callable[..., object],
    inputs: object,
    v: object,
    create_graph: bool,
    strict: bool,
) -> tuple[object, object]:
    """Return the value of a function, and the product of a vector with its Hessian, from the side that `name` says."""
    with enable_grad():
        several, inputs = _tuple(inputs, "inputs", name)
        points = _start(inputs, create_graph)
        vectors = _vectors(v, points, several, name)
        y = _number(func, points, name)
        _check_strict((y,), strict)
        slopes = _gradients((y,), points, (None,), True, _SLOPE if strict else None)
        if name == "vhp":
            rules = _TWICE if strict else None
            found = _gradients(slopes, points, vectors, create_graph, rules)
        else:
            cotangents = tuple(zeros_like(x).requires_grad_() for x in points)
            pulled = _gradients(slopes, points, cotangents, True)
            pushed = _TWICE_PUSHED if strict else None
            found = _gradients(pulled, cotangents, vectors, create_graph, pushed)
    return _finish((y,), create_graph)[0], _packed(several, _finish(found, create_graph))
