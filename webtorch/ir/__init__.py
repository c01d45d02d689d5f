"""Floor 0: what is computed, as data that prints. Standard library only."""
