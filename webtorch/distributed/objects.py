"""Objects between processes, pickled. Floor 5."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from webtorch.distributed.collectives import all_gather, broadcast, recv, scatter, send
from webtorch.distributed.world import Group, member, rank_in_group
from webtorch.ir.dtype import int64, uint8
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.tensor import Tensor


def _packed(value: object) -> Tensor:
    contents = pickle.dumps(value)
    return from_bytes(contents, (len(contents),), uint8)


def _padded(x: Tensor, size: int) -> Tensor:
    return from_bytes(bytes(x._contents()).ljust(size, b"\0"), (size,), uint8)


def _unpacked(x: Tensor, size: int) -> object:
    return pickle.loads(bytes(x._contents())[:size])


def _numbers(values: Sequence[int]) -> Tensor:
    contents = b"".join(v.to_bytes(8, "little") for v in values)
    return from_bytes(contents, (len(values),), int64)


def _room(size: int) -> Tensor:
    return from_bytes(bytes(size), (size,), uint8)


def all_gather_object(object_list: list[Any], obj: object, group: Group = None) -> None:
    """Fill the list with the objects of all processes. They are pickled: trust whom you receive from."""
    found = member(group, "all_gather_object")
    if found is None:
        return
    mine = _packed(obj)
    sizes = [_numbers([0]) for _ in range(found.size())]
    all_gather(sizes, _numbers([mine.numel()]), found)
    numbers = [int(s.item()) for s in sizes]
    longest = max(numbers)
    padded = _padded(mine, longest)
    rooms = [_room(longest) for _ in numbers]
    all_gather(rooms, padded, found)
    object_list[:] = [_unpacked(x, n) for x, n in zip(rooms, numbers, strict=True)]


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """Fill the list of process `dst` with the objects of all."""
    found = member(group, "gather_object")
    if found is None:
        return
    root = rank_in_group(found, dst, group_dst, 0)
    mine = found.rank() == root
    if mine and object_gather_list is None:
        raise ValueError("Argument ``object_gather_list`` must be specified on destination rank.")
    gathered: list[object] = []
    all_gather_object(gathered, obj, found)
    if mine and object_gather_list is not None:
        object_gather_list[:] = gathered


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: object = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Let the objects in each process's list become those of process `src`."""
    found = member(group, "broadcast_object_list")
    if found is None:
        return
    root = rank_in_group(found, src, group_src, 0)
    mine = found.rank() == root
    packed = [_packed(value) for value in object_list] if mine else []
    sizes = _numbers([x.numel() for x in packed] if mine else [0] * len(object_list))
    broadcast(sizes, group=found, group_src=root)
    for i, size in enumerate(sizes.tolist()):
        x = packed[i] if mine else _room(size)
        broadcast(x, group=found, group_src=root)
        if not mine:
            object_list[i] = _unpacked(x, size)


def scatter_object_list(
    scatter_object_output_list: object,
    scatter_object_input_list: Sequence[object] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    """Put this process's entry of the list of process `src` first into the output list."""
    found = member(group, "scatter_object_list")
    if found is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError(
            "Expected argument scatter_object_output_list to be a list of size at least 1."
        )
    root = rank_in_group(found, src, group_src, 0)
    mine = found.rank() == root
    packed = [_packed(value) for value in scatter_object_input_list or []] if mine else []
    longest = _numbers([max([x.numel() for x in packed], default=0), 0])
    broadcast(longest, group=found, group_src=root)
    most = int(longest.tolist()[0])
    size, room = _numbers([0]), _room(most)
    scatter(size, [_numbers([x.numel()]) for x in packed] or None, group=found, group_src=root)
    padded = [_padded(x, most) for x in packed]
    scatter(room, padded or None, group=found, group_src=root)
    scatter_object_output_list[0] = _unpacked(room, int(size.item()))


def send_object_list(
    object_list: Sequence[object],
    dst: int | None = None,
    group: Group = None,
    device: object = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send objects to one process."""
    packed = [_packed(value) for value in object_list]
    send(_numbers([x.numel() for x in packed]), dst, group, group_dst=group_dst)
    for x in packed:
        send(x, dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: object = None,
    group_src: int | None = None,
    weights_only: bool = False,
    use_batch: bool = False,
) -> int:
    """Fill the list with objects that one process sends, and return its rank."""
    sizes = _numbers([0] * len(object_list))
    source = recv(sizes, src, group, group_src=group_src)
    for i, size in enumerate(sizes.tolist()):
        x = _room(size)
        recv(x, source, group)
        object_list[i] = _unpacked(x, size)
    return source
