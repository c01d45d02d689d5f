"""`torch.distributed.algorithms`: what is done with gradients and parameters between processes. Floor 5."""
