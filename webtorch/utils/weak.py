"""`webtorch.utils.weak`: references to objects by identity that do not keep them alive, and dicts of these. Floor 6.

Tensors compare element by element, so they cannot be keys of `weakref.WeakKeyDictionary`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any
from weakref import ref

from webtorch.tensors.tensor import Tensor

WeakRef = ref


class WeakIdRef(ref[Any]):
    """A weak reference that is equal to another one while both are of the same living object."""

    __slots__ = ("_id",)
    _id: int

    def __new__(cls, key: object, callback: Callable[[Any], None] | None = None) -> WeakIdRef:
        """Return a reference to `key`; `callback` is called with it when `key` is gone."""
        self = super().__new__(cls, key, callback)
        self._id = cls._hash_of(key)
        return self

    @staticmethod
    def _hash_of(key: object) -> int:
        return id(key)

    @staticmethod
    def _same(a: object, b: object) -> bool:
        return a is b

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        # An identity may be that of another object by now.
        a = self()
        b = other() if isinstance(other, ref) else None
        return self is other if a is None or b is None else self._same(a, b)


class _WeakHashRef(WeakIdRef):
    """The same for objects that say themselves what they are equal to."""

    __slots__ = ()

    @staticmethod
    def _hash_of(key: object) -> int:
        return hash(key)

    @staticmethod
    def _same(a: object, b: object) -> bool:
        return hash(a) == hash(b)


class WeakIdKeyDictionary(MutableMapping[Any, Any]):
    """A dict whose keys are compared by identity and not kept alive: what is gone is in it no longer."""

    def __init__(self, dict: Any = None, ref_type: type[WeakIdRef] = WeakIdRef) -> None:
        self.data: Any = {}
        self.ref_type = ref_type
        mine = ref(self)

        def remove(key: Any) -> None:
            """Drop a key that is gone, without keeping the dict alive."""
            found = mine()
            if found is not None:
                found.data.pop(key, None)

        self._remove = remove
        if dict is not None:
            self.update(dict)

    def __getitem__(self, key: object) -> Any:
        return self.data[self.ref_type(key)]

    def __setitem__(self, key: object, value: object) -> None:
        self.data[self.ref_type(key, self._remove)] = value

    def __delitem__(self, key: object) -> None:
        del self.data[self.ref_type(key)]

    def __contains__(self, key: object) -> bool:
        try:
            return self.ref_type(key) in self.data
        except TypeError:
            return False

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._living())

    # Iterators, as those of PyTorch's.
    def items(self) -> Any:
        """Give the keys that live, with their values."""
        return self._living()

    def keys(self) -> Any:
        """Give the keys that live."""
        return iter(self)

    def values(self) -> Any:
        """Give the values of keys that live."""
        return (value for _, value in self._living())

    def _living(self) -> Iterator[tuple[Any, Any]]:
        # Keys may go, and their entries with them, while the dict is gone through.
        for weak, value in list(self.data.items()):
            key = weak()
            if key is not None:
                yield key, value

    def keyrefs(self) -> list[WeakIdRef]:
        """Return the weak references, some of which may be to what is gone."""
        return list(self.data)

    def popitem(self) -> tuple[Any, Any]:
        """Remove a key that lives, and return it and its value. Raises KeyError if there is none."""
        while True:
            weak, value = self.data.popitem()
            key = weak()
            if key is not None:
                return key, value

    def pop(self, key: object, *default: Any) -> Any:
        """Remove a key and return its value, or else `default`. Raises KeyError if there is neither."""
        return self.data.pop(self.ref_type(key), *default)

    def copy(self) -> WeakIdKeyDictionary:
        """Return a dict with the same keys and values."""
        return type(self)(self, self.ref_type)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> WeakIdKeyDictionary:
        return type(self)([(k, copy.deepcopy(v, memo)) for k, v in self.items()], self.ref_type)

    def __or__(self, other: object) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        new = self.copy()
        new.update(other)
        return new

    def __ror__(self, other: object) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        new = type(self)(other, self.ref_type)
        new.update(self)
        return new

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self.update(other)
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        mine, theirs = ({id(k): v for k, v in x.items()} for x in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x}>"


WeakTensorKeyDictionary = WeakIdKeyDictionary


class TensorWeakRef:
    """A weak reference to a tensor."""

    def __init__(self, tensor: object) -> None:
        if not isinstance(tensor, Tensor):
            raise AssertionError(f"expected torch.Tensor, got {type(tensor)}.")
        self.ref = ref(tensor)

    def __call__(self) -> Any:
        """Return the tensor, None if it is gone."""
        return self.ref()


__all__ = ["TensorWeakRef", "WeakIdKeyDictionary", "WeakIdRef", "WeakTensorKeyDictionary"]
