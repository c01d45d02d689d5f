"""Floor 1: the op table: what a formula or a kernel is. It knows no tensor."""
