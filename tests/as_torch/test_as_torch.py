"""Unmodified PyTorch programs: `webtorch run` and `install_as_torch`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import webtorch
from tests.conftest import need_device
from webtorch.as_torch.absent import ABSENT
from webtorch.as_torch.places import SOURCES
from webtorch.cli.run import run
from webtorch.errors import DeviceError

MAIN = '''
"""Training in the manner of PyTorch's MNIST example."""
from __future__ import print_function
import argparse
import os
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.backends.cudnn as cudnn
from torch.nn.modules.batchnorm import _BatchNorm
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules.utils import _pair
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.dataloader import default_collate

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    SummaryWriter = None


class Digits(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 3, (count,), generator=generator)
        self.images = torch.randn(count, 1, 8, 8, generator=generator) * 0.1
        for i, label in enumerate(self.labels):
            self.images[i, 0, int(label) * 2] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, _pair(3), 1)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(36, 3)
        for m in self.modules():
            if isinstance(m, _BatchNorm):
                nn.init.constant_(m.weight, 1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        return F.log_softmax(self.fc(self.dropout(torch.flatten(x, 1))), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume", type=str, default="")
    parser.add_argument("--save", type=str, required=True)
    args = parser.parse_args()
    torch.manual_seed(1)
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.manual_seed_all(1)
    cudnn.benchmark = True
    device = torch.device("cuda" if use_cuda else "mps" if torch.backends.mps.is_available() else "cpu")
    train, test = random_split(Digits(64), [48, 16])
    loader = DataLoader(train, batch_size=16, shuffle=True, num_workers=2, pin_memory=True, collate_fn=default_collate)
    model = Net().to(device)
    optimizer = optim.Adam(model.parameters(), lr=0.03)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.9)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        start = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print("resumed at", start)
    for epoch in range(start, start + args.epochs):
        model.train()
        for data, target in loader:
            data, target = data.to(device, non_blocking=True), target.to(device)
            optimizer.zero_grad(set_to_none=True)
            loss = F.nll_loss(model(data), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        scheduler.step()
    model = torch.compile(model.eval())
    correct = 0
    with torch.no_grad():
        for data, target in DataLoader(test, batch_size=8):
            pred = model(data.to(device)).argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    print("accuracy %d of %d" % (correct, len(test)))
    if isinstance(model, OptimizedModule):
        model = model._orig_mod
    torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "args": vars(args)}, args.save)


if __name__ == "__main__":
    main()
