"""`torch.distributed.elastic.multiprocessing`. Floor 5."""
