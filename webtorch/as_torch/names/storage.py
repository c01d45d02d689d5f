"""torch.storage: the memory of tensors."""

from __future__ import annotations

from webtorch.functions.storages import TypedStorage as TypedStorage
from webtorch.functions.storages import UntypedStorage as UntypedStorage
from webtorch.functions.storages import _dtype_to_storage_type_map as _dtype_to_storage_type_map
