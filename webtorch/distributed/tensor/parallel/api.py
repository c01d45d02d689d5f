"""`parallelize_module`: a plan of styles for the parts of a module. Floor 5."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from webtorch.distributed.device_mesh import DeviceMesh, current_mesh
from webtorch.distributed.tensor.parallel.style import ParallelStyle
from webtorch.ir.lines import user_depth


def parallelize_module(
    module: Any,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Any:
    """Split a module over a mesh of one dimension as a style says, or parts of it as styles by their names do
    ("layers.*.w1"). Raises TypeError for another plan; warns of names that there are not.
    """
    mesh = device_mesh or current_mesh()
    if parallelize_plan is None:
        warnings.warn(
            "No parallelize_plan is provided and auto-parallel is not supported at the moment, so this "
            "parallelize_module call will do nothing.",
            stacklevel=user_depth(),
        )
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.src_data_rank = src_data_rank
        return parallelize_plan._apply(module, mesh)
    if not isinstance(parallelize_plan, Mapping):
        raise TypeError(
            "Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for "
            f"parallelize_plan, {type(parallelize_plan)} found!"
        )
    for path, style in parallelize_plan.items():
        first, _, rest = path.partition(".")
        if not path:
            parallelize_module(module, mesh, style, src_data_rank=src_data_rank)
            continue
        found = [part for name, part in module.named_children() if fnmatch(name, first)]
        if not found:
            warnings.warn(
                f"Parallelize plan key '{path}' could not be resolved: no submodule matching token '{first}' in module "
                f"{module}, skipping this plan entry.",
                stacklevel=user_depth(),
            )
        for part in found:
            plan = {rest: style} if rest else style
            parallelize_module(part, mesh, plan, src_data_rank=src_data_rank)
    return module
