"""Writes what webtorch knows of PyTorch's public names, and the page of those that it does not have.

    python tools/names.py            write webtorch/tensors/pytorch_names.txt, webtorch/aten/schemas.txt and
                                     docs/differences.md
    python tools/names.py --check    fail if they are not what PyTorch and webtorch say now

Needs PyTorch. Nobody edits the files: the reasons stand here.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "webtorch" / "tensors" / "pytorch_names.txt"
PAGE = ROOT / "docs" / "differences.md"
SCHEMAS = ROOT / "webtorch" / "aten" / "schemas.txt"
# Where names are compared: PyTorch's module without "torch.", "Tensor" for its methods.
PLACES = (
    "", "Tensor", "linalg", "special", "fft", "nn", "nn.functional", "optim", "autograd", "autograd.functional",
    "autograd.graph", "distributions", "nn.init", "nn.utils", "nn.utils.parametrizations", "nn.utils.parametrize",
    "nn.utils.prune", "nn.utils.rnn", "optim.lr_scheduler", "optim.swa_utils", "random", "testing", "utils.checkpoint",
    "utils.data",
)  # fmt: skip
# The first pattern that matches a name gives the reason.
REASONS: tuple[tuple[str, str], ...] = (
    (
        r"sparse|_csr|_csc|_bsr|_bsc|_coo|coalesce|crow_|ccol_|col_indices|row_indices|^indices|^values"
        r"|hspmm|hsmm|dsmm|smm$|spmm|saddmm|sspaddmm|to_dense|dense_dim"
        r"|jagged|nested|padded",
        "Sparse tensors have no jagged layouts.",
    ),
    (
        r"quant|qint|quint|^q_|qscheme|per_tensor|per_channel|fbgemm|fake_|int_repr|choose_q|fused_moving|mkldnn"
        r"|^bits|^bit$|^u?int[1-7]$|float4|float8|scaled_mm|ScalingType|Swizzle",
        "Quantised, 8-bit float and sub-byte types are not supported: see `webtorch.nn.quantized`.",
    ),
    (
        r"ComplexType|^eig$|^symeig$",
        "Types of TorchScript, and functions that PyTorch itself has removed.",
    ),
    (
        r"cudnn|miopen|cuda|mps|mtia|maia|xpu|xla|ipu|hip|vulkan|fbgemm|accelerator|AcceleratorError|Stream|Event"
        r"|record_stream|get_device_module|windows|batch_norm_(back|elem|gather|stats|update)",
        "Another vendor's device; webtorch has `cpu` and `webgpu` (see `webtorch.webgpu`).",
    ),
    (
        r"Script|jit|JIT|Graph|Type$|^Code$|CompilationUnit|Capsule|AliasDb|Argument|Block|CallStack|ClassType"
        r"|FunctionSchema|IODescriptor|Interface|parse_|import_ir|unify_|merge_type|Logger|LockingLogger|StaticModule"
        r"|ThroughputBenchmark|Benchmark|ErrorReport|FileCheck|ExecutionPlan|OperatorInfo|Module(Serial|Builder)|^Use$"
        r"|^Value$|^Node$|^Gradient$|TracingState|DeepCopyMemo|AnyType|get_file_path|^fork$|^wait$|Future|futures"
        r"|export|package|hub|library|classes|Dispatch|ExcludeDisp|Tag|PyTorchFile|Deserialization|Serialization|FatalError|"
        r"LiteScript|Concrete|Aggregation|^AVG$|^SUM$|boolean_dispatch|Broadcasting",
        "Part of TorchScript, FX or PyTorch's C++ core; a step is captured by `webtorch.compile`.",
    ),
    (
        r"^[Ss]ym|SymInt|SymBool|SymFloat|compiler|dynamo",
        "Belongs to PyTorch's own compiler.",
    ),
    (r"distributed|rpc|RRef", "One process."),
    (
        r"[Ss]torage|^set_$|const_data_ptr|data_ptr|USE_|has_(lapack|mkl|openmp|spectral)|set_num_interop"
        r"|get_num_interop|init_num_threads|flush_denormal|compiled_with|module_load|thread_safe|prepare_multi",
        "Concerns PyTorch's memory, build or threads.",
    ),
    (r"_?lstm|_?gru|rnn_", "Use the layers of `webtorch.nn` (LSTM, GRU, RNN and their cells)."),
    (
        r"^(solve|symeig|eig|lstsq|matrix_rank)$",
        "PyTorch has removed it: its function only raises. Use `webtorch.linalg`.",
    ),
    (
        r"deterministic|warn_always|anomaly|autocast|debug_mode|set_default_tensor_type|overrides|monitor|"
        r"reinforce|storage_type|profiler_|library",
        "A switch or hook of PyTorch that has no effect to switch here.",
    ),
)  # fmt: skip
REASONS = (
    (
        r"CheckpointPolicy|^SAC_|SelectiveCheckpoint|create_selective",
        "They choose by PyTorch's operators: they are there under the name `torch` (`webtorch run`).",
    ),
    (
        r"DataPipe$|datapipe|DataChunk|argument_validation|runtime_validation|non_deterministic",
        "DataPipes are deprecated in PyTorch: use `Dataset` and `IterableDataset`.",
    ),
    (
        r"grouped_mm",
        "For one vendor's matrix formats: use `bmm`.",
    ),
    (
        r"^(Module|Parameter|Buffer)Dict$|NestedIOFunction|FileCheck|stale_capture|stream_mismatch|grad_layout_policy"
        r"|thread_safe|region_activation|from_file$|^variable$|grad_mode$|_memory_format$|^layout$"
        r"|^memory_format$|^name$|^index$|factory_common_args|^onnx$|native_norm",
        "A name of PyTorch's C++ core (`nn.ModuleDict`, `Tensor.__getitem__` and others are what programs use).",
    ),
    (
        r"_notes$|^common_|TYPE_CHECKING|classproperty|PRIVATE|factory_kwargs|assert_int|multi_dim|torch_version"
        r"|^types$|^cpp$|^cpu$|^ao$|^intrinsic$|^qat$|^quantizable$|^modules$|^functional$|return_types|_MODES$"
        r"|^Tensor$|^Container$|torch_function|^serialization$|^testing$|^version$|grad_dtype|swap_in_optimizer|^nn.grad$",
        "A constant, type or file of PyTorch's own code.",
    ),
    *REASONS,
)
OTHERWISE = "Not available yet."
HEAD = """# What PyTorch has and webtorch does not

