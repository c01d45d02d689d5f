"""How a module is split over a mesh of one dimension, and what goes in and out of it. Floor 5."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.tensor.distribute import (
    as_parameter,
    distribute_module,
    distribute_tensor,
)
from webtorch.distributed.tensor.dtensor import DTensor
from webtorch.distributed.tensor.placement_types import Placement, Replicate, Shard
from webtorch.tensors import above
from webtorch.tensors.tensor import Tensor

Layouts = tuple[Placement | None, ...]
_R = Replicate()


class ParallelStyle(ABC):
    """How a module is split: `_apply(module, mesh)` does it."""

    src_data_rank: int | None = 0

    @abstractmethod
    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any: ...


def _listed(layouts: Placement | Layouts | None) -> Any:
    return (layouts,) if isinstance(layouts, Placement) else layouts


def _is(module: object, name: str) -> bool:
    """Whether a module is of a class of `webtorch.nn`, which stands above this room."""
    return isinstance(module, above.ask("layer")(name))


class _Split(ParallelStyle):
    """A linear layer or an embedding whose parameters are split along a dim."""

    # The dims along which the parameters of a linear layer and those of an embedding are split, by name.
    _linear: ClassVar[dict[str, Placement]]
    _embedding: ClassVar[dict[str, Placement]]

    def __init__(
        self, input_layout: Placement, output_layout: Placement, use_local_output: bool
    ) -> None:
        super().__init__()
        self.input_layouts, self.output_layouts = (input_layout,), (output_layout,)
        self.desired_input_layouts: tuple[Placement, ...] = (_R,)
        self.use_local_output = use_local_output

    def _wanted(self, is_linear: bool) -> tuple[Placement, ...]:
        """Return how the input must lie."""
        return (_R,)

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Split a module. Raises NotImplementedError for one of another class."""
        is_linear = _is(module, "Linear")
        if not is_linear and not _is(module, "Embedding"):
            raise NotImplementedError(
                f"{type(self).__name__} currently only support nn.Linear and nn.Embedding!"
            )
        self.desired_input_layouts = self._wanted(is_linear)
        return distribute_module(module, device_mesh, self._partition, self._before, self._after)

    def _partition(self, name: str, module: Any, mesh: DeviceMesh) -> None:
        lies = self._linear if _is(module, "Linear") else self._embedding
        for key, param in list(module.named_parameters()):
            part = distribute_tensor(param, mesh, [lies[key]], src_data_rank=self.src_data_rank)
            module.register_parameter(key, as_parameter(part, param.requires_grad))

    def _before(self, module: object, inputs: Any, mesh: DeviceMesh) -> Any:
        """Return the input as a DTensor that lies as the module wants it."""
        x = inputs[0]
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        if self.input_layouts != self.desired_input_layouts:
            x = x.redistribute(placements=self.desired_input_layouts)
        return x

    def _after(self, module: object, outputs: Any, mesh: DeviceMesh) -> Any:
        """Return the output as it is wanted."""
        wanted = tuple([
            Shard(p.dim % outputs.dim()) if isinstance(p, Shard) else p for p in self.output_layouts
        ])  # fmt: skip
        if outputs.placements != wanted:
            outputs = outputs.redistribute(placements=wanted)
        return outputs.to_local() if self.use_local_output else outputs

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, output_layouts={self.output_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class ColwiseParallel(_Split):
    """A linear layer or an embedding split by what it gives: by default the input is replicated and the output split
    along its last dim, a plain tensor.
    """

    _linear: ClassVar[dict[str, Placement]] = {"weight": Shard(0), "bias": Shard(0)}
    _embedding: ClassVar[dict[str, Placement]] = {"weight": Shard(1)}

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(input_layouts or _R, output_layouts or Shard(-1), use_local_output)


class RowwiseParallel(_Split):
    """A linear layer or an embedding split by what it takes: by default the input is split along its last dim (that of
    an embedding is replicated), and the output is replicated, a plain tensor.
    """

    _linear: ClassVar[dict[str, Placement]] = {"weight": Shard(1), "bias": _R}
    _embedding: ClassVar[dict[str, Placement]] = {"weight": Shard(0)}

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(input_layouts or Shard(-1), output_layouts or _R, use_local_output)

    def _wanted(self, is_linear: bool) -> tuple[Placement, ...]:
        """Return how the input must lie."""
        return (Shard(-1),) if is_linear else (_R,)


class SequenceParallel(ParallelStyle):
    """A norm or dropout with replicated parameters, of an input that is split along the dim of positions; a plain
    tensor is taken to be its part.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        super().__init__()
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _partition(self, name: str, module: Any, mesh: DeviceMesh) -> None:
        for key, param in list(module.named_parameters()):
            whole = DTensor.from_local(param.detach(), mesh, [_R], run_check=False)
            module.register_parameter(key, as_parameter(whole, True))

    def _before(self, module: object, inputs: Any, mesh: DeviceMesh) -> Any:
        """Return the input as a DTensor that is split along the dim of positions."""
        x = inputs[0]
        if isinstance(x, DTensor):
            lies = x.placements
            return (
                x
                if lies == self.sequence_sharding
                else x.redistribute(placements=self.sequence_sharding)
            )
        if isinstance(x, Tensor):
            return DTensor.from_local(x, mesh, self.sequence_sharding, run_check=False)
        raise ValueError(
            f"expecting input of {module} to be a torch.Tensor or DTensor, but got {x}"
        )

    def _after(self, module: object, outputs: Any, mesh: DeviceMesh) -> Any:
        """Return the output as it is wanted."""
        return outputs.to_local() if self.use_local_output else outputs

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Replicate a module's parameters."""
        return distribute_module(module, device_mesh, self._partition, self._before, self._after)

    def __repr__(self) -> str:
        dim = self.sequence_sharding[0].dim
        return f"SequenceParallel(sequence_dim={dim}, use_local_output={self.use_local_output})"


def _prepared(
    x: Any, mesh: DeviceMesh, now: Placement | None, wanted: Placement | None, local: bool
) -> Any:
    """Return a value by other placements, as its part if that is wanted; without placements itself."""
    if now is None:
        return x
    if not isinstance(x, DTensor):
        if not isinstance(x, Tensor):
            raise AssertionError("expecting input to be a torch.Tensor!")
        x = DTensor.from_local(x, mesh, (now,), run_check=False)
    if wanted is not None and now != wanted:
        x = x.redistribute(placements=(wanted,))
    return x.to_local() if local else x


class PrepareModuleInput(ParallelStyle):
    """What goes into a module becomes DTensors, and is redistributed; None leaves an argument as it is."""

    def __init__(
        self,
        *,
        input_layouts: Placement | Layouts | None = None,
        desired_input_layouts: Placement | Layouts | None = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = _listed(input_layouts)
        self.desired_input_layouts = _listed(desired_input_layouts)
        self.use_local_output = use_local_output
        if self.input_layouts is not None:
            if self.desired_input_layouts is None:
                raise AssertionError("desired module inputs should not be None!")
            if len(self.input_layouts) != len(self.desired_input_layouts):
                raise AssertionError(
                    "input_layouts and desired_input_layouts should have same length!"
                )
        self.with_kwargs = input_kwarg_layouts is not None
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        if self.with_kwargs and len(self.input_kwarg_layouts) != len(
            self.desired_input_kwarg_layouts
        ):
            raise AssertionError(
                "input_kwarg_layouts and desired_input_kwarg_layouts should have same length!"
            )

    def _prepare_input_fn(self, inputs: Any, mesh: DeviceMesh) -> Any:
        """Return the arguments by position."""
        if self.input_layouts is None:
            return inputs
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        if len(given) != len(self.input_layouts):
            raise ValueError("module inputs and input_layouts should have same length!")
        return tuple([
            _prepared(x, mesh, now, wanted, self.use_local_output)
            for x, now, wanted in zip(given, self.input_layouts, self.desired_input_layouts, strict=True)
        ])  # fmt: skip

    def _prepare_input_kwarg_fn(self, inputs: Any, kwargs: Any, mesh: DeviceMesh) -> Any:
        """Return the arguments by position, and those by name."""
        now, wanted = self.input_kwarg_layouts, self.desired_input_kwarg_layouts
        named = {
            k: _prepared(x, mesh, now.get(k), wanted.get(k), self.use_local_output) for k, x in kwargs.items()
        }  # fmt: skip
        return self._prepare_input_fn(inputs, mesh), named

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Change what goes into a module."""
        if self.with_kwargs:
            module.register_forward_pre_hook(
                lambda _, inputs, kwargs: self._prepare_input_kwarg_fn(inputs, kwargs, device_mesh),
                with_kwargs=True,
            )
        else:
            module.register_forward_pre_hook(
                lambda _, inputs: self._prepare_input_fn(inputs, device_mesh)
            )
        return module

    def __repr__(self) -> str:
        return (
            f"PrepareModuleInput(input_layouts={self.input_layouts}, "
            f"desired_input_layouts={self.desired_input_layouts}, input_kwarg_layouts={self.input_kwarg_layouts}, "
            f"desired_input_kwarg_layouts={self.desired_input_kwarg_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class PrepareModuleOutput(ParallelStyle):
    """What comes out of a module becomes DTensors, and is redistributed; None leaves a result as it is."""

    def __init__(
        self,
        *,
        output_layouts: Placement | Layouts,
        desired_output_layouts: Placement | Layouts,
        use_local_output: bool = True,
    ) -> None:
        self.output_layouts = _listed(output_layouts)
        self.desired_output_layouts = _listed(desired_output_layouts)
        self.use_local_output = use_local_output
        if len(self.output_layouts) != len(self.desired_output_layouts):
            raise AssertionError(
                "output_layouts and desired_output_layouts should have same length!"
            )

    def _prepare_out_fn(self, outputs: Any, mesh: DeviceMesh) -> Any:
        """Return the results."""
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(given) != len(self.output_layouts):
            raise ValueError("module outputs and output_layouts should have same length!")
        found = [
            _prepared(x, mesh, now, wanted, self.use_local_output)
            for x, now, wanted in zip(
                given, self.output_layouts, self.desired_output_layouts, strict=True
            )
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Change what comes out of a module."""
        module.register_forward_hook(
            lambda _, inputs, outputs: self._prepare_out_fn(outputs, device_mesh)
        )
        return module

    def __repr__(self) -> str:
        return (
            f"PrepareModuleOutput(output_layouts={self.output_layouts}, "
            f"desired_output_layouts={self.desired_output_layouts}, use_local_output={self.use_local_output})"
        )


class PrepareModuleInputOutput(ParallelStyle):
    """What goes into a module and what comes out of it becomes DTensors, and is redistributed."""

    def __init__(
        self,
        *,
        input_layouts: Placement | Layouts | None = None,
        desired_input_layouts: Placement | Layouts | None = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Placement | Layouts,
        desired_output_layouts: Placement | Layouts,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Change what goes into a module and comes out of it."""
        self.prepare_module_input._apply(module, device_mesh)
        self.prepare_module_output._apply(module, device_mesh)
        return module

    def __repr__(self) -> str:
        before, after = self.prepare_module_input, self.prepare_module_output
        return (
            f"PrepareModuleInputOutput(input_layouts={before.input_layouts}, "
            f"desired_input_layouts={before.desired_input_layouts}, input_kwarg_layouts={before.input_kwarg_layouts}, "
            f"desired_input_kwarg_layouts={before.desired_input_kwarg_layouts}, "
            f"use_local_input={before.use_local_output}, output_layouts={after.output_layouts}, "
            f"desired_output_layouts={after.desired_output_layouts}, use_local_output={after.use_local_output})"
        )
