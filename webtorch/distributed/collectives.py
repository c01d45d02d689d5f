"""Collectives and messages of tensors, with PyTorch's names. Floor 5.

Each calls Gloo with the tensors' own memory on the CPU, or with copies of those on WebGPU. `async_op=True` returns
a `Work`; what it writes is there after `work.wait()`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from webtorch.distributed import sparse_sum
from webtorch.distributed.engine import Foreign, engine
from webtorch.distributed.group import Hosts, ProcessGroup, Work, go_on_as_usual
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import Group, member, rank_in_group
from webtorch.tensors.tensor import Tensor


def _tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type torch.Tensor\n"
            f"             but got {type(value)} instead."
        )


def _tensors(value: object, name: str) -> None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(x, Tensor) for x in value):
        kinds = [type(x) for x in value] if isinstance(value, (list, tuple)) else None
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor]\n"
            f"             but got {type(value)} with elements of type {kinds}."
        )


def _same_type(*tensors: Tensor) -> None:
    for x in tensors[1:]:
        if x.dtype is not tensors[0].dtype:
            raise ValueError(
                "Invalid usage of tensors with different dtypes"
                f"Found {tensors[0].dtype} and  {x.dtype}"
            )


def _reduced(name: str, op: Any, x: Tensor) -> tuple[ReduceOp, Foreign]:
    """Return the reduction, and Gloo's."""
    chosen = ReduceOp(op)
    if chosen is ReduceOp.PREMUL_SUM:
        raise NotImplementedError(
            f"{name}: Gloo has no PREMUL_SUM; multiply the tensor first and use ReduceOp.SUM"
        )
    if x.dtype.is_complex and chosen not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"{name} does not support {chosen.name} on complex tensors")
    # Gloo has no mean: sums are divided when they are there.
    kind = "SUM" if chosen is ReduceOp.AVG else chosen.name
    return chosen, getattr(engine().c10d.ReduceOp, kind)


def _listed(tensor: Tensor, given: Sequence[Tensor] | None, name: str) -> list[Tensor]:
    """Return the tensors of a list that one process gives, after a look at their types."""
    _tensor(tensor, "tensor")
    if given:
        _tensors(given, name)
    lists = list(given or [])
    _same_type(tensor, *lists)
    return lists


def _check_listed(lists: Sequence[Tensor], is_root: bool, name: str, end: str) -> None:
    if is_root and not lists:
        raise ValueError(f"Argument ``{name}`` must be specified on {end} rank.")
    if not is_root and lists:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{end} ranks.")


def _options(name: str, **values: object) -> Foreign:
    made = getattr(engine().c10d, name)()
    for key, value in values.items():
        setattr(made, key, value)
    return made


