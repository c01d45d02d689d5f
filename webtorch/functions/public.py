"""The public names of `webtorch` that tensors, types and functions of tensors bear.

The package itself brings them, and the rooms above (nn, optim, ...) import them from here, as a program
does from the package: `from webtorch.functions import public as webtorch`.
"""

from webtorch.errors import AcceleratorError, OutOfMemoryError
from webtorch.functions.bind import NAMESPACES as _NAMESPACES
from webtorch.functions.bind import load_table as _load_table
from webtorch.functions.dlpack import from_dlpack, to_dlpack
from webtorch.functions.kernel import kernel
from webtorch.functions.legacy import CONSTRUCTORS as _CONSTRUCTORS
from webtorch.functions.legacy import typename
from webtorch.functions.random import Generator, default_generator
from webtorch.ir.dtype import DType as dtype
from webtorch.ir.dtype import (
    bfloat16,
    complex32,
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
    uint16,
    uint32,
    uint64,
)
from webtorch.ir.dtype import bool_ as bool
from webtorch.tensors.device import device, get_default_device, set_default_device
from webtorch.tensors.formats import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    sparse_bsc,
    sparse_bsr,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from webtorch.tensors.limits import finfo, iinfo
from webtorch.tensors.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from webtorch.tensors.printing import get_printoptions, printoptions, set_printoptions
from webtorch.tensors.promotion import can_cast, get_default_dtype, result_type, set_default_dtype
from webtorch.tensors.size import Size
from webtorch.tensors.switches import (
    are_deterministic_algorithms_enabled,
    get_deterministic_debug_mode,
    get_num_interop_threads,
    is_deterministic_algorithms_warn_only_enabled,
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
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.threads import get_num_threads, set_num_threads
from webtorch.tensors.whole import (
    broadcast_shapes,
    detach,
    get_device,
    get_float32_matmul_precision,
    is_complex,
    is_distributed,
    is_floating_point,
    is_inference,
    is_signed,
    is_tensor,
    numel,
    realize,
    set_float32_matmul_precision,
    synchronize,
)

_load_table()
globals().update(_NAMESPACES["torch"])
globals().update(_CONSTRUCTORS)

float = float32
double, half, long, short = float64, float16, int64, int16
chalf, cfloat, cdouble = complex32, complex64, complex128
int = int32
legacy_contiguous_format = contiguous_format
inf, nan, pi, e = 1e400, 1e400 - 1e400, 3.141592653589793, 2.718281828459045
newaxis = None

# What `from webtorch import *` brings of these: as in PyTorch, no modules.
__all__ = sorted(
    name
    for name, value in globals().items()
    if not name.startswith("_") and not hasattr(value, "__spec__")
)
