"""`torch.distributed.elastic`: what programs that torchrun starts import of it. Floor 5."""
