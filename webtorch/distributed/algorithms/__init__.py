"""`torch.distributed.algorithms`: what is done with gradients and parameters between processes. Floor 5."""

from webtorch.distributed.algorithms.join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
