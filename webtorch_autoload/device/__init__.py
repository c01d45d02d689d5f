"""The "webgpu" device as PyTorch sees it: its module (`module`), and its registration (`registration`).

Here is what these and the engine's kernels share. Imports PyTorch inside functions only.
"""

from __future__ import annotations

from typing import Any

NAME = "webgpu"
# The libraries hold the registrations: they must live as long as PyTorch does.
libraries: list[object] = []
# "guard": the class that C++ asks for the device's type, once it is registered.
state: dict[str, Any] = {}


def hide(function: Any) -> Any:
    """Keep Dynamo from tracing a function, and what it calls, when a compiled function runs it; return the function.

    For all that PyTorch or its users call of ours: kernels, hooks, the functions of `torch.webgpu`.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    code = getattr(function, "__code__", None)
    if code is not None:
        # Where a frame of it begins; and where its call would be traced into the caller's graph.
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
        function._torchdynamo_disable = True
    return function