`webtorch` has {have} of PyTorch {version}'s {total} public names. A missing one raises `AttributeError` and says why it
is missing, in the words below. How well the operations that exist agree is in [conformance.md](conformance.md).

Counted are {places}. `tools/names.py` writes this page.
"""


# Operations that exist and give something else than PyTorch, by choice. What the database's samples show
# beyond these stands in docs/conformance.md.
BEHAVIOUR = """
## Other results than PyTorch's

- A number added to a 16-bit float, or taken from one, keeps its own digits (`h + 0.1`), as on CUDA; PyTorch rounds it
  to 16 bits on the CPU.
- Integers divided by a tensor that holds 0 (`//`, `%`, `fmod`, `div` with a rounding mode) give 0; PyTorch raises
  on the CPU, and says nothing on accelerators. A Python number 0 as divisor is refused here too.
- 16-bit floats are taken wherever floats are, also where PyTorch has no such kernel (they compute in float32), but
  for the factorisations of `linalg`.
- `quantile` of infinities is the infinity where the position is exact; PyTorch gives NaN (0 times infinity).
- `linalg.lstsq`, `eig` and singular vectors have LAPACK's signs and phases, which may not be those of PyTorch's build.
- The gradient of `prod` where another number is NaN, and of norms of infinite order of NaN, is NaN; PyTorch's is 0 for
  some. Of several NaN in a window of max pooling the first one has the gradient; in PyTorch the last.
- `polygamma` of order 1 is infinite at its poles, 0 and the negative integers, as of all other orders; PyTorch's is a
  large number at the negative ones.
- `matrix_exp` of float16 is infinite where the exponential is; PyTorch's steps in 16 bits give NaN.
- `as_strided_scatter` gives the input a gradient where it was not replaced; PyTorch's does where it was, and only
  there, which its own `gradcheck` refuses.
- Second derivatives of products in which several zeros meet (`index_reduce`, `scatter_reduce`) are 0.
- Functions take `out=` wherever their result is a tensor; PyTorch has it for some.
- `logsumexp` of integers over no dimension and average pooling of complex numbers: taken here, refused by PyTorch.
- `conj()` makes a copy: `is_conj()` is False of every tensor, and so is `is_neg()`. `_neg_view`,
  `_efficientzerotensor` and `_view_func`, which replays a view on another tensor, are absent.
- Nothing is written where several elements share one place (`out=` and in-place forms of expanded memory); PyTorch
  writes one over the other in some (`bmm`, `cummax`, `tril`, sums, norms). `masked_fill_`,
  `index_fill_` and `index_put_` write, with its warning, unless gradients are recorded.
