"""Hooks that DistributedDataParallel calls with each bucket of gradients. Floor 5."""
