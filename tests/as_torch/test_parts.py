"""Modules of PyTorch's that have no namesake here, beside PyTorch's own."""

from __future__ import annotations

import io
import platform
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._linalg_utils
import torch.distributed.optim.utils
import torch.hub
import torch.masked._ops
import torch.nn.attention.bias
import torch.serialization
import torch.utils.collect_env

import webtorch
from webtorch.as_torch.names import (
    attention_bias,
    collect_env,
    functional_optim,
    hub,
    linalg_utils,
    masked_parts,
    serialization,
    top,
)
from webtorch.aten.dispatch import aten
from webtorch.io import options

# Under the name `torch`, and PyTorch's.
Both = pytest.mark.parametrize("ours", [True, False], ids=["webtorch", "pytorch"])
SEED = 3


def close(found: Any, wanted: Any) -> None:
    """Compare tensors of the two libraries."""
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), 1e-5, 1e-6)


def given(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Return the same numbers as tensors of both libraries."""
    rng = np.random.default_rng(SEED)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [webtorch.tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch names vectors of x86")
def test_vectors_of_the_processor_have_pytorchs_name() -> None:
    # torchvision resizes images of bytes by it.
    found = webtorch.backends.cpu.get_cpu_capability()
    assert found == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize("corner", ["causal_upper_left", "causal_lower_right"])
def test_a_causal_mask_of_attention_that_is_not_square(corner: str) -> None:
    ours, theirs = given((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    shown, results = [], []
    for lib, parts, bias in (
        (webtorch, ours, attention_bias),
        (torch, theirs, torch.nn.attention.bias),
    ):
        mask = getattr(bias, corner)(3, 5)
        assert isinstance(mask, lib.Tensor)
        assert isinstance(mask, bias.CausalBias)
        query = parts[0].requires_grad_()
        attend = lib.nn.functional.scaled_dot_product_attention
        found = attend(query, *parts[1:], attn_mask=mask, scale=0.4)
        found.sum().backward()
        with pytest.raises(ValueError, match="should not be used with causal=True"):
            attend(query, *parts[1:], mask, is_causal=True)
        with pytest.raises(AssertionError, match=f"{corner} only supports 2D tensors"):
            getattr(bias, corner)(3)
        shown.append(repr(mask))
        results.append((found, query.grad))
    assert shown[0] == shown[1]
    for found, wanted in zip(*results, strict=True):
        close(found, wanted)
    with pytest.warns(UserWarning, match="Lower right causal bias will produce NaNs"):
        attention_bias.causal_lower_right(5, 3)


@pytest.mark.filterwarnings("ignore:.*TorchScript. support")
@pytest.mark.parametrize(
    ("kind", "chosen"),
    [("SGD", {"momentum": 0.9}), ("Adam", {"lr": 0.1}), ("AdamW", {})],
)
def test_functional_optimizers_are_given_gradients(kind: str, chosen: dict[str, Any]) -> None:
    ours, theirs = given((3, 2), (3, 2), (4,), (4,))
    results = []
    for lib, parts, utils in (
        (webtorch, ours, functional_optim),
        (torch, theirs, torch.distributed.optim.utils),
    ):
        one = utils.as_functional_optim(getattr(lib.optim, kind), **chosen)
        whole = utils.functional_optim_map[getattr(lib.optim, kind)]([parts[2]], **chosen)
        for _ in range(3):
            one.step_param(parts[0], parts[1])
            whole.step([parts[3]])
        assert parts[0].grad is None
        results.append((parts[0], parts[2]))
        with pytest.raises(ValueError, match="does not have a functional counterpart"):
            utils.as_functional_optim(dict)
    for found, wanted in zip(*results, strict=True):
        close(found, wanted)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """A folder where repositories are kept, with one in it."""
    folder = tmp_path / "somebody_models_main"
    folder.mkdir()
    (folder / "beside.py").write_text("def doubled(x):\n    return 2 * x\n")
    (folder / "hubconf.py").write_text(
        "import beside\ndependencies = ['numpy']\n\n\ndef net(n, *, k=1):\n"
        '    """A net."""\n    return beside.doubled(n) + k\n\n\ndef _part():\n    pass\n'
    )
    return str(tmp_path)


@Both
def test_models_of_a_repository(
    ours: bool, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib: Any = hub if ours else torch.hub
    monkeypatch.setattr(lib, "get_dir", lambda: repository)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    name, folder = "somebody/models:main", f"{repository}/somebody_models_main"
    assert lib.list(name, verbose=False) == ["net"]
    assert lib.help(name, "net") == "A net."
    assert lib.load(name, "net", 3, k=4) == 10
    assert lib.load(folder, "net", 3, source="local") == 7
    with pytest.raises(RuntimeError, match="Cannot find callable other in hubconf"):
        lib.load(folder, "other", source="local")
    with pytest.raises(ValueError, match="Unknown source"):
        lib.load(folder, "net", source="web")
    # Code of others runs only for who says so.
    with pytest.raises(Exception, match="Untrusted repository"):
        lib.list("else/models:main")
    with pytest.raises(Exception, match="Untrusted repository"):
        lib.load(name, "net", 3, trust_repo=False)
    Path(folder, "hubconf.py").write_text("dependencies = ['no_such_package']\ndef net(): pass\n")
    with pytest.raises(RuntimeError, match="Missing dependencies: no_such_package"):
        lib.load(folder, "net", source="local")


def test_a_repository_is_unpacked_into_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "main.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("somebody-models-12ab/hubconf.py", "x = 1")
    hub._unpack(str(archive), str(tmp_path / "somebody_models_main"))
    assert (tmp_path / "somebody_models_main" / "hubconf.py").read_text() == "x = 1"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("../else.py", "x = 1")
    with pytest.raises(ValueError, match="directory traversal"):
        hub._unpack(str(archive), str(tmp_path / "there"))


def test_the_report_of_a_machine_has_pytorchs_lines() -> None:
    found = collect_env.get_env_info()
    assert set(torch.utils.collect_env.SystemEnv._fields) <= set(found._fields)
    text = collect_env.pretty_str(found)
    for line in torch.utils.collect_env.env_info_fmt.split("\n"):
        assert line.partition("{")[0] in text
    assert f"PyTorch version: {webtorch.__version__}" in text or "+webtorch" in text


@Both
def test_places_of_storages_that_a_program_names(ours: bool) -> None:
    lib: Any = webtorch if ours else torch
    module: Any = serialization if ours else torch.serialization
    kept: Any = options.packages if ours else torch.serialization._package_registry
    before, asked = list(kept), []

    def bring(storage: Any, place: str) -> Any:
        asked.append(place)
        return storage if place == "shelf:1" else None

    try:
        module.register_package(2, lambda _: "shelf:1", bring)
        module.register_package(1, lambda _: None, lambda _storage, _place: None)
        stream = io.BytesIO()
        lib.save({"x": lib.ones(3)}, stream)
        stream.seek(0)
        assert lib.load(stream)["x"].tolist() == [1.0] * 3
        assert asked == ["shelf:1"]
        stream.seek(0)
        assert lib.load(stream, map_location="cpu")["x"].tolist() == [1.0] * 3
    finally:
        kept[:] = before
    stream.seek(0)
    with pytest.raises(RuntimeError):
        lib.load(stream)


def test_helpers_of_linear_algebra() -> None:
    (a, s), (ta, ts) = given((4, 4), (4, 2))
    theirs = torch._linalg_utils
    close(linalg_utils.qform(a, s), theirs.qform(ta, ts))
    close(linalg_utils.matmul(None, s), ts)
    close(linalg_utils.qform(a.to_sparse(), s), theirs.qform(ta, ts))
    close(linalg_utils.basis(s).abs(), theirs.basis(ts).abs())
    close(linalg_utils.symeig(a, True)[0], theirs.symeig(ta, True)[0])
    assert linalg_utils.get_floating_dtype(a.int()) is webtorch.float32
    with pytest.raises(TypeError, match="expected Tensor"):
        linalg_utils.is_sparse(3)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
def test_where_of_sparse_tensors(layout: str) -> None:
    def run(lib: Any, where: Callable[..., Any]) -> Any:
        mask = lib.tensor([[True, False, True], [False, True, False]])
        kind = getattr(lib, layout)
        parts = [lib.tensor([[0, 0, 1], [0, 1, 1]]), lib.tensor([True, False, True])]
        sparse = lib.sparse_coo_tensor(*parts, (2, 3)).coalesce()
        x = lib.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
        dense = where(mask, x, lib.tensor(7.0))
        if layout == "sparse_csr":
            sparse = sparse.to_sparse_csr()
        return dense, where(sparse, x.to_sparse(layout=kind), lib.tensor(7.0)).to_dense()

    for found, wanted in zip(
        run(webtorch, masked_parts._where), run(torch, torch.masked._ops._where), strict=True
    ):
        close(found, wanted)


def test_indices_behind_masks_of_several_examples() -> None:
    x, at = webtorch.arange(6.0).reshape(2, 3), [webtorch.tensor([0, 5]), webtorch.tensor([2, 0])]
    mask, values = webtorch.tensor([[True, False], [True, True]]), webtorch.ones(2, 2)
    put = top._unsafe_masked_index_put_accumulate
    found = webtorch.func.vmap(lambda m, v: put(x, m, at, v))(mask, values)
    for one, m, v in zip(found, mask, values, strict=True):
        assert one.tolist() == put(x, m, at, v).tolist()


def test_indices_behind_a_mask() -> None:
    def run(lib: Any, names: Any) -> Any:
        x = lib.arange(6.0).reshape(2, 3)
        at = [lib.tensor([0, 5, 1]), lib.tensor([2, 0, -7])]
        mask = lib.tensor([True, False, False])
        taken = names._unsafe_masked_index(x, mask, at, -1)
        values = lib.tensor([10.0, 20.0, 30.0])
        return taken, names._unsafe_masked_index_put_accumulate(x, mask, at, values)

    for found, wanted in zip(run(webtorch, top), run(torch, torch), strict=True):
        close(found, wanted)


def test_operators_of_transforms() -> None:
    (x,), (y,) = given((3, 4))
    close(top._fft_c2c(x + 1j, [1], 1, True), torch._fft_c2c(y + 1j, [1], 1, True))
    close(top._fft_r2c(x, [0, 1], 0, True), torch._fft_r2c(y, [0, 1], 0, True))


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_a_convolutions_gradients(transposed: bool) -> None:
    results = []
    for lib, operators, parts in (
        (webtorch, aten, given((2, 4, 6), (4, 2, 3), (4,), (2, 4, 6), (4, 2, 3), (4,))[0]),
        (torch, torch.ops.aten, given((2, 4, 6), (4, 2, 3), (4,), (2, 4, 6), (4, 2, 3), (4,))[1]),
    ):
        x, w, b, ggx, ggw, ggb = parts
        rest = ([2], [1], [1], transposed, [0], 2)
        out = operators.convolution(x, w, b, *rest)
        g = lib.ones_like(out)
        found = operators._convolution_double_backward(ggx, ggw, ggb, g, w, x, *rest, [True] * 3)
        results.append(found)
    for found, wanted in zip(*results, strict=True):
        close(found, wanted)


def test_names_that_torch_has_not() -> None:
    assert not hasattr(top, "unique_dim")
    assert webtorch.can_cast(int, webtorch.float32)  # type: ignore[arg-type]
    assert not webtorch.can_cast(float, webtorch.int32)  # type: ignore[arg-type]


def test_a_mapped_degree_of_a_polynomial() -> None:
    x, n = [[0.3, 0.4], [0.1, 0.9]], [[1, 2], [3, 0]]
    name = "shifted_chebyshev_polynomial_t"
    mapped = webtorch.func.vmap(getattr(webtorch.special, name))
    wanted = getattr(torch.special, name)(torch.tensor(x), torch.tensor(n))
    close(mapped(webtorch.tensor(x), webtorch.tensor(n)), wanted)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 3, 0), (0, 3, 2)])
def test_least_squares_of_nothing(shape: tuple[int, ...], driver: str) -> None:
    other = (*shape[:-1], 4)
    found = webtorch.linalg.lstsq(webtorch.ones(shape), webtorch.ones(other), driver=driver)
    wanted = torch.linalg.lstsq(torch.ones(shape), torch.ones(other), driver=driver)
    for one, two in zip(found, wanted, strict=True):
        assert one.shape == two.shape


def test_operators_that_write_where_they_are_told() -> None:
    for lib, named in ((torch, torch.ops.aten), (webtorch, aten)):
        x, y = lib.tensor([2.0]), lib.zeros(1)
        assert named.add.out(x, x, alpha=2, out=y) is y
        assert named.mul(x, x, out=lib.zeros(1)).item() == 4 < y.item() == 6
        with pytest.raises(RuntimeError, match="out"):
            named.add.Tensor(x, x, out=y)


def test_reflected_operators_by_name() -> None:
    x = [1.0, -2.0, 3.0]
    for name in ("__rmod__", "__rpow__", "__rfloordiv__"):
        found = getattr(webtorch.Tensor, name)(2.5, webtorch.tensor(x))
        close(found, getattr(torch.Tensor, name)(2.5, torch.tensor(x)))


@pytest.mark.parametrize("rcond", [-1.0, 1.0, 0.5, None])
@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_what_least_squares_take_for_zero(driver: str, rcond: float | None) -> None:
    a, b = [[1.0, 0.0, 0.0], [0.0, 1e-9, 0.0], [0.0, 0.0, 0.6]], [[1.0], [2.0], [3.0]]
    found = webtorch.linalg.lstsq(webtorch.tensor(a), webtorch.tensor(b), rcond, driver=driver)
    wanted = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), rcond, driver=driver)
    assert found.rank.tolist() == wanted.rank.tolist()
    for one, other in zip(found[:2], wanted[:2], strict=True):
        close(one, other)
