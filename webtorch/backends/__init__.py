"""`webtorch.backends`: PyTorch's switches of other libraries. None of these is used here. Floor 5.

Programs set them before they train (`torch.backends.cudnn.benchmark = True`): they are kept and have no
effect. `is_available` says what is true.
"""

import contextlib
from collections.abc import Generator

from webtorch.backends import cpu, cuda, cudnn, mkl, mkldnn, mps, openmp, opt_einsum

__all__ = ["cpu", "cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp", "opt_einsum"]


@contextlib.contextmanager
def __allow_nonbracketed_mutation() -> Generator[None, None, None]:
    """A block in which switches may be set, as they may everywhere here."""
    yield
