"""`webtorch doctor`: which devices are here, which one is used and why, and whether it computes rightly.

Floor 6: may import everything below. Nothing is opened before `examine` or `self_test` is called.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import webtorch.nn.functional as F
from webtorch.cli.messages import expect_file, package_version
from webtorch.errors import DeviceError
from webtorch.functions import public as torch
from webtorch.ops.record import TABLE, Elementwise
from webtorch.runtime.backends import get_backend
from webtorch.runtime.backends.webgpu import AdapterInfo, WebGPUBackend
from webtorch.runtime.backends.webgpu import adapters as webgpu_adapters
from webtorch.tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]

# The limits that decide what a kernel may do, in the order in which they are shown.
SHOWN_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroups-per-dimension",
    "min-storage-buffer-offset-alignment",
)
PACKAGES = ("webtorch", "numpy", "numba", "wgpu", "wgpudawn", "rich", "torch", "scikit-learn")
# Variables of the environment that change what a device does; none of them names a user's file.
_SETTINGS = (
    "WEBTORCH_DEVICE", "WEBTORCH_WEBGPU", "WEBTORCH_FLOAT64", "WEBTORCH_SCRIPTS", "WEBTORCH_TUNE",
    "WEBTORCH_MEMORY_LIMIT", "WEBTORCH_SHARED_MEMORY", "WGPU_BACKEND_TYPE", "GALLIVM_PERF",
)  # fmt: skip
# float32 keeps 7 digits; a sum over some hundred of them keeps 5.
TOLERANCE = 2e-5


@dataclass(frozen=True, slots=True)
class Choice:
    """The device that work goes to, its name, and the reason in one line."""

    device: str
    name: str
    reason: str
    # False where WebGPU was wanted by default and is not there, so that the user should hear of it.
    is_best: bool = True


def find_adapters() -> tuple[list[AdapterInfo], str]:
    """Return the WebGPU adapters, best first, and why there is none ("" when there is one)."""
    try:
        found = webgpu_adapters()
    except DeviceError as error:
        return [], str(error)
    return found, "" if found else "no WebGPU adapter was found"


def choose_device(requested: str | None = None) -> Choice:
    """Return the device to use: the requested one, else WEBTORCH_DEVICE, else the best.

    WebGPU is the default only where the adapter is hardware: a software adapter does on the CPU, more
    slowly, what the CPU backend does itself. Raises DeviceError for a device that is not here.
    """
    wanted, reason = requested, "you asked for it"
    if wanted is None and os.environ.get("WEBTORCH_DEVICE"):
        wanted, reason = os.environ["WEBTORCH_DEVICE"], "WEBTORCH_DEVICE says so"
    if wanted is not None:
        kind, _, index = wanted.partition(":")
        if kind == "webgpu" and not find_adapters()[0]:
            raise DeviceError(f"device {wanted!r}: {find_adapters()[1]}. {advice()}")
        if index and not index.isdigit():
            raise DeviceError(
                f"device {wanted!r}: after the colon comes a number, as in 'webgpu:1'"
            )
        backend = get_backend(kind, int(index or 0))
        return Choice(wanted, backend.description(), reason)
    found, missing = find_adapters()
    if found and found[0].is_hardware:
        return Choice("webgpu", str(found[0]), "it is a hardware WebGPU adapter")
    cpu = get_backend("cpu").description()
    if found:
        reason = (
            f"the only WebGPU adapter is software ({found[0]}), which is slower; "
            "--device webgpu uses it all the same"
        )
    else:
        reason = f"{missing}; `webtorch doctor` says what to install"
    return Choice("cpu", cpu, reason, is_best=False)


def advice() -> str:
    """Return what to install so that this system has a WebGPU adapter."""
    if sys.platform.startswith("linux"):
        return (
            "Install the Vulkan driver of your graphics card; without a card, `apt-get install "
            "mesa-vulkan-drivers` (Debian, Ubuntu) or `dnf install mesa-vulkan-drivers` (Fedora) gives "
            "a software adapter. On an NVIDIA server without a display, let VK_DRIVER_FILES name the "
            "driver's nvidia_icd.json."
        )
    if sys.platform == "darwin":
        return "macOS brings Metal: update to macOS 13 or newer and reinstall wgpu (pip install -U wgpu)."
    return "Update the driver of your graphics card: Windows then offers D3D12 and Vulkan."


def examine(console: Console, requested: str | None = None, report: Path | None = None) -> int:
    """Print everything, test the chosen device, and return the exit code: 0 only if it passes.

    `report` is written too: what an issue needs to be understood, and nothing about the user's files.
    """
    console.print(_versions())
    found, missing = find_adapters()
    told: dict[str, object] = {
        "versions": dict(versions()),
        "settings": {k: v for k, v in os.environ.items() if k in _SETTINGS},
        "adapters": [adapter_record(a) for a in found],
        "problem": missing,
    }
    try:
        return _examine(console, found, missing, requested, told)
    finally:
        if report is not None:
            report.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            console.print(Text(f"The report is in {report}: attach it to an issue."))


def _examine(
    console: Console,
    found: list[AdapterInfo],
    missing: str,
    requested: str | None,
    told: dict[str, object],
) -> int:
    for adapter in found:
        console.print()
        console.print(_adapter_table(adapter))
    if not found:
        console.print(Text(f"Adapters: {missing}.", style="yellow"))
        console.print(Text(advice()))
    console.print()
    try:
        choice = choose_device(requested)
    except DeviceError as error:
        console.print(Text(str(error), style="red"))
        told["problem"] = str(error)
        return 1
    told["device"] = {"name": choice.device, "is": choice.name, "because": choice.reason}
    console.print(
        f"[bold]Device in use:[/] {escape(choice.device)}, {escape(choice.name)}.\n"
        f"Why: {escape(choice.reason)}.",
        highlight=False,
    )
    told["tuning"] = list(_tuning(choice.device))
    for line in _tuning(choice.device):
        console.print(Text(line))
    outcomes = list(self_test(choice.device))
    # An infinite error is no JSON.
    told["tests"] = [{**asdict(o), "error": str(o.error), "passes": o.passed} for o in outcomes]
    console.print()
    console.print(_test_table(choice.device, outcomes))
    failed = [outcome for outcome in outcomes if not outcome.passed]
    for outcome in failed:
        console.print(Text(f"{outcome.family}: {outcome.worst}: {outcome.problem}", style="red"))
    if failed:
        console.print(
            f"[red bold]{len(failed)} of {len(outcomes)} kernel families fail[/] on "
            f"{escape(choice.device)}. `--device cpu` tests the CPU."
        )
        return 1
    console.print(f"[green bold]All {len(outcomes)} kernel families pass.[/]", highlight=False)
    return 0


def _tuning(device: str) -> Iterator[str]:
    """Yield which tiles the products of a WebGPU device use, and from where."""
    kind, _, index = device.partition(":")
    backend = get_backend(kind, int(index or 0))
    if not isinstance(backend, WebGPUBackend):
        return
    family = backend.limits.family or "integrated or unknown"
    units = "with" if backend.limits.has_matrix_units else "without"
    yield f"Products: shipped table for {family} adapters, {units} matrix units."
    if not backend.tuned:
        yield "No measured kernels; `webtorch tune` measures them."
    for name, (*tile, split) in sorted(backend.tuned.items()):
        what = "{}x{}x{} of {}x{}".format(*tile) if any(tile) else "no tile"
        yield f"  measured: {name}: {what}, k in {split}"


# --- the self-test -------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What the checks of one kernel family gave."""

    family: str
    checks: int = 0
    # The largest error found, relative to 1 + |expected|, and the check that has it.
    error: float = 0.0
    worst: str = ""
    problem: str = ""

    @property
    def passed(self) -> bool:
        """True when every check ran and stayed within its tolerance."""
        return self.checks > 0 and not self.problem


