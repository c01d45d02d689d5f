"""Modules of either library, and arguments for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def module(lib: Any, forward: Callable[..., Any], **parts: Any) -> Any:
    """Return a module of parts; buffers and constants are tensors among them."""

    class Module(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    # PyTorch reads the names of inputs from the signature.
    Module.forward = forward
    return Module()


def mlp(t: Any) -> Any:
    net = t.nn.Sequential(t.nn.Linear(3, 4), t.nn.ReLU(), t.nn.Linear(4, 2))
    return module(t, lambda self, x: self.net(x).softmax(-1), net=net), (t.ones(2, 3),)


def cnn(t: Any) -> Any:
    def forward(self: Any, x: Any) -> Any:
        x = t.nn.functional.relu(self.norm(self.first(x)))
        x = t.nn.functional.max_pool2d(x, 2)
        return self.out(self.pool(x).flatten(1))

    nn = t.nn
    parts = {
        "first": nn.Conv2d(3, 4, 3, padding=1, stride=2), "norm": nn.BatchNorm2d(4), "pool": nn.AdaptiveAvgPool2d(1),
        "out": nn.Linear(4, 5),
    }  # fmt: skip
    return module(t, forward, **parts), (t.ones(1, 3, 8, 8),)


def residual(t: Any) -> Any:
    def forward(self: Any, x: Any) -> Any:
        y = self.second(t.nn.functional.gelu(self.first(x)))
        return t.nn.functional.layer_norm(x + y, (4,), self.weight)

    parts = {
        "first": t.nn.Linear(4, 8),
        "second": t.nn.Linear(8, 4),
        "weight": t.nn.Parameter(t.ones(4)),
    }
    return module(t, forward, **parts), (t.ones(2, 3, 4),)


def attention(t: Any) -> Any:
    def forward(self: Any, x: Any) -> Any:
        b, s, c = x.shape
        q, k, v = self.joint(x).split(c, dim=2)
        q, k, v = (z.view(b, s, 2, c // 2).transpose(1, 2) for z in (q, k, v))
        y = t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, s, c))

    return module(t, forward, joint=t.nn.Linear(4, 12), out=t.nn.Linear(4, 4)), (t.ones(2, 3, 4),)


def embedding(t: Any) -> Any:
    def forward(self: Any, tokens: Any) -> Any:
        return self.norm(self.embed(tokens)).mean(1)

    tokens = t.zeros(2, 3, dtype=t.int64)
    return module(t, forward, embed=t.nn.Embedding(5, 4), norm=t.nn.LayerNorm(4)), (tokens,)


def constants(t: Any) -> Any:
    made = module(t, lambda self, x: (x * self.scale + self.shift).clamp(0, 5), shift=t.ones(3))
    made.register_buffer("scale", t.full((3,), 2.0), persistent=False)
    return made, (t.ones(2, 3),)


def arithmetic(t: Any) -> Any:
    def forward(self: Any, x: Any, y: Any) -> Any:
        return t.where(x > y, x / 2, 3 - y) ** 2 + t.maximum(x, y) * (x == y)

    return module(t, forward), (t.ones(2, 3), t.zeros(3))


def shapes(t: Any) -> Any:
    def forward(self: Any, x: Any) -> Any:
        y = t.cat([x[:, 1:], x[:, :1]], 1).permute(1, 0).unsqueeze(0)
        return t.stack([y.squeeze(0), x.t()]).sum((0, 2)).expand(2, 4)

    return module(t, forward), (t.ones(3, 4),)


def reductions(t: Any) -> Any:
    def forward(self: Any, x: Any) -> Any:
        values, _ = x.max(1)
        return values + x.mean(1) + x.argmax(1) + x.sum(1, keepdim=True).squeeze(1)

    return module(t, forward), (t.ones(3, 4),)


def dropout(t: Any) -> Any:
    net = t.nn.Sequential(t.nn.Dropout(0.3), t.nn.Linear(3, 3), t.nn.SiLU(), t.nn.GroupNorm(1, 3))
    return module(t, lambda self, x: self.net(x).sigmoid(), net=net), (t.ones(2, 3),)


def types(t: Any) -> Any:
    return module(t, lambda self, x: x.to(t.float64).sum().float() + t.arange(3)), (t.ones(2, 3),)


def loss(t: Any) -> Any:
    def forward(self: Any, x: Any, y: Any) -> Any:
        return t.nn.functional.cross_entropy(self.out(x), y, label_smoothing=0.1)

    return module(t, forward, out=t.nn.Linear(3, 4)), (t.ones(2, 3), t.zeros(2, dtype=t.int64))


def names(t: Any) -> Any:
    """Parameters whose names are no identifiers."""

    def forward(self: Any, x: Any) -> Any:
        return x * self.table["a/b"] + self.table["c 1"]

    table = t.nn.ParameterDict({n: t.nn.Parameter(t.ones(2)) for n in ("a/b", "c 1")})
    return module(t, forward, table=table), (t.ones(2),)


def linear(t: Any) -> Any:
    # Its argument has the name of one of Python's functions.
    return t.nn.Linear(3, 2), (t.ones(4, 3),)


MODELS: dict[str, Callable[[Any], Any]] = {
    f.__name__: f
    for f in (
        mlp,
        cnn,
        residual,
        attention,
        embedding,
        constants,
        arithmetic,
        shapes,
        reductions,
        dropout,
        types,
        loss,
        names,
    )
}
