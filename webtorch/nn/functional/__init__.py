"""`nn.functional`: PyTorch's functions of neural networks. May import floors 0 to 4.

Nearly all of them are entries of the op table. Those that are not are written here, one family a
file.
"""

from types import ModuleType as _ModuleType

from webtorch.nn.functional.activation import *  # noqa: F403
from webtorch.nn.functional.alignment import *  # noqa: F403
from webtorch.nn.functional.attention import *  # noqa: F403
from webtorch.nn.functional.bag import *  # noqa: F403
from webtorch.nn.functional.fractional import *  # noqa: F403
from webtorch.nn.functional.loss import *  # noqa: F403
from webtorch.nn.functional.norm import *  # noqa: F403
from webtorch.nn.functional.table import entries as _entries
from webtorch.nn.functional.table import with_indices as _with_indices
from webtorch.tensors.absent import missing_names as _missing_names

for _name, _function in _entries.items():
    globals().setdefault(_name, _function)
for _rank in (1, 2, 3):
    globals()[f"adaptive_max_pool{_rank}d_with_indices"] = _with_indices(_rank)
# The files are rooms of this package and no functions of it.
for _name in [n for n, v in globals().items() if isinstance(v, _ModuleType)]:
    del globals()[_name]
__getattr__ = _missing_names(__name__, "nn.functional")
