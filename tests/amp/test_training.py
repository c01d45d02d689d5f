"""A small GPT trained in mixed precision as a user would write it, beside PyTorch: same weights, same
data, same losses.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device
from tests.nn.oracle import to_web

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH, STEPS = 17, 12, 16, 2, 1, 3, 6


def _gpt(lib: Any) -> Any:
    """Return a GPT of `lib`'s modules: learned positions, pre-norm blocks, causal attention, tied head."""
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (
                part.view(b, t, HEADS, c // HEADS).transpose(1, 2)
                for part in self.qkv(self.first(x)).split(c, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x: Any, y: Any, checkpointed: bool = False) -> Any:
            h = self.tokens(x) + self.places(lib.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                if checkpointed:
                    h = lib.utils.checkpoint.checkpoint(block, h, use_reentrant=False)
                else:
                    h = block(h)
            logits = self.head(self.norm(h))
            return F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1))

    return GPT()


def _weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    state: dict[str, torch.Tensor] = _gpt(torch).state_dict()
    return {k: v * 0.5 if "weight" in k and v.dim() == 2 else v for k, v in state.items()}


def _batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=generator) for _ in range(2)
    ] * (STEPS // 2)


def _train(
    lib: Any, device: str, dtype: str, compiled: bool, checkpointed: bool, steps: int = STEPS
) -> list[float]:
    model = _gpt(lib)
    state = _weights()
    model.load_state_dict(state if lib is torch else to_web(state, "cpu"))
    model = model.to(device)
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = lib.amp.GradScaler(
        device, enabled=dtype == "float16", init_scale=2.0**12, growth_interval=3
    )

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with lib.autocast(device_type=device, dtype=getattr(lib, dtype)):
            loss = model(x, y, checkpointed)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    run = lib.compile(step) if compiled else step
    losses = []
    for batch in _batches()[:steps]:
        tokens = batch if lib is torch else to_web(batch, device)
        losses.append(run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).item())
    assert all(p.dtype is lib.float32 and p.grad.dtype is lib.float32 for p in model.parameters())
    return losses


@pytest.mark.one_in(2)
@pytest.mark.covers("A14")
@pytest.mark.parametrize(
    ("device", "dtype", "compiled"),
    [
        ("cpu", "bfloat16", True),
        ("cpu", "float16", False),
        ("webgpu", "bfloat16", False),
        ("webgpu", "float16", True),
    ],
)
def test_losses_are_those_of_pytorch(device: str, dtype: str, compiled: bool) -> None:
    need_device(device)
    theirs = _train(torch, "cpu", dtype, False, False)
    ours = _train(webtorch, device, dtype, compiled, False)
    # Two runs in 8 bits of mantissa drift apart as their roundings differ.
    rtol = {"bfloat16": 3e-2, "float16": 6e-3}[dtype]
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=rtol, atol=rtol)
    assert ours[-1] < ours[0] - 0.3


def test_checkpointed_blocks_give_the_same_losses() -> None:
    plain = _train(webtorch, "cpu", "bfloat16", False, False, 2)
    checkpointed = _train(webtorch, "cpu", "bfloat16", False, True, 2)
    torch.testing.assert_close(
        torch.tensor(checkpointed), torch.tensor(plain), rtol=1e-2, atol=1e-2
    )