def _ended(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None


def all_reduce(
    tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Let the tensor of each process become the sum (or what `op` says) of all; of sparse COO tensors the sum alone,
    which waits until all have told how many values theirs have.
    """
    _tensor(tensor, "tensor")
    found = member(group, "all_reduce")
    if found is None:
        return None
    if tensor.is_sparse:
        return _ended(_sparse_sum(tensor, op, found), async_op)
    chosen, kind = _reduced("all_reduce", op, tensor)

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.allreduce(written, _options("AllreduceOptions", reduceOp=kind))

    return _ended(found.call("all_reduce", [tensor], [tensor], issue, chosen), async_op)


def _sparse_sum(tensor: Tensor, op: Any, group: ProcessGroup) -> Work:
    if ReduceOp(op) is not ReduceOp.SUM:
        raise RuntimeError(
            "all_reduce: unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)"
        )

    def gather(out: Tensor, x: Tensor) -> Work:
        """Begin to join the tensors of all."""
        work = all_gather_into_tensor(out, x, group, async_op=True)
        assert work is not None
        return work

    return sparse_sum.begin(tensor, group.size(), gather)


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: object = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce several tensors, as `all_reduce` does one."""
    _tensors(tensors, "tensor")
    works = [w for x in tensors if (w := all_reduce(x, op, group, True)) is not None]
    if async_op:
        return works[-1] if works else None
    for work in works:
        work.wait()
    return None


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: object = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Let the tensor of process `dst` become the sum (or what `op` says) of all."""
    _tensor(tensor, "tensor")
    found = member(group, "reduce")
    if found is None:
        return None
    root = rank_in_group(found, dst, group_dst)
    chosen, kind = _reduced("reduce", op, tensor)
    mine = found.rank() == root

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.reduce(given, _options("ReduceOptions", reduceOp=kind, rootRank=root))

    written = [tensor] if mine else []
    return _ended(found.call("reduce", [tensor], written, issue, chosen), async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Let the tensor of each process become that of process `src`."""
    _tensor(tensor, "tensor")
    found = member(group, "broadcast")
    if found is None:
        return None
    root = rank_in_group(found, src, group_src)
    mine = found.rank() == root

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        options = _options("BroadcastOptions", rootRank=root, rootTensor=0)
        return gloo.broadcast(given or written, options)

    reads, written = ([tensor], []) if mine else ([], [tensor])
    return _ended(found.call("broadcast", reads, written, issue, root=root), async_op)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """Fill the list with the tensors of all processes."""
    _tensors(tensor_list, "tensor_list")
    _tensor(tensor, "tensor")
    _same_type(*tensor_list, tensor)
    found = member(group, "all_gather")
    if found is None:
        return None

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.allgather([written], given)

    return _ended(found.call("all_gather", [tensor], tensor_list, issue), async_op)


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Tensor]],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Fill the list of each process with its tensors: what `all_gather` does of one."""
    _tensors(input_tensor_list, "tensor")
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    works = [
        all_gather([of_rank[i] for of_rank in output_tensor_lists], x, group, True)
        for i, x in enumerate(input_tensor_list)
    ]
    last = works[-1] if works else None
    if async_op:
        return last
    for work in works:
        if work is not None:
            work.wait()
    return None


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """Join the tensors of all processes along the first dim, or stack them, as the output's shape says."""
    _tensor(input_tensor, "input_tensor")
    _tensor(output_tensor, "output_tensor")
    _same_type(output_tensor, input_tensor)
    found = member(group, "all_gather_into_tensor")
    if found is None:
        return None
    size = found.size()
    if output_tensor.numel() != input_tensor.numel() * size:
        raise ValueError("output tensor size must be equal to world_size times input tensor size")

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        parts = list(written[0].view(-1).chunk(size))
        return gloo.allgather([parts], [given[0].view(-1)])

    return _ended(
        found.call("all_gather_into_tensor", [input_tensor], [output_tensor], issue), async_op
    )


all_gather_single = all_gather_into_tensor


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Fill the list of process `dst` with the tensors of all."""
    lists = _listed(tensor, gather_list, "gather_list")
    found = member(group, "gather")
    if found is None:
        return None
    root = rank_in_group(found, dst, group_dst, 0)
    _check_listed(lists, found.rank() == root, "gather_list", "destination")

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        out = [written] if written else []
        return gloo.gather(out, given, _options("GatherOptions", rootRank=root))

    return _ended(found.call("gather", [tensor], lists, issue), async_op)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Let the tensor of each process become its entry of the list of process `src`."""
    lists = _listed(tensor, scatter_list, "scatter_list")
    found = member(group, "scatter")
    if found is None:
        return None
    root = rank_in_group(found, src, group_src, 0)
    _check_listed(lists, found.rank() == root, "scatter_list", "source")

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        lists = [given] if given else []
        return gloo.scatter(written, lists, _options("ScatterOptions", rootRank=root))

    return _ended(found.call("scatter", lists, [tensor], issue), async_op)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: object = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Let the output of each process become the sum (or what `op` says) of all processes' entries for it."""
    _tensor(output, "output")
    _tensors(input_list, "input_list")
    _same_type(output, *input_list)
    found = member(group, "reduce_scatter")
    if found is None:
        return None
    chosen, kind = _reduced("reduce_scatter", op, output)

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        options = _options("ReduceScatterOptions", reduceOp=kind)
        return gloo.reduce_scatter(written, [given], options)

    return _ended(found.call("reduce_scatter", input_list, [output], issue, chosen), async_op)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: object = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Let the output of each process become the sum (or what `op` says) of all processes' parts for it."""
    _tensor(output, "output")
    _tensor(input, "input")
    _same_type(output, input)
    found = member(group, "reduce_scatter_tensor")
    if found is None:
        return None
    size = found.size()
    if input.numel() != output.numel() * size:
        raise ValueError("input tensor must be the same size as output size times world size")
    chosen, kind = _reduced("reduce_scatter_tensor", op, output)

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        options = _options("ReduceScatterOptions", reduceOp=kind)
        parts = list(given[0].view(-1).chunk(size))
        return gloo.reduce_scatter([written[0].view(-1)], [parts], options)

    return _ended(found.call("reduce_scatter_tensor", [input], [output], issue, chosen), async_op)


