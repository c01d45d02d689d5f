"""torch.library, torch._foreach_* and flex_attention, as programs under `webtorch run` meet them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as theirs

import webtorch
from webtorch.as_torch.names import checks, core, library, operators
from webtorch.as_torch.names import flex_attention as ours
from webtorch.as_torch.names.foreach import NAMES, foreach
from webtorch.utils._python_dispatch import TorchDispatchMode


def torch_grad(y: Any, x: Any) -> list[float]:
    found: list[float] = webtorch.autograd.grad(y, x)[0].tolist()
    return found


def test_a_custom_operator_is_called_by_name_with_its_gradient() -> None:
    @library.custom_op("mine::double", mutates_args=())
    def double(x: webtorch.Tensor, by: float = 2.0) -> webtorch.Tensor:
        return x * by

    double.register_autograd(
        lambda ctx, grad: (grad * 10 * ctx.by, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
    )
    library.register_fake("mine::double", lambda x, by=2.0: x)
    x = webtorch.tensor([1.0, 3.0], requires_grad=True)
    y = operators.mine.double(x, by=4.0)
    y.sum().backward()
    assert y.tolist() == [4.0, 12.0]
    assert x.grad is not None and x.grad.tolist() == [40.0, 40.0]
    # What is left to its default is among the inputs, too.
    assert torch_grad(operators.mine.double(x).sum(), x) == [20.0, 20.0]
    with pytest.raises(AttributeError, match="_OpNamespace"):
        _ = operators.mine.treble


def test_a_custom_operator_has_the_schema_of_its_annotations() -> None:
    def scaled(
        x: webtorch.Tensor, by: float = 2.0, *, dims: list[int] | None = None
    ) -> webtorch.Tensor:
        return x if by == 1 else x * by

    operator = library.custom_op("mine::scaled", scaled, mutates_args=())
    overload = operators.mine.scaled.default
    assert str(overload) == "mine.scaled.default"
    assert (
        str(overload._schema)
        == "mine::scaled(Tensor x, float by=2.0, *, SymInt[]? dims=None) -> Tensor"
    )
    text = library.infer_schema(scaled, mutates_args={"x"}, op_name="f")
    assert text == "f(Tensor(a0!) x, float by=2.0, *, SymInt[]? dims=None) -> Tensor"
    with pytest.raises(RuntimeError, match="Expected a value of type 'float' for argument 'by'"):
        operator(webtorch.ones(2), "much")
    with pytest.raises(RuntimeError, match="must not also be an input"):
        operator(webtorch.ones(2), 1.0)
    with pytest.raises(ValueError, match="Parameter x must have a type annotation"):
        library.custom_op("mine::untold", lambda x: x, mutates_args=())
    x = webtorch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        operator(x).sum().backward()
    seen: list[Any] = []

    def keep(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any) -> None:
        seen.append((inputs[1], keyword_only_inputs))

    operator.register_autograd(lambda ctx, grad: (grad * 7, None), setup_context=keep)

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watching():
        y = operator(x, dims=[0])
    y.sum().backward()
    assert seen == [overload, (2.0, {"dims": [0]})]
    assert x.grad is not None and x.grad.tolist() == [7.0, 7.0]


def test_a_custom_operator_has_a_rule_of_vmap() -> None:
    def shifted(x: webtorch.Tensor, *, by: float) -> webtorch.Tensor:
        return webtorch.tensor(x.detach().numpy() + by)

    operator = library.custom_op("mine::shifted", shifted, mutates_args=())
    operator.register_autograd(lambda ctx, grad: grad * 5)

    def rule(info: Any, in_dims: Any, x: Any, *, by: float) -> Any:
        return operator(x.movedim(in_dims[0], 0), by=by), 0

    operator.register_vmap(rule)
    x = webtorch.arange(6.0).view(2, 3)
    found = webtorch.func.vmap(lambda v: operator(v, by=1.0), in_dims=1)(x)
    assert found.tolist() == (x.t() + 1).tolist()
    gradient = webtorch.func.vmap(webtorch.func.grad(lambda v: operator(v, by=1.0).sum()))(x)
    assert gradient.tolist() == [[5.0] * 3] * 2


def test_a_custom_operator_of_lists_has_gradients() -> None:
    def halves(xs: list[webtorch.Tensor], n: int = 2) -> list[webtorch.Tensor]:
        return [x / n for x in xs]

    operator = library.custom_op("mine::halves", halves, mutates_args=())
    operator.register_autograd(lambda ctx, grads: ([g * 3 for g in grads], None))
    xs = [webtorch.ones(1, requires_grad=True), webtorch.ones(2, requires_grad=True)]
    out = operator(xs)
    assert type(out) is list and out[1].tolist() == [0.5, 0.5]
    out[1].sum().backward()
    assert xs[1].grad is not None and xs[1].grad.tolist() == [3.0, 3.0]
    assert xs[0].grad is not None and xs[0].grad.tolist() == [0.0]


def test_every_foreach_function_of_pytorch_is_here() -> None:
    wanted = {n.removeprefix("_foreach_") for n in dir(torch) if n.startswith("_foreach_")}
    assert wanted - NAMES <= {"powsum"}


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("add_", ([[0.5, 0.25], [2.0]],)),
        ("add", (1.5,)),
        ("mul_", ([3.0, 4.0],)),
        ("lerp_", ([[0.5, 0.25], [2.0]], 0.25)),
        ("addcmul_", ([[0.5, 0.25], [2.0]], [[1.0, 2.0], [3.0]], 0.5)),
        ("addcdiv", ([[0.5, 0.25], [2.0]], [[1.0, 2.0], [3.0]], [0.5, 2.0])),
        ("maximum_", (1.25,)),
        ("clamp_min", ([1.25, 0.0],)),
        ("pow", (2.0,)),
        ("sqrt_", ()),
        ("norm", ()),
        ("norm", (1,)),
    ],
)
def test_foreach_functions_compute_what_pytorch_computes(name: str, rest: tuple[Any, ...]) -> None:
    def run(library: Any, function: Any) -> list[Any]:
        def made(value: Any) -> Any:
            if isinstance(value, list) and isinstance(value[0], list):
                return [library.tensor(v) for v in value]
            return value

        xs = [library.tensor([1.0, 2.0]), library.tensor([0.5])]
        out = function(xs, *map(made, rest))
        return [x.tolist() for x in (xs if out is None else out)]

    wanted = run(torch, getattr(torch, f"_foreach_{name}"))
    for one, other in zip(run(webtorch, foreach(name)), wanted, strict=True):
        assert one == pytest.approx(other)


def test_attention_with_functions_of_indices() -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, n, 12, 8) for n in (4, 2, 2)]
    settings: Any = {
        "score_mod": lambda s, b, h, q, k: s + (q - k) * 0.1 * (h + 1),
        "enable_gqa": True,
        "return_lse": True,
    }

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < 5)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mask = theirs.create_block_mask(seen, None, None, 12, 12, device="cpu")
        wanted = theirs.flex_attention(*given, block_mask=mask, **settings)
    block = ours.create_block_mask(seen, None, None, 12, 12, device="cpu")
    assert block.to_dense().tolist() == mask.to_dense().tolist()
    found = ours.flex_attention(
        *(webtorch.tensor(x.tolist(), device="cpu") for x in given), block_mask=block, **settings
    )
    for one, other in zip(found, wanted, strict=True):
        webtorch.testing.assert_close(
            one, webtorch.tensor(other.tolist(), device="cpu"), rtol=1e-5, atol=1e-5
        )


def test_a_librarys_operator_is_given_by_a_decorator() -> None:
    mine = library.Library("given", "DEF")
    mine.define("twice(Tensor x) -> Tensor")

    @library.impl(mine, "twice", "CompositeExplicitAutograd")
    def twice(x: Any) -> Any:
        return x + x

    assert operators.given.twice(webtorch.ones(2)).tolist() == twice(webtorch.ones(2)).tolist()


@pytest.mark.parametrize("lib", [torch, webtorch], ids=["torch", "webtorch"])
@pytest.mark.parametrize("key", ["Autograd", "AutogradCPU"])
def test_a_librarys_function_for_autograd_comes_first(lib: Any, key: str) -> None:
    """It gives the gradient, calls the operator below itself, and modes see what it calls; other devices' wait."""
    ours = lib is webtorch
    names: Any = library if ours else torch.library
    below = core._AutoDispatchBelowAutograd if ours else torch._C._AutoDispatchBelowAutograd
    mine = names.Library(f"above{key}", "DEF")
    mine.define("twice(Tensor x) -> Tensor")
    mine.impl("twice", lambda x: x * 2, "CPU")
    mine.impl("twice", lambda x: x * 7, "CUDA")
    twice = getattr(operators if ours else torch.ops, f"above{key}").twice

    class Twice(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            with below():
                return twice(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 5

    mine.impl("twice", Twice.apply, key)
    x = lib.ones(2, device="cpu", requires_grad=True)
    y = twice(x)
    assert y.tolist() == [2, 2]
    assert lib.autograd.grad(y.sum(), x)[0].tolist() == [5, 5]


def test_cuda_and_the_base_of_tensors_are_refused_as_in_pytorch() -> None:
    """Of PyTorch's builds without CUDA, and of what is no class to make tensors of."""
    from webtorch.as_torch.names import cuda, top

    for call in (
        lambda lib: lib.tensor([1], device="cuda"),
        lambda lib: lib.tensor([1]).cuda(),
        lambda lib: lib.tensor([1]).to("cuda"),
    ):
        for lib in (torch, webtorch):
            with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
                call(lib)
    assert not isinstance(webtorch.ones(2), cuda.FloatTensor)
    with pytest.raises(TypeError, match="Torch not compiled with CUDA enabled"):
        cuda.FloatTensor()
    with (
        pytest.warns(UserWarning, match="deprecated"),
        pytest.raises(TypeError, match="Torch not compiled with CUDA enabled"),
    ):
        webtorch.set_default_tensor_type(cuda.FloatTensor)
    with pytest.raises(RuntimeError, match="Not available for CUDA storage"):
        cuda.ByteStorage.from_buffer()
    base = core.TensorBase
    assert isinstance(webtorch.ones(2), base)
    assert issubclass(webtorch.Tensor, base)
    assert base.add is webtorch.Tensor.add
    with pytest.raises(RuntimeError, match="Cannot directly construct"):
        base()
    with pytest.raises(RuntimeError, match="Cannot subclass"):
        type("Own", (base,), {})
    assert top._grid_sampler_2d_cpu_fallback is webtorch.functions.public.grid_sampler_2d


def test_lists_for_foreach_functions_are_as_long_as_pytorch_has_them() -> None:
    lists: list[tuple[int, list[Any]]] = [(0, []), (1, []), (1, [1, 2]), (2, [1.0])]
    for count, rest in lists:
        with pytest.raises(RuntimeError) as theirs:
            torch._foreach_add([torch.ones(1)] * count, [torch.tensor(x) for x in rest])  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError) as ours:
            foreach("add")([webtorch.ones(1)] * count, [webtorch.tensor(x) for x in rest])
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(RuntimeError, match="same number of elements as scalar list"):
        foreach("add")([webtorch.ones(1)], [1, 2])
    xs = [webtorch.ones(2), webtorch.ones(1)]
    assert foreach("mul_")(xs, 3) is xs


def test_what_a_tensor_is_said_to_be() -> None:
    for lib, check in (
        (torch, torch._assert_tensor_metadata),
        (webtorch, checks._assert_tensor_metadata),
    ):  # type: ignore[attr-defined]
        x = lib.ones(2, 3)
        check(x, [2, 3], [3, 1], lib.float32, device="cpu", layout=lib.strided)
        for wrong in ({"size": [3]}, {"stride": [1, 1]}, {"dtype": lib.int32}, {"layout": lib.sparse_coo}):  # fmt: skip
            with pytest.raises(RuntimeError, match="mismatch! Expected"):
                check(x, **wrong)
