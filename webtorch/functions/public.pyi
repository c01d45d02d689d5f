"""PyTorch's names of tensors on webtorch's engine. Written by tools/stubs.py from the op table; not edited by hand."""

import builtins
from collections.abc import Callable as _Callable
from collections.abc import Sequence as _Sequence
from typing import Any as _Any
from typing import Literal as _Literal
from typing import overload as _overload

from webtorch.errors import AcceleratorError as AcceleratorError
from webtorch.errors import OutOfMemoryError as OutOfMemoryError
from webtorch.functions.convolution import Sizes as _Sizes
from webtorch.functions.cumulative import Cummax as _Cummax
from webtorch.functions.cumulative import Cummin as _Cummin
from webtorch.functions.decomposition import OldSVD as _OldSVD
from webtorch.functions.dlpack import from_dlpack as from_dlpack
from webtorch.functions.dlpack import to_dlpack as to_dlpack
from webtorch.functions.kernel import kernel as kernel
from webtorch.functions.legacy import typename as typename
from webtorch.functions.linalg import LUUnpack as _LUUnpack
from webtorch.functions.linalg import OldSlogdet as _OldSlogdet
from webtorch.functions.linalg import TriangularSolve as _TriangularSolve
from webtorch.functions.native import Frexp as _Frexp
from webtorch.functions.ordering import Kthvalue as _Kthvalue
from webtorch.functions.ordering import Median as _Median
from webtorch.functions.ordering import Nanmedian as _Nanmedian
from webtorch.functions.ordering import Sort as _Sort
from webtorch.functions.ordering import Topk as _Topk
from webtorch.functions.orthogonal import Geqrf as _Geqrf
from webtorch.functions.orthogonal import OldQR as _OldQR
from webtorch.functions.random import Generator as Generator
from webtorch.functions.random import Generator as _Generator
from webtorch.functions.random import default_generator as default_generator
from webtorch.functions.reduce import Aminmax as _Aminmax
from webtorch.functions.reduce import Dims as _Dims
from webtorch.functions.reduce import Max as _Max
from webtorch.functions.reduce import Min as _Min
from webtorch.functions.statistics import Histogram as _Histogram
from webtorch.functions.statistics import HistogramDD as _HistogramDD
from webtorch.functions.statistics import Mode as _Mode
from webtorch.ir.dtype import DType as _DType
from webtorch.ir.dtype import DType as _dtype_
from webtorch.ir.dtype import Number as _Number
from webtorch.ir.dtype import Scalar as _Scalar
from webtorch.ir.dtype import bfloat16 as bfloat16
from webtorch.ir.dtype import bool_ as _bool_
from webtorch.ir.dtype import complex32 as complex32
from webtorch.ir.dtype import complex64 as complex64
from webtorch.ir.dtype import complex128 as complex128
from webtorch.ir.dtype import float16 as float16
from webtorch.ir.dtype import float32 as float32
from webtorch.ir.dtype import float64 as float64
from webtorch.ir.dtype import int8 as int8
from webtorch.ir.dtype import int16 as int16
from webtorch.ir.dtype import int32 as int32
from webtorch.ir.dtype import int64 as int64
from webtorch.ir.dtype import promote_types as promote_types
from webtorch.ir.dtype import uint8 as uint8
from webtorch.ir.dtype import uint16 as uint16
from webtorch.ir.dtype import uint32 as uint32
from webtorch.ir.dtype import uint64 as uint64
from webtorch.tensors.device import DeviceLike as _DeviceLike
from webtorch.tensors.device import device as device
from webtorch.tensors.device import get_default_device as get_default_device
from webtorch.tensors.device import set_default_device as set_default_device
from webtorch.tensors.formats import channels_last as channels_last
from webtorch.tensors.formats import channels_last_3d as channels_last_3d
from webtorch.tensors.formats import contiguous_format as contiguous_format
from webtorch.tensors.formats import layout as _layout
from webtorch.tensors.formats import layout as layout
from webtorch.tensors.formats import memory_format as _memory_format
from webtorch.tensors.formats import memory_format as memory_format
from webtorch.tensors.formats import preserve_format as preserve_format
from webtorch.tensors.formats import sparse_bsc as sparse_bsc
from webtorch.tensors.formats import sparse_bsr as sparse_bsr
from webtorch.tensors.formats import sparse_coo as sparse_coo
from webtorch.tensors.formats import sparse_csc as sparse_csc
from webtorch.tensors.formats import sparse_csr as sparse_csr
from webtorch.tensors.formats import strided as strided
from webtorch.tensors.limits import finfo as finfo
from webtorch.tensors.limits import iinfo as iinfo
from webtorch.tensors.modes import enable_grad as enable_grad
from webtorch.tensors.modes import inference_mode as inference_mode
from webtorch.tensors.modes import is_grad_enabled as is_grad_enabled
from webtorch.tensors.modes import is_inference_mode_enabled as is_inference_mode_enabled
from webtorch.tensors.modes import no_grad as no_grad
from webtorch.tensors.modes import set_grad_enabled as set_grad_enabled
from webtorch.tensors.printing import get_printoptions as get_printoptions
from webtorch.tensors.printing import printoptions as printoptions
from webtorch.tensors.printing import set_printoptions as set_printoptions
from webtorch.tensors.promotion import Operand as _Operand
from webtorch.tensors.promotion import can_cast as can_cast
from webtorch.tensors.promotion import get_default_dtype as get_default_dtype
from webtorch.tensors.promotion import result_type as result_type
from webtorch.tensors.promotion import set_default_dtype as set_default_dtype
from webtorch.tensors.size import Size as Size
from webtorch.tensors.switches import (
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
)
from webtorch.tensors.switches import get_deterministic_debug_mode as get_deterministic_debug_mode
from webtorch.tensors.switches import get_num_interop_threads as get_num_interop_threads
from webtorch.tensors.switches import (
    is_deterministic_algorithms_warn_only_enabled as is_deterministic_algorithms_warn_only_enabled,
)
from webtorch.tensors.switches import is_warn_always_enabled as is_warn_always_enabled
from webtorch.tensors.switches import set_default_tensor_type as set_default_tensor_type
from webtorch.tensors.switches import set_deterministic_debug_mode as set_deterministic_debug_mode
from webtorch.tensors.switches import set_flush_denormal as set_flush_denormal
from webtorch.tensors.switches import set_num_interop_threads as set_num_interop_threads
from webtorch.tensors.switches import set_warn_always as set_warn_always
from webtorch.tensors.switches import use_deterministic_algorithms as use_deterministic_algorithms
from webtorch.tensors.symbolic import SymBool as SymBool
from webtorch.tensors.symbolic import SymFloat as SymFloat
from webtorch.tensors.symbolic import SymInt as SymInt
from webtorch.tensors.symbolic import sym_float as sym_float
from webtorch.tensors.symbolic import sym_int as sym_int
from webtorch.tensors.symbolic import sym_ite as sym_ite
from webtorch.tensors.symbolic import sym_max as sym_max
from webtorch.tensors.symbolic import sym_min as sym_min
from webtorch.tensors.symbolic import sym_not as sym_not
from webtorch.tensors.symbolic import sym_sqrt as sym_sqrt
from webtorch.tensors.symbolic import sym_sum as sym_sum
from webtorch.tensors.tensor import Tensor as Tensor
from webtorch.tensors.tensor import Tensor as _Tensor
from webtorch.tensors.threads import get_num_threads as get_num_threads
from webtorch.tensors.threads import set_num_threads as set_num_threads
from webtorch.tensors.whole import broadcast_shapes as broadcast_shapes
from webtorch.tensors.whole import detach as detach
from webtorch.tensors.whole import get_device as get_device
from webtorch.tensors.whole import get_float32_matmul_precision as get_float32_matmul_precision
from webtorch.tensors.whole import is_complex as is_complex
from webtorch.tensors.whole import is_distributed as is_distributed
from webtorch.tensors.whole import is_floating_point as is_floating_point
from webtorch.tensors.whole import is_inference as is_inference
from webtorch.tensors.whole import is_signed as is_signed
from webtorch.tensors.whole import is_tensor as is_tensor
from webtorch.tensors.whole import numel as numel
from webtorch.tensors.whole import realize as realize
from webtorch.tensors.whole import set_float32_matmul_precision as set_float32_matmul_precision
from webtorch.tensors.whole import synchronize as synchronize

