"""torch.nn.modules.transformer: names that its users import though they are not public."""

from webtorch.nn.transformer import _activation as _get_activation_fn

__all__ = ["_get_activation_fn"]
