"""`nn.functional`: PyTorch's functions of neural networks, one family a file.

What the op table has comes from there (`table.py`); the rest is written with other operations.
"""

from __future__ import annotations

from webtorch.nn.functional.activation import *  # noqa: F403
from webtorch.nn.functional.attention import *  # noqa: F403
from webtorch.nn.functional.conv import *  # noqa: F403
from webtorch.nn.functional.loss import *  # noqa: F403
from webtorch.nn.functional.noise import *  # noqa: F403
from webtorch.nn.functional.norm import *  # noqa: F403
from webtorch.nn.functional.padding import *  # noqa: F403
from webtorch.nn.functional.pooling import *  # noqa: F403
from webtorch.nn.functional.projection import *  # noqa: F403
from webtorch.nn.functional.vision import *  # noqa: F403
