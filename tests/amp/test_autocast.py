"""The autocast context: nesting, decorators, the cache of casts, custom functions, compiled steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import webtorch


def _dtype(t: Any) -> str:
    return str(t.dtype).removeprefix("torch.")


@pytest.mark.covers("A14")
def test_contexts_nest_and_end_where_they_began() -> None:
    seen = {}
    for lib in (torch, webtorch):
        x = lib.ones(2, 2)
        types = []
        with lib.autocast("cpu"):
            types.append(_dtype(x @ x))
            with lib.autocast("cpu", enabled=False):
                types.append(_dtype(x @ x))
                with lib.autocast("cpu", dtype=lib.float16):
                    types.append(_dtype(x @ x))
                    types.append(str(lib.get_autocast_dtype("cpu")))
            types.append(_dtype(x @ x))
            types.append(lib.is_autocast_enabled("cpu"))
        types.append(_dtype(x @ x))
        types.append(lib.is_autocast_enabled("cpu"))
        types.append(str(lib.get_autocast_dtype("cpu")))
        with pytest.raises(ZeroDivisionError), lib.autocast("cpu"):
            _ = 1 / 0
        types.append(lib.is_autocast_enabled("cpu"))
        seen[lib] = types
    assert seen[webtorch] == seen[torch]


def test_one_context_may_be_entered_again_inside_itself() -> None:
    context = webtorch.autocast("cpu")
    x = webtorch.ones(2, 2)
    with context:
        with context:
            assert _dtype(x @ x) == "bfloat16"
        assert _dtype(x @ x) == "bfloat16"
    assert _dtype(x @ x) == "float32"


def test_the_two_kinds_of_device_are_apart(device: str) -> None:
    other = {"cpu": "webgpu", "webgpu": "cpu"}[device]
    x = webtorch.ones(2, 2, device=device)
    with webtorch.autocast(other):
        assert _dtype(x @ x) == "float32"
        with webtorch.autocast(device):
            assert _dtype(x @ x) == {"cpu": "bfloat16", "webgpu": "float16"}[device]


def test_decorator_keeps_the_function_and_its_arguments() -> None:
    @webtorch.autocast("cpu", dtype=webtorch.float16)
    def product(a: Any, *, b: Any) -> Any:
        """A product."""
        return a @ b

    x = webtorch.ones(2, 2)
    assert product.__name__ == "product" and product.__doc__ == "A product."
    assert _dtype(product(x, b=x)) == "float16"
    assert _dtype(x @ x) == "float32"
    with pytest.raises(TypeError, match="requires a callable"):
        webtorch.autocast("cpu")(3)  # type: ignore[arg-type]


def test_amp_names_are_the_same_objects() -> None:
    assert webtorch.amp.autocast is webtorch.autocast
    assert webtorch.amp.is_autocast_available("cpu")
    assert webtorch.amp.is_autocast_available("webgpu")
    assert not webtorch.amp.is_autocast_available("vulkan")


def test_older_names_of_the_settings_warn_as_pytorchs() -> None:
    def said(lib: Any, name: str, *args: Any) -> list[str]:
        with pytest.warns(DeprecationWarning, match="is deprecated") as found:
            getattr(lib, name)(*args)
        return [str(w.message).partition(" (Triggered")[0] for w in found]

    for name in (
        "set_autocast_cpu_enabled",
        "is_autocast_cpu_enabled",
        "get_autocast_cpu_dtype",
        "get_autocast_gpu_dtype",
    ):
        args = (False,) if name.startswith("set") else ()
        assert said(webtorch, name, *args) == said(torch, name, *args)
    for name, kind in (("set_autocast_cpu_dtype", "cpu"), ("set_autocast_gpu_dtype", "webgpu")):
        before = webtorch.get_autocast_dtype(kind)
        try:
            assert said(webtorch, name, webtorch.float32) == said(
                torch, name, torch.float16 if kind != "cpu" else torch.bfloat16
            )
            assert webtorch.get_autocast_dtype(kind) is webtorch.float32
        finally:
            webtorch.set_autocast_dtype(kind, before)


def test_what_is_not_supported_is_said() -> None:
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'vulkan'"):
        webtorch.autocast("vulkan")
    with pytest.raises(ValueError, match="of type `str`"):
        webtorch.autocast(webtorch.device("cpu"))  # type: ignore[arg-type]
    x = webtorch.ones(2, 2)
    with (
        pytest.warns(UserWarning, match=r"In CPU autocast.*\n.*bfloat16, torch.float16"),
        webtorch.autocast("cpu", dtype=webtorch.float32),
    ):
        assert _dtype(x @ x) == "float32" and not webtorch.is_autocast_enabled("cpu")
    with pytest.warns(UserWarning, match="CUDA is not available"), webtorch.autocast("cuda"):
        assert _dtype(x @ x) == "float32"


def test_settings_are_of_one_thread() -> None:
    found = []
    with webtorch.autocast("cpu"):
        worker = threading.Thread(target=lambda: found.append(webtorch.is_autocast_enabled("cpu")))
        worker.start()
        worker.join()
    assert found == [False]


def test_forms_that_write_keep_their_type() -> None:
    for lib in (torch, webtorch):
        a, out = lib.ones(2, 2), lib.zeros(2, 2)
        with lib.autocast("cpu"):
            lib.mm(a, a, out=out)
            a.addmm_(a.clone(), a.clone())
        assert _dtype(a) == _dtype(out) == "float32"


def test_a_parameter_is_cast_once() -> None:
    weight = webtorch.nn.Parameter(webtorch.ones(3, 3))
    x = webtorch.ones(2, 3)
    counts = {}
    for cached in (True, False):
        with webtorch.autocast("cpu", cache_enabled=cached):
            out = (x @ weight) @ weight
        casts: set[Any] = set()
        waiting = [out.grad_fn]
        while waiting:
            fn = waiting.pop()
            casts |= {fn} if fn.name().startswith("To") else set()
            waiting.extend(f for f, _ in fn.next_functions if f is not None)
        counts[cached] = len(casts)
    assert counts == {True: 1, False: 2}


def test_a_parameter_that_was_changed_is_cast_again_in_the_next_context() -> None:
    weight = webtorch.nn.Parameter(webtorch.ones(2, 2))
    x = webtorch.ones(1, 2)
    with webtorch.autocast("cpu"):
        assert (x @ weight).tolist() == [[2.0, 2.0]]
        with webtorch.no_grad():
            weight.mul_(3)
        with webtorch.autocast("cpu"):
            pass
        assert (x @ weight).tolist() == [[2.0, 2.0]]
    with webtorch.autocast("cpu"):
        assert (x @ weight).tolist() == [[6.0, 6.0]]


def test_a_cast_that_was_made_without_gradients_has_one() -> None:
    weight = webtorch.nn.Parameter(webtorch.ones(2, 2))
    x = webtorch.ones(1, 2)
    with webtorch.autocast("cpu"):
        with webtorch.no_grad():
            x @ weight
        (x @ weight).sum().float().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def _custom(lib: Any, cast: Any, seen: list[Any]) -> Any:
    class Product(lib.autograd.Function):
        @staticmethod
        @lib.amp.custom_fwd(device_type="cpu", cast_inputs=cast)
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            seen.append((lib.is_autocast_enabled("cpu"), _dtype(a), _dtype(a @ b)))
            return a @ b

        @staticmethod
        @lib.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Any) -> Any:
            a, b = ctx.saved_tensors
            seen.append((lib.is_autocast_enabled("cpu"), _dtype(g), _dtype(a @ b)))
            return g @ b.t().to(g.dtype), a.t().to(g.dtype) @ g

    return Product


@pytest.mark.parametrize("cast", [None, "float32", "float16"])
def test_custom_functions_run_as_in_pytorch(cast: str | None) -> None:
    found: dict[Any, list[Any]] = {torch: [], webtorch: []}
    for lib, seen in found.items():
        product = _custom(lib, cast and getattr(lib, cast), seen)
        a, b = (lib.ones(2, 2, requires_grad=True) for _ in range(2))
        with lib.autocast("cpu"):
            out = product.apply(a.to(lib.bfloat16) if cast else a, b)
        out.sum().backward()
        seen += [_dtype(out), _dtype(b.grad), b.grad.tolist()]
        product.apply(a, b).sum().backward()
    assert found[webtorch] == found[torch]


@pytest.mark.parametrize("where", ["inside", "outside", "decorated"])
def test_compiled_functions_follow(where: str, device: str) -> None:
    layer = webtorch.nn.Linear(4, 3, device=device)

    def inside(x: Any) -> Any:
        with webtorch.autocast(device, dtype=webtorch.bfloat16):
            return layer(x)

    x = webtorch.randn(2, 4, device=device)
    expected = inside(x)
    with webtorch.no_grad():
        match where:
            case "inside":
                run = webtorch.compile(inside)
            case "decorated":
                run = webtorch.autocast(device, dtype=webtorch.bfloat16)(webtorch.compile(layer))
            case _:
                compiled = webtorch.compile(layer)

                def run(x: Any) -> Any:
                    with webtorch.autocast(device, dtype=webtorch.bfloat16):
                        return compiled(x)

        for _ in range(3):
            out = run(x)
            assert out.dtype is webtorch.bfloat16 and out.tolist() == expected.tolist()
        if where == "outside":
            # Without autocast it is another program.
            assert compiled(x).dtype is webtorch.float32
            assert run(x).dtype is webtorch.bfloat16


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_part_is_computed_again_under_the_same_autocast(reentrant: bool) -> None:
    grads = {}
    for lib in (torch, webtorch):
        layer = lib.nn.Linear(3, 3)
        with lib.no_grad():
            layer.weight.copy_(lib.tensor([[0.1, 0.2, 0.3], [0.7, 0.5, 0.1], [0.3, 0.3, 0.9]]))
            layer.bias.zero_()
        x = lib.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
        types = []

        def part(x: Any) -> Any:
            out = layer(x)  # noqa: B023
            types.append(_dtype(out))  # noqa: B023
            return out.sigmoid()

        with lib.autocast("cpu"):
            out = lib.utils.checkpoint.checkpoint(part, x, use_reentrant=reentrant)
            loss = out.float().sum()
        loss.backward()
        assert types == ["bfloat16", "bfloat16"]
        grads[lib] = x.grad.tolist(), layer.weight.grad.tolist()
    torch.testing.assert_close(grads[webtorch], grads[torch], rtol=2e-2, atol=2e-3)
