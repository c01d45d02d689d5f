"""Names of torch.nn.functional that its users import though they are not its own."""

from collections.abc import Callable as Callable
from typing import Optional as Optional

from webtorch.nn import grad as grad
from webtorch.overrides import handle_torch_function as handle_torch_function
from webtorch.overrides import has_torch_function as has_torch_function
from webtorch.tensors.tensor import Tensor as Tensor
