"""What test suites of projects that use PyTorch have found (docs/upstream.md)."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils import collate as pytorchs_collate

import webtorch
from webtorch.as_torch.names import (
    autograd_parts,
    core,
    cuda,
    functional,
    functorch_parts,
    nvtx,
    optimizer,
    return_types,
    tensor_str,
    top,
    utils,
    xpu,
)
from webtorch.aten.schema import parsed
from webtorch.data import collate as our_collate
from webtorch.scripts import lent
from webtorch.tensors import modes


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_products_with_an_expanded_matrix(side: str) -> None:
    """A matrix whose columns are one memory is multiplied as exactly as its copy is (einops)."""
    x = np.random.default_rng(0).random(68_880, dtype=np.float32)
    ours, exact = webtorch.tensor(x), torch.tensor(x).double()
    expanded = ours[:, None].expand(-1, 4)
    out = expanded.T @ ours[:, None] if side == "left" else ours[None] @ expanded
    expected = torch.full(out.shape, (exact @ exact).item())
    torch.testing.assert_close(torch.tensor(out.tolist()), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["tanh", "tan"])
def test_hyperbolic_tangent_at_no_angle(name: str, device: str) -> None:
    """Both parts are NaN, near 0 and far from it (array-api-tests)."""
    inf, nan = float("inf"), float("nan")
    points = [complex(x, y) for x in (2.0, -40.0, 1e5, inf, -inf) for y in (inf, -inf, nan, 1.0)]
    points = points if name == "tanh" else [complex(z.imag, z.real) for z in points]
    ours = getattr(webtorch, name)(webtorch.tensor(points, device=device))
    theirs = getattr(torch, name)(torch.tensor(points))
    torch.testing.assert_close(torch.tensor(ours.tolist()), theirs, equal_nan=True)


RECURRENCES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences_as_functions(name: str) -> None:
    """torch.lstm and its kind, as torch._VF has them too, with PyTorch's arguments (Keras)."""
    rng, gates = np.random.default_rng(1), RECURRENCES[name]
    shapes = ((gates * 3, 4), (gates * 3, 3), (gates * 3,), (gates * 3,))
    x, h, *weights = (
        rng.standard_normal(s, dtype=np.float32) for s in ((2, 5, 4), (1, 2, 3), *shapes)
    )
    found = []
    for library in (webtorch, torch):
        data, state = library.tensor(x), library.tensor(h)
        params = [library.tensor(w) for w in weights]
        start = (state, state + 1) if name == "lstm" else state
        whole = getattr(library, name)(data, start, params, True, 1, 0.0, True, False, True)
        start = (state[0], state[0] + 1) if name == "lstm" else state[0]
        step = getattr(library, f"{name}_cell")(data[:, 0], start, *params)
        found.append([*whole, *(step if name == "lstm" else [step])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(torch.tensor(ours.tolist()), theirs)


def test_capsules_with_the_arguments_of_pytorch() -> None:
    """-1 is no stream, versions and copies may be asked for by name (array-api-tests)."""
    x = webtorch.arange(3.0, device="cpu")

    class Given:
        def __init__(self, **arguments: object) -> None:
            self.arguments = arguments

        def __dlpack__(self, **_: object) -> object:
            return x.__dlpack__(**self.arguments)  # type: ignore[arg-type]

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

    shared, copied = Given(stream=-1, max_version=(1, 0)), Given(copy=True, max_version=(1, 0))
    arrays = [np.from_dlpack(shared), np.from_dlpack(copied)]
    x.add_(1)
    assert [a.tolist() for a in arrays] == [x.tolist(), [0.0, 1.0, 2.0]]
    for library in (torch, webtorch):
        with pytest.raises(TypeError, match="stream must be ``int`` or ``none``"):
            library.ones(1, device="cpu").__dlpack__(stream="0")


def _with_private_methods(library: Any) -> list[Any]:
    """What classes that override or call private methods of PyTorch's see: its parameters (Ignite and others)."""
    seen: list[Any] = []

    class Plateau(library.optim.lr_scheduler.ReduceLROnPlateau):  # type: ignore[misc]
        def _reduce_lr(self, epoch: int) -> None:
            seen.append(epoch)

    class Up(library.nn.ConvTranspose2d):  # type: ignore[misc]
        def forward(self, x: Any, output_size: Any = None) -> Any:
            args = (self.stride, self.padding, self.kernel_size, 2, self.dilation)
            seen.append([*self._output_padding(x, output_size, *args)])
            return super().forward(x, output_size)

    class Layer(library.nn.TransformerEncoderLayer):  # type: ignore[misc]
        def _sa_block(self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool) -> Any:
            seen.append((attn_mask is None, key_padding_mask is None, is_causal))
            return super()._sa_block(
                x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal
            )

    class Scaled(library.nn.Conv1d):  # type: ignore[misc]
        def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
            seen.append(bias is None)
            return super()._conv_forward(input, weight * 0 + 2, bias)

    class Decoder(library.nn.TransformerDecoderLayer):  # type: ignore[misc]
        def _mha_block(self, x: Any, mem: Any, *masks: Any) -> Any:
            seen.append((tuple(x.shape), tuple(mem.shape), len(masks)))
            return super()._mha_block(x, mem, *masks)

    weights = [library.nn.Parameter(library.zeros(1))]
    plateau = Plateau(library.optim.SGD(weights, lr=1.0), patience=0)
    for loss in (1.0, 2.0, 3.0):
        plateau.step(loss)
    up, x = Up(1, 1, 3, 2, 1), library.zeros(1, 1, 4, 4)
    seen += [tuple(up(x).shape), tuple(up(x, (8, 7)).shape)]
    with pytest.raises(ValueError, match=r"valid sizes range from \[7, 7\] to \[8, 8\] \(for an"):
        up(x, (9, 7))
    Layer(4, 2, 4)(library.zeros(2, 3, 4))
    Decoder(4, 2, 4)(library.zeros(2, 3, 4), library.zeros(5, 3, 4))
    scaled = Scaled(1, 1, 2, bias=False, padding=1, padding_mode="circular")
    seen.append(scaled(library.arange(3.0)[None]).tolist())
    linear = library.nn.Linear(2, 2)
    return [*seen, [name for name, _ in linear._named_members(lambda m: m._parameters.items())]]


def test_private_methods_have_the_parameters_of_pytorch() -> None:
    found, expected = _with_private_methods(webtorch), _with_private_methods(torch)
    assert found == expected


def _scripted(library: Any) -> list[Any]:
    """What scripted functions and modules raise, and what such a module is (e3nn)."""

    # TorchScript reads the types.
    def narrow(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[-1] == 3, "not of three"
        return x + 1

    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise ValueError("too long")
        return x.reshape(7)

    layer = library.nn.Linear(2, 2)
    script = library.jit.script
    functions, module = [script(narrow), script(refuses)], script(layer)
    found: list[Any] = [functions[0](library.zeros(3)).tolist()]
    calls = (
        lambda: functions[0](library.zeros(2)),
        lambda: functions[1](library.zeros(3)),
        lambda: functions[1](library.zeros(2)),
        lambda: functions[0](),
        module,
        lambda: module(1),
        lambda: library.func.functional_call(module, {}, library.zeros(2)),
    )
    for call in calls:
        with pytest.raises((library.jit.Error, RuntimeError)) as error:
            call()
        said = isinstance(error.value, library.jit.Error)
        found += [said, said and "too long" in str(error.value)]
    found += [module.weight.data_ptr() == layer.weight.data_ptr(), module(library.zeros(2)).shape]
    found += [isinstance(module, library.jit.ScriptModule), script(module) is module]
    copied = copy.deepcopy(module)
    return [*found, copied.weight.equal(layer.weight), type(copied) is type(module)]


@pytest.mark.filterwarnings("ignore:torch.jit.script", "ignore:`torch.jit.script` is")
def test_errors_of_scripted_code() -> None:
    found, expected = _scripted(webtorch), _scripted(torch)
    assert found == expected
    module = webtorch.jit.script(webtorch.nn.Linear(2, 2))
    assert pickle.loads(pickle.dumps(module)).weight.equal(module.weight)


def test_a_future_is_one_of_torch() -> None:
    """Libraries ask `isinstance(x, torch.Future)` (captum)."""
    assert issubclass(torch.futures.Future, torch.Future)
    assert issubclass(webtorch.futures.Future, top.Future)


class _Pair:
    """As a TensorDict: it hides its own dimension, by PyTorch's functions for one tensor."""

    def __init__(self, core: Any, x: Any, shape: tuple[int, ...]) -> None:
        self.core, self.x, self.shape, self.ndim = core, x, shape, len(shape)

    def _add_batch_dim(self, *, in_dim: int, vmap_level: int) -> _Pair:
        x = self.core._add_batch_dim(self.x, in_dim, vmap_level)
        assert self.core.is_batchedtensor(x)
        assert self.core.get_unwrapped(x).shape == self.x.shape
        return _Pair(self.core, x, self.shape[:in_dim] + self.shape[in_dim + 1 :])

    def _maybe_remove_batch_dim(
        self, funcname: str, *, vmap_level: int, batch_size: int, out_dim: int
    ) -> _Pair:
        x = self.core._remove_batch_dim(self.x, vmap_level, batch_size, out_dim)
        return _Pair(self.core, x, (batch_size, *self.shape))


def test_vmap_of_objects_that_hide_their_own_dimension() -> None:
    """Tensordict's classes, under the name `torch`."""
    x = torch.arange(6.0).reshape(3, 2)
    pair = _Pair(functorch_parts, webtorch.tensor(x.tolist()), (3,))

    def called(p: Any, y: Any) -> Any:
        return _Pair(p.core, p.x * y.sum(), p.shape), p.x.sum()

    out, sums = webtorch.vmap(called)(pair, webtorch.tensor(x.tolist()))
    assert out.shape == (3,)
    assert out.x.tolist() == (x * x.sum(1, keepdim=True)).tolist()
    assert sums.tolist() == x.sum(1).tolist()


def test_a_type_of_the_users_is_collated_by_its_function() -> None:
    """As the documentation of `default_collate` shows (tensordict)."""

    def joined(batch: Any, *, collate_fn_map: object = None) -> str:
        return "".join(str(one.real) for one in batch)

    found = []
    for module in (pytorchs_collate, our_collate):
        kinds: Any = module.default_collate_fn_map
        default, collate = module.default_collate, module.collate
        kinds[complex] = joined
        try:
            out = default([{"a": 1j, "b": [1.5, True]}, {"a": 2 + 1j, "b": [2.5, False]}])
        finally:
            del kinds[complex]
        found.append([out["a"], out["b"][0].tolist(), out["b"][1].tolist()])
        found[-1].append(collate([1j, 2j], collate_fn_map={(complex, str): joined}))
        with pytest.raises(TypeError, match="default_collate: batch must contain"):
            default([1j])
    assert found[0] == found[1]


def test_managers_of_the_users_decorate_generators() -> None:
    """As `no_grad` does; tensordict's are subclasses."""
    seen: list[int] = []
    found = []
    for base in (torch.utils._contextlib._DecoratorContextManager, modes._DecoratorContextManager):
        seen.clear()

        class Noted(base):  # type: ignore[misc, valid-type]
            def __enter__(self) -> None:
                seen.append(1)

            def __exit__(self, *_: object) -> None:
                seen.append(-1)

        @Noted()
        def steps() -> Any:
            seen.append((yield 5))

        running = steps()
        next(running)
        with pytest.raises(StopIteration):
            running.send(7)
        found.append([*seen, issubclass(torch.no_grad, base) or issubclass(webtorch.no_grad, base)])
    assert found[0] == found[1]


def test_a_tensor_of_a_module_is_swapped() -> None:
    layer = webtorch.nn.BatchNorm1d(2).eval()
    weight, other = layer.weight, webtorch.zeros(2)
    assert utils.swap_tensor(layer, "weight", other) is weight
    assert layer(webtorch.ones(3, 2)).abs().sum().item() == 0
    assert utils.swap_tensor(layer, "weight", weight) is other
    assert utils.swap_tensor(layer, "running_mean", other).tolist() == [0.0, 0.0]
    with pytest.raises(AttributeError, match="BatchNorm1d has no attribute `nothing`"):
        utils.swap_tensor(layer, "nothing", other)


def test_a_class_of_parameters_can_be_made() -> None:
    """Classes of parameters have PyTorch's name for their class, so a user's may be of it too (torchrl)."""
    for library in (torch, webtorch):

        class Marked(library.Tensor, metaclass=library.nn.parameter._ParameterMeta):  # type: ignore[misc, name-defined]
            pass

        assert isinstance(library.nn.Parameter, library.nn.parameter._ParameterMeta)
        assert not isinstance(library.zeros(1), Marked)


def test_the_default_generator_has_a_place_in_random() -> None:
    for library in (torch, webtorch):
        assert isinstance(library.random.default_generator, library.Generator)
        assert library.random.default_generator.device.type == "cpu"


def test_storages_are_of_the_base_of_torch() -> None:
    """Programs ask `isinstance(x, torch.StorageBase)` (tensordict)."""
    for library, base in ((torch, torch.StorageBase), (webtorch, top.StorageBase)):
        assert isinstance(library.ones(2).untyped_storage(), base)
        assert not isinstance(library.ones(2), base)


def test_named_results_are_made_of_one_sequence() -> None:
    """As `torch.return_types.max((values, indices))` (tensordict)."""
    for library, types in ((torch, torch.return_types), (webtorch, return_types)):
        x = library.tensor([[1, 3], [2, 0]])
        kind: Any = types.max
        found = kind((x, 2))
        assert (found.values, found.indices) == (x, 2)
        with pytest.raises(TypeError, match=r"takes a 2-sequence \(3-sequence given\)"):
            kind((1, 2, 3))
        whole = copy.deepcopy(x.max(0))
        assert isinstance(whole, kind)
        assert whole.indices.tolist() == [1, 0]


def test_texts_of_tensors_with_other_contents() -> None:
    """`torch._tensor_str._str_intern` puts a user's text in place of the elements (PyTorch Geometric)."""
    for library, names in ((torch, torch._tensor_str), (webtorch, tensor_str)):
        show: Any = names
        text = show._str_intern(library.arange(2, dtype=library.int32), tensor_contents="[..]")
        assert text == "tensor([..], dtype=torch.int32)"
        assert show._add_suffixes("A([0]", ["size=3", "x"], 2, False) == "A([0], size=3, x)"
        assert show._add_suffixes("A([0]", ["size=3", "x"], 2, True) == "A([0],\n  size=3, x)"
        assert (
            show._str_intern(library.ones(0, 2), tensor_contents="[..]")
            == "tensor([..], size=(0, 2))"
        )


def test_numbers_of_numpy_are_close_to_pythons() -> None:
    """Their types are no difference (botorch)."""
    for library in (torch, webtorch):
        close: Any = library.testing.assert_close
        close(np.float64(3.0), 3.0)
        close(3, np.int32(3))
        with pytest.raises(AssertionError, match="Scalars are not close"):
            close(np.float64(3.0), 3.5)


def test_shapes_that_do_not_broadcast_are_named() -> None:
    for library in (torch, webtorch):
        with pytest.raises(
            RuntimeError, match=r"at -2! Mismatching argument at index 1 had \(2, 3\); but expected"
        ):
            library.broadcast_shapes((4, 3), (2, 3))


@pytest.mark.parametrize("kind", ["uint8", "int32", "float64"])
def test_memory_of_numpy_seen_as_another_type_is_not_copied(kind: str) -> None:
    """Its elements are not those of the memory (tensordict's `consolidate`); those of the memory itself are copied."""
    array = np.arange(1, 65, dtype=np.float32)
    x = webtorch.from_numpy(array)
    assert lent._contents(x) == array.tobytes()
    seen = x.view(getattr(webtorch, kind))
    assert lent._contents(seen[-4:]) is None
    assert seen[-4:].tolist() == array.view(kind)[-4:].tolist()


def test_classes_of_loaders_show_how_workers_start() -> None:
    """Stand-ins that have what the class has know it (pytorch-lightning)."""
    for library in (torch, webtorch):
        loader = library.utils.data.DataLoader(
            [1, 2], num_workers=1, multiprocessing_context="spawn"
        )
        assert "multiprocessing_context" in dir(type(loader))
        assert loader.multiprocessing_context is not None


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("right", ["csr", "csc"])
@pytest.mark.parametrize("left", ["csr", "csc"])
def test_products_of_compressed_matrices_are_rows(left: str, right: str) -> None:
    """As PyTorch's are, whatever the layouts of the operands (PyTorch Geometric)."""
    for library in (torch, webtorch):
        x = library.tensor([[0.0, 1, 0], [2, 0, 3], [0, 4, 0]], device="cpu")
        y = getattr(x, f"to_sparse_{left}")() @ getattr(x, f"to_sparse_{right}")()
        assert y.layout is library.sparse_csr
        assert y.to_dense().tolist() == [[2, 0, 3], [0, 14, 0], [8, 0, 12]]


def test_sizes_may_be_bools_but_the_first() -> None:
    """PyTorch looks at the first element of sizes alone (botorch's `torch.rand(n, m > 1)`)."""
    for library in (torch, webtorch):
        x = library.arange(4.0)
        made = (
            library.zeros(4, True),
            library.ones((4, True)),
            x.view(4, True),
            x.reshape([4, True]),
        )
        assert {tuple(y.shape) for y in (*made, x.new_zeros(4, True))} == {(4, 1)}
        for call, sizes in (
            (x.reshape, (True, 4)),
            (library.rand, True),
            (library.zeros, [True, 2]),
        ):
            with pytest.raises(TypeError, match="must be tuple of ints"):
                call(sizes)


def test_arguments_that_are_written_without_a_name() -> None:
    """`Tensor! out` of an operator's schema, as bitsandbytes states its own."""
    ours = parsed("gemm(Tensor A, Tensor! out, Tensor(a!)? b=None) -> ()")
    theirs = torch._C.parse_schema("gemm(Tensor A, Tensor! out, Tensor(a!)? b=None) -> ()")
    for one, other in zip(ours.arguments, theirs.arguments, strict=True):
        assert one.name == other.name
        assert (one.alias_info is None) == (other.alias_info is None)
        if one.alias_info is not None and other.alias_info is not None:
            assert one.alias_info.is_write == other.alias_info.is_write


@pytest.mark.parametrize("values", [[1e-4, 2.0], [1.0, 20.0], [0.5, -3.25], [0.0]])
def test_texts_of_single_elements(values: list[float]) -> None:
    """`torch._tensor_str._Formatter` writes a number as it is written among others (pfhedge)."""
    ours, theirs = (
        tensor_str._Formatter(webtorch.tensor(values)),
        torch._tensor_str._Formatter(torch.tensor(values)),
    )
    assert ours.width() == theirs.width()
    assert [ours.format(v) for v in values] == [theirs.format(v) for v in values]


def test_marks_for_cudas_tools_are_there_to_be_imported() -> None:
    """Each raises where there is no CUDA; and nothing is traced (asdl, asteroid)."""
    for marks in (torch.cuda.nvtx, nvtx):
        for name, words in (("range_push", ["step"]), ("mark", ["step"]), ("range_pop", [])):
            with pytest.raises(RuntimeError, match="NVTX functions not installed"):
                getattr(marks, name)(*words)
        with pytest.raises(RuntimeError, match="NVTX functions not installed"), marks.range("step"):
            pass
    assert core._is_tracing() is torch._C._is_tracing() is False


def test_private_parts_that_packages_import() -> None:
    """Of derivatives (torchmin), LBFGS (torchmin), attention (torch_uncertainty), and of devices that are not there."""
    x = webtorch.tensor([1.0], requires_grad=True) * 2
    for parts, of, make in (
        (torch.autograd.functional, torch.nn.functional, torch),
        (autograd_parts, functional, webtorch),
    ):
        two: Any = parts
        assert [two._as_tuple(v, "x", "f")[0] for v in (make.ones(1), (make.ones(1),))] == [
            False,
            True,
        ]
        nested = ((1, 2), (3, 4))
        found = [
            two._tuple_postprocess(nested, u) for u in (True, False, (True, False), (False, False))
        ]
        assert found == [nested, (1, 2), (1, 3), 1]
        mask: Any = make.tensor([True, False])
        attend: Any = of
        filled = attend._canonical_mask(mask, "mask", None, "", make.float32)
        assert filled.tolist() == [float("-inf"), 0] and attend._none_or_dtype(None) is None
        assert attend._none_or_dtype(filled) is make.float32
    assert not autograd_parts._grad_postprocess((x,), False)[0].requires_grad
    cubic: Any = importlib.import_module("torch.optim.lbfgs")._cubic_interpolate
    for points in ((0.0, 1.0, -1.0, 2.0, 3.0, 4.0), (2.0, 3.0, 4.0, 0.0, 1.0, -1.0)):
        theirs = cubic(*map(torch.tensor, points))
        assert float(optimizer._cubic_interpolate(*points)) == pytest.approx(float(theirs))
    within = cubic(*map(torch.tensor, (0.0, 1.0, -1.0, 2.0, 3.0, 4.0)), (0.5, 0.6))
    assert optimizer._cubic_interpolate(0, 1, -1, 2, 3, 4, (0.5, 0.6)) == within
    for library, absent in ((torch.xpu, xpu), (torch.cuda, cuda)):
        for name in (
            ("current_device", "synchronize")
            if absent is xpu
            else ("get_rng_state", "current_blas_handle")
        ):
            for each in (library, absent):
                with pytest.raises((AssertionError, RuntimeError)):
                    getattr(each, name)()
    with cuda.device_of(x):
        cuda.set_rng_state(None)
    assert core._get_cudnn_enabled() is torch._C._get_cudnn_enabled()
    before = [
        switch(True) for switch in (core._jit_set_profiling_mode, core._jit_set_profiling_executor)
    ]
    assert before == [True, True]