- `heaviside` promotes its two types; PyTorch wants one.
- uint16, uint32 and uint64 are taken wherever integers are; PyTorch's CPU lacks half of the operations (`+`, `<`).
  As there, they meet floats and numbers alone. WebGPU refuses uint64.
- Memory made as bool holds 0 or 1, whatever is written to a view of another type.
- The first object with `__torch_function__` that is no tensor is asked by functions, operators, indexing and in-place
  elementwise operations; methods as `x.dot(object)` ask when one of these, a tensor subclass or a mode has come before.
- `bernoulli`, `multinomial`, `poisson` and `normal` check tensors of probabilities, rates and deviations on the device:
  the next read raises, where PyTorch's call does.
- On an H100 or H200 float32 convolutions of 3 x 3 and 64 channels or more go by Winograd's method: an infinity of the
  input is NaN in all of its tiles of 4 x 4 outputs; in PyTorch it stays within its windows. There is no switch.
- `torch.fx` writes functions as users find them (`torch.nn.functional.gelu`; PyTorch `torch._C._nn.gelu`), with the
  arguments that they were given; PyTorch's functions of Python add those that they pass on (`inplace = False`).
- `__torch_dispatch__` sees PyTorch's operators wherever products, layers and single operations are called. A function
  that is one operation here and several in PyTorch (`x.unflatten`, `torch.tensor_split`) is seen as itself, dropout as
  on accelerators (`native_dropout`), and of gradients that PyTorch has no operator for, what they are made of.
- `torch.export` keeps the example's sizes in `meta["val"]`, refuses numbers that are read (`item()`), and names ranges
  by `Dim`; conversions that change nothing are in PyTorch's graphs only. Under our own name it is `webtorch.fx.export`.
- A sparse tensor's class is `torch.sparse.tensor.SparseTensor`, a subclass of `Tensor`. The gradient of a sparse leaf
  always has its layout and its places (`mm`, `mv` and `sum` give a dense one in PyTorch); what PyTorch refuses to
  differentiate (`select`, `index_select`, `cat`, `norm`) has a gradient, and `clip_grad_norm_` takes sparse ones. Of a
  weight that is computed the gradient of `embedding(sparse=True)` is dense. `vmap` takes no sparse tensors; in a
  compiled function `coalesce` reads values, which raises; one that is given a
  sparse tensor, or leaves sparse gradients behind, runs as usual.
- PyTorch's device "webgpu" has no quantised tensors, no nested tensors of layout `torch.strided` (those of
  `torch.jagged` are there), and no clones that share memory until one is written (`_lazy_clone`). An index out of
  range raises where the next value is read, as on other accelerators. Its memory cannot be shared with other
  libraries (DLPack) or processes. `torch._C._select_conv_backend` calls its convolutions `Overrideable`, as those of
  all devices from outside PyTorch.
