"""`webtorch.special`: the entries of the op table that PyTorch's users find in torch.special."""

import sys as _sys

from webtorch.functions.bind import NAMESPACES as _NAMESPACES
from webtorch.tensors.absent import MissingName as _MissingName

_names = dict(_NAMESPACES["special"])
# What torch.special and torch share: the name here, and the one in torch.
for _here, _there in {
    "expit": "sigmoid", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "exp2": "exp2",
    "expm1": "expm1", "digamma": "digamma", "psi": "digamma", "gammaln": "lgamma", "i0": "i0",
    "log1p": "log1p", "log_softmax": "log_softmax", "softmax": "softmax", "logsumexp": "logsumexp",
    "logit": "logit", "multigammaln": "mvlgamma", "polygamma": "polygamma", "round": "round",
    "sinc": "sinc", "xlogy": "xlogy", "gammainc": "igamma", "gammaincc": "igammac",
}.items():  # fmt: skip
    if _there in _NAMESPACES["torch"]:
        _names.setdefault(_here, _NAMESPACES["torch"][_there])
globals().update(_names)
__all__ = sorted(_names)


def __getattr__(name: str) -> object:
    """Say what is known of a name that does not exist here."""
    raise _MissingName(_sys.modules[__name__], "special", name)