@dataclass(frozen=True, slots=True)
class Check:
    """One computation on a device, and the same in float64 by NumPy."""

    family: str
    name: str
    actual: Callable[[str], Tensor]
    expected: Callable[[], object]
    tolerance: float = TOLERANCE


def self_test(device: str) -> Iterator[Outcome]:
    """Run every check on `device` and yield one outcome for each kernel family of the op table."""
    by_family: dict[str, list[Check]] = {}
    for check in checks():
        by_family.setdefault(check.family, []).append(check)
    for family, members in sorted(by_family.items()):
        outcome = Outcome(family)
        for check in members:
            _run(check, device, outcome)
        yield outcome


def _run(check: Check, device: str, outcome: Outcome) -> None:
    outcome.checks += 1
    try:
        error = _error(check.actual(device), check.expected())
    except Exception as problem:  # a broken device may raise anything; the doctor reports it
        outcome.worst, outcome.error = check.name, math.inf
        outcome.problem = f"{type(problem).__name__}: {problem}"
        return
    if error > check.tolerance and not outcome.problem:
        outcome.problem = f"error {error:.2e} is above {check.tolerance:.0e}"
        outcome.worst, outcome.error = check.name, error
    elif not outcome.problem and error >= outcome.error:
        outcome.worst, outcome.error = check.name, error


