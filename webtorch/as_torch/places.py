"""Where webtorch keeps what PyTorch keeps elsewhere. Data only. Floor 6."""

from __future__ import annotations

# PyTorch's module -> webtorch's modules, in which a name is looked up in this order. A module that is
# not listed is looked for under the same name.
SOURCES: dict[str, tuple[str, ...]] = {
    "torch": ("webtorch.as_torch.names.top", "webtorch.as_torch.names.checks", "webtorch"),
    "torch.__future__": ("webtorch.nn.switches",),
    "torch.nn": ("webtorch.nn",),
    "torch.nn.functional": ("webtorch.nn.functional", "webtorch.as_torch.names.functional"),
    "torch.nn.attention": ("webtorch.as_torch.names.attention",),
    "torch.nn.attention.flex_attention": ("webtorch.as_torch.names.flex_attention",),
    "torch.nn.common_types": ("webtorch.as_torch.names.common",),
    "torch.nn.modules": ("webtorch.nn",),
    "torch.nn.modules.module": ("webtorch.nn.module", "webtorch.nn.module_hooks"),
    "torch.nn.modules.utils": ("webtorch.as_torch.names.common",),
    "torch.nn.modules.batchnorm": ("webtorch.nn.norm", "webtorch.nn.lazy"),
    "torch.nn.modules.instancenorm": ("webtorch.nn.norm", "webtorch.nn.lazy"),
    "torch.nn.modules.normalization": ("webtorch.nn.norm",),
    "torch.nn.modules.conv": ("webtorch.nn.conv", "webtorch.nn.lazy"),
    "torch.nn.modules.linear": ("webtorch.nn.linear", "webtorch.nn.lazy"),
    "torch.nn.modules.transformer": (
        "webtorch.nn.transformer",
        "webtorch.as_torch.names.transformer",
    ),
    "torch.nn.modules.sparse": ("webtorch.nn.embedding",),
    "torch.nn.modules.activation": ("webtorch.nn.activation", "webtorch.nn.attention"),
    "torch.nn.modules.flatten": ("webtorch.nn",),
    "torch.nn.modules.fold": ("webtorch.nn",),
    "torch.nn.modules.padding": ("webtorch.nn",),
    "torch.nn.modules.pixelshuffle": ("webtorch.nn",),
    "torch.nn.modules.channelshuffle": ("webtorch.nn",),
    "torch.nn.modules.upsampling": ("webtorch.nn",),
    "torch.nn.modules.adaptive": ("webtorch.nn.adaptive",),
    "torch.nn.modules.lazy": ("webtorch.nn.lazy",),
    "torch.nn.parallel": ("webtorch.nn.parallel", "webtorch.as_torch.names.parallel"),
    "torch.nn.parallel.data_parallel": ("webtorch.nn.parallel",),
    "torch.nn.parallel.parallel_apply": ("webtorch.nn.parallel",),
    "torch.nn.parallel.replicate": ("webtorch.nn.parallel",),
    "torch.nn.parallel.scatter_gather": ("webtorch.nn.parallel",),
    "torch.nn.parallel.distributed": ("webtorch.as_torch.names.parallel",),
    "torch.nn.utils.clip_grad": ("webtorch.nn.utils.clip_grad", "webtorch.nn.utils"),
    "torch.optim.lr_scheduler": ("webtorch.optim.lr_scheduler",),
    "torch.optim.adamw": ("webtorch.optim.adam",),
    "torch.optim.optimizer": ("webtorch.optim.optimizer", "webtorch.as_torch.names.optimizer"),
    "torch.utils": ("webtorch.utils",),
    "torch.utils.deterministic": ("webtorch.tensors.switches",),
    "torch.storage": ("webtorch.as_torch.names.storage",),
    "torch._dynamo.config": ("webtorch.as_torch.names.dynamo_config",),
    "torch._utils": ("webtorch.as_torch.names.utils",),
    "torch.utils.data": ("webtorch.utils.data",),
    "torch.utils.data.dataloader": (
        "webtorch.data.loader",
        "webtorch.data.collate",
        "webtorch.as_torch.names.dataloader_parts",
    ),
    "torch.utils.data.dataset": ("webtorch.data.dataset",),
    "torch.utils.data.sampler": ("webtorch.data.sampler",),
    "torch.utils.data.distributed": ("webtorch.data.sampler",),
    "torch.utils.data._utils": ("webtorch.data",),
    "torch.utils.data._utils.collate": ("webtorch.data.collate",),
    "torch.utils.hooks": ("webtorch.utils.hooks",),
    "torch.utils._pytree": ("webtorch.utils._pytree",),
    "torch.autograd": ("webtorch.autograd", "webtorch.as_torch.names.autograd_parts"),
    "torch.autograd._functions": ("webtorch.as_torch.names.autograd_parts",),
    "torch.autograd.variable": ("webtorch.autograd",),
    "torch.autograd.grad_mode": ("webtorch", "webtorch.autograd.grad_mode"),
    "torch.autograd.profiler": ("webtorch.as_torch.names.profiler_parts", "webtorch.profiler"),
    "torch.autograd.profiler_util": ("webtorch.as_torch.names.profiler_parts",),
    "torch.cuda.amp.grad_scaler": ("webtorch.cuda.amp",),
    "torch.cuda.amp.autocast_mode": ("webtorch.cuda.amp",),
    "torch.functional": ("webtorch",),
    "torch.tensor": ("webtorch",),
    "torch._tensor": ("webtorch",),
    "torch._tensor_str": ("webtorch.as_torch.names.tensor_str",),
    "torch.return_types": ("webtorch.as_torch.names.return_types",),
    "torch.serialization": ("webtorch.as_torch.names.serialization",),
    "torch._VF": ("webtorch", "webtorch.as_torch.names.top"),
    "torch.torch_version": ("webtorch.version",),
    "torch.__config__": ("webtorch.as_torch.names.config",),
    "torch._custom_ops": ("webtorch.as_torch.names.library",),
    "torch._dynamo.eval_frame": ("webtorch.capture",),
    "torch._dynamo.utils": ("webtorch.as_torch.names.compiler_parts",),
    "torch._dynamo._trace_wrapped_higher_order_op": ("webtorch.as_torch.names.compiler_parts",),
    "torch._subclasses": ("webtorch.as_torch.names.compiler_parts",),
    "torch._subclasses.fake_tensor": ("webtorch.as_torch.names.compiler_parts",),
    "torch.export": ("webtorch.fx.export",),
    "torch.fx.experimental.proxy_tensor": ("webtorch.as_torch.names.compiler_parts",),
    "torch.utils._mode_utils": ("webtorch.utils._python_dispatch",),
    "torch.utils._foreach_utils": ("webtorch.as_torch.names.foreach",),
    "torch.utils.model_zoo": ("webtorch.as_torch.names.hub",),
    "torch.library": ("webtorch.as_torch.names.library",),
    "torch.ops": ("webtorch.as_torch.names.operators",),
    "torch.onnx": ("webtorch.onnx", "webtorch.as_torch.names.onnx"),
    "torch.onnx.symbolic_helper": ("webtorch.as_torch.names.onnx",),
    "torch.jit.annotations": ("webtorch.as_torch.names.jit_internal",),
    "torch.distributed": ("webtorch.as_torch.names.distributed",),
    "torch.multiprocessing": ("webtorch.multiprocessing",),
    "torch._C": ("webtorch.as_torch.names.core",),
    "torch._C._autograd": ("webtorch.as_torch.names.autograd_parts",),
    "torch._C._functions": ("webtorch.as_torch.names.autograd_parts",),
    "torch.cuda": ("webtorch.cuda", "webtorch.as_torch.names.cuda"),
    "torch._dynamo": ("webtorch.compiler", "webtorch.capture", "webtorch.as_torch.names.dynamo"),
    "torch._jit_internal": ("webtorch.jit", "webtorch.as_torch.names.jit_internal"),
    "torch._functorch.deprecated": ("webtorch.as_torch.names.functorch_deprecated",),
    "torch.func": ("webtorch.func",),
    "torch.hub": ("webtorch.as_torch.names.hub",),
    "torch.mps": ("webtorch.backends.mps",),
    "torch.xpu": ("webtorch.as_torch.names.xpu",),
}
for _name in (
    "torch._functorch",
    "torch._functorch.apis",
    "torch._functorch.batch_norm_replacement",
    "torch._functorch.eager_transforms",
    "torch._functorch.functional_call",
    "torch._functorch.make_functional",
    "torch._functorch.vmap",
    "torch._C._functorch",
    "torch._vmap_internals",
):
    SOURCES[_name] = ("webtorch.as_torch.names.functorch_parts",)
