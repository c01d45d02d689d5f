"""PyTorch wherever WebGPU runs: `import webtorch as torch`, and write PyTorch.

Tensors and their functions are loaded with the package; `torch.linalg`, `torch.compile` and the like when they are
first used.
"""
# Names only, and nothing inside the package imports them from here.

import importlib as _importlib
import sys as _sys

# `python -m webtorch` loads the package before its command.
if _sys.argv[:1] == ["-m"] and "webtorch" in _sys.orig_argv:
    _importlib.import_module("webtorch_autoload.command").loading()

from webtorch import scripts as _scripts
from webtorch.functions import public as _public
from webtorch.functions.public import *
from webtorch.functions.public import _sample_dirichlet, _standard_gamma
from webtorch.tensors.absent import MissingName as _MissingName
from webtorch.version import PACKAGE as __version__

# Rooms: name -> module.
_OWN = """_higher_order_ops accelerator amp autograd backends capture compiler cuda data debug
    distributed distributions errors fft func functions futures fx io ir jit linalg llm lower masked multiprocessing nn
    onnx ops optim overrides profiler quantization quasirandom random runtime signal sparse special tensors testing
    types utils version webgpu"""
_ROOMS = {
    **{name: f"webtorch.{name}" for name in _OWN.split()},
    "_C": "webtorch.as_torch.names.core",
    "hub": "webtorch.as_torch.names.hub",
    "library": "webtorch.as_torch.names.library",
    "mps": "webtorch.backends.mps",
    "xpu": "webtorch.as_torch.names.xpu",
}
# Names of the package that live in a room: module -> names.
_BY_ROOM = {
    "webtorch.amp": "GradScaler",
    "webtorch.amp.autocast_mode": """autocast autocast_decrement_nesting autocast_increment_nesting
        clear_autocast_cache get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype
        is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled set_autocast_cache_enabled
        set_autocast_cpu_dtype set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled
        set_autocast_gpu_dtype""",
    "webtorch.autograd.anomaly_mode": "is_anomaly_check_nan_enabled is_anomaly_enabled set_anomaly_enabled",
    "webtorch.capture": "compile mark_dynamic",
    "webtorch.func.control_flow": "cond while_loop",
    "webtorch.functions.storages": """BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage
        ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage ShortStorage
        StorageBase TypedStorage UntypedStorage is_storage""",
    "webtorch.io.checkpoint": "load save",
    "webtorch.nn.native": """adaptive_max_pool1d affine_grid_generator binary_cross_entropy_with_logits
        convolution ctc_loss embedding_bag embedding_renorm_ feature_dropout max_pool1d_with_indices
        native_dropout norm_except_dim""",
    "webtorch.nn.recurrence": "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell",
    "webtorch.profiler": "profile",
    "webtorch.sparse.algebra": "dsmm hsmm hspmm smm spmm sspaddmm",
    "webtorch.sparse.construction": """sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor
        sparse_csc_tensor sparse_csr_tensor""",
}
# The same, of names that `import *` leaves out.
_UNLISTED = {
    "webtorch.as_torch": "install_as_torch uninstall_as_torch",
    "webtorch.func": "vmap",
    "webtorch.functions.check": "_assert",
    "webtorch.overrides": "DisableTorchFunction DisableTorchFunctionSubclass",
    "webtorch.web.export": "export",
}
_HOMES = {
    name: room
    for part in (_BY_ROOM, _UNLISTED)
    for room, names in part.items()
    for name in names.split()
}

__all__ = sorted([*_public.__all__, *" ".join(_BY_ROOM.values()).split()])


def __getattr__(name: str) -> object:
    """Load the room that a name stands for or lives in; say what is known of names that do not exist."""
    if name in _HOMES:
        found = getattr(_importlib.import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        found = _importlib.import_module(_ROOMS[name])
    else:
        raise _MissingName(_sys.modules[__name__], "", name)
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_HOMES})
