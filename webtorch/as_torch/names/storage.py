"""torch.storage: the memory of tensors. Storages with an element type are PyTorch's alone."""

from __future__ import annotations

from webtorch.tensors.base import UntypedStorage as UntypedStorage
