"""Spectral norm by a hook before forward: PyTorch's older form. May import nn's base files."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter, is_lazy
from webtorch.tensors.tensor import Tensor

__all__ = ["remove_spectral_norm", "spectral_norm"]

# Their weights have the outputs in dimension 1.
_TRANSPOSED = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)


class SpectralNorm:
    """The hook: puts the weight divided by its largest singular value in place. Miyato et al., 2018."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.name = name
        self.n_power_iterations = n_power_iterations
        self.dim = dim
        self.eps = eps

    def as_matrix(self, weight: Tensor) -> Tensor:
        """Return the weight as a matrix with `dim` in front."""
        return weight.movedim(self.dim, 0).flatten(1)

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """Return the weight of now; in training, better the vectors first."""
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = self.as_matrix(weight)
        if do_power_iteration:
            with webtorch.no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(webtorch.mv(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(webtorch.mv(matrix, v), dim=0, eps=self.eps))
        # Copies: a second forward pass overwrites the vectors before the first one's backward.
        u, v = u.clone(), v.clone()
        return weight / webtorch.dot(u, webtorch.mv(matrix, v))

    def __call__(self, module: Module, inputs: object) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide `module.name`, which becomes name_orig, by its largest singular value."""
    if dim is None:
        dim = 1 if isinstance(module, _TRANSPOSED) else 0
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            raise RuntimeError(
                f"Cannot register two spectral_norm hooks on the same parameter {name}"
            )
    made = SpectralNorm(name, n_power_iterations, dim, eps)
    weight = module._parameters[name]
    if weight is None:
        raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
    if is_lazy(weight):
        raise ValueError(
            "The module passed to `SpectralNorm` can't have uninitialized parameters. Make sure to run the dummy "
            "forward before applying spectral normalization"
        )
    matrix = made.as_matrix(weight.detach())
    del module._parameters[name]
    module.register_parameter(f"{name}_orig", weight)
    # A plain attribute until the first call: a buffer would be in the state dict.
    setattr(module, name, weight.detach())
    for suffix, size in zip(("_u", "_v"), matrix.shape, strict=True):
        start = webtorch.randn(size, dtype=matrix.dtype, device=matrix.device)
        module.register_buffer(name + suffix, F.normalize(start, dim=0, eps=eps))
    module.register_forward_pre_hook(made)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight a plain parameter again, with its value of now."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            with webtorch.no_grad():
                weight = hook.compute_weight(module, do_power_iteration=False)
            delattr(module, name)
            for suffix in ("_u", "_v", "_orig"):
                delattr(module, name + suffix)
            module.register_parameter(name, Parameter(weight.detach()))
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"spectral_norm of '{name}' not found in {module}")
