"""An optimizer of which each process steps a part of the parameters, and keeps their states alone (ZeRO, stage 1).
Floor 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.distributed.algorithms.join import Join, Joinable, JoinHook
from webtorch.distributed.collectives import broadcast
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.objects import gather_object
from webtorch.distributed.world import Group as Processes
from webtorch.distributed.world import default_group
from webtorch.functions.joining import cat
from webtorch.optim.optimizer import Optimizer
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

__all__ = ["ZeroRedundancyOptimizer"]

# A group of parameters with its options; a state as `state_dict` has it.
_Group = dict[str, Any]
_State = dict[str, Any]


class _Steps(JoinHook):
    """What a process does whose inputs have ended: it steps its part with what the others find."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self._optimizer = optimizer

    def main_hook(self) -> None:
        """Step."""
        self._optimizer.step()


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """Steps by an `optimizer_class` of which each process has a part of the parameters, and sends what becomes of them
    to the others: the result is that of one optimizer, whose states take a process's share of the memory.

    Parameters go to the process that has the least so far, the largest first, as in PyTorch: all must have the same.
    Raises ValueError for parameters of several types; NotImplementedError for `overlap_with_ddp`.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: Processes = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        """Take the parameters, and share them out. `parameters_as_bucket_view` changes nothing: parameters of a process
        travel as one tensor in any case.
        """
        if overlap_with_ddp:
            raise NotImplementedError(
                "ZeroRedundancyOptimizer: overlap_with_ddp=True is not there: step after the backward pass, without it"
            )
        group = default_group() if process_group is None else process_group
        assert isinstance(group, ProcessGroup)
        self.process_group, self.world_size, self.rank = group, group.size(), group.rank()
        self.parameters_as_bucket_view = parameters_as_bucket_view
        self._options, self._class = defaults, optimizer_class
        self._states: list[_State] = []
        Joinable.__init__(self)
        Optimizer.__init__(self, params, defaults)
        kinds = {p.dtype for g in self.param_groups for p in g["params"]}
        if len(kinds) > 1:
            raise ValueError(
                "ZeroRedundancyOptimizer only supports all parameters of one dense type, but got "
                f"{', '.join(sorted(map(str, kinds)))}"
            )
        self._sizes = [0] * self.world_size
        # By rank and group, the parameters that a process steps.
        self._parts: list[list[list[Tensor]]] = [[] for _ in range(self.world_size)]
        for params_group in self.param_groups:
            self._share_out(params_group)
        mine = self._parts[self.rank]
        groups = [{**g, "params": p} for g, p in zip(self.param_groups, mine, strict=True)]
        self.optim = optimizer_class(groups, **defaults)
        # The inner one has defaults that nobody gave.
        _take_options(self.optim.param_groups, self.param_groups)

    def _share_out(self, group: _Group) -> None:
        parts: list[list[Tensor]] = [[] for _ in range(self.world_size)]
        for p in sorted(group["params"], key=lambda p: p.numel(), reverse=True):
            rank = self._sizes.index(min(self._sizes))
            parts[rank].append(p)
            self._sizes[rank] += p.numel()
        for rank, part in enumerate(parts):
            self._parts[rank].append(part)

    def add_param_group(self, param_group: _Group) -> None:
        """Step these parameters, too."""
        super().add_param_group(param_group)
        if hasattr(self, "optim"):
            group = self.param_groups[-1]
            self._share_out(group)
            self.optim.add_param_group({**group, "params": self._parts[self.rank][-1]})
            _take_options(self.optim.param_groups[-1:], self.param_groups[-1:])

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step this process's part, take the others' and return what the closure returns."""
        Join.notify_join_context(self)
        _take_options(self.param_groups, self.optim.param_groups)
        loss = self.optim.step(closure=closure, **kwargs) if closure else self.optim.step(**kwargs)
        with no_grad():
            self._exchange()
        _take_options(self.optim.param_groups, self.param_groups)
        return loss

    def _exchange(self) -> None:
        """Let the parameters of all be what their processes have made of them."""
        sent = []
        for rank, groups in enumerate(self._parts):
            params = [p for part in groups for p in part]
            if params:
                flat = cat([p.reshape(-1) for p in params])
                work = broadcast(flat, group=self.process_group, group_src=rank, async_op=True)
                sent.append((rank, params, flat, work))
        for rank, params, flat, work in sent:
            assert work is not None
            work.wait()
            if rank != self.rank:
                for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                    p.copy_(part.reshape(p.shape))

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Send the states of all parameters to process `to`, whose `state_dict` has them then. All call it."""
        _take_options(self.param_groups, self.optim.param_groups)
        states: list[_State] = []
        into = states if self.rank == to else None
        gather_object(self.optim.state_dict(), into, group=self.process_group, group_dst=to)
        self._states = states

    def _places(self) -> dict[int, int]:
        """Return the number of each parameter, by its id."""
        params = [p for group in self.param_groups for p in group["params"]]
        return {id(p): i for i, p in enumerate(params)}

    def state_dict(self) -> _State:
        """Return the state of one optimizer of all parameters, as the last `consolidate_state_dict` has brought it.
        Raises RuntimeError where that has not been called for this process.
        """
        if not self._states:
            raise RuntimeError(
                "Optimizer state has not been consolidated on this rank. Please call "
                f"`consolidate_state_dict(to={self.rank})` on all ranks beforehand if you meant "
                "to save the global state."
            )
        whole, places, state = super().state_dict(), self._places(), {}
        for of_rank, groups in zip(self._states, self._parts, strict=True):
            numbers = [n for group in of_rank["param_groups"] for n in group["params"]]
            params = [p for part in groups for p in part]
            for n, p in zip(numbers, params, strict=True):
                if n in of_rank["state"]:
                    state[places[id(p)]] = of_rank["state"][n]
        return {**whole, "state": dict(sorted(state.items()))}

    def load_state_dict(self, state_dict: _State) -> None:
        """Take what `state_dict` gave, or one of an optimizer of all parameters: each process keeps its part."""
        places = self._places()
        mine = [p for part in self._parts[self.rank] for p in part]
        state = {
            n: state_dict["state"][places[id(p)]]
            for n, p in enumerate(mine)
            if places[id(p)] in state_dict["state"]
        }
        super().load_state_dict({**state_dict, "state": {}})
        local = self.optim.state_dict()["param_groups"]
        _take_options(self.param_groups, local)
        self.optim.load_state_dict({"state": state, "param_groups": local})

    def join_hook(self, **kwargs: object) -> JoinHook:
        """Return what a process does whose inputs have ended."""
        return _Steps(self)

    @property
    def join_device(self) -> Any:
        """The device of the parameters."""
        return self.param_groups[0]["params"][0].device

    @property
    def join_process_group(self) -> ProcessGroup:
        """The processes."""
        return self.process_group


def _take_options(given: list[_Group], into: list[_Group]) -> None:
    """Let groups have the options of others."""
    for source, target in zip(given, into, strict=True):
        target |= {key: value for key, value in source.items() if key != "params"}
