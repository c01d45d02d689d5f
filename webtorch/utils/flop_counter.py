"""`torch.utils.flop_counter`: the products that a block computes, counted by operator and module. Floor 6."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from webtorch.aten.dispatch import OpOverloadPacket
from webtorch.aten.parts import aten
from webtorch.ir.lines import user_depth
from webtorch.tensors.tensor import Tensor
from webtorch.utils._python_dispatch import TorchDispatchMode
from webtorch.utils._pytree import tree_map, tree_map_
from webtorch.utils.module_tracker import ModuleTracker

__all__ = ["FlopCounterMode", "register_flop_formula"]

Formula = Callable[..., int]
Sizes = Sequence[int]
flop_registry: dict[object, Formula] = {}


def get_shape(x: object) -> Any:
    """Return a tensor's shape; other values as they are."""
    return x.shape if isinstance(x, Tensor) else x


def shape_wrapper(formula: Formula) -> Formula:
    """Return a formula that is given shapes in the places of tensors, and `out_shape`."""

    @functools.wraps(formula)
    def counted(*args: object, out_val: object = None, **kwargs: object) -> int:
        """Count what a call computes."""
        args, kwargs, out_shape = tree_map(get_shape, (args, kwargs, out_val))
        return formula(*args, out_shape=out_shape, **kwargs)

    return counted


def register_flop_formula(targets: object, get_raw: bool = False) -> Callable[[Formula], Formula]:
    """Decorate the formula of operators (`torch.ops.aten.mm`): it is given shapes in the places of tensors, unless
    `get_raw`.
    """

    def declare(formula: Formula) -> Formula:
        """Register the formula for each of the targets."""
        found = formula if get_raw else shape_wrapper(formula)

        def register(target: object) -> None:
            """Register it for one operator."""
            if not isinstance(target, OpOverloadPacket) and not hasattr(target, "_qualname"):
                raise ValueError(
                    "register_flop_formula(targets): expected each target to be OpOverloadPacket (i.e. "
                    "torch.ops.mylib.foo), JitFunction, or HigherOrderOperator, got "
                    f"{target} which is of type {type(target)}"
                )
            if target in flop_registry:
                raise RuntimeError(f"duplicate registrations for {target}")
            flop_registry[target] = found

        tree_map_(register, targets)
        return found

    return declare


@register_flop_formula(aten.mm)
def mm_flop(
    a_shape: Sizes, b_shape: Sizes, *_: object, out_shape: object = None, **__: object
) -> int:
    """Count a product of two matrices."""
    (m, k), (k2, n) = a_shape, b_shape
    if k != k2:
        raise AssertionError(f"matmul: inner dimensions must match (k == k2), got {k} and {k2}")
    return m * n * 2 * k


@register_flop_formula(aten.addmm)
def addmm_flop(
    _self: Sizes, a_shape: Sizes, b_shape: Sizes, out_shape: object = None, **_: object
) -> int:
    """Count the product of an addmm."""
    return mm_flop(a_shape, b_shape)


@register_flop_formula(aten.bmm)
def bmm_flop(a_shape: Sizes, b_shape: Sizes, out_shape: object = None, **_: object) -> int:
    """Count products of batches of matrices."""
    return a_shape[0] * mm_flop(a_shape[1:], b_shape[1:])


@register_flop_formula(aten.baddbmm)
def baddbmm_flop(
    _self: Sizes, a_shape: Sizes, b_shape: Sizes, out_shape: object = None, **_: object
) -> int:
    """Count the products of a baddbmm."""
    return bmm_flop(a_shape, b_shape)


def conv_flop_count(
    x_shape: Sizes, w_shape: Sizes, out_shape: Sizes, transposed: bool = False
) -> int:
    """Count a convolution: each output, or input if it is transposed, meets the whole kernel."""
    return prod((x_shape if transposed else out_shape)[2:]) * prod(w_shape) * x_shape[0] * 2


@register_flop_formula([aten.convolution, aten._convolution])
def conv_flop(
    x_shape: Sizes,
    w_shape: Sizes,
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    *_: object,
    out_shape: Any = None,
    **__: object,
) -> int:
    """Count a convolution."""
    return conv_flop_count(x_shape, w_shape, out_shape, transposed)


@register_flop_formula(aten.convolution_backward)
def conv_backward_flop(
    grad_out_shape: Sizes,
    x_shape: Sizes,
    w_shape: Sizes,
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: object,
    output_mask: Sequence[bool],
    out_shape: Any,
    **_: object,
) -> int:
    """Count the gradients of a convolution, which are convolutions of the other kind, or with the other operand."""

    def turned(shape: Sizes) -> Sizes:
        """Return a shape with its first two dims exchanged."""
        return [shape[1], shape[0], *shape[2:]]

    count = 0
    if output_mask[0]:
        count += conv_flop_count(grad_out_shape, w_shape, get_shape(out_shape[0]), not transposed)
    if output_mask[1]:
        x, w = (grad_out_shape, x_shape) if transposed else (x_shape, grad_out_shape)
        count += conv_flop_count(turned(x), turned(w), turned(get_shape(out_shape[1])))
    return count


def sdpa_flop_count(query: Sizes, key: Sizes, value: Sizes) -> int:
    """Count the two products of attention; heads of keys may be shared."""
    (b, heads, rows, size), columns, width = query, key[2], value[3]
    return bmm_flop((b * heads, rows, size), (b * heads, size, columns)) + bmm_flop(
        (b * heads, rows, columns), (b * heads, columns, width)
    )