reduce_scatter_single = reduce_scatter_tensor


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Send entry i to process i, and fill the output with what processes sent here."""
    _tensors(output_tensor_list, "output_tensor_list")
    _tensors(input_tensor_list, "input_tensor_list")
    _same_type(*output_tensor_list, *input_tensor_list)
    found = member(group, "all_to_all")
    if found is None:
        return None

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.alltoall(written, given)

    work = found.call("all_to_all", input_tensor_list, output_tensor_list, issue)
    return _ended(work, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Send part i of the input's first dim to process i, and join what processes sent here."""
    _tensor(output, "output")
    _tensor(input, "input")
    _same_type(output, input)
    found = member(group, "all_to_all_single")
    if found is None:
        return None

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.alltoall_base(
            written[0], given[0], list(output_split_sizes or []), list(input_split_sizes or [])
        )

    return _ended(found.call("all_to_all_single", [input], [output], issue), async_op)


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Begin to send a tensor to one process."""
    _tensor(tensor, "tensor")
    found = member(group, "isend")
    if found is None:
        return None
    to = rank_in_group(found, dst, group_dst)
    if to == found.rank():
        raise ValueError(
            "Invalid destination rank: destination rank should not be the same as the rank of the current process."
        )

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.send(given, to, tag)

    return found.call("isend", [tensor], [], issue, is_message=True)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Begin to receive a tensor from one process; from any without `src`."""
    _tensor(tensor, "tensor")
    found = member(group, "irecv")
    if found is None:
        return None
    of = None if src is None and group_src is None else rank_in_group(found, src, group_src)

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.recv_anysource(written, tag) if of is None else gloo.recv(written, of, tag)

    return found.call("irecv", [], [tensor], issue, is_message=True)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to one process."""
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from one process, from any without `src`, and return whose it is."""
    found = member(group, "recv")
    work = irecv(tensor, src, group, tag, group_src)
    if work is None or found is None:
        return -1
    work.wait()
    if src is not None:
        return src
    return found.ranks[work.source_rank() if group_src is None else group_src]


class P2POp:
    """A message for `batch_isend_irecv`: `isend` or `irecv`, its tensor and the other process."""

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Tensor,
        peer: int | None = None,
        group: Group = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        """Hold the message."""
        if op not in (isend, irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        _tensor(tensor, "tensor")
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group
        self.tag, self.group_peer = tag, group_peer

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__} peer={self.peer}, {tuple(self.tensor.shape)}, {self.tensor.dtype})"


def batch_isend_irecv(p2p_op_list: object) -> list[Work]:
    """Begin all messages, and return their works."""
    if (
        not isinstance(p2p_op_list, list)
        or not p2p_op_list
        or not all(isinstance(p, P2POp) for p in p2p_op_list)
    ):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``."
        )
    found = [p.op(p.tensor, p.peer, p.group, p.tag, p.group_peer) for p in p2p_op_list]
    return [work for work in found if work is not None]


def barrier(
    group: Group = None, async_op: bool = False, device_ids: Sequence[int] | None = None
) -> Work | None:
    """Wait until all processes of the group are here."""
    found = member(group, "barrier")
    if found is None:
        return None

    def issue(gloo: Foreign, given: Hosts, written: Hosts) -> Foreign:
        """Give Gloo the call."""
        return gloo.barrier(_options("BarrierOptions"))

    return _ended(found.call("barrier", [], [], issue), async_op)


def monitored_barrier(
    group: Group = None, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until all processes are here. Raises RuntimeError on process 0 with those that have not come in time."""
    found = member(group, "monitored_barrier")
    if found is not None:
        go_on_as_usual()
        found.lane().settled()
        found.gloo().monitored_barrier(
            found.timeout if timeout is None else timeout, wait_all_ranks
        )


@contextmanager
def _coalescing_manager(
    group: Group = None, device: object = None, async_ops: bool = False
) -> Iterator[None]:
    """Call collectives together; each goes on its way at once."""
    yield None
