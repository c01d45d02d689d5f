"""Adaptive softmax. May import the tensor floor and nn's base files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import functional as F
from webtorch.nn.container import ModuleList, Sequential
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.host import reads
from webtorch.tensors.tensor import Tensor

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _ASMoutput(NamedTuple):
    """What AdaptiveLogSoftmaxWithLoss returns: log probability of each target, and their loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Softmax over many classes, where rare ones share clusters with smaller projections.

    Classes are sorted by frequency; the first `cutoffs[0]` and one entry for each cluster are the
    head's. Grave et al., 2017. All shapes are fixed: every cluster is computed for every sample.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the head and, for each cluster, two layers with in_features / div_value ** n units."""
        super().__init__()
        cutoffs = list(cutoffs)
        if len(cutoffs) == 0:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(set(cutoffs))
            or min(cutoffs) <= 0
            or max(cutoffs) > n_classes - 1
            or any(int(c) != c for c in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an "
                "increasing order, where each value is between 1 and n_classes-1"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for cluster, (low, high) in enumerate(itertools.pairwise(self.cutoffs)):
            hidden = int(in_features // (div_value ** (cluster + 1)))
            self.tail.append(
                Sequential(
                    Linear(in_features, hidden, bias=False, **made),
                    Linear(hidden, high - low, bias=False, **made),
                )
            )

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        self.head.reset_parameters()
        for inner, outer in self.tail:
            inner.reset_parameters()
            outer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        """Return (log probabilities (N,), mean loss) of (N, in_features) and classes (N,).

        One sample and one class, without the batch's dimension, give () and the loss.
        """
        if target_.dim() == 1:
            if input_.shape[0] != target_.shape[0]:
                raise RuntimeError(
                    "Input and target should have the same size in the batch dimension."
                )
            if input_.dim() != 2:
                raise RuntimeError(
                    "1D target tensor expects 2D input tensors, but found inputs with size "
                    f"{input_.size()}"
                )
        elif target_.dim() == 0:
            if input_.dim() != 1:
                raise RuntimeError(
                    "0D target tensor expects 1D input tensors, but found inputs with size "
                    f"{input_.size()}"
                )
        else:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        batched = target_.dim() > 0
        x, target = (input_, target_) if batched else (input_.unsqueeze(0), target_.unsqueeze(0))
        # A capture does not read; a bad class is then one at the nearest end.
        if reads.possible and bool(((target < 0) | (target >= self.n_classes)).any()):
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range "
                f"[{target.min().item()}, {target.max().item()}] were found. "
            )
        place = target.clamp(0, self.shortlist_size - 1)
        local = x.new_zeros(x.shape[0])
        for cluster, (low, high) in enumerate(itertools.pairwise(self.cutoffs)):
            inside = (target >= low) & (target < high)
            place = webtorch.where(inside, self.shortlist_size + cluster, place)
            index = (target - low).clamp(0, high - low - 1).unsqueeze(1)
            found = F.log_softmax(self.tail[cluster](x), dim=1).gather(1, index).squeeze(1)
            local = webtorch.where(inside, found, local)
        head = F.log_softmax(self.head(x), dim=1)
        output = head.gather(1, place.unsqueeze(1)).squeeze(1) + local
        loss = (-output).mean()
        return _ASMoutput(output if batched else output.squeeze(0), loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log probabilities of all classes: (N, in_features) to (N, n_classes)."""
        head = F.log_softmax(self.head(input), dim=1)
        parts = [head[:, : self.shortlist_size]]
        for cluster, layers in enumerate(self.tail):
            of_cluster = head[:, self.shortlist_size + cluster].unsqueeze(1)
            parts.append(F.log_softmax(layers(input), dim=1) + of_cluster)
        return webtorch.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """Return the class with the highest probability: (N, in_features) to (N,).

        As in PyTorch, a sample whose best head entry is in the shortlist gets that.
        """
        best = self.head(input).argmax(1)
        return webtorch.where(best >= self.shortlist_size, self.log_prob(input).argmax(1), best)
