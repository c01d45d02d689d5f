"""What PyTorch is told of the "webgpu" device, and what of PyTorch's is replaced for it.

Imports PyTorch; webtorch comes with the first tensor (`_engine`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import warnings
import weakref
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeAlias

from webtorch_autoload.device import NAME, attempts, hide, libraries, module, state

# A class or module of PyTorch's whose private parts no type tells.
_Private: TypeAlias = Any


@functools.cache
def _engine() -> ModuleType:
    """Return the part that holds the engine, importing it and registering its kernels at the first call."""
    return importlib.import_module("webtorch.pytorch.library")


def register(torch: ModuleType) -> None:
    """Register the device. Raises RuntimeError where another one has PyTorch's place for it."""
    current = torch._C._get_privateuse1_backend_name()
    if current != "privateuseone":
        raise RuntimeError(f"PyTorch's place for an outside device is taken by {current!r}")
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    base: _Private = torch._C._acc.PrivateUse1Hooks

    class Hooks(base):
        """Answers of `torch.accelerator`. Does not open a device."""

        def is_available(self) -> bool:
            """Return whether a device can be opened."""
            return bool(module.is_available())

        def has_primary_context(self, dev_id: int) -> bool:
            """Return whether the device is open."""
            return bool(module.is_initialized())

        def is_built(self) -> bool:
            """Return True: there is nothing to build."""
            return True

    guard: _Private = torch._C._acc.DeviceGuard

    class Guard(guard):
        """What C++ functions that may not throw ask for the device's type: no frame of Python runs for the answer.

        Of callables, references are those that answer at the limit of recursion too.
        """

        _type = torch._C._autograd.DeviceType.PrivateUse1
        type_ = weakref.ref(_type)

    state["guard"] = Guard
    _setup_privateuseone_for_python_backend(
        NAME, backend_module=module, hook=Hooks(), device_guard=Guard()
    )
    sys.modules[f"torch.{NAME}"] = module
    # `lazy_module.webgpu()`, as `.cuda()` is allowed.
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.webgpu)
    torch.accelerator.synchronize = _synchronize(torch.accelerator.synchronize, module)
    _accelerator(torch, module)
    _generators(torch)
    _streams(torch, module)
    _allocation(torch)
    _storages(torch)
    _other_layouts(torch)
    _refuse_export(torch)
    _printing(torch)
    _default_compiler(torch, module)
    _one_device(torch)
    _process_groups(torch)


def _process_groups(torch: ModuleType) -> None:
    """Let groups of Gloo's have tensors of the device: `webtorch.pytorch.distributed` is what they call for these."""
    if not torch.distributed.is_available():
        return
    groups: _Private = importlib.import_module("torch.distributed.distributed_c10d")
    gloo, backends, config = groups.Backend.GLOO, groups.Backend, groups.BackendConfig
    backends.default_device_backend_map.setdefault(NAME, gloo)
    if NAME not in backends.backend_capability[gloo]:
        backends.backend_capability[gloo].append(NAME)
    init = config.__init__

    @functools.wraps(init)
    def with_host(self: _Private, backend: Any) -> None:
        """Let a group of the device's have tensors of the host, too."""
        init(self, backend)
        if self.device_backend_map.get(NAME) == gloo:
            self.device_backend_map.setdefault("cpu", gloo)

    config.__init__ = with_host
    _attempts(torch)
    _communication_hooks(torch)
    _unused_parameters(torch)
    _plugins_not_taken()


def _attempts(torch: ModuleType) -> None:
    """Let processes that torchrun has started again find nothing of those before them in the store that it keeps."""
    meeting: _Private = importlib.import_module("torch.distributed.rendezvous")
    create = meeting._create_c10d_store

    @functools.wraps(create)
    def create_store(
        host: str, port: int, rank: int, world_size: int, timeout: timedelta, *rest: bool
    ) -> _Private:
        """Return the store that processes meet in."""
        store = create(host, port, rank, world_size, timeout, *rest)
        if not attempts.shares_store():
            return store
        word = attempts.common_word(store, rank, world_size, timeout)
        return torch.distributed.PrefixStore(word, store)

    meeting._create_c10d_store = create_store


