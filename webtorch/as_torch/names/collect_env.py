"""torch.utils.collect_env: what reports of bugs say of a machine; `webtorch doctor` says more."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import subprocess
import sys
from typing import NamedTuple

from webtorch import webgpu
from webtorch.errors import DeviceError
from webtorch.runtime.backends import get_backend
from webtorch.version import __version__


class SystemEnv(NamedTuple):
    """What is known of a machine, under PyTorch's names; None of what nobody could find out."""

    torch_version: str | None = None
    is_debug_build: str | None = None
    cuda_compiled_version: str | None = None
    hip_compiled_version: str | None = None
    os: str | None = None
    gcc_version: str | None = None
    clang_version: str | None = None
    cmake_version: str | None = None
    libc_version: str | None = None
    python_version: str | None = None
    python_platform: str | None = None
    is_cuda_available: str | None = None
    cuda_runtime_version: str | None = None
    cuda_module_loading: str | None = None
    nvidia_gpu_models: str | None = None
    nvidia_driver_version: str | None = None
    cudnn_version: str | None = None
    is_xpu_available: str | None = None
    hip_runtime_version: str | None = None
    miopen_runtime_version: str | None = None
    is_xnnpack_available: str | None = None
    caching_allocator_config: str | None = None
    webgpu_adapters: str | None = None
    cpu_info: str | None = None
    pip_version: str | None = None
    pip_packages: str = ""
    conda_packages: str | None = None


# How the report calls the fields, in their order; those without a title stand within another's lines.
_TITLES = (
    "PyTorch version",
    "Is debug build",
    "CUDA used to build PyTorch",
    "ROCM used to build PyTorch",
    "\nOS",
    "GCC version",
    "Clang version",
    "CMake version",
    "Libc version",
    "\nPython version",
    "Python platform",
    "Is CUDA available",
    "CUDA runtime version",
    "CUDA_MODULE_LOADING set to",
    "GPU models and configuration",
    "Nvidia driver version",
    "cuDNN version",
    "Is XPU available",
    "HIP runtime version",
    "MIOpen runtime version",
    "Is XNNPACK available",
    "Caching allocator config",
    "WebGPU adapters",
    "\nCPU",
    "",
    "\nVersions of relevant libraries",
    "",
)
_PACKAGES = (
    "torch", "numpy", "mypy", "flake8", "triton", "optree", "onnx", "wgpu", "numba"
)  # fmt: skip


def get_env_info() -> SystemEnv:
    """Return what is known of the machine and of what is installed."""
    return SystemEnv(
        torch_version=__version__,
        is_debug_build="False",
        cuda_compiled_version="None",
        hip_compiled_version="N/A",
        os=_system(),
        gcc_version=_first_line("gcc", "--version"),
        clang_version=_first_line("clang", "--version"),
        cmake_version=_first_line("cmake", "--version"),
        libc_version="-".join(platform.libc_ver()) if sys.platform == "linux" else "N/A",
        python_version=f"{sys.version.split(chr(10))[0]} ({sys.maxsize.bit_length() + 1}-bit runtime)",
        python_platform=platform.platform(),
        is_cuda_available="False",
        cuda_module_loading="N/A",
        is_xpu_available="False",
        hip_runtime_version="N/A",
        miopen_runtime_version="N/A",
        is_xnnpack_available="False",
        caching_allocator_config="",
        webgpu_adapters=_adapters(),
        cpu_info=get_backend("cpu").description(),
        pip_version="pip3",
        pip_packages=_packages(),
    )


def pretty_str(envinfo: SystemEnv) -> str:
    """Return a report of the fields, a line each."""
    lines = []
    for name, value, title in zip(envinfo._fields, envinfo, _TITLES, strict=True):
        if name == "pip_packages":
            packages = (value or "No relevant packages").split("\n")
            lines.append(f"{title}:")
            lines += [f"[{envinfo.pip_version}] {package}" for package in packages]
        elif name == "cpu_info":
            lines.append(f"{title}:\n{value}")
        elif title:
            no_cuda = name.startswith(("cuda_", "nvidia_", "cudnn_"))
            missing = "No CUDA" if no_cuda else "Could not collect"
            lines.append(f"{title}: {missing if value is None else value or 'N/A'}")
    lines.append("[conda] Could not collect")
    return "\n".join(lines)


def get_pretty_env_info() -> str:
    """Return the report of this machine."""
    return pretty_str(get_env_info())


def main() -> None:
    """Write the report."""
    sys.stdout.write(f"Collecting environment information...\n{get_pretty_env_info()}\n")


def _system() -> str:
    machine = platform.machine()
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]} ({machine})"
    if sys.platform == "win32":
        return f"{platform.system()} {platform.version()} ({machine})"
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({machine})"
    return f"{sys.platform} ({machine})"


def _adapters() -> str:
    with contextlib.suppress(DeviceError):
        return ", ".join(webgpu.get_device_name(i) for i in range(webgpu.device_count())) or "none"
    return "none: WebGPU's package is not installed"


def _first_line(*command: str) -> str | None:
    """Return the first line that a program writes, None where it is not installed."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip().split("\n")[0]
    return None


def _packages() -> str:
    """Return what is installed and has to do with tensors, as "name==version" a line."""
    installed = {
        f"{one.name}=={one.version}"
        for one in importlib.metadata.distributions()
        if one.name and any(word in one.name.lower() for word in _PACKAGES)
    }
    return "\n".join(sorted(installed, key=str.lower))
