"""torch._C._autograd and torch._C._functions: what programs name of autograd's C++ core."""

from __future__ import annotations

from webtorch.tensors.modes import mode
from webtorch.tensors.tape import AccumulateGrad as AccumulateGrad
from webtorch.tensors.tape import SavedTensor as SavedTensor


def _saved_tensors_hooks_is_enabled() -> bool:
    """Whether hooks of saved tensors may be used now."""
    return mode.hooks_disabled is None