def _communication_hooks(torch: ModuleType) -> None:
    """Let gradients travel as bfloat16: PyTorch asks for a CUDA that can, whatever the device."""
    parallel: _Private = importlib.import_module(
        "torch.nn.parallel.distributed"
    ).DistributedDataParallel
    check = parallel._check_comm_hook

    @functools.wraps(check)
    def check_comm_hook(self: _Private, hook: _Private) -> None:
        """Check a hook. Raises TypeError or ValueError where it takes or gives something else than hooks do."""
        if self.device_type == NAME and "bf16" in getattr(hook, "__name__", ""):
            return
        check(self, hook)

    parallel._check_comm_hook = check_comm_hook


def _unused_parameters(torch: ModuleType) -> None:
    """Let DistributedDataParallel look for unused parameters: a note on an outside device comes from pinned memory.

    There is none, so the note stays on the CPU.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Notes(TorchDispatchMode):
        """Make what has a number for each of `count` parameters on the CPU."""

        def __init__(self, count: int) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.count = count

        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Run an operator."""
            options = dict(kwargs or {})
            if (
                operator is torch.ops.aten.empty.memory_format
                and options.get("dtype") is torch.int32
                and list(args[0]) == [self.count]
            ):
                options["device"] = torch.device("cpu")
            return operator(*args, **options)

    parallel: _Private = importlib.import_module(
        "torch.nn.parallel.distributed"
    ).DistributedDataParallel

    def noting(method: Any) -> Any:
        """Return a method, which begins to note which parameters are used."""

        @functools.wraps(method)
        def run(self: _Private, *args: Any, **options: Any) -> None:
            """Run it."""
            here = self.device_type == NAME
            with Notes(len(self._module_parameters)) if here else contextlib.nullcontext():
                method(self, *args, **options)

        return run

    for name in ("_ddp_init_helper", "_set_static_graph"):
        setattr(parallel, name, noting(getattr(parallel, name)))


def _plugins_not_taken() -> None:
    """Tell whose accelerate makes replicas though it was given a plugin that shards."""
    parallel: _Private = importlib.import_module(
        "torch.nn.parallel.distributed"
    ).DistributedDataParallel
    begin = parallel._ddp_init_helper

    @functools.wraps(begin)
    def told(self: _Private, *args: Any, **options: Any) -> None:
        """Begin as before."""
        if self.device_type == NAME and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
            warnings.warn(
                "accelerate takes no FSDP plugin with Accelerator(cpu=True): this model trains with "
                "DistributedDataParallel. To shard it, let the program begin with "
                "accelerate.state.PartialState(cpu=True).distributed_type = accelerate.DistributedType.MULTI_GPU",
                stacklevel=3,
            )
        begin(self, *args, **options)

    parallel._ddp_init_helper = told


def _allocation(torch: ModuleType) -> None:
    """Register the two operators that every tensor on the device starts from: the first call brings the rest."""
    library = torch.library.Library("aten", "IMPL")

    def empty(
        size: object,
        dtype: object = None,
        layout: object = None,
        device: object = None,
        pin_memory: object = None,
        memory_format: object = None,
    ) -> object:
        """Stand for aten::empty.memory_format."""
        return _engine().empty(size, dtype, layout, device, memory_format)

    def empty_strided(
        size: object,
        stride: object,
        dtype: object = None,
        layout: object = None,
        device: object = None,
        pin_memory: object = None,
    ) -> object:
        """Stand for aten::empty_strided."""
        return _engine().empty_strided(size, stride, dtype, layout, device)

    def pin(x: Any, device: object = None) -> object:
        """Stand for aten::_pin_memory."""
        made = x.clone()
        made.untyped_storage()._webgpu_pinned = True
        return made

    def is_pinned(x: Any, device: object = None) -> bool:
        """Stand for aten::is_pinned."""
        return hasattr(x.untyped_storage(), "_webgpu_pinned")

    library.impl("empty.memory_format", hide(empty), "PrivateUse1")
    library.impl("empty_strided", hide(empty_strided), "PrivateUse1")
    # Host memory is not pinned: WebGPU has its own staging buffers. What was asked to be says that it is, as FSDP's
    # CPUOffloadPolicy pins again what is not, and then no longer sees what an optimizer writes.
    library.impl("_pin_memory", pin, "CPU")
    library.impl("is_pinned", is_pinned, "CPU")
    libraries.append(library)


