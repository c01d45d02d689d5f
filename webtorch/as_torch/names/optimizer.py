"""Names of torch.optim.optimizer for annotations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from webtorch import Tensor

ParamsT: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
params_t = _params_t = ParamsT
StateDict: TypeAlias = dict[str, Any]


class _RequiredParameter:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter()
