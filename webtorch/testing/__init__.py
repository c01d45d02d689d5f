"""`webtorch.testing`: assert_close, its older form, and make_tensor, as torch.testing has them. Floor 5."""

from webtorch.tensors.absent import missing_names as _missing_names
from webtorch.testing.comparison import assert_allclose, assert_close
from webtorch.testing.sample import make_tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

__getattr__ = _missing_names(__name__, "testing")
