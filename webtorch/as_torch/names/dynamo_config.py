"""torch._dynamo.config: options of PyTorch's compiler, which programs set; they are kept and change nothing."""

from __future__ import annotations

cache_size_limit = recompile_limit = 8
accumulated_cache_size_limit = accumulated_recompile_limit = 256
suppress_errors = verbose = disable = False
dynamic_shapes = assume_static_by_default = automatic_dynamic_shapes = True
capture_scalar_outputs = capture_dynamic_output_shape_ops = False
inline_inbuilt_nn_modules = True
optimize_ddp: bool | str = True
allow_unspec_int_on_nn_module = force_parameter_static_shapes = False
