"""`webtorch.func`: functions of functions, as torch.func has them. May import floors 0 to 5.

`vmap` maps a function over a dimension; `grad`, `vjp`, `jvp` and what is made of them differentiate it.
They nest in any order, and inside `webtorch.compile`.

    import webtorch as torch

    slope = torch.func.vmap(torch.func.grad(torch.sin))
    print(slope(torch.linspace(0, 3, 4)))
"""

from webtorch.func.derivatives import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
)
from webtorch.func.state import (
    debug_unwrap,
    functional_call,
    functionalize,
    replace_all_batch_norm_modules_,
    stack_module_state,
)
from webtorch.func.vmap import vmap

__all__ = [
    "debug_unwrap", "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd",
    "jacrev", "jvp", "linearize", "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap",
]  # fmt: skip
