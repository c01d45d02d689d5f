"""What a training step takes at its most: PyTorch's allocations on the CPU beside what
`memory_plan()` predicts. Prints a table; nothing is timed.

    python -m benchmarks.cpu.memory
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.models import Work, characters, cnn, gpt, images, mlp, rows
from benchmarks.training import batches, initial_weights, make_step, torch_step

# Sizes at which PyTorch's own step takes a moment.
WORKS = {
    "mlp": Work(
        "MLP 784-512-512-10, batch 256", lambda t: mlp(t, 784, 512, 512, 10), rows(256, 784)
    ),
    "cnn": Work(
        "CNN 3 conv+bn+relu 16..32, 16x16x3, batch 32",
        lambda t: cnn(t, (16, 32, 32), (1, 2, 1)),
        images(32, 3, 16),
    ),
    "gpt": Work(
        "GPT 3 layers, d 64, 4 heads, T 64, batch 8",
        lambda t: gpt(t, 3, 64, 4, 64, 96),
        characters(8, 64, 96),
    ),
    "gpt-long": Work(
        "GPT 3 layers, d 64, 4 heads, T 256, batch 4",
        lambda t: gpt(t, 3, 64, 4, 256, 96),
        characters(4, 256, 96),
    ),
}


def torch_peak(work: Work) -> int:
    """Return the most bytes of tensors that are alive at once in a step of PyTorch's: what is there
    before it (weights, Adam's state, the last step's gradients, the batch), and what its
    allocations add."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = torch_step(work, initial_weights(work), "cpu")
    x, y = (torch.from_numpy(a) for a in batches(work, 1)[0])
    step(x, y)
    model, optimizer = _closure(step)
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    held = [*model.parameters(), *model.buffers(), *grads, *state, x, y]
    before = sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values()
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step(x, y)
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return before + most


def _closure(step: Any) -> tuple[Any, Any]:
    cells = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))
    loss = cells["loss_of"].cell_contents
    inner = dict(zip(loss.__code__.co_freevars, loss.__closure__, strict=True))
    return inner["model"].cell_contents, cells["optimizer"].cell_contents


def our_peaks(work: Work) -> dict[str, int]:
    """Return the peaks of the planned step, on the CPU and on a GPU of today, whose attention keeps
    no scores."""
    return {"cpu": _our_peak(work, "", False), "gpu": _our_peak(work, "fused", True)}


def _our_peak(work: Work, attention: str, gpu: bool) -> int:
    import webtorch
    from webtorch.capture.kernels import COMMON_GPU
    from webtorch.capture.memory import memory_plan
    from webtorch.lower.compiler import compile_graph
    from webtorch.runtime.backends.cpu import open_backend

    model = work.build(webtorch)
    optimizer = webtorch.optim.Adam(model.parameters(), lr=work.lr)
    step: Any = make_step(webtorch, model, optimizer)
    x, y = (webtorch.tensor(a) for a in batches(work, 1)[0])
    before = os.environ.get("WEBTORCH_ATTENTION", "")
    os.environ["WEBTORCH_ATTENTION"] = attention
    try:
        step(x, y)
        compiled = webtorch.compile(step, device="meta")
        compiled(x, y)
    finally:
        os.environ["WEBTORCH_ATTENTION"] = before
    limits = COMMON_GPU if gpu else open_backend(0).limits
    return memory_plan(compile_graph(compiled.latest().graph, limits)).peak


def main() -> None:
    """Print the table."""
    print(f"{'work':46}  {'PyTorch':>10}  {'cpu':>6}  {'gpu':>6}")
    for work in WORKS.values():
        theirs = torch_peak(work)
        ours = our_peaks(work)
        shares = "  ".join(f"{ours[k] / theirs:6.2f}" for k in ("cpu", "gpu"))
        print(f"{work.name:46}  {theirs / 2**20:6.1f} MiB  {shares}")


if __name__ == "__main__":
    main()