def _error(actual: Tensor, expected: object) -> float:
    """Return the largest error relative to 1 + |expected|; infinite where one is NaN and the other not."""
    import numpy as np

    got = actual.detach().cpu().numpy().astype(np.float64)
    want = np.asarray(expected, dtype=np.float64)
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape} instead of {want.shape}")
    if got.size == 0:
        return 0.0
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.abs(got - want) / (1.0 + np.abs(want)))
    return float(np.where(np.isnan(error), np.inf, error).max())


def checks() -> list[Check]:
    """Return the checks of all families: each formula and reduction of the table, and kernels by name."""
    families = (
        _formula_checks, _reduction_checks, _product_checks, _place_checks, _composite_checks,
        _creation_checks,
    )  # fmt: skip
    return [check for family in families for check in family()]


def _formula_checks() -> Iterator[Check]:
    for op in list(TABLE.values()):
        if isinstance(op, Elementwise) and op.function_in:
            yield _formula_check(op)


def _formula_check(op: Elementwise) -> Check:
    """Check an elementwise op on the device in float32 against the CPU in float64."""
    import numpy as np

    random = np.random.default_rng(7)
    is_float = torch.float32 in op.dtypes
    dtype = torch.float32 if is_float else op.dtypes[0]
    low, high = op.domain
    size = (3, 67)
    arrays = [
        random.uniform(low, high, size)
        if is_float
        else random.integers(0, 2 if dtype is torch.bool else 9, size)
        for _ in op.tensors
    ]
    arguments, options = op.samples[0]

    def run(device: str, wide: bool = False) -> Tensor:
        """Return the entry's result on a device; `wide` computes in float64."""
        inputs = [torch.tensor(array.tolist(), dtype=dtype, device=device) for array in arrays]
        if wide and is_float:
            # The rounded values, so that both compute from the same numbers.
            inputs = [tensor.to(torch.float64) for tensor in inputs]
        out: Tensor = op(*inputs, *arguments, **options)
        return out

    tolerance = max(TOLERANCE, op.rtol or 0.0)
    return Check("elementwise", op.name, run, lambda: run("cpu", wide=True).numpy(), tolerance)


