"""Datasets, samplers and the DataLoader, which users find as `webtorch.utils.data`.

May import floors 0 to 4.

    import webtorch as torch
    from webtorch.utils.data import DataLoader, TensorDataset

    examples = TensorDataset(torch.rand(10, 2), torch.arange(10))
    for x, y in DataLoader(examples, batch_size=4, shuffle=True):
        print(x.shape, y.tolist())
"""

from webtorch.data.collate import default_collate, default_convert
from webtorch.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from webtorch.data.loader import DataLoader, WorkerInfo, get_worker_info
from webtorch.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]

# As PyTorch's say "torch.utils.data": libraries look for it.
for _name in __all__:
    globals()[_name].__module__ = "webtorch.utils.data"
