"""torch.fft's names. Written by tools/stubs.py from the op table; not edited by hand."""

from collections.abc import Sequence as _Sequence

from webtorch.ir.dtype import DType as _DType
from webtorch.tensors.device import DeviceLike as _DeviceLike
from webtorch.tensors.formats import layout as _layout
from webtorch.tensors.tensor import Tensor as _Tensor

def fft(
    input: _Tensor,
    n: int | None = ...,
    dim: int = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def fft2(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def fftfreq(
    n: int,
    d: float = ...,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: bool = ...,
) -> _Tensor: ...
def fftn(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def fftshift(
    input: _Tensor, dim: _Sequence[int] | int | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def hfft(
    input: _Tensor,
    n: int | None = ...,
    dim: int = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def hfft2(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def hfftn(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ifft(
    input: _Tensor,
    n: int | None = ...,
    dim: int = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ifft2(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ifftn(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ifftshift(
    input: _Tensor, dim: _Sequence[int] | int | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def ihfft(
    input: _Tensor,
    n: int | None = ...,
    dim: int = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ihfft2(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def ihfftn(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def irfft(
    input: _Tensor,
    n: int | None = ...,
    dim: int = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def irfft2(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def irfftn(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rfft(
    input: _Tensor,
    n: int | None = ...,
    dim: int = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rfft2(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def rfftfreq(
    n: int,
    d: float = ...,
    *,
    out: _Tensor | None = ...,
    dtype: _DType | None = ...,
    layout: _layout | None = ...,
    device: _DeviceLike = ...,
    requires_grad: bool = ...,
) -> _Tensor: ...
def rfftn(
    input: _Tensor,
    s: _Sequence[int] | int | None = ...,
    dim: _Sequence[int] | int | None = ...,
    norm: str | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
