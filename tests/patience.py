"""How long a test waits for what has to come."""

from __future__ import annotations

# Seconds after which it is taken never to come: they only end what hangs. A machine that is busy with the rest of the
# suite, a type checker and a compiler must not reach them.
PATIENCE = 900.0
