"""`webtorch.utils.data`: the name that PyTorch gives `webtorch.data`. May import floors 0 to 5."""

from webtorch.data import *  # noqa: F403
from webtorch.data import __all__ as __all__
from webtorch.tensors.absent import missing_names as _missing_names
from webtorch.utils.data import distributed as distributed

__getattr__ = _missing_names(__name__, "utils.data")