@register_flop_formula(aten._scaled_dot_product_efficient_attention)
def sdpa_flop(
    query: Sizes, key: Sizes, value: Sizes, *_: object, out_shape: object = None, **__: object
) -> int:
    """Count attention."""
    return sdpa_flop_count(query, key, value)


def sdpa_backward_flop_count(_g: Sizes, query: Sizes, key: Sizes, value: Sizes) -> int:
    """Count the products of attention's gradients: the scores again, and two for each of the two products."""
    (b, heads, rows, size), columns, width = query, key[2], value[3]
    return 2 * b * heads * rows * columns * (3 * size + 2 * width)


@register_flop_formula(aten._scaled_dot_product_efficient_attention_backward)
def sdpa_backward_flop(
    g: Sizes,
    query: Sizes,
    key: Sizes,
    value: Sizes,
    *_: object,
    out_shape: object = None,
    **__: object,
) -> int:
    """Count attention's gradients."""
    return sdpa_backward_flop_count(g, query, key, value)


suffixes = ["", "K", "M", "B", "T"]


def get_suffix_str(number: int) -> str:
    """Return the suffix under which a number has two to four digits before the point."""
    return suffixes[max(0, min(len(suffixes) - 1, (len(str(number)) - 2) // 3))]


def convert_num_with_suffix(number: float, suffix: str) -> str:
    """Return a number as so many thousands, millions, ..."""
    return f"{number / 1000 ** suffixes.index(suffix):.3f}{suffix}"


def convert_to_percent_str(number: float, whole: float) -> str:
    """Return a part of a whole in percent."""
    return "0%" if whole == 0 else f"{number / whole:.2%}"


class FlopCounterMode:
    """A block whose products are counted: `flop_counts` by module and operator."""

    def __init__(
        self,
        mods: object = None,
        depth: int = 2,
        display: bool = True,
        custom_mapping: Mapping[object, Formula] | None = None,
    ) -> None:
        """Say how deep modules are shown, whether they are at all, and the formulas of operators of one's own."""
        if mods is not None:
            warnings.warn(
                "mods argument is not needed anymore, you can stop passing it",
                stacklevel=user_depth(),
            )
        self.flop_counts: dict[str, dict[object, int]] = defaultdict(lambda: defaultdict(int))
        self.depth, self.display = depth, display
        given = custom_mapping or {}
        self.flop_registry = flop_registry | {
            k: v if getattr(v, "_get_raw", False) else shape_wrapper(v) for k, v in given.items()
        }
        self.mod_tracker = ModuleTracker()
        self.mode: _Counting | None = None

    def get_total_flops(self) -> int:
        """Return the count of all."""
        return sum(self.flop_counts["Global"].values())

    def get_flop_counts(self) -> dict[str, dict[object, int]]:
        """Return the counts by module, and by operator."""
        return {k: dict(v) for k, v in self.flop_counts.items()}

    def get_table(self, depth: int | None = None) -> str:
        """Return the counts as a table."""
        depth = self.depth if depth is None else depth
        whole = self.get_total_flops()
        suffix = get_suffix_str(whole)

        def row(title: str, count: int) -> list[str]:
            """Return a title, its count, and its share of the whole."""
            shown = convert_num_with_suffix(count, suffix) if suffix else str(count)
            return [title, shown, convert_to_percent_str(count, whole)]

        def rows(name: str, indent: int) -> list[list[str]]:
            """Return the rows of a module: its own, and one for each operator."""
            counts = self.flop_counts[name]
            pad = " " * indent
            return [row(pad + name, sum(counts.values()))] + [
                row(f"{pad} - {operator}", count) for operator, count in counts.items()
            ]

        lines: list[list[str]] = []
        for name in sorted(self.flop_counts):
            level = name.count(".") + 1
            if name != "Global" and level <= depth:
                lines += rows(name, level - 1)
        # What no module holds all of is shown above them.
        largest = max(
            [sum(c.values()) for n, c in self.flop_counts.items() if n != "Global"], default=-1
        )
        if "Global" in self.flop_counts and largest < whole:
            lines = rows("Global", 0) + [[f" {title}", *rest] for title, *rest in lines]
        return _table(["Module", "FLOP", "% Total"], lines or [["Global", "0", "0%"]])

    def __enter__(self) -> FlopCounterMode:
        self.flop_counts.clear()
        self.mod_tracker.__enter__()
        self.mode = _Counting(self)
        self.mode.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        assert self.mode is not None
        self.mode.__exit__(*args)
        self.mode = None
        self.mod_tracker.__exit__()
        if self.display:
            print(self.get_table(self.depth))  # noqa: T201

    def count(
        self, operator: object, out: object, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        """Count a call for the modules that run."""
        formula = self.flop_registry.get(operator)
        if formula is not None:
            number = formula(*args, **kwargs, out_val=out)
            for module in self.mod_tracker.parents:
                self.flop_counts[module][operator] += number


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table, numbers to the right, as the package tabulate writes it."""
    # A column is wider than its head by two at least.
    shown = [[f"{h}  " for h in head], *rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]

    def line(cells: list[str]) -> str:
        """Return a row: a title to the left, numbers to the right."""
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *[c.rjust(w) for c, w in rest]])

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, rows)])


class _Counting(TorchDispatchMode):
    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self.counter = counter

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call, and count."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.counter.count(func._overloadpacket, out, args, kwargs)
        return out