dtype = _dtype_
bool = _bool_
float: dtype
double: dtype
half: dtype
long: dtype
short: dtype
int: dtype
cfloat: dtype
cdouble: dtype
inf: builtins.float
nan: builtins.float
pi: builtins.float
e: builtins.float
newaxis: None

def _sample_dirichlet(
    input: _Tensor, generator: _Generator | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def _standard_gamma(
    input: _Tensor, generator: _Generator | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def abs(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def abs_(input: _Tensor) -> _Tensor: ...
def absolute(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def acos(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def acos_(input: _Tensor) -> _Tensor: ...
def acosh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def acosh_(input: _Tensor) -> _Tensor: ...
def adaptive_avg_pool1d(
    input: _Tensor,
    output_size: builtins.int | _Sequence[builtins.int | None] | None,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def add(
    input: _Operand, other: _Operand, *, alpha: _Scalar = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def addbmm(
    input: _Tensor,
    batch1: _Tensor,
    batch2: _Tensor,
    *,
    beta: _Number = ...,
    alpha: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def addcdiv(
    input: _Tensor,
    tensor1: _Operand,
    tensor2: _Operand,
    *,
    value: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def addcmul(
    input: _Tensor,
    tensor1: _Operand,
    tensor2: _Operand,
    *,
    value: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def addmm(
    input: _Tensor,
    mat1: _Tensor,
    mat2: _Tensor,
    *,
    beta: _Number = ...,
    alpha: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def addmv(
    input: _Tensor,
    mat: _Tensor,
    vec: _Tensor,
    *,
    beta: _Number = ...,
    alpha: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def addmv_(
    input: _Tensor, mat: _Tensor, vec: _Tensor, *, beta: _Number = ..., alpha: _Number = ...
) -> _Tensor: ...
def addr(
    input: _Tensor,
    vec1: _Tensor,
    vec2: _Tensor,
    *,
    beta: _Number = ...,
    alpha: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def adjoint(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def alias_copy(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def all(
    input: _Tensor, dim: _Dims = ..., keepdim: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def allclose(
    input: _Tensor,
    other: _Tensor,
    rtol: builtins.float = ...,
    atol: builtins.float = ...,
    equal_nan: builtins.bool = ...,
) -> builtins.bool: ...
def alpha_dropout(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def alpha_dropout_(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def amax(
    input: _Tensor, dim: _Dims = ..., keepdim: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def amin(
    input: _Tensor, dim: _Dims = ..., keepdim: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def aminmax(
    input: _Tensor,
    *,
    dim: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Aminmax: ...
def angle(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def any(
    input: _Tensor, dim: _Dims = ..., keepdim: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def arange(
    *args: object,
    start: _Number | None = ...,
    end: _Number | None = ...,
    step: _Number | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def arccos(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arccos_(input: _Tensor) -> _Tensor: ...
def arccosh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arccosh_(input: _Tensor) -> _Tensor: ...
def arcsin(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arcsin_(input: _Tensor) -> _Tensor: ...
def arcsinh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arcsinh_(input: _Tensor) -> _Tensor: ...
def arctan(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arctan2(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arctan_(input: _Tensor) -> _Tensor: ...
def arctanh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def arctanh_(input: _Tensor) -> _Tensor: ...
def argmax(
    input: _Tensor,
    dim: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def argmin(
    input: _Tensor,
    dim: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def argsort(
    input: _Tensor,
    dim: builtins.int = ...,
    descending: builtins.bool = ...,
    stable: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def argwhere(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def as_strided(
    input: _Tensor,
    size: _Sequence[builtins.int],
    stride: _Sequence[builtins.int],
    storage_offset: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def as_strided_(
    input: _Tensor,
    size: _Sequence[builtins.int],
    stride: _Sequence[builtins.int],
    storage_offset: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def as_strided_copy(
    input: _Tensor,
    size: _Sequence[builtins.int],
    stride: _Sequence[builtins.int],
    storage_offset: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def as_strided_scatter(
    input: _Tensor,
    src: _Tensor,
    size: _Sequence[builtins.int],
    stride: _Sequence[builtins.int],
    storage_offset: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def as_tensor(
    data: object,
    dtype: _DType | None = ...,
    device: _DeviceLike = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def asarray(
    obj: object,
    *,
    dtype: _DType | None = ...,
    device: _DeviceLike = ...,
    copy: builtins.bool | None = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def asin(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def asin_(input: _Tensor) -> _Tensor: ...
def asinh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def asinh_(input: _Tensor) -> _Tensor: ...
def atan(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def atan2(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def atan_(input: _Tensor) -> _Tensor: ...
def atanh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def atanh_(input: _Tensor) -> _Tensor: ...
@_overload
def atleast_1d(tensor: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def atleast_1d(*tensors: _Tensor, out: tuple[_Tensor, ...] | None = ...) -> tuple[_Tensor, ...]: ...
@_overload
def atleast_1d(
    tensors: _Sequence[_Tensor], *, out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
@_overload
def atleast_2d(tensor: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def atleast_2d(*tensors: _Tensor, out: tuple[_Tensor, ...] | None = ...) -> tuple[_Tensor, ...]: ...
@_overload
def atleast_2d(
    tensors: _Sequence[_Tensor], *, out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
@_overload
def atleast_3d(tensor: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def atleast_3d(*tensors: _Tensor, out: tuple[_Tensor, ...] | None = ...) -> tuple[_Tensor, ...]: ...
@_overload
def atleast_3d(
    tensors: _Sequence[_Tensor], *, out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
def avg_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: builtins.int | _Sequence[builtins.int] | None = ...,
    padding: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    count_include_pad: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def baddbmm(
    input: _Tensor,
    batch1: _Tensor,
    batch2: _Tensor,
    *,
    beta: _Number = ...,
    alpha: _Number = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def bartlett_window(
    window_length: builtins.int,
    periodic: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    layout: _layout | str = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def batch_norm(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor,
    running_mean: _Tensor | None,
    running_var: _Tensor | None,
    training: builtins.bool,
    momentum: builtins.float,
    eps: builtins.float,
    cudnn_enabled: builtins.bool,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def bernoulli(
    input: _Tensor,
    p: builtins.float | None = ...,
    *,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def bilinear(
    input1: _Tensor,
    input2: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def bincount(
    input: _Tensor,
    weights: _Tensor | None = ...,
    minlength: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def binomial(
    count: _Tensor, prob: _Tensor, generator: _Generator | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def bitwise_and(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def bitwise_left_shift(
    input: _Operand, other: _Operand, *, out: _Tensor | None = ...
) -> _Tensor: ...
def bitwise_not(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def bitwise_or(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def bitwise_right_shift(
    input: _Operand, other: _Operand, *, out: _Tensor | None = ...
) -> _Tensor: ...
def bitwise_xor(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def blackman_window(
    window_length: builtins.int,
    periodic: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    layout: _layout | str = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def block_diag(*tensors: _Tensor, out: _Tensor | None = ...) -> _Tensor: ...
def bmm(input: _Tensor, mat2: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def broadcast_tensors(
    *tensors: _Any, out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
def broadcast_to(
    input: _Tensor, size: _Sequence[builtins.int], *, out: _Tensor | None = ...
) -> _Tensor: ...
def bucketize(
    input: _Tensor,
    boundaries: _Tensor,
    *,
    out_int32: builtins.bool = ...,
    right: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def cartesian_prod(*tensors: _Tensor, out: _Tensor | None = ...) -> _Tensor: ...
def cat(
    tensors: _Sequence[_Tensor], dim: builtins.int = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def cdist(
    x1: _Tensor,
    x2: _Tensor,
    p: builtins.float = ...,
    compute_mode: str = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ceil(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def ceil_(input: _Tensor) -> _Tensor: ...
def celu(input: _Tensor, alpha: _Number = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def celu_(input: _Tensor, alpha: _Number = ...) -> _Tensor: ...
def chain_matmul(*matrices: _Any, out: _Tensor | None = ...) -> _Tensor: ...
def channel_shuffle(
    input: _Tensor, groups: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def cholesky(
    input: _Tensor, upper: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def cholesky_inverse(
    input: _Tensor, upper: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def cholesky_solve(
    input: _Tensor, input2: _Tensor, upper: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def chunk(
    input: _Tensor,
    chunks: builtins.int,
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def clamp(
    input: _Tensor,
    min: _Tensor | _Number | None = ...,
    max: _Tensor | _Number | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def clamp_(
    input: _Tensor, min: _Tensor | _Number | None = ..., max: _Tensor | _Number | None = ...
) -> _Tensor: ...
def clamp_max(input: _Tensor, max: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def clamp_max_(input: _Tensor, max: _Operand) -> _Tensor: ...
def clamp_min(input: _Tensor, min: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def clamp_min_(input: _Tensor, min: _Operand) -> _Tensor: ...
def clip(
    input: _Tensor,
    min: _Tensor | _Number | None = ...,
    max: _Tensor | _Number | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def clip_(
    input: _Tensor, min: _Tensor | _Number | None = ..., max: _Tensor | _Number | None = ...
) -> _Tensor: ...
def clone(
    input: _Tensor, *, memory_format: _memory_format | None = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def column_stack(tensors: _Sequence[_Tensor], *, out: _Tensor | None = ...) -> _Tensor: ...
def combinations(
    input: _Tensor,
    r: builtins.int = ...,
    with_replacement: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def complex(real: _Tensor, imag: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def concat(
    tensors: _Sequence[_Tensor], dim: builtins.int = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def concatenate(
    tensors: _Sequence[_Tensor],
    dim: builtins.int = ...,
    *,
    axis: builtins.int | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conj(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def conj_physical(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def conj_physical_(input: _Tensor) -> _Tensor: ...
def constant_pad_nd(
    input: _Tensor, pad: _Sequence[builtins.int], value: _Scalar = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def conv1d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes | str = ...,
    dilation: _Sizes = ...,
    groups: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conv2d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes | str = ...,
    dilation: _Sizes = ...,
    groups: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conv3d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes | str = ...,
    dilation: _Sizes = ...,
    groups: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conv_tbc(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor,
    pad: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conv_transpose1d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes = ...,
    output_padding: _Sizes = ...,
    groups: builtins.int = ...,
    dilation: _Sizes = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conv_transpose2d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes = ...,
    output_padding: _Sizes = ...,
    groups: builtins.int = ...,
    dilation: _Sizes = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def conv_transpose3d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes = ...,
    output_padding: _Sizes = ...,
    groups: builtins.int = ...,
    dilation: _Sizes = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def copysign(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def corrcoef(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def cos(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def cos_(input: _Tensor) -> _Tensor: ...
def cosh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def cosh_(input: _Tensor) -> _Tensor: ...
def cosine_embedding_loss(
    input1: _Tensor,
    input2: _Tensor,
    target: _Tensor,
    margin: builtins.float = ...,
    size_average: builtins.bool | None = ...,
    reduce: builtins.bool | None = ...,
    reduction: str = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def cosine_similarity(
    x1: _Tensor,
    x2: _Tensor,
    dim: builtins.int = ...,
    eps: builtins.float = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def count_nonzero(input: _Tensor, dim: _Dims = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def cov(
    input: _Tensor,
    *,
    correction: builtins.int = ...,
    fweights: _Tensor | None = ...,
    aweights: _Tensor | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def cross(
    input: _Tensor, other: _Tensor, dim: builtins.int | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def cummax(
    input: _Tensor, dim: builtins.int, *, out: tuple[_Tensor, ...] | None = ...
) -> _Cummax: ...
def cummin(
    input: _Tensor, dim: builtins.int, *, out: tuple[_Tensor, ...] | None = ...
) -> _Cummin: ...
def cumprod(
    input: _Tensor, dim: builtins.int, *, dtype: _DType | None = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def cumsum(
    input: _Tensor, dim: builtins.int, *, dtype: _DType | None = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def cumulative_trapezoid(
    y: _Tensor,
    x: _Tensor | None = ...,
    *,
    dx: builtins.float = ...,
    dim: builtins.int = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def deg2rad(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def deg2rad_(input: _Tensor) -> _Tensor: ...
def det(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def detach_(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def detach_copy(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def diag(input: _Tensor, diagonal: builtins.int = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def diag_embed(
    input: _Tensor,
    offset: builtins.int = ...,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def diagflat(
    input: _Tensor, offset: builtins.int = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def diagonal(
    input: _Tensor,
    offset: builtins.int = ...,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def diagonal_copy(
    input: _Tensor,
    offset: builtins.int = ...,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def diagonal_scatter(
    input: _Tensor,
    src: _Tensor,
    offset: builtins.int = ...,
    dim1: builtins.int = ...,
    dim2: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def diff(
    input: _Tensor,
    n: builtins.int = ...,
    dim: builtins.int = ...,
    prepend: _Tensor | None = ...,
    append: _Tensor | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def digamma(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def dist(
    input: _Tensor, other: _Tensor, p: builtins.float = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def div(
    input: _Tensor | _Number,
    other: _Tensor | _Number,
    *,
    rounding_mode: str | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def divide(
    input: _Tensor | _Number,
    other: _Tensor | _Number,
    *,
    rounding_mode: str | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def dot(input: _Tensor, tensor: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def dropout(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def dropout_(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def dsplit(
    input: _Tensor,
    indices_or_sections: _Sequence[builtins.int] | builtins.int,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def dstack(tensors: _Sequence[_Tensor], *, out: _Tensor | None = ...) -> _Tensor: ...
def einsum(*args: object, out: _Tensor | None = ...) -> _Tensor: ...
def embedding(
    weight: _Tensor,
    indices: _Tensor,
    padding_idx: builtins.int = ...,
    scale_grad_by_freq: builtins.bool = ...,
    sparse: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def empty(
    *args: object,
    size: _Sequence[builtins.int] | None = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def empty_like(
    input: _Tensor,
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def empty_permuted(
    size: _Sequence[builtins.int],
    physical_layout: _Sequence[builtins.int],
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: builtins.bool = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def empty_strided(
    size: _Sequence[builtins.int],
    stride: _Sequence[builtins.int],
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: builtins.bool = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def eq(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def equal(input: _Tensor, other: _Tensor) -> builtins.bool: ...
def erf(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def erf_(input: _Tensor) -> _Tensor: ...
def erfc(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def erfc_(input: _Tensor) -> _Tensor: ...
def erfinv(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def exp(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def exp2(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def exp2_(input: _Tensor) -> _Tensor: ...
def exp_(input: _Tensor) -> _Tensor: ...
def expand_copy(
    input: _Tensor,
    *args: object,
    size: _Sequence[builtins.int] | None = ...,
    implicit: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def expm1(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def expm1_(input: _Tensor) -> _Tensor: ...
def eye(
    n: builtins.int,
    m: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def fake_quantize_per_channel_affine(
    input: _Tensor,
    scale: _Tensor,
    zero_point: _Tensor,
    axis: builtins.int,
    quant_min: builtins.int,
    quant_max: builtins.int,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def fake_quantize_per_tensor_affine(
    input: _Tensor,
    scale: _Tensor | builtins.float,
    zero_point: _Tensor | builtins.int,
    quant_min: builtins.int,
    quant_max: builtins.int,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def feature_alpha_dropout(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def feature_alpha_dropout_(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def feature_dropout_(
    input: _Tensor, p: builtins.float, train: builtins.bool, *, out: _Tensor | None = ...
) -> _Tensor: ...
def fill(input: _Tensor, value: _Any, *, out: _Tensor | None = ...) -> _Tensor: ...
def fill_(self: _Tensor, value: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def fix(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def fix_(input: _Tensor) -> _Tensor: ...
def flatten(
    input: _Tensor,
    start_dim: builtins.int = ...,
    end_dim: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def flip(
    input: _Tensor,
    *args: object,
    dims: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def fliplr(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def flipud(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def float_power(input: _Operand, exponent: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def floor(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def floor_(input: _Tensor) -> _Tensor: ...
def floor_divide(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def fmax(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def fmin(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def fmod(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def frac(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def frac_(input: _Tensor) -> _Tensor: ...
def frexp(input: _Tensor, *, out: tuple[_Tensor, ...] | None = ...) -> _Frexp: ...
def frobenius_norm(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] = ...,
    keepdim: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def from_file(
    filename: str,
    shared: builtins.bool | None = ...,
    size: builtins.int = ...,
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def from_numpy(ndarray: object, *, out: _Tensor | None = ...) -> _Tensor: ...
def frombuffer(
    buffer: _Any,
    *,
    dtype: _DType,
    count: builtins.int = ...,
    offset: builtins.int = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def full(
    size: _Sequence[builtins.int],
    fill_value: _Number,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def full_like(
    input: _Tensor,
    fill_value: _Number,
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def gather(
    input: _Tensor,
    dim: builtins.int,
    index: _Tensor,
    *,
    sparse_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def gcd(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def gcd_(input: _Tensor, other: _Tensor) -> _Tensor: ...
def ge(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def geqrf(input: _Tensor, *, out: tuple[_Tensor, ...] | None = ...) -> _Geqrf: ...
def ger(input: _Tensor, vec2: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def get_rng_state(*, out: _Tensor | None = ...) -> _Tensor: ...
def gradient(
    input: _Tensor,
    *,
    spacing: object = ...,
    dim: _Sequence[builtins.int] | builtins.int | None = ...,
    edge_order: builtins.int = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def greater(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def greater_equal(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def grid_sampler(
    input: _Tensor,
    grid: _Tensor,
    interpolation_mode: builtins.int,
    padding_mode: builtins.int,
    align_corners: builtins.bool,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def grid_sampler_2d(
    input: _Tensor,
    grid: _Tensor,
    interpolation_mode: builtins.int,
    padding_mode: builtins.int,
    align_corners: builtins.bool,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def grid_sampler_3d(
    input: _Tensor,
    grid: _Tensor,
    interpolation_mode: builtins.int,
    padding_mode: builtins.int,
    align_corners: builtins.bool,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def group_norm(
    input: _Tensor,
    num_groups: builtins.int,
    weight: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    eps: builtins.float = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def gt(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def hamming_window(
    window_length: builtins.int,
    periodic: builtins.bool = ...,
    alpha: builtins.float = ...,
    beta: builtins.float = ...,
    *,
    dtype: _DType | None = ...,
    layout: _layout | str = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def hann_window(
    window_length: builtins.int,
    periodic: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    layout: _layout | str = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def hardshrink(input: _Tensor, lambd: _Number = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def hash_tensor(
    input: _Tensor,
    dim: _Dims = ...,
    *,
    keepdim: builtins.bool = ...,
    mode: builtins.int = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def heaviside(input: _Tensor, values: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def hinge_embedding_loss(
    input: _Tensor,
    target: _Tensor,
    margin: builtins.float = ...,
    size_average: builtins.bool | None = ...,
    reduce: builtins.bool | None = ...,
    reduction: str = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def histc(
    input: _Tensor,
    bins: builtins.int = ...,
    min: builtins.float = ...,
    max: builtins.float = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def histogram(
    input: _Tensor,
    bins: _Tensor | builtins.int,
    *,
    range: object = ...,
    weight: _Tensor | None = ...,
    density: builtins.bool = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Histogram: ...
def histogramdd(
    input: _Tensor,
    bins: _Sequence[builtins.int] | _Sequence[_Tensor] | builtins.int,
    range: object = ...,
    weight: _Tensor | None = ...,
    density: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _HistogramDD: ...
def hsplit(
    input: _Tensor,
    indices_or_sections: _Sequence[builtins.int] | builtins.int,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def hstack(tensors: _Sequence[_Tensor], *, out: _Tensor | None = ...) -> _Tensor: ...
def hypot(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def i0(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def i0_(input: _Tensor) -> _Tensor: ...
def igamma(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def igammac(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def imag(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def index_add(
    input: _Tensor,
    dim: builtins.int,
    index: _Tensor,
    source: _Tensor,
    *,
    alpha: _Scalar = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def index_copy(
    input: _Tensor, dim: builtins.int, index: _Tensor, source: _Tensor, *, out: _Tensor | None = ...
) -> _Tensor: ...
def index_fill(
    input: _Tensor,
    dim: builtins.int,
    index: _Tensor,
    value: _Number | _Tensor,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def index_put(
    input: _Tensor,
    indices: _Sequence[_Tensor],
    values: _Tensor,
    accumulate: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def index_put_(
    input: _Tensor,
    indices: _Sequence[_Tensor],
    values: _Tensor,
    accumulate: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def index_reduce(
    input: _Tensor,
    dim: builtins.int,
    index: _Tensor,
    source: _Tensor,
    reduce: str,
    *,
    include_self: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def index_select(
    input: _Tensor, dim: builtins.int, index: _Tensor, *, out: _Tensor | None = ...
) -> _Tensor: ...
def initial_seed() -> builtins.int: ...
def inner(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def instance_norm(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor,
    running_mean: _Tensor | None,
    running_var: _Tensor | None,
    use_input_stats: builtins.bool,
    momentum: builtins.float,
    eps: builtins.float,
    cudnn_enabled: builtins.bool,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def inverse(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def is_conj(input: _Tensor) -> builtins.bool: ...
def is_neg(input: _Tensor) -> builtins.bool: ...
def is_nonzero(input: _Tensor) -> builtins.bool: ...
def is_same_size(input: _Tensor, other: _Tensor) -> builtins.bool: ...
def isclose(
    input: _Tensor,
    other: _Tensor,
    rtol: builtins.float = ...,
    atol: builtins.float = ...,
    equal_nan: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def isfinite(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def isin(
    elements: _Tensor | _Number,
    test_elements: _Tensor | _Number,
    *,
    assume_unique: builtins.bool = ...,
    invert: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def isinf(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def isnan(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def isneginf(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def isposinf(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def isreal(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def istft(
    input: _Tensor,
    n_fft: builtins.int,
    hop_length: builtins.int | None = ...,
    win_length: builtins.int | None = ...,
    window: _Tensor | None = ...,
    center: builtins.bool = ...,
    normalized: builtins.bool = ...,
    onesided: builtins.bool | None = ...,
    length: builtins.int | None = ...,
    return_complex: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def kaiser_window(
    window_length: builtins.int,
    periodic: builtins.bool = ...,
    beta: builtins.float = ...,
    *,
    dtype: _DType | None = ...,
    layout: _layout | str = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def kl_div(
    input: _Tensor,
    target: _Tensor,
    size_average: builtins.bool | None = ...,
    reduce: builtins.bool | None = ...,
    reduction: str = ...,
    log_target: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def kron(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def kthvalue(
    input: _Tensor,
    k: builtins.int,
    dim: builtins.int = ...,
    keepdim: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Kthvalue: ...
def layer_norm(
    input: _Tensor,
    normalized_shape: builtins.int | _Sequence[builtins.int],
    weight: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    eps: builtins.float = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def lcm(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def lcm_(input: _Tensor, other: _Tensor) -> _Tensor: ...
def ldexp(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def ldexp_(input: _Tensor, other: _Tensor) -> _Tensor: ...
def le(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def lerp(
    input: _Tensor, end: _Operand, weight: _Operand, *, out: _Tensor | None = ...
) -> _Tensor: ...
def less(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def less_equal(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def lgamma(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def linspace(
    start: _Number | _Tensor,
    end: _Number | _Tensor,
    steps: builtins.int,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def lobpcg(
    A: _Tensor,
    k: builtins.int | None = ...,
    B: _Tensor | None = ...,
    X: _Tensor | None = ...,
    n: builtins.int | None = ...,
    iK: _Tensor | None = ...,
    niter: builtins.int | None = ...,
    tol: builtins.float | None = ...,
    largest: builtins.bool | None = ...,
    method: str | None = ...,
    tracker: _Callable[..., object] | None = ...,
    ortho_iparams: dict[str, builtins.int] | None = ...,
    ortho_fparams: dict[str, builtins.float] | None = ...,
    ortho_bparams: dict[str, builtins.bool] | None = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
def log(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def log10(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def log10_(input: _Tensor) -> _Tensor: ...
def log1p(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def log1p_(input: _Tensor) -> _Tensor: ...
def log2(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def log2_(input: _Tensor) -> _Tensor: ...
def log_(input: _Tensor) -> _Tensor: ...
def log_softmax(
    input: _Tensor,
    dim: builtins.int | None = ...,
    dtype: _DType | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def logaddexp(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logaddexp2(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logcumsumexp(input: _Tensor, dim: builtins.int, *, out: _Tensor | None = ...) -> _Tensor: ...
def logdet(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logical_and(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logical_not(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logical_or(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logical_xor(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def logit(
    input: _Tensor, eps: builtins.float | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def logit_(input: _Tensor, eps: builtins.float | None = ...) -> _Tensor: ...
def logspace(
    start: _Number | _Tensor,
    end: _Number | _Tensor,
    steps: builtins.int,
    base: builtins.float = ...,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def logsumexp(
    input: _Tensor, dim: _Dims, keepdim: builtins.bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def lt(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def lu(
    input: _Tensor,
    pivot: builtins.bool = ...,
    get_infos: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def lu_solve(
    input: _Tensor, LU_data: _Tensor, LU_pivots: _Tensor, *, out: _Tensor | None = ...
) -> _Tensor: ...
def lu_unpack(
    LU_data: _Tensor,
    LU_pivots: _Tensor,
    unpack_data: builtins.bool = ...,
    unpack_pivots: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _LUUnpack: ...
def manual_seed(seed: builtins.int, *, out: tuple[_Tensor, ...] | None = ...) -> _Generator: ...
def margin_ranking_loss(
    input1: _Tensor,
    input2: _Tensor,
    target: _Tensor,
    margin: builtins.float = ...,
    size_average: builtins.bool | None = ...,
    reduce: builtins.bool | None = ...,
    reduction: str = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def masked_fill(
    input: _Tensor, mask: _Tensor, value: _Any, *, out: _Tensor | None = ...
) -> _Tensor: ...
def masked_scatter(
    input: _Tensor, mask: _Tensor, source: _Tensor, *, out: _Tensor | None = ...
) -> _Tensor: ...
def masked_select(input: _Tensor, mask: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def matmul(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def matrix_exp(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def matrix_power(input: _Tensor, n: builtins.int, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def max(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def max(
    input: _Tensor,
    dim: builtins.int,
    keepdim: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Max: ...
@_overload
def max(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def max_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    return_indices: _Literal[False] = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def max_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    *,
    return_indices: _Literal[True],
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    return_indices: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    return_indices: _Literal[False] = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def max_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    *,
    return_indices: _Literal[True],
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    return_indices: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    return_indices: _Literal[False] = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def max_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    *,
    return_indices: _Literal[True],
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: builtins.bool = ...,
    return_indices: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def maximum(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def mean(
    input: _Tensor,
    dim: _Dims = ...,
    keepdim: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def median(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def median(
    input: _Tensor,
    dim: builtins.int,
    keepdim: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Median: ...
def meshgrid(
    *tensors: _Any, indexing: str | None = ..., out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
@_overload
def min(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def min(
    input: _Tensor,
    dim: builtins.int,
    keepdim: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Min: ...
@_overload
def min(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def minimum(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def mm(input: _Tensor, mat2: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def mode(
    input: _Tensor,
    dim: builtins.int = ...,
    keepdim: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Mode: ...
def moveaxis(
    input: _Tensor,
    source: builtins.int | _Sequence[builtins.int],
    destination: builtins.int | _Sequence[builtins.int],
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def movedim(
    input: _Tensor,
    source: builtins.int | _Sequence[builtins.int],
    destination: builtins.int | _Sequence[builtins.int],
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def msort(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def mul(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def multinomial(
    input: _Tensor,
    num_samples: builtins.int,
    replacement: builtins.bool = ...,
    *,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def multiply(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def mv(input: _Tensor, vec: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def mvlgamma(input: _Tensor, p: builtins.int, *, out: _Tensor | None = ...) -> _Tensor: ...
def nan_to_num(
    input: _Tensor,
    nan: builtins.float | None = ...,
    posinf: builtins.float | None = ...,
    neginf: builtins.float | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def nan_to_num_(
    input: _Tensor,
    nan: builtins.float | None = ...,
    posinf: builtins.float | None = ...,
    neginf: builtins.float | None = ...,
) -> _Tensor: ...
def nanmean(
    input: _Tensor,
    dim: _Dims = ...,
    keepdim: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def nanmedian(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def nanmedian(
    input: _Tensor,
    dim: builtins.int,
    keepdim: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Nanmedian: ...
def nanquantile(
    input: _Tensor,
    q: builtins.float | _Tensor,
    dim: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
    *,
    interpolation: str = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def nansum(
    input: _Tensor,
    dim: _Dims = ...,
    keepdim: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def narrow(
    input: _Tensor,
    dim: builtins.int,
    start: builtins.int | _Tensor,
    length: builtins.int,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def narrow_copy(
    input: _Tensor,
    dim: builtins.int,
    start: builtins.int | _Tensor,
    length: builtins.int,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def native_batch_norm(
    input: _Tensor,
    weight: _Tensor | None,
    bias: _Tensor | None,
    running_mean: _Tensor | None,
    running_var: _Tensor | None,
    training: builtins.bool,
    momentum: builtins.float,
    eps: builtins.float,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
def native_channel_shuffle(
    input: _Tensor, groups: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def native_group_norm(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor,
    N: builtins.int,
    C: builtins.int,
    HxW: builtins.int,
    group: builtins.int,
    eps: builtins.float,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
def native_layer_norm(
    input: _Tensor,
    normalized_shape: _Sequence[builtins.int],
    weight: _Tensor | None,
    bias: _Tensor | None,
    eps: builtins.float,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
def ne(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def neg(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def neg_(input: _Tensor) -> _Tensor: ...
def negative(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def negative_(input: _Tensor) -> _Tensor: ...
def nextafter(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def nonzero(
    input: _Tensor, *, as_tuple: _Literal[False] = ..., out: _Tensor | None = ...
) -> _Tensor: ...
@_overload
def nonzero(
    input: _Tensor, *, as_tuple: _Literal[True], out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
def nonzero_static(
    input: _Tensor, *, size: builtins.int, fill_value: builtins.int = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def norm(
    input: _Tensor,
    p: builtins.float | str | None = ...,
    dim: _Dims = ...,
    keepdim: builtins.bool = ...,
    dtype: _DType | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def normal(
    mean: builtins.float | _Tensor = ...,
    std: builtins.float | _Tensor = ...,
    size: _Sequence[builtins.int] | None = ...,
    *,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def not_equal(input: _Tensor, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def nuclear_norm(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] = ...,
    keepdim: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ones(
    *args: object,
    size: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def ones_like(
    input: _Tensor,
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def orgqr(input: _Tensor, input2: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def ormqr(
    input: _Tensor,
    input2: _Tensor,
    input3: _Tensor,
    left: builtins.bool = ...,
    transpose: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def outer(input: _Tensor, vec2: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def pairwise_distance(
    x1: _Tensor,
    x2: _Tensor,
    p: builtins.float = ...,
    eps: builtins.float = ...,
    keepdim: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def pca_lowrank(
    A: _Tensor,
    q: builtins.int | None = ...,
    center: builtins.bool = ...,
    niter: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
def pdist(input: _Tensor, p: builtins.float = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def permute(
    input: _Tensor,
    *args: object,
    dims: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def permute_copy(
    input: _Tensor,
    *args: object,
    dims: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def pinverse(
    input: _Tensor, rcond: builtins.float = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def pixel_shuffle(
    input: _Tensor, upscale_factor: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def pixel_unshuffle(
    input: _Tensor, downscale_factor: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def poisson(
    input: _Tensor, generator: _Generator | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def poisson_nll_loss(
    input: _Tensor,
    target: _Tensor,
    log_input: builtins.bool = ...,
    full: builtins.bool = ...,
    size_average: builtins.bool | None = ...,
    eps: builtins.float = ...,
    reduce: builtins.bool | None = ...,
    reduction: str = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def polar(abs: _Tensor, angle: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def polygamma(n: builtins.int, input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def positive(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def pow(input: _Operand, exponent: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def prelu(input: _Tensor, weight: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def prod(
    input: _Tensor,
    dim: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def put(
    input: _Tensor,
    index: _Tensor,
    source: _Tensor,
    accumulate: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def qr(
    input: _Tensor, some: builtins.bool = ..., *, out: tuple[_Tensor, ...] | None = ...
) -> _OldQR: ...
def quantile(
    input: _Tensor,
    q: builtins.float | _Tensor,
    dim: builtins.int | None = ...,
    keepdim: builtins.bool = ...,
    *,
    interpolation: str = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rad2deg(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def rad2deg_(input: _Tensor) -> _Tensor: ...
def rand(
    *args: object,
    size: _Sequence[builtins.int] | None = ...,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def rand_like(
    input: _Tensor,
    *,
    generator: _Generator | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def randint(
    *args: _Any,
    low: builtins.int | None = ...,
    high: builtins.int | None = ...,
    size: _Sequence[builtins.int] | None = ...,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: builtins.bool = ...,
    pin_memory: builtins.bool = ...,
) -> _Tensor: ...
def randint_like(
    input: _Tensor,
    low: builtins.int,
    high: builtins.int | None = ...,
    *,
    generator: _Generator | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def randn(
    *args: object,
    size: _Sequence[builtins.int] | None = ...,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def randn_like(
    input: _Tensor,
    *,
    generator: _Generator | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def randperm(
    n: builtins.int,
    *,
    generator: _Generator | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: builtins.bool = ...,
    pin_memory: builtins.bool = ...,
) -> _Tensor: ...
def range(
    start: object = ...,
    end: _Any = ...,
    step: _Any = ...,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def ravel(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def real(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def reciprocal(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def reciprocal_(input: _Tensor) -> _Tensor: ...
def relu(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def relu_(input: _Tensor) -> _Tensor: ...
def remainder(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def renorm(
    input: _Tensor,
    p: builtins.float,
    dim: builtins.int,
    maxnorm: builtins.float,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def repeat_interleave(
    input: _Tensor,
    repeats: builtins.int | _Tensor | None = ...,
    dim: builtins.int | None = ...,
    *,
    output_size: builtins.int | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def reshape(
    input: _Tensor,
    *args: object,
    shape: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def resize_as_(
    input: _Tensor,
    the_template: _Any,
    *,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def resolve_conj(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def resolve_neg(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def rms_norm(
    input: _Tensor,
    normalized_shape: builtins.int | _Sequence[builtins.int],
    weight: _Tensor | None = ...,
    eps: builtins.float | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def roll(
    input: _Tensor,
    shifts: builtins.int | _Sequence[builtins.int],
    dims: builtins.int | _Sequence[builtins.int] | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rot90(
    input: _Tensor,
    k: builtins.int = ...,
    dims: _Sequence[builtins.int] = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def round(
    input: _Tensor, *, decimals: builtins.int | None = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def round_(input: _Tensor, *, decimals: builtins.int | None = ...) -> _Tensor: ...
def row_stack(tensors: _Sequence[_Tensor], *, out: _Tensor | None = ...) -> _Tensor: ...
def rrelu(
    input: _Tensor,
    lower: builtins.float = ...,
    upper: builtins.float = ...,
    training: builtins.bool = ...,
    inplace: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rrelu_(
    input: _Tensor,
    lower: builtins.float = ...,
    upper: builtins.float = ...,
    training: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rsqrt(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def rsqrt_(input: _Tensor) -> _Tensor: ...
def rsub(
    input: _Tensor, other: _Operand, *, alpha: _Scalar = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def scalar_tensor(
    s: _Number,
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: builtins.bool = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def scatter(
    input: _Tensor,
    dim: builtins.int,
    index: _Tensor,
    src: object = ...,
    *,
    value: _Number | None = ...,
    reduce: str | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def scatter_add(
    input: _Tensor, dim: builtins.int, index: _Tensor, src: _Tensor, *, out: _Tensor | None = ...
) -> _Tensor: ...
def scatter_reduce(
    input: _Tensor,
    dim: builtins.int,
    index: _Tensor,
    src: _Tensor,
    reduce: str,
    *,
    include_self: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def searchsorted(
    sorted_sequence: _Tensor,
    input: _Tensor,
    *,
    out_int32: builtins.bool = ...,
    right: builtins.bool = ...,
    side: str | None = ...,
    sorter: _Tensor | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def seed() -> builtins.int: ...
def segment_reduce(
    data: _Tensor,
    reduce: str,
    *,
    lengths: _Tensor | None = ...,
    indices: _Tensor | None = ...,
    offsets: _Tensor | None = ...,
    axis: builtins.int = ...,
    unsafe: builtins.bool = ...,
    initial: _Number | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def select(
    input: _Tensor, dim: builtins.int, index: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def select_copy(
    input: _Tensor, dim: builtins.int, index: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def select_scatter(
    input: _Tensor,
    src: _Tensor,
    dim: builtins.int,
    index: builtins.int,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def selu(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def selu_(input: _Tensor) -> _Tensor: ...
def set_rng_state(new_state: _Tensor) -> None: ...
def sgn(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sigmoid(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sigmoid_(input: _Tensor) -> _Tensor: ...
def sign(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def signbit(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sin(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sin_(input: _Tensor) -> _Tensor: ...
def sinc(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sinc_(input: _Tensor) -> _Tensor: ...
def sinh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sinh_(input: _Tensor) -> _Tensor: ...
def slice_copy(
    input: _Tensor,
    dim: builtins.int = ...,
    start: builtins.int | None = ...,
    end: builtins.int | None = ...,
    step: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def slice_inverse(
    input: _Tensor,
    src: _Tensor,
    dim: builtins.int = ...,
    start: builtins.int | None = ...,
    end: builtins.int | None = ...,
    step: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def slice_scatter(
    input: _Tensor,
    src: _Tensor,
    dim: builtins.int = ...,
    start: builtins.int | None = ...,
    end: builtins.int | None = ...,
    step: builtins.int = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def slogdet(input: _Tensor, *, out: tuple[_Tensor, ...] | None = ...) -> _OldSlogdet: ...
def softmax(
    input: _Tensor,
    dim: builtins.int | None = ...,
    dtype: _DType | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def sort(
    input: _Tensor,
    dim: builtins.int = ...,
    descending: builtins.bool = ...,
    stable: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Sort: ...
def split(
    input: _Tensor,
    split_size_or_sections: builtins.int | _Sequence[builtins.int],
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def split_copy(
    input: _Tensor,
    split_size_or_sections: builtins.int | _Sequence[builtins.int],
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def split_with_sizes(
    input: _Tensor,
    split_sizes: _Sequence[builtins.int],
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def split_with_sizes_copy(
    input: _Tensor,
    split_sizes: _Sequence[builtins.int],
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def sqrt(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def sqrt_(input: _Tensor) -> _Tensor: ...
def square(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def square_(input: _Tensor) -> _Tensor: ...
def squeeze(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def squeeze_copy(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def stack(
    tensors: _Sequence[_Tensor], dim: builtins.int = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def std(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] | builtins.bool | None = ...,
    unbiased: builtins.bool | None = ...,
    keepdim: builtins.bool = ...,
    *,
    correction: builtins.float | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def std_mean(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] | builtins.bool | None = ...,
    unbiased: builtins.bool | None = ...,
    keepdim: builtins.bool = ...,
    *,
    correction: builtins.float | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
def stft(
    input: _Tensor,
    n_fft: builtins.int,
    hop_length: builtins.int | None = ...,
    win_length: builtins.int | None = ...,
    window: _Tensor | None = ...,
    center: builtins.bool = ...,
    pad_mode: str = ...,
    normalized: builtins.bool = ...,
    onesided: builtins.bool | None = ...,
    return_complex: builtins.bool | None = ...,
    align_to_window: builtins.bool | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def sub(
    input: _Operand, other: _Operand, *, alpha: _Scalar = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def subtract(
    input: _Tensor, other: _Operand, *, alpha: _Scalar = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def sum(
    input: _Tensor,
    dim: _Dims = ...,
    keepdim: builtins.bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def svd(
    input: _Tensor,
    some: builtins.bool = ...,
    compute_uv: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _OldSVD: ...
def svd_lowrank(
    A: _Tensor,
    q: builtins.int | None = ...,
    niter: builtins.int = ...,
    M: _Tensor | None = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
def swapaxes(
    input: _Tensor, axis0: builtins.int, axis1: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def swapdims(
    input: _Tensor, dim0: builtins.int, dim1: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def t(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def t_copy(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def take(input: _Tensor, index: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def take_along_dim(
    input: _Tensor, indices: _Tensor, dim: builtins.int | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def tan(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def tan_(input: _Tensor) -> _Tensor: ...
def tanh(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def tanh_(input: _Tensor) -> _Tensor: ...
def tensor(
    data: object,
    *,
    dtype: _DType | None = ...,
    device: _DeviceLike = ...,
    requires_grad: builtins.bool = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def tensor_split(
    input: _Tensor,
    indices_or_sections: _Any = ...,
    dim: builtins.int = ...,
    *,
    indices: _Sequence[builtins.int] | None = ...,
    sections: builtins.int | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def tensordot(
    a: _Tensor, b: _Tensor, dims: _Any = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def threshold(
    input: _Tensor, threshold: _Number, value: _Number, *, out: _Tensor | None = ...
) -> _Tensor: ...
def threshold_(input: _Tensor, threshold: _Number, value: _Number) -> _Tensor: ...
def tile(
    input: _Tensor,
    *args: object,
    dims: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def topk(
    input: _Tensor,
    k: builtins.int,
    dim: builtins.int = ...,
    largest: builtins.bool = ...,
    sorted: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Topk: ...
def trace(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def transpose(
    input: _Tensor, dim0: builtins.int, dim1: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def transpose_copy(
    input: _Tensor, dim0: builtins.int, dim1: builtins.int, *, out: _Tensor | None = ...
) -> _Tensor: ...
def trapezoid(
    y: _Tensor,
    x: _Tensor | None = ...,
    *,
    dx: builtins.float = ...,
    dim: builtins.int = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def trapz(
    y: _Tensor,
    x: _Tensor | None = ...,
    *,
    dx: builtins.float = ...,
    dim: builtins.int = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def triangular_solve(
    input: _Tensor,
    A: _Tensor,
    upper: builtins.bool = ...,
    transpose: builtins.bool = ...,
    unitriangular: builtins.bool = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _TriangularSolve: ...
def tril(input: _Tensor, diagonal: builtins.int = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def tril_indices(
    row: builtins.int,
    col: builtins.int,
    offset: builtins.int = ...,
    *,
    dtype: _DType | None = ...,
    device: _DeviceLike = ...,
    layout: _layout | None = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def triplet_margin_loss(
    anchor: _Tensor,
    positive: _Tensor,
    negative: _Tensor,
    margin: builtins.float = ...,
    p: builtins.float = ...,
    eps: builtins.float = ...,
    swap: builtins.bool = ...,
    size_average: builtins.bool | None = ...,
    reduce: builtins.bool | None = ...,
    reduction: str = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def triu(input: _Tensor, diagonal: builtins.int = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def triu_indices(
    row: builtins.int,
    col: builtins.int,
    offset: builtins.int = ...,
    *,
    dtype: _DType | None = ...,
    device: _DeviceLike = ...,
    layout: _layout | None = ...,
    pin_memory: builtins.bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def true_divide(
    input: _Tensor | _Number, other: _Tensor, *, out: _Tensor | None = ...
) -> _Tensor: ...
def trunc(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def trunc_(input: _Tensor) -> _Tensor: ...
def unbind(
    input: _Tensor, dim: builtins.int = ..., *, out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
def unbind_copy(
    input: _Tensor, dim: builtins.int = ..., *, out: tuple[_Tensor, ...] | None = ...
) -> tuple[_Tensor, ...]: ...
def unflatten(
    input: _Tensor, dim: builtins.int, sizes: _Sequence[builtins.int], *, out: _Tensor | None = ...
) -> _Tensor: ...
def unfold_copy(
    input: _Tensor,
    dimension: builtins.int,
    size: builtins.int,
    step: builtins.int,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def unique(
    input: _Tensor,
    sorted: builtins.bool = ...,
    return_inverse: _Literal[False] = ...,
    return_counts: _Literal[False] = ...,
    dim: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def unique(
    input: _Tensor,
    sorted: builtins.bool = ...,
    *,
    return_inverse: _Literal[True],
    return_counts: builtins.bool = ...,
    dim: builtins.int | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
@_overload
def unique(
    input: _Tensor,
    sorted: builtins.bool = ...,
    *,
    return_inverse: builtins.bool = ...,
    return_counts: _Literal[True],
    dim: builtins.int | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
@_overload
def unique(
    input: _Tensor,
    sorted: builtins.bool = ...,
    return_inverse: builtins.bool = ...,
    return_counts: builtins.bool = ...,
    dim: builtins.int | None = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Tensor | tuple[_Tensor, ...]: ...
@_overload
def unique_consecutive(
    input: _Tensor,
    return_inverse: _Literal[False] = ...,
    return_counts: _Literal[False] = ...,
    dim: builtins.int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
@_overload
def unique_consecutive(
    input: _Tensor,
    *,
    return_inverse: _Literal[True],
    return_counts: builtins.bool = ...,
    dim: builtins.int | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
@_overload
def unique_consecutive(
    input: _Tensor,
    *,
    return_inverse: builtins.bool = ...,
    return_counts: _Literal[True],
    dim: builtins.int | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
@_overload
def unique_consecutive(
    input: _Tensor,
    return_inverse: builtins.bool = ...,
    return_counts: builtins.bool = ...,
    dim: builtins.int | None = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Tensor | tuple[_Tensor, ...]: ...
def unravel_index(
    indices: _Tensor,
    shape: _Sequence[builtins.int] | builtins.int,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def unsafe_chunk(
    input: _Tensor,
    chunks: builtins.int,
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def unsafe_split(
    input: _Tensor,
    split_size: builtins.int,
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def unsafe_split_with_sizes(
    input: _Tensor,
    split_sizes: _Sequence[builtins.int],
    dim: builtins.int = ...,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def unsqueeze(input: _Tensor, dim: builtins.int, *, out: _Tensor | None = ...) -> _Tensor: ...
def unsqueeze_copy(input: _Tensor, dim: builtins.int, *, out: _Tensor | None = ...) -> _Tensor: ...
def vander(
    x: _Tensor,
    N: builtins.int | None = ...,
    increasing: builtins.bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def var(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] | builtins.bool | None = ...,
    unbiased: builtins.bool | None = ...,
    keepdim: builtins.bool = ...,
    *,
    correction: builtins.float | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def var_mean(
    input: _Tensor,
    dim: builtins.int | _Sequence[builtins.int] | builtins.bool | None = ...,
    unbiased: builtins.bool | None = ...,
    keepdim: builtins.bool = ...,
    *,
    correction: builtins.float | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
def vdot(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def view_as_complex(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def view_as_complex_copy(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def view_as_real(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def view_as_real_copy(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def view_copy(
    input: _Tensor,
    *args: _Any,
    size: _Sequence[builtins.int] | None = ...,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def vsplit(
    input: _Tensor,
    indices_or_sections: _Sequence[builtins.int] | builtins.int,
    *,
    out: tuple[_Tensor, ...] | None = ...,
) -> tuple[_Tensor, ...]: ...
def vstack(tensors: _Sequence[_Tensor], *, out: _Tensor | None = ...) -> _Tensor: ...
@_overload
def where(condition: _Tensor, *, out: tuple[_Tensor, ...] | None = ...) -> tuple[_Tensor, ...]: ...
@_overload
def where(
    condition: _Tensor, input: _Operand, other: _Operand, *, out: _Tensor | None = ...
) -> _Tensor: ...
def xlogy(input: _Operand, other: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def xlogy_(input: _Tensor, other: _Operand) -> _Tensor: ...
def zero_(self: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def zeros(
    *args: object,
    size: _Sequence[builtins.int] | None = ...,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
) -> _Tensor: ...
def zeros_like(
    input: _Tensor,
    *,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    pin_memory: builtins.bool = ...,
    requires_grad: builtins.bool = ...,
    memory_format: _memory_format | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