def _storages(torch: ModuleType) -> None:
    """Let `UntypedStorage(n, device="webgpu")` make our storages; PyTorch would crash, having no allocator for them."""
    original = torch.UntypedStorage.__new__

    def new(cls: object, *args: object, device: object = None, **options: object) -> Any:
        """Return one of our storages for our device, else PyTorch's."""
        if device is not None and torch.device(device).type == NAME:
            return _engine().untyped_storage(*args, device=torch.device(device))
        return (
            original(cls, *args, **options)
            if device is None
            else original(cls, *args, device=device, **options)
        )

    torch.UntypedStorage.__new__ = staticmethod(new)
    made = torch.UntypedStorage.new

    def new_like(self: _Private) -> object:
        """Return an empty storage on the same device."""
        return new(type(self), 0, device=self.device) if self.device.type == NAME else made(self)

    torch.UntypedStorage.new = new_like
    resized = torch.UntypedStorage.resize_

    def resize_(self: _Private, nbytes: int) -> object:
        """Change the size, keeping the bytes that fit."""
        if self.device.type == NAME:
            return importlib.import_module("webtorch.pytorch.resizing").resize_storage(self, nbytes)
        return resized(self, nbytes)

    torch.UntypedStorage.resize_ = resize_
    # PyTorch reads and writes files through another storage of the address, which is only a name.
    written, read = torch.UntypedStorage._write_file, torch.UntypedStorage._set_from_file

    def write_file(self: _Private, *args: Any, **options: Any) -> object:
        """Write the bytes to a file."""
        return written(self.cpu() if self.device.type == NAME else self, *args, **options)

    def set_from_file(self: _Private, *args: Any, **options: Any) -> object:
        """Read the bytes from a file."""
        if self.device.type != NAME:
            return read(self, *args, **options)
        return self.copy_(read(original(type(self), self.nbytes()), *args, **options))

    torch.UntypedStorage._write_file = write_file
    torch.UntypedStorage._set_from_file = set_from_file
    found = torch.UntypedStorage.__getitem__

    def get_item(self: _Private, place: object) -> object:
        """Return a byte; of a slice a storage of its own, as an address within another one is none."""
        if isinstance(place, slice) and self.device.type == NAME:
            return new(type(self), self.cpu()[place].tolist(), device=self.device)
        return found(self, place)

    torch.UntypedStorage.__getitem__ = get_item
    # What `_setup_privateuseone_for_python_backend` leaves out: storage.webgpu(), storage.is_webgpu.
    registration: _Private = importlib.import_module("torch.utils.backend_registration")
    registration._generate_storage_methods_for_privateuse1_backend(NAME)


