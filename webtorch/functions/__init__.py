"""What is written with tensors and other operations, by family, and what hangs it on Tensor."""
