"""`cond` and `while_loop`: decisions that data makes, as torch has them. May import floors 0 to 5.

Called by themselves they read the decision and run what it chose. Where a decision cannot be read, inside a
captured function or where vmap has one for each example, both branches of `cond` are computed and their
results are chosen by element; a loop has no such form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.errors import CaptureError
from webtorch.functions import public as webtorch
from webtorch.tensors.tape import Cotangents, Edge, GradFn, gradient_edge, mark, meta_of
from webtorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["cond", "while_loop"]

_Tensor = webtorch.Tensor


def cond(
    pred: object,
    true_fn: object,
    false_fn: object,
    operands: object = (),
) -> Any:
    """Return true_fn(*operands) if `pred` is true, else false_fn(*operands).

    `pred` is a bool or a tensor of one element. Inside `webtorch.compile`, and under vmap where examples
    decide for themselves, both functions run and must return tensors of the same shapes and types; neither
    the values nor the gradients of the one that was not chosen get into the result (of tensors that are no
    operands: the first gradients, and not under vmap). Raises RuntimeError if a
    function overwrites an operand, or if the results of the two do not fit each other.
    """
    if not isinstance(pred, (bool, int, float, _Tensor)):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if isinstance(pred, _Tensor) and pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    leaves = tree_flatten(operands)[0]
    if not isinstance(operands, (tuple, list)) or not all(isinstance(x, _Tensor) for x in leaves):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of tensor "
            f"leaves, but got {operands}."
        )
    if isinstance(pred, _Tensor) and _cannot_be_read(pred):
        return _choose(pred, true_fn, false_fn, operands)
    return _run("cond", true_fn if pred else false_fn, operands)


def while_loop(
    cond_fn: object,
    body_fn: object,
    carried_inputs: object,
) -> Any:
    """Return what is carried once cond_fn(*carried) is false; until then it becomes body_fn(*carried).

    Tensors keep their shapes and types; ints may be carried, too. Inside `webtorch.compile` the condition
    must follow from ints: the loop is then part of the program as often as it runs. Raises RuntimeError if
    the body returns something else than it got or overwrites it, CaptureError where data decide inside an
    exported function or with `fullgraph=True`.
    """
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("Expect cond_fn and body_fn to be callable.")
    leaves = tree_flatten(carried_inputs)[0]
    if not isinstance(carried_inputs, (tuple, list)) or not all(
        isinstance(x, (_Tensor, int)) for x in leaves
    ):
        raise RuntimeError(
            "Expect carried_inputs to be a tuple of possibly nested dict/list/tuple that only consists of "
            f"tensor or int leaves, but got {carried_inputs}."
        )
    carried: object = carried_inputs
    arguments = carried_inputs
    while _goes_on(cond_fn(*arguments)):
        carried = _run("while_loop", body_fn, arguments)
        arguments = _carried_on(arguments, carried)
    return carried


def _cannot_be_read(pred: webtorch.Tensor) -> bool:
    return bool(pred._levels) or pred.is_meta or pred._storage.runtime.capturing


def _run(name: str, function: Callable[..., Any], operands: Any) -> object:
    """Return the function's result, without tensors that are memory of an operand."""
    given = [x for x in tree_flatten(operands)[0] if isinstance(x, _Tensor)]
    before = [x._counter.version for x in given]
    result = function(*operands)
    if [x._counter.version for x in given] != before:
        raise RuntimeError(
            f"{name}: a function overwrote one of its inputs in place, which a branch or a body must not do: "
            "return the new value instead"
        )
    storages = {id(x._storage) for x in given}
    leaves, spec = tree_flatten(result)
    shared = [isinstance(x, _Tensor) and id(x._storage) in storages for x in leaves]
    if not any(shared):
        return result
    return tree_unflatten(
        [x.clone() if s else x for x, s in zip(leaves, shared, strict=True)], spec
    )


def _choose(
    pred: webtorch.Tensor,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: object,
) -> object:
    """Return the results of both branches, chosen by element."""
    # A copy, which nobody overwrites before the backward pass reads it.
    pred = pred.reshape(()).bool().clone()
    runtime = pred._storage.runtime
    kept = set(runtime.overwritten)

    def gated(x: webtorch.Tensor, taken: bool) -> webtorch.Tensor:
        """Return x, whose gradient ends here for examples that take the other branch."""
        # What is not chosen may have a derivative, of any order, of NaN or infinity, which must end here.
        if not x.requires_grad:
            return x
        still = x.detach()
        return webtorch.where(pred, x, still) if taken else webtorch.where(pred, still, x)

    leaves, spec = tree_flatten(operands)
    results = []
    for taken, function in ((True, true_fn), (False, false_fn)):
        given = tree_unflatten([gated(x, taken) for x in leaves], spec)
        start = mark()
        results.append(_run("cond", function, given))
        # Under vmap a gate has a decision for each example, and a weight that a function reads one gradient.
        if not pred._levels:
            _gate(pred, taken, tree_flatten(results[-1])[0], start)
    if set(runtime.overwritten) - kept:
        raise RuntimeError(
            "cond: a branch overwrites a tensor in place; both branches are computed here, and one of them "
            "is not taken: return the new value instead"
        )
    (first, spec), (second, other) = (tree_flatten(r) for r in results)
    if spec != other:
        raise RuntimeError(
            f"Unmatched output spec from torch.cond branches: true branch tree_spec {spec} vs false branch "
            f"tree_spec {other}."
        )
    return tree_unflatten([_one_of(pred, a, b) for a, b in zip(first, second, strict=True)], spec)


