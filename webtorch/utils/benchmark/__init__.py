"""`webtorch.utils.benchmark`: what a statement costs, as PyTorch measures it. May import floors 0 to 5."""

from webtorch.utils.benchmark.compare import Colorize, Compare
from webtorch.utils.benchmark.measurement import (
    Measurement,
    TaskSpec,
    select_unit,
    trim_sigfig,
    unit_to_english,
)
from webtorch.utils.benchmark.timer import Language, Timer, timer

__all__ = [
    "Colorize", "Compare", "Language", "Measurement", "TaskSpec", "Timer", "select_unit", "timer", "trim_sigfig",
    "unit_to_english",
]  # fmt: skip
