"""Runs many random programs, on several cores."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable

Check = Callable[[int], tuple[str, dict[str, int]]]


def _checked(
    check: Check, make: Callable[[int], object], seed: int
) -> tuple[int, str, dict[str, int]]:
    try:
        return seed, *check(seed)
    except Exception as error:
        lines = "".join(traceback.format_exception(error)[-6:])
        return seed, f"{make(seed)}\n{lines}", {}


def run_many(check: Check, make: Callable[[int], object], about: str | None) -> None:
    """Check the programs of many seeds, as the command line says; say which differ."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0: one for each core")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.count)
    one = functools.partial(_checked, check, make)
    if given.jobs == 1:
        _report(map(one, seeds), given.count)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(given.jobs or os.cpu_count(), maxtasksperchild=400) as pool:
        _report(pool.imap_unordered(one, seeds, chunksize=10), given.count)


def _report(results: object, count: int) -> None:
    total: Counter[str] = Counter()
    bad: list[int] = []
    for done, (seed, found, counts) in enumerate(results, 1):  # type: ignore[call-overload]
        total.update(counts)
        if found:
            bad.append(seed)
            sys.stdout.write(found + "\n")
        if found or done % 100 == 0:
            sys.stdout.write(f"{done} programs, {len(bad)} differ; {dict(total)}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count} programs, {len(bad)} differ; {dict(total)}\n")
    if bad:
        sys.stdout.write(f"seeds: {sorted(bad)}\n")
