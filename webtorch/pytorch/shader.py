"""`torch.webgpu.compile_shader`: shaders of the user's own on PyTorch tensors. Floor 6; imports PyTorch, the engine."""

from __future__ import annotations

import torch

from webtorch.errors import DeviceError
from webtorch.pytorch.device import on_device, runtime, store, wrap
from webtorch.tensors.tensor import Tensor
from webtorch.webgpu.shader import Casts, ShaderKernel, ShaderLibrary, Sizes
from webtorch_autoload.device import hide


def compile_shader(source: str) -> ShaderLibrary:
    """Compile a shader written in WGSL: see `webtorch.webgpu.compile_shader`."""
    return ShaderLibrary(source, runtime(), Kernel)


class Kernel(ShaderKernel):
    """One entry point of a shader, for PyTorch tensors on the device."""

    @hide
    def __call__(
        self,
        *args: object,
        threads: Sizes | None = None,
        group_size: Sizes | None = None,
        arg_casts: Casts | None = None,
    ) -> None:
        """Run on the device, after all that is pending: see `ShaderKernel`."""
        super().__call__(*args, threads=threads, group_size=group_size, arg_casts=arg_casts)

    def _tensor(self, x: object) -> Tensor | None:
        if not isinstance(x, torch.Tensor):
            return None
        name = self._entry.name
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise RuntimeError(
                f"{name}: a shader has no rule for torch.func's transforms: call it outside"
            )
        if not on_device(x):
            raise DeviceError(
                f"{name}: a shader runs on the device 'webgpu', and a tensor is on '{x.device}': move it, as in "
                "x.to('webgpu')"
            )
        return wrap(x)

    def _check_written(self, x: torch.Tensor) -> None:
        if not torch.is_grad_enabled() or not x.requires_grad:
            return
        if x.is_leaf:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
        raise RuntimeError(self._no_gradient())

    def _wrote(self, x: torch.Tensor, result: Tensor, direct: bool) -> None:
        if not direct:
            store(x, self._result(result, x.is_complex()), fresh=True)
        torch.autograd.graph.increment_version(x)
