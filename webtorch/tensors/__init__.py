"""Floor 4: tensors, views, autograd, indexing, printing, random numbers."""
