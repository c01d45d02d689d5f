"""Weight norm by a hook before forward: PyTorch's older form. May import nn's base files."""

from __future__ import annotations

import warnings
from typing import Any

from webtorch.functions.norm import norm_except_dim, weight_normalized
from webtorch.ir.lines import user_depth
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter, is_lazy

__all__ = ["remove_weight_norm", "weight_norm"]


class WeightNorm:
    """The hook: puts g * v / |v| in place of the weight."""

    def __init__(self, name: str, dim: int) -> None:
        self.name = name
        self.dim = dim

    def compute_weight(self, module: Module) -> Any:
        """Return the weight of now."""
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return weight_normalized(v, g, self.dim)

    def __call__(self, module: Module, inputs: object) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Split `module.name` into its length, name_g, and its direction, name_v."""
    warnings.warn(
        "`torch.nn.utils.weight_norm` is deprecated in favor of "
        "`torch.nn.utils.parametrizations.weight_norm`.",
        FutureWarning,
        stacklevel=user_depth(),
    )
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == name:
            raise RuntimeError(
                f"Cannot register two weight_norm hooks on the same parameter {name}"
            )
    made = WeightNorm(name, -1 if dim is None else dim)
    weight = getattr(module, name)
    if is_lazy(weight):
        raise ValueError(
            "The module passed to `WeightNorm` can't have uninitialized parameters. Make sure to run the dummy "
            "forward before applying weight normalization"
        )
    del module._parameters[name]
    length = norm_except_dim(weight.detach(), made.dim)
    module.register_parameter(f"{name}_g", Parameter(length))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, made.compute_weight(module))
    module.register_forward_pre_hook(made)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight a plain parameter again, with its value of now."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, WeightNorm) and hook.name == name:
            weight = hook.compute_weight(module).detach()
            delattr(module, name)
            del module._parameters[f"{name}_g"]
            del module._parameters[f"{name}_v"]
            setattr(module, name, Parameter(weight))
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")
