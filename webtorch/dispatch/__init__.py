"""How a call reaches an operation, and who is asked on its way. May import nothing of the package."""
