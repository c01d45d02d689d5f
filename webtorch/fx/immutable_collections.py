"""The lists and dicts of a node's arguments: who wants others gives the node new ones."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from webtorch.utils import _pytree as pytree

__all__ = ["immutable_dict", "immutable_list"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_HELP = """
If you are attempting to modify the kwargs or args of a torch.fx.Node object,
instead create a new copy of it and assign the copy to the node:

    new_args = ...  # copy and mutate args
    node.args = new_args
""".strip()


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__!r} object does not support mutation. {_HELP}")


class immutable_list(list[T]):
    """A list that refuses to be changed, and so can be hashed."""

    __delitem__ = __iadd__ = __imul__ = __setitem__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (tuple(self),)


class immutable_dict(dict[K, V]):
    """A dict that refuses to be changed, and so can be hashed."""

    __delitem__ = __ior__ = __setitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (tuple(self.items()),)


pytree.register_pytree_node(
    immutable_list, lambda d: (list(d), None), lambda values, context: immutable_list(values)
)
pytree.register_pytree_node(
    immutable_dict,
    lambda d: (list(d.values()), list(d)),
    lambda values, context: immutable_dict(zip(context, values, strict=True)),
)
