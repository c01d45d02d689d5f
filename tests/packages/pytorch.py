"""Run a program with PyTorch: python -m tests.packages.pytorch PROGRAM [ARGS].

The compiled operators of torchvision's wheel may be built for another PyTorch than the one here. What is
of Python works without them, once those that it gives a shape rule at import have a name.
"""

import importlib.util
import runpy
import sys

import torch


def main() -> None:
    """Run the program named on the command line."""
    if importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.argv = sys.argv[1:]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
