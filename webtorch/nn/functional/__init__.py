"""`nn.functional`: PyTorch's functions of neural networks. May import floors 0 to 4.

Nearly all of them are entries of the op table. Those that are not are written here, one family a
file.
"""

from __future__ import annotations

from webtorch.nn.functional.activation import *  # noqa: F403
from webtorch.nn.functional.attention import *  # noqa: F403
from webtorch.nn.functional.loss import *  # noqa: F403
from webtorch.nn.functional.norm import *  # noqa: F403
from webtorch.nn.functional.table import entries as _entries

for _name, _function in _entries.items():
    globals().setdefault(_name, _function)
