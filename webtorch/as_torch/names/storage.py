"""torch.storage: the memory of tensors."""

from __future__ import annotations

from webtorch.as_torch.names import top
from webtorch.functions.storages import TypedStorage as TypedStorage
from webtorch.functions.storages import UntypedStorage as UntypedStorage
from webtorch.functions.storages import _dtype_to_storage_type_map as _types

# Of quantised tensors, whose types and storages are names without tensors.
_QUANTISED = {
    "qint8": "QInt8Storage", "qint32": "QInt32Storage", "quint8": "QUInt8Storage", "quint4x2": "QUInt4x2Storage",
    "quint2x4": "QUInt2x4Storage",
}  # fmt: skip


def _dtype_to_storage_type_map() -> dict[object, str]:
    """Return the names of the storages' classes by type."""
    return {**_types(), **{getattr(top, name): kind for name, kind in _QUANTISED.items()}}
