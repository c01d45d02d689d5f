"""Programs in processes of their own.

`python` starts an interpreter. Where what `import torch` does is not asked, `forked` is several times as
quick: its processes are forked from one that has imported PyTorch and the device's kernels, and has
opened no device; or, `bare`, PyTorch alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

from tests.patience import PATIENCE

# The first process reads a request a line, forks, and writes the exit status. A child leaves the loop, and
# ends as any program does.
_FIRST = """
import json, os, signal, sys
import torch, torch.utils.data
if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
    import webtorch.pytorch.kernels
    import wgpu.backends.wgpu_native
    assert not torch.webgpu.is_initialized()
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, name in enumerate(("/dev/null", *request["files"])):
    os.dup2(os.open(name, os.O_RDWR), number)
os.environ.update(request["environment"])
signal.signal(signal.SIGINT, signal.default_int_handler)
exec(compile(request["program"], "<string>", "exec"), {"__name__": "__main__"})
"""


def python(program: str, timeout: float = PATIENCE, **environment: str) -> str:
    """Run a program in a new interpreter; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# By whether they are bare.
_FIRSTS: dict[bool, subprocess.Popen[str]] = {}


def _first(bare: bool) -> subprocess.Popen[str]:
    """Return the process that others are forked from."""
    if bare not in _FIRSTS:
        autoload = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if bare else {}
        _FIRSTS[bare] = subprocess.Popen(
            [sys.executable, "-c", _FIRST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **autoload},
        )
    return _FIRSTS[bare]


def _end(bare: bool) -> None:
    """End it, and what it has forked."""
    first = _FIRSTS.pop(bare)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.communicate()


def end() -> None:
    """End the processes that others are forked from."""
    for bare in list(_FIRSTS):
        _end(bare)


def forked(program: str, timeout: float = PATIENCE, bare: bool = False, **environment: str) -> str:
    """Run a program where torch is imported and no device open; return what it printed."""
    if not hasattr(os, "fork"):
        autoload = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if bare else {}
        return python(program, timeout, **autoload, **environment)
    first = _first(bare)
    assert first.stdin is not None and first.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, errors = (Path(folder) / name for name in ("out", "errors"))
        out.touch()
        errors.touch()
        request = {
            "program": textwrap.dedent(program),
            "environment": environment,
            "files": [str(out), str(errors)],
        }
        first.stdin.write(json.dumps(request) + "\n")
        first.stdin.flush()
        late = threading.Timer(timeout, os.killpg, (first.pid, signal.SIGKILL))
        late.start()
        status = first.stdout.readline().strip()
        late.cancel()
        if not status:
            _end(bare)
        assert status == "0", f"exit status {status or 'none in time'}: {errors.read_text()}"
        return out.read_text().strip()