'''


def python(*arguments: str, code: int = 0, **environment: str) -> tuple[str, str]:
    """Run Python and return what it wrote, after checking its exit code."""
    env = {**os.environ, "WEBTORCH_DEVICE": "cpu", **environment}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_program_trains_saves_and_resumes_unchanged(tmp_path: Path) -> None:
    program, saved = tmp_path / "main.py", tmp_path / "a.pth"
    program.write_text(MAIN)
    out, _ = python("-m", "webtorch", "run", str(program), "--epochs", "8", "--save", str(saved))
    assert out == "accuracy 16 of 16\n"
    out, _ = python(
        "-m", "webtorch", "run", str(program), "--epochs=1", "--resume", str(saved), "--save", str(saved)
    )  # fmt: skip
    assert out == "resumed at 8\naccuracy 16 of 16\n"
    # The same file in the same program, with PyTorch itself; its compiler would take long.
    out, _ = python(
        str(program), "--epochs=1", "--resume", str(saved), "--save", str(saved),
        TORCH_COMPILE_DISABLE="1",
    )  # fmt: skip
    assert out == "resumed at 9\naccuracy 16 of 16\n"


IDIOMS = """
import sys
import torch, torch.nn as nn
from torch import Tensor, einsum, nn as nn2
import torch.nn.functional as F, torch.nn.parallel, torch.nn.modules.conv, torch.nn.utils.rnn
import torch.optim.adam, torch.optim.lr_scheduler, torch.optim.swa_utils, torch.optim.optimizer, torch.optim.adamw
from torch.optim._functional import adam, sgd
import torch.utils.data.dataset, torch.utils.data.sampler, torch.utils.checkpoint, torch.utils.dlpack, torch.utils.hooks
import torch.autograd.function, torch.autograd.functional, torch.autograd.graph, torch.amp, torch.cuda.amp
import torch.backends.cuda, torch.backends.mps, torch.distributed as dist, torch.multiprocessing as mp
import torch.nn.utils.parametrize, torch.nn.utils.clip_grad, torch.testing, torch.types, torch.version
from torch.autograd import Function, Variable
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import _IncompatibleKeys, register_module_backward_hook, register_module_forward_hook
from torch.nn.parameter import Parameter
from torch.optim.lr_scheduler import LambdaLR, _LRScheduler
from torch.nn.attention import SDPBackend, sdpa_kernel

assert nn is nn2 is torch.nn and torch.nn.functional is F
assert sys.modules["torch.nn.functional"] is F
assert isinstance(torch.ones(2), Tensor) and Tensor is torch.Tensor
assert torch.__version__ >= "2.0" and torch.__version__ > (1, 13) and torch.version.cuda is None
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
assert dist.is_available() and not dist.is_initialized() and not torch.backends.mps.is_available()
torch.backends.cudnn.deterministic = True
assert torch.backends.cudnn.deterministic
with torch.backends.cudnn.flags(enabled=False):
    assert not torch.backends.cudnn.enabled
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
torch.use_deterministic_algorithms(True)
assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() >= 1
with torch.device("cpu"), sdpa_kernel(SDPBackend.MATH):
    assert torch.zeros(2).device.type == "cpu"

@torch.jit.ignore
def f(x): return x + 1
@torch.jit.script
def g(x): return f(x) * 2
assert g(torch.ones(1)).item() == 4 and not torch.jit.is_scripting()
@torch.compile
def h(x): return x * 3
assert h(torch.ones(2)).tolist() == [3, 3] and not torch.compiler.is_compiling()

from safetensors.torch import load, save
weights = {"w": torch.arange(6.0).reshape(2, 3) * 2, "b": torch.ones(2, dtype=torch.bfloat16)}
again = load(save(weights))
assert all(torch.equal(again[k], v.cpu()) and again[k].dtype == v.dtype for k, v in weights.items())

import importlib.metadata, importlib.util
assert importlib.metadata.version("torch") == torch.__version__ and importlib.util.find_spec("torch")
namespace = {}
exec("from torch.nn.functional import *", namespace)
assert namespace["gelu"] is F.gelu
namespace = {}
exec("from torch import *; from torch.nn import *", namespace)
from webtorch.as_torch.places import SOURCES
for name in SOURCES:
    exec(f"from {name} import *", {})
assert namespace["Conv2d"] is torch.nn.Conv2d and namespace["float32"] is torch.float32
assert "conv" not in namespace and "optim" not in namespace
F.marker = 1
assert torch.nn.functional.marker == 1
for name in ("torch.quantization", "torch.mtia"):
    assert importlib.util.find_spec(name) is None
assert not hasattr(torch, "no_such_name")
assert torch.__future__.get_overwrite_module_params_on_conversion() is False
import torch.nn.parallel.replicate
from torch.nn.parallel.scatter_gather import scatter_kwargs
# A function and the module it is in have one name.
assert len(torch.nn.parallel.replicate(torch.nn.Linear(2, 2), ["cpu", "cpu"])) == 2
assert scatter_kwargs((torch.ones(4, 2),), None, ["cpu", "cpu"])[0][1][0].shape == (2, 2)
try:
    torch.device("cuda")
except RuntimeError as error:
    assert "webgpu" in str(error), error
try:
    torch.ones(1).cuda()
except RuntimeError as error:
    assert "Torch not compiled with CUDA enabled" in str(error), error
print("fine")
"""


def test_imports_and_idioms_of_pytorch_programs(tmp_path: Path) -> None:
    (tmp_path / "idioms.py").write_text(IDIOMS)
    assert (
        python("-W", "ignore", "-m", "webtorch", "run", str(tmp_path / "idioms.py"))[0] == "fine\n"
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("import torch.mtia", "ModuleNotFoundError", "No module named 'torch.mtia', asked for in {file}:1"),
        ("from torch._C import _lazy", "ImportError", "C++ core"),
        ("from torch import frobnicate", "ImportError", "torch.frobnicate, asked for in {file}:1: webtorch has no"),
        ("from torch.nn import Linearr", "ImportError", "The nearest that exists is torch.nn.Linear."),
        ("import torch; torch.saddmm", "AttributeError", "{file}:1: PyTorch has it, webtorch does not"),
        ("import torch; torch.ops.aten.x", "AttributeError", "'_OpNamespace' 'aten' object has no attribute 'x'"),
        ("import torch.distributed.checkpoint as t; t.FileSystemReader()", "RuntimeError", "real PyTorch's device"),
        ("from torch.distributed.fsdp import Nothing", "ImportError", "real PyTorch's device"),
    ],
)  # fmt: skip
def test_a_missing_name_says_which_and_where(
    line: str, kind: str, text: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(line)
    _, said = python("-m", "webtorch", "run", str(program), code=1)
    assert f"{kind}: " in said and text.format(file=program) in said
    assert "webtorch/cli/run.py" not in said and "runpy" not in said


def test_a_program_that_cannot_begin_is_told_without_our_frames(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("def f(:\n")
    for told, said in (
        ([str(tmp_path)], f"webtorch: run: can't find '__main__' module in {str(tmp_path)!r}\n"),
        (["-m", "no_such_module"], "webtorch: run: No module named no_such_module\n"),
        ([str(tmp_path / "half.py")], "SyntaxError: invalid syntax\n"),
    ):
        found = python("-m", "webtorch", "run", *told, code=1)[1]
        assert found.endswith(said) and "runpy" not in found and "Traceback" not in found


def test_exit_codes_arguments_and_modules(tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__main__.py").write_text(
        "import sys, torch\nprint(sys.argv[1:], __name__, torch.tensor(3).item())\nsys.exit(7)\n"
    )
    (package / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "webtorch", "run", "-m", "tool", "-x", "--device", "tpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (7, "['-x', '--device', 'tpu'] __main__ 3\n")
    assert "no file 'absent.py'" in python("-m", "webtorch", "run", "absent.py", code=1)[1]


PROCESSES = """
import torch, torch.multiprocessing as mp

def work(i, x, hard):
    assert isinstance(x, torch.Tensor) and x.tolist() == [1, 1]
    if i == 1 and hard:
        import os
        os._exit(3)
    if i == 1:
        raise ValueError(f"not {x.tolist()}")

if __name__ == "__main__":
    x = torch.ones(2)
    try:
        mp.spawn(work, (x, False), 2)
    except mp.ProcessRaisedException as error:
        assert error.error_index == 1 and "-- Process 1 terminated with the following error:" in error.msg, error
        assert error.msg.endswith("ValueError: not [1.0, 1.0]\\n"), error
    context = mp.start_processes(work, (x, True), 2, join=False, start_method="fork")
    assert len(context.pids()) == 2
    try:
        while not context.join():
            pass
    except mp.ProcessExitedException as error:
        assert (error.exit_code, str(error)) == (3, "process 1 terminated with exit code 3")
    assert context.processes[0].exitcode is not None
    print("done")
"""


def test_processes_that_start_afresh_know_torch_as_webtorch(tmp_path: Path) -> None:
    """They begin as `webtorch run` did, and say how they failed as PyTorch's do."""
    program = tmp_path / "main.py"
    program.write_text(PROCESSES)
    assert python("-m", "webtorch", "run", str(program))[0] == "done\n"


def test_install_and_uninstall_inside_python() -> None:
    python(
        "-c",
        """
import sys, webtorch
webtorch.install_as_torch()
webtorch.install_as_torch()
import torch, torch.nn.functional as F
assert torch.Tensor is webtorch.Tensor and F.relu is webtorch.nn.functional.relu
assert torch.Tensor.__module__ == "torch"  # as loggers ask
assert (webtorch.nn.__spec__.name, webtorch.nn.functional.__name__) == ("webtorch.nn", "webtorch.nn.functional")
webtorch.uninstall_as_torch()
assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
assert webtorch.Tensor.__module__ == "webtorch"
import torch
assert torch.Tensor is not webtorch.Tensor
try:
    webtorch.install_as_torch()
except RuntimeError as error:
    assert "PyTorch itself is imported already" in str(error)
else:
    raise AssertionError
""",
    )


def test_names_that_projects_ask_for() -> None:
    """What Keras, Ignite and kornia name, beside what PyTorch documents."""
    python(
        "-c",
        """
import webtorch
webtorch.install_as_torch()
import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.utils.data.dataloader import _DatasetKind, _InfiniteConstantSampler

found = torch.ones(2, 3).max(0)
assert isinstance(found, torch.return_types.max) and not isinstance(found, torch.return_types.min)
assert tuple(torch.return_types.max([1, 2])) == (1, 2) and torch.return_types.max.n_fields == 2
try:
    torch.return_types.sort((1, 2, 3))
except TypeError as error:
    assert "torch.return_types.sort() takes a 2-sequence (3-sequence given)" in str(error)
else:
    raise AssertionError
assert torch._VF.lstm is torch.lstm
assert torch.Tag.pt2_compliant_tag.value == 17 and issubclass(torch.AcceleratorError, RuntimeError)
assert isinstance(torch.zeros(2).untyped_storage(), torch.StorageBase) and torch.Storage is torch.FloatStorage
assert torch.__file__ == webtorch.__file__ and torch.nn.__file__.endswith("__init__.py")
assert issubclass(torch.jit.TracerWarning, Warning)
torch._dynamo.mark_static_address(found.values)
from torch._higher_order_ops.associative_scan import associative_scan
assert associative_scan(torch.add, torch.ones(3), 0, combine_mode="generic").tolist() == [1, 2, 3]
assert "inductor" in torch._dynamo.list_backends() == torch.compiler.list_backends()
assert not can_use_flash_attention(SDPAParams(found, found, found, None, 0.0, True, False))
left = torch.tensor([[100, 100]], dtype=torch.int8)
assert torch._int_mm(left, left.T).tolist() == [[20_000]]
torch._assert_async(torch.tensor(1))
try:
    torch._assert_async(torch.tensor(0))
except RuntimeError as error:
    assert "but got zero" in str(error)
else:
    raise AssertionError

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))

loader = torch.utils.data.DataLoader(Stream())
assert loader._dataset_kind == _DatasetKind.Iterable and isinstance(loader.sampler, _InfiniteConstantSampler)
assert torch.utils.data.DataLoader([1])._dataset_kind == _DatasetKind.Map

# What transformers' plans of parallel layers are written with, which it makes when it is imported.
from torch.distributed._functional_collectives import wait_tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard
import torch.distributed.checkpoint.state_dict

# What other packages ask for when they are imported.
from torch import PyTorchFileReader, ScriptModule, Stream, TensorType
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed._tensor.experimental import implicit_replication
import torch.distributed.autograd, torch.distributed.rpc
from torch.autograd.profiler import emit_nvtx
from torch.utils.data._utils.collate import np_str_obj_array_pattern
from torch.utils.data.dataloader import _collate_fn_t
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin
from torch.serialization import DEFAULT_PROTOCOL

assert issubclass(UninitializedParameter, UninitializedTensorMixin) and DEFAULT_PROTOCOL == 2
dist = torch.distributed
assert dist.Backend.NCCL == dist.Backend("NcCl") == "nccl" and isinstance(dist.ReduceOp.MAX, dist.ReduceOp.RedOpType)
assert not dist.rpc.is_available() and dist.rpc.RRef and not dist.autograd.is_available()
assert type(torch.Tensor) is torch._C._TensorMeta and torch.jit.interface(Stream) is Stream
assert (torch.ones(2).__div__(2).tolist(), torch.tensor(2.5).__long__()) == ([0.5, 0.5], 2)
seen = []
watch = lambda x: (seen.append(torch._C._are_functorch_transforms_active()), x.sum())[1]
watch(torch.ones(2)), torch.func.grad(watch)(torch.ones(2)), torch.vmap(watch)(torch.ones(2, 2))
assert seen == [False, True, True] and not isinstance(seen, TensorType)
with unset_fake_temporarily():
    pass

placements = (Shard(-1), Replicate(), Partial("max"), _StridedShard(0, split_factor=2))
assert " ".join(map(repr, placements)) == "Shard(dim=-1) Replicate() Partial(max) _StridedShard(dim=0, sf=2)"
assert "".join(map(str, placements)) == "S(-1)RP(max)_S(0, 2)" and Shard(1) == Shard(1) != Shard(0)
assert len({Partial(), Partial("sum")}) == 1 and isinstance(placements[3], Placement)
asked = [[p.is_shard(), p.is_shard(-1), p.is_replicate(), p.is_partial(), p.is_partial("sum")] for p in placements]
assert asked == [[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0] * 5]
found = [Shard.local_shard_size_and_offset(size, 4, rank) for size, rank in ((10, 1), (10, 3), (2, 3))]
assert found == [(3, 3), (1, 9), (0, 2)]
assert not isinstance(left, DTensor)

# How Keras tells what it was given.
assert torch.Tensor.__module__.endswith("torch") and "torch.utils.data" in torch.utils.data.DataLoader.__module__
""",
    )


def test_packages_that_import_torch_by_name_compute_with_webtorch(tmp_path: Path) -> None:
    # As einops does: the library is found in sys.modules and imported by its name.
    (tmp_path / "package.py").write_text(
        "import importlib, sys\n"
        "def flat(x):\n"
        "    assert 'torch' in sys.modules\n"
        "    torch = importlib.import_module('torch')\n"
        "    assert isinstance(x, torch.Tensor)\n"
        "    return torch.nn.Flatten()(x)\n"
    )
    program = tmp_path / "program.py"
    program.write_text("import torch, package\nprint(package.flat(torch.ones(1, 2, 3)).shape)\n")
    assert python("-m", "webtorch", "run", str(program))[0] == "torch.Size([1, 6])\n"


def functions_of_functions(library: Any, place: Any, tree: Any) -> list[Any]:
    """Compute with torch.func's and _pytree's functions of one library."""
    a = library.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]])
    b = library.tensor([2.0, -3.0])

    def loss(w: Any, x: Any) -> Any:
        return ((w * x) ** 3).sum()

    each = place.vmap(place.grad(loss), in_dims=(None, 0))(b, a)
    grads, value = place.grad_and_value(lambda p: loss(p["w"], a[0]))({"w": b})
    second = place.grad(lambda w: place.grad(loss)(w, a[0]).sum())(b)
    out = place.vmap(lambda r: {"d": r * 2, "n": r.sum()}, in_dims=1)(a)
    leaves, spec = tree.tree_flatten({"a": [1, (2, 3)], "b": 4})
    tensors = (each, grads["w"], value, second, out["d"], out["n"])
    return [*[t.tolist() for t in tensors], leaves, tree.tree_unflatten(leaves[::-1], spec)]


def test_functions_of_functions_agree_with_pytorch() -> None:
    import torch

    import webtorch
    from webtorch.utils import _pytree

    ours = functions_of_functions(webtorch, webtorch.func, _pytree)
    assert ours == functions_of_functions(torch, torch.func, torch.utils._pytree)


def test_a_device_that_is_not_there_is_said_before_the_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DeviceError):
        run(str(program), device="webgpu:99")
    assert not (tmp_path / "ran").exists()


ON_A_CARD = """
import io, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils import rnn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
assert torch.ones(1)._storage.runtime.kind == "webgpu", "the card computes"
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
data = np.arange(12.0).reshape(4, 3)
x, y = torch.from_numpy(data).float().to(device), torch.tensor([0, 1, 0, 1])
assert x.device == device == torch.ones(1).device == torch.get_default_device() and x.is_cpu
assert x.cpu() is x and x.to("cpu") is x and x.get_device() == -1
with torch.autocast("cpu"):
    assert model(x).dtype == torch.bfloat16
optimizer = torch.optim.Adam(model.parameters())
F.cross_entropy(model(x) + torch.arange(2), y).backward()
optimizer.step()
saved = io.BytesIO()
torch.save(model.state_dict(), saved)
saved.seek(0)
model.load_state_dict(torch.load(saved, map_location="cpu"))
array = model(x).detach().numpy()
assert array.shape == (4, 2) and np.stack([x, x]).shape == (2, 4, 3)
try:
    array[0] = 1
except ValueError as error:
    assert "read-only" in str(error)
else:
    raise AssertionError("a write to a copy was lost")
wide = torch.tensor(np.ones(70_000))
assert wide.dtype == torch.float64 and wide.sum().item() == 70_000
assert torch.linalg.eigvals(torch.eye(2)).tolist() == [1, 1]
assert rnn.pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 2])).batch_sizes.tolist() == [2, 2, 1]
assert torch.ones(1, device="webgpu").device.type == "webgpu" and (torch.ones(1, device="webgpu").cpu() + x).is_cpu
print("all")
"""


def test_a_program_that_names_no_card_is_computed_by_the_one_that_is_chosen(tmp_path: Path) -> None:
    need_device("webgpu")
    program = tmp_path / "program.py"
    program.write_text(ON_A_CARD)
    assert python("-m", "webtorch", "run", "--device", "webgpu", str(program))[0] == "all\n"


def test_names_of_autograds_core(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "fn = (x * x).grad_fn\n"
        "assert isinstance(fn._raw_saved_self, torch._C._autograd.SavedTensor)\n"
        "assert isinstance(fn.next_functions[0][0], torch._C._functions.AccumulateGrad)\n"
        "enabled = torch._C._autograd._saved_tensors_hooks_is_enabled\n"
        "with torch.autograd.graph.disable_saved_tensors_hooks('no'):\n"
        "    assert not enabled()\n"
        "assert enabled()\n"
        "parsed = torch._C._nn._parse_to('cpu', torch.half, memory_format=torch.channels_last)\n"
        "assert parsed == (torch.device('cpu'), torch.half, False, torch.channels_last)\n"
        "from torch._functorch.apis import chunk_vmap\n"
        "assert chunk_vmap(lambda v: v * 2)(torch.arange(4)).tolist() == [0, 2, 4, 6]\n"
        "assert torch._vmap_internals._vmap(torch.sum, 0, 0)(torch.ones(2, 3)).tolist() == [3, 3]\n"
        "torch._C._functions.UndefinedGrad()(x * 2).sum().backward()\n"
        "assert x.grad is None\n"
        "late = torch._C._functions.DelayedError('Late', 1)(x)\n"
        "a, g = torch.ones(2, requires_grad=True), torch._C\n"
        "b = a * 2\n"
        "c, seen = b.exp(), []\n"
        "def hook(grad):\n"
        "    seen.append(g._current_graph_task_id())\n"
        "    assert g._current_autograd_node() is b.grad_fn\n"
        "    assert g._will_engine_execute_node(b.grad_fn)\n"
        "    names = [fn.name() for fn in g._current_graph_task_execution_order()]\n"
        "    assert names[:3] == ['SumBackward0', 'ExpBackward0', 'MulBackward0']\n"
        "b.register_hook(hook)\n"
        "with torch.autograd.set_multithreading_enabled(False):\n"
        "    for _ in range(2):\n"
        "        c.sum().backward(retain_graph=True)\n"
        "assert seen[1] == seen[0] + 1 and g._current_graph_task_id() == -1\n"
        "assert torch._C._infer_size(torch.Size([2, 1]), torch.Size([3])) == (2, 3)\n"
        "torch.backends.cuda.preferred_linalg_library('magma')\n"
        "torch.backends.cuda.preferred_linalg_library('default')\n"
        "ref = g._WeakTensorRef(c)\n"
        "assert not ref.expired()\n"
        "del c\n"
        "assert ref.expired()\n"
        "for replay, name in ((False, 'AsStrided'), (True, 'View')):\n"
        "    with torch.autograd._force_original_view_tracking(replay):\n"
        "        v = a.clone().view(-1)\n"
        "        v.add_(1)\n"
        "        assert v.grad_fn.name() == f'{name}Backward0', v.grad_fn.name()\n"
        "with torch.autograd._unsafe_preserve_version_counter(v):\n"
        "    v.mul_(2)\n"
        "assert v._version == 1\n"
        "assert issubclass(g._functions.DelayedError, torch.autograd.graph.Node)\n"
        "assert a.neg().grad_fn(torch.ones(2)).tolist() == [-1.0, -1.0]\n"
        "assert torch._unique2(torch.tensor([3, 1, 3]))[2].tolist() == [1, 2]\n"
        "assert late.tolist() == [1, 1] and late.grad_fn.name() == 'Error'\n"
        "try:\n"
        "    late.sum().backward()\n"
        "    raise SystemExit('nothing was raised')\n"
        "except RuntimeError as error:\n"
        "    assert str(error) == 'Late'\n"
        "print('done')\n"
    )
    out, _ = python("-m", "webtorch", "run", str(program))
    assert out.strip().endswith("done")


def test_operators_of_a_profile(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from torch.autograd import kineto_available\n"
        "from torch.autograd.profiler import profile, record_function\n"
        "from torch.autograd.profiler_util import EventList, FunctionEvent, FunctionEventAvg\n"
        "x, layer = torch.randn(4, 3), torch.nn.Linear(3, 2)\n"
        "with profile(record_shapes=True, use_kineto=kineto_available()) as p:\n"
        "    assert torch.autograd._profiler_enabled()\n"
        "    with record_function('outer'):\n"
        "        y = x * 2 + 4\n"
        "        handle = torch.ops.profiler._record_function_enter('inner', None)\n"
        "        y = y - 1\n"
        "        torch.ops.profiler._record_function_exit(handle)\n"
        "    layer(y / 1)\n"
        "assert not torch.autograd._profiler_enabled()\n"
        "names = [e.name for e in p.function_events]\n"
        "wanted = 'outer aten::mul aten::add inner aten::sub aten::div aten::linear'.split()\n"
        "assert names == wanted, names\n"
        "assert p.function_events[-1].input_shapes == [[4, 3], [2, 3], [2]]\n"
        "assert [c.name for c in p.function_events[0].cpu_children] == wanted[1:4]\n"
        "assert 'aten::linear' in str(p) and str(p) == p.table()\n"
        "p.key_averages(group_by_input_shape=True).table(sort_by='self_cpu_time_total')\n"
        "p.export_chrome_trace(__file__ + '.json')\n"
        "average = FunctionEventAvg()\n"
        "for start, end in ((10, 15), (20, 30)):\n"
        "    average.add(FunctionEvent(id=0, node_id=0, name='f', thread=0, start_us=start, end_us=end))\n"
        "average.add(average)\n"
        "assert (average.count, average.cpu_time_total, average.cpu_time) == (4, 30, 7.5)\n"
    )
    python("-m", "webtorch", "run", str(program))


def test_what_stands_in_for_an_absent_module_hides_none_of_ours() -> None:
    for name in set(ABSENT) - set(SOURCES):
        ours = Path(webtorch.__file__).parent.joinpath(*name.split(".")[1:])
        assert not (ours.is_dir() or ours.with_suffix(".py").exists()), name