def _other_layouts(torch: ModuleType) -> None:
    """Refuse sparse, quantised and nested tensors in words: PyTorch would list its registrations."""
    library = torch.library.Library("_", "IMPL")
    homes = {"Sparse": "sparse", "SparseCsr": "compressed"}
    for kind in ("Sparse", "SparseCsr", "Quantized", "NestedTensor"):

        def refuse(operator: object, *args: object, kind: str = kind, **kwargs: object) -> object:
            """Raise NotImplementedError for an operator on a tensor that is not dense."""
            if kind in homes:
                # The engine comes with the first tensor, which may be sparse.
                known = importlib.import_module(f"webtorch.pytorch.{homes[kind]}").KERNELS
                name = str(operator).removeprefix("aten.").removesuffix(".default")
                if name in known:
                    return known[name](*args, **kwargs)
            word = {"NestedTensor": "nested"}.get(kind, kind.lower().removesuffix("csr"))
            raise NotImplementedError(
                f"webgpu: '{operator}' of a {word} tensor: the device has no kernel for it. Keep it on the CPU, "
                "or make it dense (.to_dense(), torch.nested.to_padded_tensor, sparse=False)."
            )

        library.fallback(hide(refuse), f"{kind}PrivateUse1")
    _absent(torch)
    # A nested tensor asks for its sizes while it is made, where C++ lets no error through: the process
    # would end. Those of layout torch.jagged are made of dense ones, and work.
    makers = torch.library.Library("aten", "IMPL")

    def refuse_nested(*args: object, **kwargs: object) -> object:
        """Raise NotImplementedError for nested tensors of layout torch.strided."""
        raise NotImplementedError(
            "webgpu: nested tensors of layout torch.strided are not on the device: use layout=torch.jagged, or keep "
            "them on the CPU"
        )

    for name in (
        "_nested_tensor_from_tensor_list",
        "_nested_view_from_buffer",
        "_nested_view_from_buffer_copy",
    ):
        makers.impl(name, hide(refuse_nested), "PrivateUse1")
    # Autograd notes sizes of results in a C++ function that may not throw. They lie on the CPU for every device.
    sizes = torch.library.Library("aten", "IMPL")
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensorCPU)
    for name in ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"):
        handle = getattr(torch.ops.aten, name).default._handle
        kernel = functools.partial(handle.redispatch_boxed, cpu)
        sizes.impl(name, kernel, "NestedTensorPrivateUse1")
    libraries.extend((library, makers, sizes))


# Operator -> what the device does not have, as docs/differences.md says.
_ABSENT = {
    "quantised tensors": (
        "quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
        "quantize_per_channel", "quantize_per_tensor_dynamic", "_make_per_tensor_quantized_tensor",
        "_make_per_channel_quantized_tensor", "_empty_affine_quantized", "_empty_per_channel_affine_quantized",
    ),
    # PyTorch composes these of nothing: they read memory as the CPU's.
    "weights that are packed or quantised for a CPU": (
        "fbgemm_linear_quantize_weight", "fbgemm_linear_int8_weight", "fbgemm_linear_int8_weight_fp32_activation",
        "fbgemm_pack_quantized_matrix", "fbgemm_pack_quantized_matrix.KN", "fbgemm_pack_gemm_matrix_fp16",
        "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation", "choose_qparams_optimized",
        "quantized_lstm_cell", "quantized_gru_cell", "quantized_rnn_relu_cell", "quantized_rnn_tanh_cell",
    ),
    "clones that share memory until one is written": ("_lazy_clone",),
}  # fmt: skip


def _absent(torch: ModuleType) -> None:
    """Refuse operators of what the device does not have."""
    library = torch.library.Library("aten", "IMPL")
    for what, names in _ABSENT.items():

        def refuse(*args: object, what: str = what, **kwargs: object) -> object:
            """Raise NotImplementedError."""
            raise NotImplementedError(f"webgpu: {what} are not on the device: keep them on the CPU")

        for name in names:
            for key in ("PrivateUse1", "QuantizedPrivateUse1"):
                library.impl(name, hide(refuse), key)
    libraries.append(library)


