"""What stands for PyTorch's group of threads under the name `torch`: ranks of such tests are processes there."""

from __future__ import annotations

import importlib
from typing import Any


def load() -> None:
    """Read PyTorch, which moves the bytes, before its machinery is borrowed."""
    # It asks where PyTorch lies, and so comes first.
    importlib.import_module("tests.upstream.borrowed")
    importlib.import_module("webtorch.as_torch").install_as_torch()
    importlib.import_module("webtorch.distributed.engine").engine()


def install() -> None:
    """Take what the machinery tells at its top: kinds of groups, and FSDP1's names in its signatures."""
    distributed: Any = importlib.import_module("torch.distributed")
    distributed.Backend.register_backend = lambda *_, **__: None
    distributed.Backend.default_device_backend_map = {"cpu": "gloo"}
    # Tests are on the CPU, whatever is there beside it.
    importlib.import_module("torch.accelerator").__dict__["current_accelerator"] = lambda *_: None
    importlib.import_module("torch.distributed.fsdp").__dict__["CPUOffload"] = lambda **_: None


def of_processes(common: Any) -> None:
    """Let tests of threads start processes."""

    class MultiThreadedTestCase(common.MultiProcessTestCase):  # type: ignore[misc]
        """A test that expects to be a thread for each rank."""

        def _spawn_threads(self) -> None:
            self._spawn_processes()

        def perThreadSetUp(self) -> None:
            """Prepare a rank."""

        def perThreadTearDown(self) -> None:
            """Leave a rank."""

        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            common.c10d.init_process_group(
                "gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=int(self.world_size)
            )  # fmt: skip
            self.perThreadSetUp()
            super().run_test(test_name, parent_pipe)

    common.MultiThreadedTestCase = MultiThreadedTestCase
