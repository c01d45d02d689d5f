"""What `import torch` does by itself, and signals and forks: each case in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

import webtorch_autoload
from tests.patience import PATIENCE
from tests.pytorch.processes import forked, python


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "first", ["import torch, webtorch", "import webtorch, torch", "import torch"]
)
def test_import_torch_is_enough_in_any_order(first: str) -> None:
    out = python(
        f"""
        {first}
        print(torch.device("webgpu").type, hasattr(torch.Tensor, "webgpu"), torch.ones(2).is_webgpu)
        """
    )
    assert out == "webgpu True False"


def test_a_gpu_that_pytorch_drives_comes_first() -> None:
    """PyTorch's autograd knows one kind of GPU: programs that only import PyTorch must train on theirs."""
    out = forked(
        """
        import torch
        torch.accelerator.current_accelerator = lambda: torch.device("cuda")
        counts = iter([0, 1])
        torch.cuda.device_count = lambda: next(counts)
        import webtorch_autoload
        print(webtorch_autoload.own_gpu(torch), webtorch_autoload.own_gpu(torch))
        torch.cuda.device_count = lambda: 2
        webtorch_autoload.autoload()
        print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "webgpu"))
        import webtorch.pytorch
        print(torch.device("webgpu").type, torch.webgpu.is_initialized())
        """,
        bare=True,
    )
    assert out.splitlines() == ["None cuda", "privateuseone False", "webgpu False"]


def test_import_opens_no_device_and_loads_no_binding() -> None:
    out = python(
        """
        import sys, torch
        torch.manual_seed(0)
        torch.ones(2) + 1
        loaded = [m for m in sys.modules if m.split(".")[0] in ("wgpu", "wgpudawn") or m == "webtorch.pytorch.library"]
        print(torch.webgpu.is_initialized(), loaded)
        """
    )
    assert out == "False []"


def test_import_torch_stays_light() -> None:
    """A program that never uses the device pays for two small modules, and for no package."""
    out = python(
        """
        import sys, time, torch
        packages = {"webtorch", "wgpu", "wgpudawn", "numba", "rich"}
        print([m for m in sys.modules if m.split(".")[0] in packages])
        import webtorch_autoload
        print(hasattr(torch, "webgpu"))
        """
    )
    assert out.splitlines() == ["[]", "True"]
    # What it costs beside PyTorch's own import, in one process: 2 % where nothing else runs.
    shares: list[float] = []
    while len(shares) < 3 and min(shares, default=1) >= 0.05:
        out = python(
            """
            import time
            start = time.process_time()
            import torch
            begun = time.process_time()
            import webtorch_autoload
            webtorch_autoload.autoload()
            print((time.process_time() - begun) / (begun - start))
            """,
            TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        )
        shares.append(float(out))
    assert min(shares) < 0.05, shares


