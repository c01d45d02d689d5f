"""`webtorch.utils.data.distributed`: where PyTorch has the sampler of several processes. May import floors 0 to 5."""

from webtorch.data.sampler import DistributedSampler as DistributedSampler
