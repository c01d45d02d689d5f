"""Names that only unmodified PyTorch programs ask for, by PyTorch's module. Floor 6."""
