"""`webtorch.testing`: assert_close and make_tensor, as torch.testing has them. Floor 5."""

from webtorch.testing.comparison import assert_close
from webtorch.testing.sample import make_tensor

__all__ = ["assert_close", "make_tensor"]
