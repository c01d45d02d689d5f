"""webtorch: PyTorch wherever WebGPU runs. `import webtorch as torch` and write PyTorch."""

from webtorch.functions.bind import NAMESPACES as _NAMESPACES
from webtorch.functions.bind import load_table as _load_table
from webtorch.functions.legacy import CONSTRUCTORS as _CONSTRUCTORS
from webtorch.functions.legacy import typename
from webtorch.ir.dtype import DType as dtype
from webtorch.ir.dtype import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
    uint32,
)
from webtorch.ir.dtype import bool_ as bool
from webtorch.tensors.absent import MissingName as _MissingName
from webtorch.tensors.calls import can_cast, get_default_dtype, result_type, set_default_dtype
from webtorch.tensors.device import device, get_default_device, set_default_device
from webtorch.tensors.formats import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    strided,
)
from webtorch.tensors.limits import finfo, iinfo
from webtorch.tensors.printing import get_printoptions, printoptions, set_printoptions
from webtorch.tensors.tape import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from webtorch.tensors.tensor import Size, Tensor

_load_table()
globals().update(_NAMESPACES["torch"])
globals().update(_CONSTRUCTORS)

# These need the table's functions.
from webtorch import (
    _higher_order_ops,
    amp,
    autograd,
    cuda,
    debug,
    errors,
    fft,
    linalg,
    masked,
    nn,
    optim,
    profiler,
    random,
    signal,
    special,
    utils,
    webgpu,
)
from webtorch.amp import GradScaler
from webtorch.amp.autocast_mode import (
    autocast,
    autocast_decrement_nesting,
    autocast_increment_nesting,
    clear_autocast_cache,
    get_autocast_cpu_dtype,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_cpu_enabled,
    is_autocast_enabled,
    set_autocast_cache_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from webtorch.autograd.anomaly_mode import is_anomaly_check_nan_enabled, is_anomaly_enabled
from webtorch.capture import compile, mark_dynamic
from webtorch.errors import OutOfMemoryError
from webtorch.func.control_flow import cond, while_loop
from webtorch.functions.dlpack import from_dlpack, to_dlpack
from webtorch.functions.random import Generator, default_generator
from webtorch.io.checkpoint import load, save
from webtorch.nn.native import (
    adaptive_max_pool1d,
    affine_grid_generator,
    binary_cross_entropy_with_logits,
    convolution,
    ctc_loss,
    embedding_bag,
    embedding_renorm_,
    feature_dropout,
    max_pool1d_with_indices,
    native_dropout,
    norm_except_dim,
)
from webtorch.profiler import profile
from webtorch.tensors.switches import (
    are_deterministic_algorithms_enabled,
    get_deterministic_debug_mode,
    get_num_interop_threads,
    is_deterministic_algorithms_warn_only_enabled,
    is_storage,
    is_warn_always_enabled,
    set_default_tensor_type,
    set_deterministic_debug_mode,
    set_flush_denormal,
    set_num_interop_threads,
    set_warn_always,
    use_deterministic_algorithms,
)
from webtorch.tensors.symbolic import (
    SymBool,
    SymFloat,
    SymInt,
    sym_float,
    sym_int,
    sym_ite,
    sym_max,
    sym_min,
    sym_not,
    sym_sqrt,
    sym_sum,
)
from webtorch.tensors.threads import get_num_threads, set_num_threads
from webtorch.tensors.whole import (
    broadcast_shapes,
    detach,
    get_device,
    get_float32_matmul_precision,
    is_complex,
    is_floating_point,
    is_inference,
    is_signed,
    is_tensor,
    numel,
    realize,
    set_float32_matmul_precision,
    synchronize,
)

__version__ = "0.1.0"
float = float32
double, half, long, short = float64, float16, int64, int16
cfloat, cdouble = complex64, complex128
int = int32
legacy_contiguous_format = contiguous_format
inf, nan, pi, e = 1e400, 1e400 - 1e400, 3.141592653589793, 2.718281828459045
newaxis = None

# What `from webtorch import *` brings, and what the reference lists: as in PyTorch, no modules.
__all__ = sorted(
    name
    for name, value in globals().items()
    if not name.startswith("_") and not hasattr(value, "__spec__")
)


# Rooms that only some programs enter; loaded when they are.
_LATE = frozenset(
    (
        "accelerator",
        "backends",
        "compiler",
        "cuda",
        "distributions",
        "func",
        "jit",
        "multiprocessing",
        "onnx",
        "overrides",
        "testing",
        "types",
        "version",
    )
)


def __getattr__(name: str) -> object:
    """Load what is used by some programs only; say what is known of names that do not exist."""
    import sys

    if name == "export":
        from webtorch.web.export import export

        return globals().setdefault(name, export)
    if name == "vmap":
        from webtorch.func import vmap

        return globals().setdefault(name, vmap)
    if name in _LATE:
        import importlib

        return importlib.import_module(f"webtorch.{name}")
    if name in ("DisableTorchFunction", "DisableTorchFunctionSubclass"):
        from webtorch import overrides

        return globals().setdefault(name, getattr(overrides, name))
    if name == "_C":
        from webtorch.as_torch.names import core

        return globals().setdefault(name, core)
    if name in ("distributed", "hub", "library", "xpu"):
        import importlib

        return importlib.import_module(f"webtorch.as_torch.names.{name}")
    if name == "mps":
        from webtorch.backends import mps

        return mps
    if name in ("install_as_torch", "uninstall_as_torch"):
        import webtorch.as_torch

        return getattr(webtorch.as_torch, name)
    raise _MissingName(sys.modules[__name__], "", name)