- Random numbers are those of webtorch's own generator (Philox); only `torch.manual_seed` reproducibility is PyTorch's.
"""
# The modules of PyTorch's documentation.
_MODULES = """accelerator amp ao autograd backends compiler cpu cuda distributed distributions export fft func
    futures fx hub jit library linalg masked monitor mps mtia multiprocessing nested nn onnx optim overrides
    package profiler quantization random signal sparse special testing types utils xpu"""


def _public(place: Any) -> list[str]:
    found = []
    # The older modules offer more than they list.
    listed = [n for n in getattr(place, "__all__", ()) if not n.startswith("_")]
    if listed and place.__name__.removeprefix("torch.") in PLACES[8:]:
        return sorted(set(listed))
    for name in dir(place):
        # Names with "webgpu" are there where webtorch's device is registered with PyTorch.
        if name.startswith("_") or "webgpu" in name:
            continue
        item = getattr(place, name, None)
        if isinstance(item, types.ModuleType):
            continue  # which of them are there depends on what has been imported
        if getattr(item, "__module__", "") in ("typing", "collections.abc", "enum", "_thread"):
            continue
        found.append(name)
    if getattr(place, "__name__", "") == "torch":
        found += _MODULES.split()
    return sorted(found)


def _place(root: str, place: str) -> Any:
    module = importlib.import_module(root)
    if place == "Tensor":
        return module.Tensor
    return importlib.import_module(f"{root}.{place}") if place else module


def listed() -> str:
    """Return the text of the list: [place] and PyTorch's names there; then [= reason] and the names
    that are missing for it, each after its place and a colon.
    """
    import textwrap

    groups: dict[str, list[str]] = {}
    why: dict[str, list[str]] = {}
    for place in PLACES:
        ours = _place("webtorch", place)
        groups[place] = _public(_place("torch", place))
        for name in groups[place]:
            if not hasattr(ours, name):
                why.setdefault(reason(name), []).append(f"{place}:{name}")
    lines = []
    for head, names in (*groups.items(), *((f"= {r}", why[r]) for r in sorted(why))):
        lines.append(f"[{head}]")
        lines += textwrap.wrap(" ".join(names), 118, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines) + "\n"


def reason(name: str) -> str:
    """Return why webtorch does not have a name."""
    return next((why for pattern, why in REASONS if re.search(pattern, name)), OTHERWISE)


def page() -> str:
    """Return the page of names that webtorch does not have, by reason."""
    import torch

    have = total = 0
    groups: dict[str, dict[str, list[str]]] = {}
    for place in PLACES:
        ours = _place("webtorch", place)
        for name in _public(_place("torch", place)):
            total += 1
            if hasattr(ours, name):
                have += 1
            else:
                groups.setdefault(reason(name), {}).setdefault(place, []).append(name)
    shown = ", ".join(f"`torch{'.' + p if p else ''}`" for p in PLACES)
    text = HEAD.format(
        version=torch.__version__.split("+")[0], have=have, total=total, places=shown
    )
    for why in [OTHERWISE, *dict(reversed([(w, 0) for _, w in reversed(REASONS)]))]:
        if why not in groups:
            continue
        text += f"\n## {why.rstrip('.')}\n\n"
        for place, names in groups[why].items():
            text += (
                f"- `torch{'.' + place if place else ''}`: {', '.join(f'`{n}`' for n in names)}\n"
            )
    return text + BEHAVIOUR


# Operators of other layouts, types, devices and vendors, and parts of PyTorch's own kernels.
_NOT_OURS = (
    r"sparse|_csr|_csc|_coo|coalesce|col_indices|row_indices|indices_copy|values_copy|^_?(indices|values|nnz)|nested|jagged"
    r"|padded|quant|^q_|qscheme|fbgemm|fake_|int_repr|choose_q|fused_moving|mkldnn|cudnn|miopen|mps|vulkan|cuda|xla|hip"
    r"|_copy_from|cslt|_test_|_foobar|int4|int8pack|4bit|dyn_quant|^_efficient_attention|^_flash_attention|_triton|_fused_|_foreach"
    r"|^_cast_|_amp_|philox|_sobol|lstm|gru|rnn|overrideable|^batch_norm_(back|elem|gather|stats|update)|grouped_mm"
    r"|mtia|_scaled_mm|_dep_token|_transformer_|_multi_head|_nnpack|flatten_dense|_make_per|_fw_primal|_dual|storage"
    r"|_has_|get_gradients|_convert_|_dim[IV]|_debug|_validate|_pack|_pad_|_propagate|_lazy_clone|_print|_fill_mem|_record|_use_"
)


def _takes_numbers(name: str) -> bool:
    """Whether PyTorch's function calls its operator of two tensors where the second one is a number."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.calls: tuple[str, ...] = ()

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += (str(func),)
            return func(*args, **(kwargs or {}))

    function = getattr(torch, name, None) or getattr(torch.Tensor, name, None)
    x = torch.ones(2)
    with Seen() as seen, contextlib.suppress(Exception):
        function(x, 2) if function is not None else None
    return seen.calls[:1] == (f"aten.{name}.Tensor",)


def schemas() -> str:
    """Return PyTorch's schemas of its operators but for those with `out`. A star stands before those written with
    others, a plus before those that take numbers in the places of tensors.
    """
    import torch

    lines = []
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        if schema.name == name or re.search(_NOT_OURS, name):
            continue
        full = f"{schema.name}.{schema.overload_name}".rstrip(".")
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if not torch._C._dispatch_has_kernel(full) or any(a.is_out for a in schema.arguments):
            continue
        star = "*" if has(full, "CompositeImplicitAutograd") else ""
        star += "+" if schema.overload_name == "Tensor" and _takes_numbers(name) else ""
        lines.append(star + str(schema).removeprefix("aten::"))
    # Overloads stay in PyTorch's order, in which it tries them.
    return "\n".join(sorted(lines, key=lambda s: re.split(r"[.(]", s.lstrip("*+"))[0])) + "\n"


def main() -> int:
    """Write or check the files; return the exit code."""
    stale = []
    for path, text in ((LIST, listed()), (SCHEMAS, schemas()), (PAGE, page())):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'stale' if '--check' in sys.argv else 'written'}: {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
