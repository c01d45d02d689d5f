"""torch._functorch.deprecated: what `import functorch` gives, which warns and does what `webtorch.func` does."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

from webtorch.as_torch.names import functorch_parts as parts
from webtorch.ir.lines import user_depth


def get_warning(api: str, new_api: str | None = None, replace_newlines: bool = False) -> str:
    """Return what is said of a name that stands elsewhere now."""
    return (
        "We've integrated functorch into PyTorch. As the final step of the integration, "
        f"`functorch.{api}` is deprecated as of PyTorch 2.0 and will be deleted in a future version of PyTorch >= "
        f"2.3. Please use `{new_api or f'torch.func.{api}'}` instead; see the PyTorch 2.0 release notes and/or the "
        "`torch.func` migration guide for more details https://pytorch.org/docs/main/func.migrating.html"
    )


def warn_deprecated(api: str, new_api: str | None = None) -> None:
    """Warn of a name that stands elsewhere now."""
    warnings.warn(get_warning(api, new_api), FutureWarning, stacklevel=user_depth())


def _warning(function: Callable[..., object], new_api: str | None = None) -> Callable[..., object]:
    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        """Warn, and call."""
        warn_deprecated(function.__name__, new_api)
        return function(*args, **kwargs)

    return called


grad = _warning(parts.grad)
grad_and_value = _warning(parts.grad_and_value)
vjp = _warning(parts.vjp)
jvp = _warning(parts.jvp)
jacrev = _warning(parts.jacrev)
jacfwd = _warning(parts.jacfwd)
hessian = _warning(parts.hessian)
functionalize = _warning(parts.functionalize)
vmap = _warning(parts.vmap, "torch.vmap")
make_functional = _warning(parts.make_functional, "torch.func.functional_call")
make_functional_with_buffers = _warning(
    parts.make_functional_with_buffers, "torch.func.functional_call"
)
combine_state_for_ensemble = _warning(
    parts.combine_state_for_ensemble, "torch.func.stack_module_state"
)
