"""Floor 1: the op table. An operation is declared once, here; all else follows."""
