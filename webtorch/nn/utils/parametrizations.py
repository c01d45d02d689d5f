"""Weight norm, spectral norm and orthogonal matrices as parametrizations. May import nn's base files."""

from __future__ import annotations

from webtorch import linalg
from webtorch.functions import public as webtorch
from webtorch.functions.norm import norm_except_dim, weight_normalized
from webtorch.nn import functional as F
from webtorch.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from webtorch.nn.module import Module
from webtorch.nn.utils import parametrize
from webtorch.tensors.tensor import Tensor

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

# Their weights have the outputs in dimension 1.
_TRANSPOSED = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)


class _WeightNorm(Module):
    """g * v / |v|, with one norm for each slice along `dim`. Salimans and Kingma, 2016."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """Return the weight: its direction with the length."""
        return weight_normalized(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight's length, over all dims but `dim`, and the weight as direction."""
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Compute `module.name` as its length, `original0`, times its direction, `original1`."""
    parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(
        state_dict: dict[str, object], prefix: str, local_metadata: object, strict: object,
        missing_keys: object, unexpected_keys: object, error_msgs: object,
    ) -> None:  # fmt: skip
        """Give entries of the older `torch.nn.utils.weight_norm` their new names."""
        # Checkpoints of the older torch.nn.utils.weight_norm.
        old = f"{prefix}{name}_g", f"{prefix}{name}_v"
        if all(key in state_dict for key in old):
            for position, key in enumerate(old):
                new = f"{prefix}parametrizations.{name}.original{position}"
                state_dict[new] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, found by power iteration. Miyato et al., 2018."""

    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        ndim = weight.dim()
        if not -ndim <= dim < ndim:
            raise IndexError(
                "Dimension out of range (expected to be in range of "
                f"[-{ndim}, {ndim - 1}] but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.dim = dim if dim >= 0 else dim + ndim
        self.eps = eps
        if ndim > 1:
            self.n_power_iterations = n_power_iterations
            matrix = self._as_matrix(weight.detach())
            for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                start = webtorch.randn(size, dtype=matrix.dtype, device=matrix.device)
                self.register_buffer(name, F.normalize(start, dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _as_matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.dim, 0).flatten(1)

    @webtorch.no_grad()
    def _iterate(self, matrix: Tensor, count: int) -> None:
        for _ in range(count):
            self._u.copy_(F.normalize(webtorch.mv(matrix, self._v), dim=0, eps=self.eps))
            self._v.copy_(F.normalize(webtorch.mv(matrix.mH, self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight over its largest singular value; a step of power iteration in training mode."""
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._as_matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        # Copies: a second forward pass overwrites the vectors before the first one's backward.
        u, v = self._u.clone(), self._v.clone()
        return weight / webtorch.vdot(u, webtorch.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the value: dividing by the norm has no other inverse."""
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide `module.name` by its largest singular value, as a matrix with `dim` in front."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if isinstance(module, _TRANSPOSED) else 0
    norm = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return parametrize.register_parametrization(module, name, norm)


_MAPS = ("matrix_exp", "cayley", "householder")


def _orthogonalized(matrix: Tensor) -> Tensor:
    """Return the orthogonal factor whose triangular one has a positive diagonal."""
    q, r = linalg.qr(matrix)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    signs = webtorch.where(diagonal == 0, 1.0, diagonal.sgn())
    return q * signs.unsqueeze(-2)


def _is_orthogonal(matrix: Tensor) -> bool:
    """Return whether the columns are orthonormal within a few units of the last place."""
    columns = matrix.shape[-1]
    eye = webtorch.eye(columns, dtype=matrix.dtype, device=matrix.device)
    eps = 10 * matrix.shape[-2] * webtorch.finfo(matrix.dtype).eps
    return bool(((matrix.mH @ matrix - eye).abs() <= eps).all())


class _Orthogonal(Module):
    """A matrix with orthonormal columns (or rows): a map of a free matrix, times a fixed `base`.

    Lezcano Casado, 2019.
    """

    base: Tensor

    def __init__(
        self, weight: Tensor, orthogonal_map: str, *, use_trivialization: bool = True
    ) -> None:
        super().__init__()
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the matrix with orthonormal columns (rows, if it is wide) that x stands for."""
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            a = x.tril(-1)
            tau = 2.0 / (1.0 + (a * a).sum(-2))
            q = linalg.householder_product(a, tau)
            # The diagonal is made of signs, and has no gradient.
            q = q * x.detach().diagonal(dim1=-2, dim2=-1).trunc().unsqueeze(-2)
        else:
            lower = F.pad(x.tril(), (0, n - k))
            skew = lower - lower.mH
            if self.orthogonal_map == "matrix_exp":
                q = linalg.matrix_exp(skew)
            else:
                eye = webtorch.eye(n, dtype=x.dtype, device=x.device)
                q = linalg.solve(eye - skew * 0.5, eye + skew * 0.5)
            q = q[..., :k]
        if hasattr(self, "base"):
            q = self.base @ q
        return q.mT if wide else q

    @webtorch.no_grad()
    def right_inverse(self, value: Tensor) -> Tensor:
        """Return what stands for a matrix, made orthogonal first if it is not.

        Raises ValueError for another shape, NotImplementedError without a base that the map starts from.
        """
        if tuple(value.shape) != tuple(self.shape):
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of "
                f"shape {value.shape}."
            )
        wide = value.shape[-2] < value.shape[-1]
        q = value.mT if wide else value
        n, k = q.shape[-2:]
        if not hasattr(self, "base"):
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                    "use_trivialization=False. Leave that option out, or use 'householder'."
                )
            a, tau = webtorch.geqrf(q)
            # LAPACK gives a factor of exactly zero where it leaves a reflection out.
            diagonal = a.diagonal(dim1=-2, dim2=-1)
            diagonal.copy_(diagonal.sign() * webtorch.where(tau == 0, -1.0, 1.0))
            return a.mT if wide else a
        if n != k:
            more = webtorch.randn((*q.shape[:-2], n, n - k), dtype=q.dtype, device=q.device)
            q = _orthogonalized(webtorch.cat([q, more], -1))
        else:
            q = q.clone() if _is_orthogonal(q) else _orthogonalized(q)
        self.base = q
        # Minus one: with the signs of the diagonal the Householder map gives the unit matrix.
        eye = webtorch.eye(value.shape[-2], value.shape[-1], dtype=value.dtype, device=value.device)
        return -eye.expand(tuple(value.shape)).clone()


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Keep `module.name` orthogonal: orthonormal columns, or rows where there are more of those.

    `orthogonal_map` is "matrix_exp" (for square matrices), "cayley" or "householder".
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.dim() < 2:
        raise ValueError(
            f"Expected a matrix or batch of matrices. Got a tensor of {weight.dim()} dimensions."
        )
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square or weight.is_complex() else "householder"
    if orthogonal_map not in _MAPS:
        raise ValueError(
            'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". '
            f"Got: {orthogonal_map}"
        )
    if weight.is_complex() and orthogonal_map == "householder":
        raise ValueError(
            "The householder parametrization does not support complex tensors. Pass orthogonal_map='cayley'."
        )
    made = _Orthogonal(weight, orthogonal_map, use_trivialization=use_trivialization)
    return parametrize.register_parametrization(module, name, made, unsafe=True)