def _refuse_export(torch: ModuleType) -> None:
    """Refuse to hand out addresses: the memory is on the device, and the pointers are only names."""
    text = "the memory of 'webgpu' tensors cannot be shared with other libraries or processes: use .cpu() first"

    def guarded(function: Any, name: str, error: type[Exception]) -> Any:
        """Return the method, which raises for tensors on the device."""

        def wrapper(self: _Private, *args: Any, **kwargs: Any) -> Any:
            """Raise for a tensor on the device, else call the method."""
            if self.device.type == NAME:
                raise error(f"{name}: {text}")
            return function(self, *args, **kwargs)

        wrapper.__name__, wrapper.__doc__ = name, function.__doc__
        return wrapper

    for owner, name, error in (
        (torch.Tensor, "__dlpack__", BufferError),
        (torch.Tensor, "__dlpack_device__", BufferError),
        (torch.Tensor, "share_memory_", RuntimeError),
        (torch.UntypedStorage, "share_memory_", RuntimeError),
        (torch.UntypedStorage, "byteswap", RuntimeError),
        (torch.UntypedStorage, "_share_fd_cpu_", RuntimeError),
        (torch.UntypedStorage, "_share_filename_cpu_", RuntimeError),
        (torch._C, "_to_dlpack", BufferError),
        (torch._C, "_to_dlpack_versioned", BufferError),
    ):
        setattr(owner, name, guarded(getattr(owner, name), name, error))
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = torch._C._to_dlpack  # type: ignore[attr-defined]


def _printing(torch: ModuleType) -> None:
    """Print from a CPU copy: PyTorch formats numbers in float64, which the device does not have."""
    module: _Private = importlib.import_module("torch._tensor_str")
    original = module._tensor_str

    def tensor_str(self: _Private, indent: Any) -> Any:
        """Return the text of a tensor's values, from a copy on the CPU."""
        return original(self.cpu() if self.device.type == NAME else self, indent)

    module._tensor_str = hide(tensor_str)


def is_on_device(graph: Any) -> bool:
    """Whether a graph of Dynamo's has values on the device."""
    values = [n.meta.get("example_value") for n in graph.graph.nodes]
    return any(getattr(getattr(v, "device", None), "type", None) == NAME for v in values)


def _default_compiler(torch: ModuleType, module: ModuleType) -> None:
    """Let `torch.compile(model)` compile graphs of this device: PyTorch's default backend has no kernels for it."""
    wrapper = torch._TorchCompileInductorWrapper
    begin, compile_graph = wrapper.__init__, wrapper.__call__

    def compiler() -> Any:
        """Return the module of our compiler, imported when it is needed."""
        return importlib.import_module("webtorch.pytorch.dynamo")

    def init(self: object, *args: object, **kwargs: object) -> None:
        """Make PyTorch's wrapper; prepare our compiler if a device is open."""
        begin(self, *args, **kwargs)
        if module.is_initialized():
            # What it changes of how optimizers are traced must be there before the first is.
            compiler()

    def call(self: object, model_: object, inputs_: object, **options: object) -> Any:
        """Compile a graph with our compiler if it has values on the device, else with Inductor."""
        if type(self) is wrapper and is_on_device(model_):
            return compiler().compile_backend(model_, inputs_)
        return compile_graph(self, model_, inputs_, **options)

    wrapper.__init__, wrapper.__call__ = init, call


def _one_device(torch: ModuleType) -> None:
    """Let `nn.DataParallel` run on the one device: PyTorch without CUDA has no functions that split a batch."""
    if hasattr(torch._C, "_scatter"):
        return

    def scatter(tensor: Any, devices: object, *args: object, **kwargs: object) -> object:
        """Return the whole tensor, on the device."""
        return (tensor.to(NAME),)

    def gather(tensors: Any, dim: int = 0, destination: Any = None, **kwargs: object) -> object:
        """Return the only tensor, where it is wanted: -1 is the CPU."""
        (tensor,) = tensors
        return tensor.cpu() if destination in (-1, torch.device("cpu")) else tensor

    torch.nn.parallel.comm.scatter, torch.nn.parallel.comm.gather = scatter, gather