@pytest.mark.parametrize(
    "fault",
    [
        # The package is broken: the device is registered, and its first tensor says what is wrong.
        "sys.modules['webtorch'] = None",
        # Our own module for the device is broken: a warning.
        "sys.modules['webtorch_autoload.device.module'] = None",
    ],
)
def test_a_fault_of_ours_does_not_break_import_torch(fault: str) -> None:
    out = python(
        f"""
        import sys, warnings
        warnings.simplefilter("ignore")
        {fault}
        import torch
        print((torch.ones(2) + 1).tolist())
        try:
            torch.ones(2, device="webgpu")
        except (RuntimeError, ImportError, NotImplementedError, AssertionError) as error:
            print("refused")
        """
    )
    assert out.splitlines() == ["[2.0, 2.0]", "refused"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("version", ["1.13.1+cu117", "2.9.1", "2.10.0a0+git1234567"])
def test_an_older_pytorch_is_refused_in_words(version: str) -> None:
    """By a warning where `import torch` asks, by an error where the user does."""
    out = forked(
        f"""
        import sys, warnings
        import torch
        torch.__version__ = "{version}"
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import webtorch_autoload
            webtorch_autoload.autoload()
        print([w.category.__name__ for w in seen], seen[0].message)
        print(hasattr(torch, "webgpu"), torch.ones(2).sum().item())
        for use in (
            lambda: __import__("webtorch.pytorch"),
            lambda: torch.compile(torch.sin, backend="webgpu")(torch.ones(2)),
        ):
            try:
                use()
            except Exception as error:
                print(type(error).__name__, error)
        """,
        bare=True,
    )
    warning, state, imported, *compiled = out.splitlines()
    words = f"needs PyTorch 2.11 or later, and this is {version}"
    assert warning.startswith("['RuntimeWarning']") and words in warning
    assert state == "False 2.0"
    assert imported.startswith("ImportError") and words in imported and "pip install" in imported
    assert words in " ".join(compiled)


def test_a_pytorch_that_is_absent_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        """Finds no torch."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            """Say that a name is not there."""
            if name == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name=name)

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'torch>=2\.13'"):
        webtorch_autoload.check_version()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0", "3.0.0.dev1"])
def test_other_versions_of_pytorch_get_the_device(version: str) -> None:
    out = forked(
        f"""
        import warnings
        warnings.simplefilter("error")
        import torch
        torch.__version__ = "{version}"
        import webtorch.pytorch
        print(torch.device("webgpu").type, hasattr(torch, "webgpu"))
        """,
        bare=True,
    )
    assert out == "webgpu True"


def test_registering_again_does_nothing() -> None:
    out = python(
        """
        import torch
        import webtorch_autoload
        from webtorch_autoload.device import libraries
        before = list(libraries)
        webtorch_autoload.autoload()
        import webtorch.pytorch
        print(len(before) > 0, libraries == before)
        """
    )
    assert out == "True True"


def test_switched_off_until_asked_for() -> None:
    out = forked(
        """
        import torch
        before = hasattr(torch, "webgpu")
        import webtorch.pytorch
        print(before, hasattr(torch, "webgpu"))
        """,
        bare=True,
    )
    assert out == "False True"


def test_without_an_adapter_torch_works_and_the_device_says_why() -> None:
    out = forked(
        """
        import torch
        from webtorch.runtime.backends.webgpu import adapter
        adapter._FOUND = []  # what a machine without a driver finds
        print(torch.webgpu.is_available(), torch.webgpu.device_count(), torch.accelerator.is_available())
        print((torch.ones(2) + 1).tolist())
        for _ in range(2):
            try:
                torch.ones(2, device="webgpu")
            except RuntimeError as error:
                print(type(error).__name__)
        """
    )
    assert out.splitlines() == ["False 0 False", "[2.0, 2.0]", "DeviceError", "DeviceError"]


def test_a_taken_place_is_a_warning_not_an_error() -> None:
    out = forked(
        """
        import warnings, torch
        torch.utils.rename_privateuse1_backend("other")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import webtorch.pytorch
        print([w.category.__name__ for w in seen], (torch.ones(2) + 1).tolist())
        """,
        bare=True,
    )
    assert out == "['RuntimeWarning'] [2.0, 2.0]"


def test_forked_children_are_refused(webgpu: str) -> None:
    out = forked(
        """
        import os, sys, torch
        torch.ones(2, device="webgpu")
        child = os.fork()
        if child == 0:
            try:
                torch.ones(2, device="webgpu")
            except RuntimeError as error:
                ok = "forked" in str(error) and torch.webgpu._is_in_bad_fork()
                os._exit(0 if ok else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert out == "0"


def test_data_loader_workers_that_fork_before_the_first_tensor(webgpu: str) -> None:
    out = forked(
        """
        import torch
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
        print(sum(batch.to("webgpu").sum().item() for (batch,) in loader))
        """
    )
    assert out == "28.0"


@pytest.mark.covers("S3")
def test_fallback_runs_on_the_cpu_only_when_allowed(webgpu: str) -> None:
    program = """
        import warnings, torch
        x = torch.tensor([[2.0, 1.0], [1.0, 3.0]], device="webgpu")
        weights = torch.ones(1, 2, device="webgpu")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            y = torch.ops.aten._add_relu(x, weights)
        assert y.is_webgpu and y.tolist() == [[3.0, 2.0], [2.0, 4.0]]
        print(len([w for w in seen if "add_relu" in str(w.message)]), torch.webgpu.fallback_counts())
    """
    assert forked(program, WEBTORCH_FALLBACK="warn") == "1 {'aten._add_relu.Tensor': 1}"
    assert forked(program, WEBTORCH_FALLBACK="silent") == "0 {'aten._add_relu.Tensor': 1}"


@contextlib.contextmanager
def started(program: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `program`, ended if the test fails."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.one_in(2)
@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
@pytest.mark.parametrize("delay", ["", "0.001"], ids=["as it is", "the thread presses soon"])
def test_ctrl_c_in_the_middle_of_anything(webgpu: str, delay: str) -> None:
    """WEBTORCH_INTERRUPTS=1000 presses more often."""
    presses = int(os.environ.get("WEBTORCH_INTERRUPTS", "40"))
    program = f"""
        from tests.pytorch import interrupts
        from webtorch.pytorch import interrupt
        {f"interrupt._DELAY = interrupt._PERIOD = {delay}" if delay else ""}
        print(interrupts.run({presses}, seed=1))
        """
    assert forked(program, timeout=PATIENCE + presses) == str(presses)


@pytest.mark.one_in(3)
@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
@pytest.mark.parametrize(
    "busy",
    [
        "time.sleep(60)",
        "threading.Event().wait(60)",
        "endless(lambda: sum(range(100)))",
        "endless(x.t)",
        "subprocess.run(['sleep', '60'])",
        # The other rank never comes.
        "webtorch.runtime.arrivals.Arrival().wait()",
    ],
)
def test_ctrl_c_is_raised_where_no_kernel_runs(webgpu: str, busy: str) -> None:
    program = f"""
        import signal, subprocess, threading, time, torch, webtorch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
        x = torch.ones(2, 2, device="webgpu")
        def endless(run):
            while True:
                run()
        print("ready", flush=True)
        try:
            {busy}
        except KeyboardInterrupt:
            print("caught", flush=True)
    """
    with started(program) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=PATIENCE)
    assert out.strip() == "caught"


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_ctrl_c_is_the_main_threads_and_the_programs_own_handler_stays(webgpu: str) -> None:
    out = forked(
        """
        import signal, threading, time, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = torch.ones(2, device="webgpu")
        failed, done = [], threading.Event()
        def work():
            try:
                while not done.is_set():
                    (x + 1).sum()
                    time.sleep(0.001)
            except BaseException as error:
                failed.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(60)
            print("lost")
        except KeyboardInterrupt:
            print("caught")
        done.set()
        thread.join()
        print(failed)
        """
    )
    assert out.splitlines() == ["caught", "[]"]
    out = forked(
        """
        import signal, torch
        signal.signal(signal.SIGINT, lambda *_: print("mine"))
        x = torch.ones(2, device="webgpu")
        signal.raise_signal(signal.SIGINT)
        print((x + 1).sum().item())
        """
    )
    assert out.splitlines() == ["mine", "4.0"]


def test_recursion_without_end_is_an_error(webgpu: str) -> None:
    out = forked(
        """
        import torch
        x = torch.ones(2, device="webgpu")
        (x + 1).sum().item()
        def deeper(x):
            return deeper(x + 1) * 2
        for _ in range(20):
            try:
                deeper(x)
            except RecursionError:
                pass
        print((x + 1).sum().item())
        """
    )
    assert out == "4.0"