def _reduction_checks() -> Iterator[Check]:
    """Check reductions along one dim, along two, and over everything, against NumPy in float64."""
    import numpy as np

    array = np.random.default_rng(8).uniform(0.5, 1.5, (5, 33, 4)).astype(np.float32).astype(float)
    named = [op for op in TABLE.values() if op.numpy]
    references: dict[str, Callable[..., object]] = {
        **{op.name: getattr(np, op.numpy) for op in named if op.out != "mask"},
        "var": lambda x, axis=None: np.var(x, axis, ddof=1),
        "std": lambda x, axis=None: np.std(x, axis, ddof=1),
        "logsumexp": lambda x, axis=None: np.log(np.exp(x).sum(axis)),
    }
    for name, reference in references.items():
        one_dim_only = name in ("argmax", "argmin", "prod")
        dims: list[int | tuple[int, ...]] = [1, 2] if one_dim_only else [1, (0, 2), (0, 1, 2)]
        for dim in dims:

            def run(device: str, name: str = name, dim: int | tuple[int, ...] = dim) -> Tensor:
                """Return the reduction on a device."""
                x = torch.tensor(array.tolist(), dtype=torch.float32, device=device)
                out: Tensor = getattr(torch, name)(x, dim)
                return out

            yield Check("reduce", f"{name} over {dim}", run, partial(reference, array, axis=dim))
    for name, truth in [(op.name, getattr(np, op.numpy)) for op in named if op.out == "mask"]:

        def test(device: str, name: str = name) -> Tensor:
            """Return any or all on a device."""
            x = torch.tensor(array.tolist(), dtype=torch.float32, device=device)
            out: Tensor = getattr(torch, name)(x > 0.52, 1)
            return out

        yield Check("reduce", name, test, partial(truth, array > 0.52, axis=1), 0.0)


def _put(array: Array, device: str) -> Tensor:
    """Return an array as a tensor on a device."""
    dtype = torch.int64 if array.dtype.kind == "i" else torch.float32
    return torch.tensor(array.tolist(), dtype=dtype, device=device)


def _normal(seed: int, *shape: int) -> Array:
    """Return random numbers in float64, of those that float32 can hold: what it makes of an input is
    not the kernel's error."""
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(float)


def _log_softmax(x: Array) -> Array:
    """Return NumPy's log_softmax of the last dim."""
    import numpy as np

    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _product_checks() -> Iterator[Check]:
    import numpy as np

    a, b = _normal(9, 2, 37, 29), _normal(10, 2, 29, 45)
    image, kernel = _normal(11, 2, 3, 9, 8), _normal(12, 4, 3, 3, 3)
    # What a convolution of stride 2 and padding 1 sees.
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]

    def gradient(device: str) -> Tensor:
        """Return the gradient of a convolution's weight on a device."""
        weight = _put(kernel, device).requires_grad_()
        F.conv2d(_put(image, device), weight, stride=2, padding=1).sum().backward()
        assert weight.grad is not None
        return weight.grad

    yield Check("contract", "matmul", lambda d: _put(a, d) @ _put(b, d), lambda: a @ b)
    yield Check(
        "contract", "matmul, transposed",
        lambda d: _put(a, d).transpose(1, 2) @ _put(b, d).transpose(1, 2)[:, :37],
        lambda: a.transpose(0, 2, 1) @ b.transpose(0, 2, 1)[:, :37],
    )  # fmt: skip
    yield Check(
        "contract", "conv2d",
        lambda d: F.conv2d(_put(image, d), _put(kernel, d), stride=2, padding=1),
        lambda: np.einsum("nchwij,ocij->nohw", windows, kernel),
    )  # fmt: skip
    yield Check(
        "contract", "conv2d, gradient of the weight", gradient,
        lambda: np.broadcast_to(windows.sum(axis=(0, 2, 3)), kernel.shape), 1e-4,
    )  # fmt: skip


