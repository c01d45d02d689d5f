"""Checks one operation after another: tasks come as lines on standard input, results go out as lines."""

from __future__ import annotations

import gc
import json
import os
import sys


def main() -> None:
    """Answer until the input ends."""
    limit = int(sys.argv[1])
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    from tests.conformance import check, database

    torch.set_num_threads(1)
    operations = database.operations()
    # A collection before each operation need not look at the two libraries and the database again.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        device, dtype, name = json.loads(line)
        result = check.check(operations[name], device, getattr(torch, dtype), limit)
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
