"""`torch.distributed.tensor.parallel`: modules whose parameters lie in the processes of a mesh. Floor 5."""