def _place_checks() -> Iterator[Check]:
    """Check movement, indexing and scans."""
    import numpy as np

    image, rows, table = _normal(11, 2, 3, 9, 8), _normal(13, 6, 65), _normal(14, 10, 7)
    random = np.random.default_rng(15)
    index, labels = random.integers(0, 65, (6, 11)), random.integers(0, 10, 7)

    def scattered() -> Array:
        """Return NumPy's sum of rows at indices."""
        out = np.zeros_like(rows)
        np.add.at(out, (np.arange(6)[:, None], index), rows[:, :11])
        return out

    yield Check(
        "movement", "flip, roll, permute",
        lambda d: _put(image, d).flip(3).roll(2, 2).permute(3, 0, 2, 1),
        lambda: np.roll(image[..., ::-1], 2, 2).transpose(3, 0, 2, 1), 0.0,
    )  # fmt: skip
    yield Check(
        "movement", "pad, cat, slice",
        lambda d: torch.cat([F.pad(_put(rows, d), (2, 1)), _put(rows, d)[:, ::2]], 1),
        lambda: np.concatenate([np.pad(rows, ((0, 0), (2, 1))), rows[:, ::2]], 1), 0.0,
    )  # fmt: skip
    yield Check(
        "index", "gather", lambda d: _put(rows, d).gather(1, _put(index, d)),
        lambda: np.take_along_axis(rows, index, 1), 0.0,
    )  # fmt: skip
    yield Check(
        "index", "scatter_add",
        lambda d: torch.zeros(6, 65, device=d).scatter_add(1, _put(index, d), _put(rows[:, :11], d)),
        scattered,
    )  # fmt: skip
    yield Check(
        "index", "embedding", lambda d: F.embedding(_put(labels, d), _put(table, d)),
        lambda: table[labels], 0.0,
    )  # fmt: skip
    yield Check("scan", "cumsum", lambda d: _put(rows, d).cumsum(1), lambda: rows.cumsum(1))
    yield Check(
        "scan", "cumprod", lambda d: (_put(rows, d) * 0.1 + 1).cumprod(0),
        lambda: (rows * 0.1 + 1).cumprod(0),
    )  # fmt: skip


def _composite_checks() -> Iterator[Check]:
    import numpy as np

    rows, logits, image = _normal(13, 6, 65), _normal(16, 7, 10), _normal(11, 2, 3, 9, 8)
    labels = np.random.default_rng(17).integers(0, 10, 7)
    query = rows[:, :64].reshape(1, 2, 3, 64)

    def normalised() -> Array:
        """Return NumPy's layer norm of the last dim."""
        centred = rows - rows.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def attended() -> Array:
        """Return NumPy's attention."""
        scores = np.einsum("bhid,bhjd->bhij", query, query) / 8.0
        return np.einsum("bhij,bhjd->bhid", np.exp(_log_softmax(scores)), query)

    def attention(device: str) -> Tensor:
        """Return the attention on a device."""
        q = _put(query, device)
        return F.scaled_dot_product_attention(q, q, q)

    yield Check(
        "composite", "softmax", lambda d: torch.softmax(_put(rows, d), 1),
        lambda: np.exp(_log_softmax(rows)),
    )  # fmt: skip
    yield Check("composite", "layer_norm", lambda d: F.layer_norm(_put(rows, d), (65,)), normalised)
    yield Check(
        "composite", "cross_entropy",
        lambda d: F.cross_entropy(_put(logits, d), _put(labels, d)),
        lambda: -_log_softmax(logits)[np.arange(7), labels].mean(),
    )  # fmt: skip
    yield Check(
        "composite", "max_pool2d", lambda d: F.max_pool2d(_put(image, d), 2),
        lambda: image[:, :, :8].reshape(2, 3, 4, 2, 4, 2).max((3, 5)), 0.0,
    )  # fmt: skip
    yield Check("composite", "scaled_dot_product_attention", attention, attended)