# These files of torch.nn.modules are called the same in webtorch.nn.
for _name in (
    "container",
    "distance",
    "dropout",
    "loss",
    "pooling",
    "rnn",
):
    SOURCES[f"torch.nn.modules.{_name}"] = (f"webtorch.nn.{_name}",)
# Modules of webtorch that are not PyTorch's, or something else there.
HIDDEN = frozenset(
    """torch.ir torch.lower torch.runtime torch.tensors torch.pytorch torch.capture torch.data torch.errors
    torch.io torch.demo torch.doctor torch.cli torch.as_torch torch.debug torch.nn.conv torch.nn.norm torch.nn.loss
    torch.nn.pooling torch.nn.linear torch.nn.activation torch.nn.container torch.nn.module torch.web
    """.split()  # noqa: SIM905
)
# What to say of names that PyTorch programs ask for in vain.
CORE = "it belongs to PyTorch's C++ core, which webtorch does not have"
COMPILER = "it belongs to PyTorch's own compiler"
WORDS: dict[str, dict[str, str]] = {
    "torch": {
        "classes": CORE,
        "_refs": COMPILER,
        "_prims": COMPILER,
        "_prims_common": COMPILER,
        "_decomp": COMPILER,
        "_six": "PyTorch removed it in 1.13 too; its strings and ints are Python's own",
    },
}