def _accelerator(torch: ModuleType, module: ModuleType) -> None:
    """Let `torch.accelerator` count memory and give streams: PyTorch would ask an allocator of its own kind."""
    for name in (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "memory_stats", "empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats",
    ):  # fmt: skip
        for place in (torch.accelerator, getattr(torch.accelerator, "memory", None)):
            if place is not None and hasattr(place, name):
                setattr(place, name, getattr(module, name))
    torch.accelerator.get_device_capability = module.get_device_capability
    for place in (torch.accelerator, torch.accelerator.memory):
        place.get_memory_info = module.mem_get_info
    # There is no cache of pinned memory, and PyTorch would look one up and end the process.
    torch._C._accelerator_emptyHostCache = lambda: None
    index_of = importlib.import_module("torch.accelerator._utils")._get_device_index

    def set_device_index(device: object, /) -> None:
        """Select a device. Raises ValueError for one of another kind, RuntimeError for any but number 0."""
        module.set_device(index_of(device, optional=False))

    torch.accelerator.set_device_index = set_device_index
    exchange = torch.accelerator.device_index.__enter__

    def enter(self: _Private) -> None:
        """Check the index, and enter PyTorch's context."""
        module._check("device_index", self.idx)
        exchange(self)

    torch.accelerator.device_index.__enter__ = enter


def _stand_in(base: _Private) -> Any:
    """Return the type of a class that takes the place of `base`: what is one of those is one of these."""

    class Meta(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, base)

    return Meta


def _streams(torch: ModuleType, module: _Private) -> None:
    """Let `torch.Stream` and `torch.Event` of the device be those of its module, which wait and have times.

    PyTorch asks a guard in C++ for these, in functions that Python cannot provide.
    """

    def own_stream(device: Any = None, priority: int = 0, **place: Any) -> object:
        """Return a stream of our device."""
        # PyTorch makes one anew from its number, its device's and the kind of that.
        return module.Stream(place.get("device_index") if device is None else device, priority)

    def own_event(device: Any = None, **options: Any) -> object:
        """Return an event of our device. Raises for another one."""
        module._check("Event", device)
        return module.Event(**options)

    def replace(base: _Private, own: Any) -> None:
        """Put a class in the place of PyTorch's, which makes ours for our device."""

        class Replaced(base, metaclass=_stand_in(base)):  # type: ignore[metaclass]
            __doc__ = base.__doc__

            def __new__(cls, *args: Any, **options: Any) -> Any:
                made = base.__new__(cls, *args, **options)
                if cls is not Replaced:
                    return made
                return (own if made.device.type == NAME else base)(*args, **options)

        Replaced.__module__, Replaced.__name__ = "torch", base.__name__
        Replaced.__qualname__ = base.__name__
        setattr(torch, base.__name__, Replaced)

    replace(torch.Stream, own_stream)
    replace(torch.Event, own_event)
    current = torch.accelerator.current_stream

    def current_stream(device: object = None, /) -> object:
        """Return the stream that work of the accelerator runs in."""
        found = current(device)
        return module.Stream() if found.device.type == NAME else found

    torch.accelerator.current_stream = hide(current_stream)


def _generators(torch: ModuleType) -> None:
    """Let `torch.Generator(device="webgpu")` exist: a CPU generator whose numbers seed the device's own streams."""
    base: _Private = torch._C.Generator

    class Generator(base, metaclass=_stand_in(base)):  # type: ignore[metaclass]
        __doc__ = base.__doc__

        def __new__(cls, device: object = "cpu") -> Any:
            if torch.device(device).type != NAME:
                return base(device=device)
            if torch.device(device).index not in (None, 0):
                raise RuntimeError(f"webgpu: there is no device '{device}'")
            return base.__new__(cls)

        def __init__(self, device: object = "cpu") -> None:
            return None

        @property
        def device(self) -> Any:
            """The device."""
            return torch.device(NAME, 0)

        def clone_state(self) -> object:
            """Return another generator in the same state."""
            return Generator(NAME).set_state(self.get_state())

        def __reduce__(self) -> Any:
            return Generator, (NAME,), self.get_state()

        def __setstate__(self, state: object) -> None:
            self.set_state(state)

    # Pickle looks the class up by these.
    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    setattr(torch, "Generator", Generator)  # noqa: B010


def _synchronize(original: object, module: ModuleType) -> object:
    def synchronize(device: object = None, /) -> None:
        """Wait until the current accelerator has done all its work."""
        module.synchronize()

    synchronize.__wrapped__ = original  # type: ignore[attr-defined]
    return synchronize