def _where_taken(
    gs: Cotangents, _saved: object, static: tuple[webtorch.Tensor, bool]
) -> Cotangents:
    """Return the cotangent where the branch was taken, 0 elsewhere."""
    (g,), (pred, taken) = gs, static
    return (webtorch.where(pred, g, 0) if taken else webtorch.where(pred, 0, g),)


def _gate(pred: webtorch.Tensor, taken: bool, results: list[object], start: int) -> None:
    """Let first derivatives by what a branch reads beside its operands, such as the weights of a module, out
    of it only if it is chosen. Its functions are younger than `start`.
    """

    gates: dict[Edge, Edge] = {}

    def gate(edge: Edge | None) -> Edge | None:
        """Return the edge, behind a gate if its function is younger than the branch."""
        if edge is None or edge[0].sequence > start:
            return edge
        if edge not in gates:
            fn = GradFn("CondBackward", (edge,), _where_taken, (), (pred, taken))
            fn.sequence = fn.first = start
            fn.metas = [meta_of(edge)]
            gates[edge] = fn, 0
        return gates[edge]

    edges = [gradient_edge(x) for x in results if isinstance(x, _Tensor)]
    pending = [edge[0] for edge in edges if edge is not None]
    seen = set()
    while pending:
        fn = pending.pop()
        if fn.sequence > start and fn not in seen:
            seen.add(fn)
            pending += [edge[0] for edge in fn.edges if edge is not None]
            fn.edges = tuple([gate(edge) for edge in fn.edges])


def _one_of(pred: webtorch.Tensor, a: object, b: object) -> object:
    if not isinstance(a, _Tensor) and not isinstance(b, _Tensor):
        if type(a) is type(b) and a == b:
            return a
        raise RuntimeError(
            f"When merging two branches' output in torch.cond, expected equal values but got {a!r} and {b!r}: "
            "return tensors"
        )
    if not isinstance(a, _Tensor) or not isinstance(b, _Tensor):
        raise RuntimeError(
            "When merging two branches' output in torch.cond, expected tensors of both but got "
            f"{type(a).__name__} and {type(b).__name__}"
        )
    for what, x, y in (("dtype", a.dtype, b.dtype), ("shape", a._shape, b._shape)):
        if x != y:
            raise RuntimeError(
                f"When merging two branches' output in torch.cond, expected same {what} but got {x} and {y}."
            )
    return webtorch.where(pred, a, b)


def _goes_on(decision: object) -> bool:
    if isinstance(decision, _Tensor):
        if decision.ndim or decision.dtype is not webtorch.bool:
            raise RuntimeError(
                "Expected cond_fn to return a scalar tensor or a bool but got "
                f"{decision.shape} of {decision.dtype}."
            )
        try:
            return bool(decision)
        except CaptureError as error:
            raise CaptureError(
                "while_loop: data decide how often it runs, which a program that is recorded once cannot "
                "follow. Carry an int as the counter, so that the number of rounds is known; or compile the "
                "body, and call while_loop outside of the compiled function"
            ) from error
    if not isinstance(decision, bool):
        raise RuntimeError(
            f"cond_fn must return a boolean scalar tensor or a boolean but got {type(decision)}"
        )
    return decision


def _carried_on(before: Any, after: object) -> Any:
    """Return the body's result as the next arguments."""
    old, spec = tree_flatten(before)
    new, found = tree_flatten(after)
    if spec != found and not (len(old) == len(new) == 1 and len(before) == 1):
        raise RuntimeError(
            f"Expected carried_inputs and body_output to have the same structure but got {spec} and {found}."
        )
    for i, (x, y) in enumerate(zip(old, new, strict=True)):
        if isinstance(x, _Tensor) != isinstance(y, _Tensor):
            raise RuntimeError(
                f"Expected body_fn_output and carried_inputs to have same metadata but found: pair[{i}] is "
                f"{type(y).__name__} vs {type(x).__name__}"
            )
        if not isinstance(x, _Tensor):
            continue
        for what, a, b in (
            ("dtype", y.dtype, x.dtype), ("shape", y.shape, x.shape), ("device", y.device, x.device),
        ):  # fmt: skip
            if a != b:
                raise RuntimeError(
                    "Expected body_fn_output and carried_inputs to have same metadata but found: "
                    f"pair[{i}] differ in '{what}: {a} vs {b}'"
                )
    return tree_unflatten(new, spec)