def _creation_checks() -> Iterator[Check]:
    """Check random numbers and sequences."""
    import numpy as np

    def drawn(device: str) -> Tensor:
        """Return random numbers of a fixed seed on a device."""
        torch.manual_seed(11)
        return torch.rand(1000, device=device)

    # The same seed gives the same numbers on every device; uniform means a mean of 1/2.
    yield Check("random", "rand, the CPU's numbers", drawn, lambda: drawn("cpu").numpy())
    yield Check("random", "rand, mean", lambda d: drawn(d).mean(), lambda: 0.5, 0.03)
    yield Check(
        "creation", "arange", lambda d: torch.arange(3, 40, 2, device=d),
        lambda: np.arange(3, 40, 2), 0.0,
    )  # fmt: skip
    yield Check(
        "creation", "linspace, full",
        lambda d: torch.linspace(0, 1, 50, device=d) + torch.full((50,), 2.5, device=d),
        lambda: np.linspace(0, 1, 50) + 2.5,
    )  # fmt: skip


# --- the tables ----------------------------------------------------------------------------------


def _versions() -> Table:
    table = Table(title="Installation", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, version in versions():
        table.add_row(name, version or Text("not installed", style="dim"))
    table.add_row("Python's program", sys.executable)
    return table


def versions() -> Iterator[tuple[str, str | None]]:
    """Yield what is installed, each with its version; None for a package that is not."""
    yield "Python", platform.python_version()
    yield "System", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "CPU", get_backend("cpu").description()
    for name in PACKAGES:
        yield name, package_version(name)
    yield from _native_versions()


def adapter_record(adapter: AdapterInfo) -> dict[str, object]:
    """Return an adapter as a record of tests/profiles.toml has it, with its driver."""
    return {
        "adapter": adapter.name,
        "type": adapter.adapter_type,
        "interface": adapter.backend_type,
        "driver": adapter.driver,
        "features": list(adapter.features),
        "limits": {n: v for n in SHOWN_LIMITS if (v := _limit(adapter, n)) is not None},
    }


def _native_versions() -> Iterator[tuple[str, str]]:
    """Yield name and version of each native WebGPU library that is installed."""
    for module in ("wgpu", "wgpudawn"):
        try:
            native = importlib.import_module(f"{module}.backends.wgpu_native")
        except Exception:  # a broken installation raises OSError, AttributeError, ...
            continue
        version = getattr(native, "__version__", None) or getattr(native, "lib_version_info", None)
        if isinstance(version, tuple):
            version = ".".join(map(str, version))
        if version:
            yield f"{module}, native library", str(version)


def _adapter_table(adapter: AdapterInfo) -> Table:
    kind = "hardware" if adapter.is_hardware else "software"
    table = Table(
        title=f"Adapter webgpu:{adapter.index}  {adapter} ({kind})", title_justify="left",
        show_header=False, box=None,
    )  # fmt: skip
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    table.add_row("type", adapter.adapter_type)
    table.add_row("driver", adapter.driver or "not said")
    table.add_row("features", ", ".join(adapter.features) or "none")
    for name in SHOWN_LIMITS:
        value = _limit(adapter, name)
        if value is not None:
            table.add_row(name, f"{value:,}")
    return table


def _limit(adapter: AdapterInfo, name: str) -> int | None:
    # The names have hyphens natively and underscores in some bindings.
    return adapter.limits.get(name, adapter.limits.get(name.replace("-", "_")))


def _test_table(device: str, outcomes: Sequence[Outcome]) -> Table:
    table = Table(title=f"Self-test of {device}", title_justify="left", box=None)
    table.add_column("kernel family", style="bold", overflow="fold")
    table.add_column("checks", justify="right", overflow="fold")
    table.add_column("largest error", justify="right", overflow="fold")
    table.add_column("in", overflow="fold")
    table.add_column("result", overflow="fold")
    for outcome in outcomes:
        table.add_row(
            outcome.family,
            str(outcome.checks),
            "exact" if outcome.error == 0 else f"{outcome.error:.1e}",
            outcome.worst,
            Text("passes", style="green") if outcome.passed else Text("fails", style="red"),
        )
    return table


def main(options: argparse.Namespace, console: Console) -> int:
    """List adapters, say which is used and why, and test it."""
    if options.report is not None:
        expect_file(options.report)
    return examine(console, options.device, options.report)
