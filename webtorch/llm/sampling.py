"""How the next token is chosen from logits, on their device."""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.functions import public as webtorch
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = ["Sampling", "choose"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 takes the likeliest.

    top_k: only the k likeliest (0: all). top_p: the fewest whose probabilities add up to p (Holtzman et al., 2020).
    min_p: those at least p times as likely as the likeliest (Nguyen et al., 2024). repetition_penalty: logits of
    tokens that were there are divided by it, or times it where negative (Keskar et al., 2019). seed: the same seed
    draws the same numbers; None: others each time. Raises ValueError for what is out of its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, low, high in (
            ("temperature", 0.0, 100.0), ("top_k", 0, 1 << 31), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0),
            ("repetition_penalty", 1e-3, 100.0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; {low} to {high} is wanted")

    @property
    def greedy(self) -> bool:
        """Return whether the likeliest token is taken, whatever was said."""
        return self.temperature == 0 and self.repetition_penalty == 1.0

    def numbers(self, vocabulary: int, device: DeviceLike) -> Tensor:
        """Return what `choose` reads: (5,) float32 on the device, so that other numbers compile nothing."""
        drawn = self.temperature > 0
        return webtorch.tensor(
            [
                self.temperature if drawn else 1.0,
                float((self.top_k or vocabulary) if drawn else 1),
                self.top_p, self.min_p, self.repetition_penalty,
            ],
            device=device,
        )  # fmt: skip


def choose(logits: Tensor, numbers: Tensor, seen: Tensor, chance: Tensor) -> Tensor:
    """Return a token (1,) for logits (V,), drawn as `numbers` (5,) of `Sampling` say.

    seen: (V,), 1 for tokens that were there. chance: (1,), an even random number of 0 to 1, which picks from the
    probabilities in falling order.
    """
    temperature, top_k, top_p, min_p, penalty = numbers.unbind()
    logits = logits.float()
    less = webtorch.where(logits > 0, logits / penalty, logits * penalty)
    logits = webtorch.where(seen > 0, less, logits) / temperature
    ordered, which = logits.sort(-1, descending=True)
    ranks = webtorch.arange(ordered.shape[0], device=logits.device)
    parts = webtorch.softmax(ordered.masked_fill(ranks >= top_k, float("-inf")), -1)
    kept = (parts.cumsum(-1) - parts < top_p) | (ranks == 0)
    kept = kept & (parts >= min_p * parts[:1])
    sums = (parts * kept).cumsum(-1)
    picked = (sums <= chance * sums[-1:]).sum(-1, keepdim=True)
    return which.gather(0, picked.clamp(max=which.shape[0] - 1))
