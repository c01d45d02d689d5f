"""Names that PyTorch programs import and seldom use, of parts that webtorch does not have. Floor 6.

They are classes and functions that say so when they are used, so that a package which imports them
at its top can be used for everything else. isinstance of such a class is always false.
"""

from __future__ import annotations

from typing import Any

_PROCESSES = (
    "webtorch has the collectives of torch.distributed, DistributedDataParallel and DTensor; what is built on these is "
    "there for real PyTorch's device 'webgpu'"
)
_FSDP1 = (
    "webtorch has no FullyShardedDataParallel (FSDP1): use torch.distributed.fsdp.fully_shard, layers first, the model "
    "last"
)
_SAFETENSORS = "webtorch's distributed checkpoints are PyTorch's files; webtorch.io.save_model writes safetensors"
QUANTIZED = "webtorch has no quantised tensors; webtorch.nn.quantized.quantize_ packs the weights of linear layers"
_ONNX = "webtorch writes no ONNX file of TorchScript graphs"

# Module -> (why it is not here, its names that are stood in for).
ABSENT: dict[str, tuple[str, str]] = {
    "torch": (
        "webtorch has no types of TorchScript, and no queues of other vendors' devices",
        "AnyType BoolType ClassType DeviceObjType DictType Event FloatType IntType ListType NoneType NumberType "
        "OptionalType Stream StringType TensorType TupleType Type UnionType",
    ),
    "torch.ao": (QUANTIZED, ""),
    "torch.ao.quantization": (
        QUANTIZED,
        "DeQuantStub FakeQuantize MinMaxObserver QConfig QuantStub QuantWrapper convert default_observer "
        "default_qconfig default_weight_observer fuse_modules fuse_modules_qat get_default_qat_qconfig "
        "get_default_qconfig prepare prepare_qat quantize quantize_dynamic",
    ),
    "torch.distributed.tensor.experimental": (
        _PROCESSES,
        "context_parallel register_sharding",
    ),
    "torch.distributed._tensor.experimental": (
        _PROCESSES,
        "context_parallel register_sharding",
    ),
    "torch.distributed._composable": (_PROCESSES, ""),
    "torch.distributed.autograd": (
        _PROCESSES,
        "DistAutogradContext backward context get_gradients",
    ),
    "torch.distributed.checkpoint": (
        _SAFETENSORS,
        "HuggingFaceStorageReader HuggingFaceStorageWriter QuantizedHuggingFaceStorageReader",
    ),
    "torch.distributed.checkpoint.hf_storage": (
        _SAFETENSORS,
        "HuggingFaceStorageReader HuggingFaceStorageWriter",
    ),
    "torch.distributed.fsdp": (
        _FSDP1,
        "BackwardPrefetch CPUOffload FlatParameter FullOptimStateDictConfig FullStateDictConfig "
        "LocalOptimStateDictConfig LocalStateDictConfig MixedPrecision OptimStateDictConfig OptimStateKeyType "
        "ShardedOptimStateDictConfig ShardedStateDictConfig ShardingStrategy StateDictConfig StateDictSettings "
        "StateDictType",
    ),
    "torch.distributed.fsdp.fully_sharded_data_parallel": (
        _FSDP1,
        "BackwardPrefetch CPUOffload FullOptimStateDictConfig FullStateDictConfig MixedPrecision "
        "ShardedOptimStateDictConfig ShardedStateDictConfig ShardingStrategy StateDictType",
    ),
    "torch.distributed.fsdp.wrap": (
        _FSDP1,
        "ModuleWrapPolicy always_wrap_policy enable_wrap lambda_auto_wrap_policy size_based_auto_wrap_policy "
        "transformer_auto_wrap_policy wrap",
    ),
    "torch.distributed.optim": (
        _PROCESSES,
        "DistributedOptimizer",
    ),
    "torch.distributed.rpc": (
        _PROCESSES,
        "BackendType RRef RpcBackendOptions TensorPipeRpcBackendOptions WorkerInfo get_worker_info init_rpc remote "
        "rpc_async rpc_sync shutdown",
    ),
    "torch.onnx.symbolic_opset11": (_ONNX, "select squeeze unsqueeze"),
}


def is_absent(module: str, name: str) -> bool:
    """Whether a name of a module is stood in for."""
    return module in ABSENT and name in ABSENT[module][1].split()


def stand_in(module: str, name: str) -> Any:
    """Return a class (or a function, for a name in lower case) that raises RuntimeError when used."""
    message = f"{module}.{name}: {ABSENT[module][0]}"

    def refuse(*args: object, **kwargs: object) -> None:
        """Raise RuntimeError: the name is not here."""
        raise RuntimeError(message)

    names = {"__doc__": f"Not here: {message}.", "__module__": module}
    if name.lstrip("_")[:1].islower():
        refuse.__name__ = refuse.__qualname__ = name
        refuse.__doc__, refuse.__module__ = names["__doc__"], module
        return refuse
    # Annotations may say what it holds: Future[Tensor].
    return type(
        name, (), {**names, "__init__": refuse, "__class_getitem__": classmethod(lambda c, _: c)}
    )
