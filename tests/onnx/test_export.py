"""webtorch.onnx.export: files checked by onnx and run by onnxruntime, against the module itself."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import webtorch
from webtorch import Tensor, nn
from webtorch.nn import functional as F
from webtorch.onnx.rules.recurrent import _GATES
from webtorch.onnx.writer import RULES
from webtorch.ops.record import TABLE


@pytest.fixture(autouse=True)
def cpu() -> Any:
    before = webtorch.get_default_device()
    webtorch.set_default_device("cpu")
    webtorch.manual_seed(0)
    yield
    webtorch.set_default_device(before)


def flat(x: Any) -> list[Tensor]:
    if isinstance(x, (tuple, list)):
        return [t for y in x for t in flat(y)]
    return [x]


def check(model: Any, *calls: Any, tolerance: float = 1e-4, **options: Any) -> Any:
    """Export with the first call's arguments and compare onnxruntime with the model for all calls.

    The exported file is imported again, and must say the same.
    """
    if isinstance(model, nn.Module) and "training" not in options:
        model.eval()
    calls = tuple(c if isinstance(c, tuple) else (c,) for c in calls)
    program = webtorch.onnx.export(model, calls[0], **options)
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    again = webtorch.onnx.load(program.model_proto)
    for call in calls:
        with webtorch.no_grad():
            expected = flat(model(*call))
            imported = flat(again(*flat(call)))
        given = {i.name: t.numpy() for i, t in zip(session.get_inputs(), flat(call), strict=True)}
        found = session.run(None, given)
        for got, back, want in zip(found, imported, expected, strict=True):
            wanted = want.numpy()
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(
                back.detach().numpy(), wanted, rtol=tolerance, atol=tolerance
            )
    return program.model_proto


def ops(proto: Any) -> list[str]:
    return [n.op_type for n in proto.graph.node if n.op_type != "Constant"]


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(outputs)
        self.c2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(outputs)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.b1(self.c1(x)))
        h = self.b2(self.c2(h))
        h += self.down(x)
        return self.relu(h)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        self.layers = nn.Sequential(Block(8, 8), Block(8, 16, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(webtorch.flatten(self.pool(self.layers(self.stem(x))), 1))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.rnn = kind(6, 5, **options)
        self.out = nn.Linear(10 if options.get("bidirectional") else 5, 3)

    def forward(self, x: Tensor) -> Any:
        h, state = self.rnn(self.embed(x))
        return self.out(h), state


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls = nn.Parameter(webtorch.randn(1, 1, 16))
        self.position = nn.Parameter(webtorch.randn(1, 17, 16))
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, batch_first=True, activation="gelu", norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = webtorch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d1, self.norm = nn.Conv2d(1, 4, 3, 1, 1), nn.GroupNorm(2, 4)
        self.d2 = nn.Conv2d(4, 8, 3, 2, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.norm(self.d1(x)))
        b = F.relu(self.d2(a))
        b = F.interpolate(F.avg_pool2d(b, 2), scale_factor=2, mode="bilinear")
        return webtorch.sigmoid(self.out(webtorch.cat([a, self.up(b)], 1)))


class GPTBlock(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.heads = heads
        self.mlp = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(approximate="tanh"), nn.Linear(4 * size, size)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).split(c, 2)
        q, k, v = (y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(n, t, c))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30, 16), nn.Embedding(32, 16)
        self.blocks = nn.ModuleList([GPTBlock(16, 2) for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(webtorch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Masked(nn.Module):
    """Attention as written by hand: a buffer cut to the length, and a write in place."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("mask", webtorch.tril(webtorch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.size()
        q, k, v = (y.view(n, t, 4, c // 4).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        a = a.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = (F.softmax(a, dim=-1) @ v).transpose(1, 2).contiguous().view(n, t, c).clone()
        y[:, 0] = 0
        return y / t


def randint(*shape: int) -> Tensor:
    return webtorch.randint(0, 20, shape)


rand = webtorch.randn
MLP = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))
# name -> (module, arguments at two sizes, dynamic axes, a node that stands for what it is)
MODELS: dict[str, tuple[Any, Any, Any, str]] = {
    "mlp": (lambda: MLP, [(3, 8), (7, 8)], {"input": {0: "n"}}, "Gemm"),
    "resnet": (ResNet, [(2, 3, 32, 32), (5, 3, 32, 32)], {"x": {0: "n"}}, "BatchNormalization"),
    "vit": (ViT, [(2, 3, 16, 16), (3, 3, 16, 16)], {"x": {0: "n"}}, "LayerNormalization"),
    "unet": (UNet, [(2, 1, 16, 16), (1, 1, 8, 24)], {"x": {0: "n", 2: "h", 3: "w"}}, "Resize"),
    "masked": (Masked, [(2, 8, 16), (3, 5, 16)], {"x": {0: "n", 1: "t"}}, "Softmax"),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1, enable_nested_tensor=False
        ),
        [(2, 6, 16), (3, 4, 16)],
        {"src": {0: "n", 1: "t"}},
        "LayerNormalization",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_dynamic_sizes(name: str) -> None:
    make, shapes, axes, node = MODELS[name]
    model = make()
    proto = check(model, *(rand(*s) for s in shapes), dynamic_axes=axes)
    assert node in ops(proto)
    # Weights keep their names.
    names = {t.name for t in proto.graph.initializer}
    assert [k for k in model.state_dict() if k.endswith("bias") and k not in names] == []


def test_a_language_model_with_tied_weights() -> None:
    model = GPT()
    axes = {"ids": {0: "n", 1: "t"}}
    proto = check(model, randint(2, 8), randint(3, 5), dynamic_axes=axes, opset_version=20)
    assert ops(proto).count("Gelu") == 2
    check(model, randint(2, 8), opset_version=13)


@pytest.mark.parametrize(
    ("kind", "options", "axes"),
    [
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}, {1: "n"}),
        (nn.GRU, {"bias": False, "bidirectional": True, "batch_first": True}, None),
        (nn.RNN, {"nonlinearity": "relu"}, None),
    ],
)
def test_recurrent_modules_are_one_node_a_layer(kind: Any, options: Any, axes: Any) -> None:
    model = Recurrent(kind, **options)
    second = randint(4, 5) if axes else randint(4, 3)
    proto = check(model, randint(4, 3), second, dynamic_axes={"x": axes} if axes else None)
    assert ops(proto).count(kind.__name__) == options.get("num_layers", 1)


# ---- operations -----------------------------------------------------------------------------------

CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "conv1d same": (nn.Conv1d(2, 4, 4, padding="same"), (2, 2, 9)),
    "conv3d groups": (nn.Conv3d(2, 4, 2, groups=2), (1, 2, 4, 4, 4)),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), (1, 2, 5, 5)),
    "unbatched": (nn.Conv2d(2, 3, 3), (2, 5, 5)),
    "max_pool": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (1, 2, 8, 8)),
    "avg_pool": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 2, 7, 7)),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 7, 8)),
    "layer_norm plain": (nn.LayerNorm((3, 4), elementwise_affine=False), (2, 3, 4)),
    "instance_norm": (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 4)),
    "group_norm": (nn.GroupNorm(2, 4), (2, 4, 5)),
    "rms_norm": (nn.RMSNorm(6), (2, 3, 6)),
    "prelu": (nn.PReLU(3), (2, 3, 4)),
    "upsample nearest": (nn.Upsample(scale_factor=2), (1, 2, 3, 3)),
    "upsample corners": (nn.Upsample((5, 7), mode="bilinear", align_corners=True), (1, 2, 3, 4)),
    "bicubic": (lambda x: F.interpolate(x, (5, 7), mode="bicubic"), (1, 2, 4, 4)),
    "pixel_shuffle": (nn.PixelShuffle(2), (1, 8, 2, 3)),
    "reflect": (nn.ReflectionPad2d((1, 2, 0, 1)), (1, 2, 4, 4)),
    "replicate": (nn.ReplicationPad2d((1, 2, 0, 1)), (1, 2, 4, 4)),
    "circular": (nn.CircularPad1d(2), (1, 2, 5)),
    "constant": (nn.ConstantPad1d((2, -1), 1.5), (1, 2, 5)),
    "index": (lambda x: x[:, None, 1:-1, ..., -1][..., ::2], (3, 5, 6)),
    "two masks": (lambda x: webtorch.where(x > 0, x, -x) + (x < 0.5).float(), (3, 4)),
    "gather": (lambda x: x.gather(1, x.argsort(1)), (3, 4)),
    "sort": (lambda x: x.sort(-1, descending=True), (3, 4)),
    "topk": (lambda x: x.topk(2, 1), (3, 5)),
    "var": (lambda x: (x.var(1), x.std(), webtorch.var_mean(x, 0, keepdim=True)[0]), (3, 5)),
    "norms": (lambda x: (x.norm(), x.norm(dim=1), F.normalize(x)), (3, 5)),
    "extremes": (lambda x: (x.max(), x.max(1), x.amin((0, 1)), x.argmin(0)), (3, 5)),
    "logic": (lambda x: ((x > 0).any(1), (x > -9).all(), (x > 0) & ~(x > 1)), (3, 5)),
    "cumsum": (lambda x: x.cumsum(1), (3, 5)),
    "tril": (lambda x: x.tril() + x.triu(1) * 2, (4, 4)),
    "einsum": (lambda x: webtorch.einsum("bij,bkj->bik", x, x), (2, 3, 4)),
    "roll": (lambda x: webtorch.roll(x, 2, 1).flip(0), (3, 5)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (3, 2)),
    "stack": (lambda x: webtorch.stack(x.unbind(1), 0), (3, 4)),
    "split": (lambda x: x.split([1, 3], 1), (2, 4)),
    "unfold": (lambda x: x.unfold(1, 3, 2), (2, 9)),
    "strided": (lambda x: webtorch.as_strided(x.contiguous(), (3, 2), (1, 2), 1), (8,)),
    "diagonal": (lambda x: x.diagonal(), (3, 4)),
    "in place": (lambda x: x.clone().mul_(2).add_(1)[1:].zero_(), (3, 4)),
    "half": (lambda x: (x * 64).round().half() * 2 + 1, (3,)),
    "integers": (lambda x: (x * 10).long() // 3 + (x * 10).int() % 4, (3, 5)),
    "random access": (lambda x: x[webtorch.tensor([2, 0]), webtorch.tensor([1, 1])], (3, 4)),
    "embedding": (lambda x: F.embedding((x > 0).long(), webtorch.eye(3)), (3, 4)),
    "one_hot": (lambda x: F.one_hot((x > 0).long(), 3), (3,)),
    "attention mask": (
        lambda x: F.scaled_dot_product_attention(x, x, x, (x @ x.mT) > 0),
        (1, 2, 4, 4),
    ),
    "long attention": (
        lambda x: F.scaled_dot_product_attention(
            x, x[:, :2], x[:, :2], is_causal=True, enable_gqa=True
        ),
        (1, 4, 300, 32),
    ),
    "long mask": (
        lambda x: F.scaled_dot_product_attention(x, x, x, (x @ x.mT) > 0),
        (1, 2, 260, 32),
    ),
    "long attention of one head": (
        lambda x: F.scaled_dot_product_attention(x, x * 0.5, x + 1, is_causal=True),
        (260, 32),
    ),
    "long attention of three dims": (
        lambda x: F.scaled_dot_product_attention(x, x[:2], x[:2], enable_gqa=True),
        (4, 260, 32),
    ),
    "long attention to one head": (
        lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1]),
        (2, 4, 260, 32),
    ),
    "median": (lambda x: (x.median(1)[0], x.kthvalue(2, 1)[0], x.msort()), (3, 5)),
    "cross_entropy": (lambda x: F.cross_entropy(x, webtorch.tensor([1, 0, 2])), (3, 4)),
    "expm1": (lambda x: (webtorch.expm1(x * 1e-3), webtorch.log1p(x.abs() * 1e-3)), (9,)),
    "atan2": (lambda x: webtorch.atan2(x, x.flip(0)), (9,)),
    "logsumexp": (lambda x: x.logsumexp(1), (2, 5)),
    "huber": (lambda x: F.smooth_l1_loss(x, x * 2), (3, 3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations(name: str) -> None:
    function, shape = CALLS[name]
    check(function, rand(*shape))


# What has no form in ONNX: integers of bits, tables of their own.
_NOT_IN_ONNX = frozenset(("nextafter", "_frexp_exponent", "signbit"))


def test_elementwise_entries_are_written_from_their_formula() -> None:
    """One file of every differentiable entry of one float tensor, without a line for any of them."""
    from webtorch.ops.record import Elementwise

    entries = [
        op
        for op in TABLE.values()
        if isinstance(op, Elementwise) and op.function_in and len(op.tensors) == 1 and not op.numbers
        and op.name not in _NOT_IN_ONNX and "bitwise" not in op.name
    ]  # fmt: skip
    assert len(entries) > 60
    refused = []
    for op in entries:
        low, high = op.domain
        x = webtorch.linspace(max(low, -4.0) + 0.01, min(high, 4.0) - 0.01, 33)
        try:
            program = webtorch.onnx.export(op.function, (x,))
        except webtorch.onnx.ExportError as error:
            refused.append((op.name, str(error)))
            continue
        (found,) = program(x)
        np.testing.assert_allclose(
            found.numpy(), op.function(x).numpy(), rtol=2e-4, atol=2e-5, err_msg=op.name
        )
    assert refused == []


def test_rules_take_the_arguments_of_their_operations() -> None:
    """A parameter that an operation got since is one that its rule has to know."""
    by_name = {name: op for op in TABLE.values() for name in (op.name, *op.aliases)}
    wrong = []
    for name, rule in RULES.items():
        op = by_name.get(name)
        if op is None:
            continue
        given = set(op.callee.parameters.parameters)
        known = list(inspect.signature(rule).parameters.values())[2:]
        unknown = given - {p.name for p in known}
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known):
            wrong.append(f"{name}: {sorted(unknown)}")
    assert wrong == []


@pytest.mark.filterwarnings("ignore:This overload of addmm is deprecated")
def test_addmm_in_either_order_of_arguments() -> None:
    class New(nn.Module):
        def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return webtorch.addmm(x, a, b, beta=0.5, alpha=2.0)

    class Old(nn.Module):
        def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return webtorch.addmm(0.5, x, 2.0, a, b)  # type: ignore[call-overload]

    call = rand(2, 3), rand(2, 4), rand(4, 3)
    assert ops(check(New(), call)) == ["Gemm"]
    assert ops(check(Old(), call)) == ["Gemm"]


def test_rules_are_of_entries_that_exist() -> None:
    names = set(TABLE) | {a for op in TABLE.values() for a in op.aliases}
    unknown = set(RULES) - names - {"apply", "getitem", "recurrence"}
    assert unknown == set()
    assert set(_GATES) == {"LSTM", "GRU", "RNN"}


# ---- options and refusals -------------------------------------------------------------------------


def test_names_and_files(tmp_path: Any) -> None:
    model = nn.Linear(1000, 300).eval()
    x = rand(2, 1000)
    file = tmp_path / "m.onnx"
    webtorch.onnx.export(
        model, (x,), file, input_names=["features"], output_names=["logits"], dynamo=True,
        dynamic_shapes={"input": {0: "batch"}}, external_data=True,
    )  # fmt: skip
    assert (tmp_path / "m.onnx.data").stat().st_size >= 300 * 1000 * 4
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["features"]
    assert session.get_inputs()[0].shape == ["batch", 1000]
    assert [o.name for o in session.get_outputs()] == ["logits"]
    again = webtorch.onnx.load(file)
    assert sorted(again.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(again(x).detach().numpy(), model(x).detach().numpy(), atol=1e-5)


def test_nested_arguments_and_keywords() -> None:
    def model(pair: Any, scale: Tensor, times: int = 2) -> dict[str, Tensor]:
        return {"sum": (pair[0] + pair[1]) * scale, "product": pair[0] * times}

    a, b = rand(3), rand(3)
    program = webtorch.onnx.export(model, ((a, b),), kwargs={"scale": b, "times": 3})
    assert [i.name for i in program.model_proto.graph.input] == ["pair_0", "pair_1", "scale"]
    found = program((a, b), scale=b)
    np.testing.assert_allclose(found[0].numpy(), ((a + b) * b).numpy(), rtol=1e-6)
    np.testing.assert_allclose(found[1].numpy(), (a * 3).numpy(), rtol=1e-6)


def test_the_mode_of_the_model_is_kept_and_training_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.warns(UserWarning, match="training mode"):
        program = webtorch.onnx.export(model, rand(2, 4))
    assert "RandomUniformLike" in ops(program.model_proto)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = webtorch.onnx.export(model, rand(2, 4), training=webtorch.onnx.TrainingMode.EVAL)
    assert ops(program.model_proto) == ["Gemm"]
    assert model.training


def test_an_export_changes_nothing() -> None:
    model = nn.BatchNorm1d(3)
    with pytest.warns(UserWarning, match="training mode"):
        webtorch.onnx.export(model, rand(4, 3))
    assert model.running_mean.tolist() == [0, 0, 0]
    assert model.num_batches_tracked.item() == 0
    x = rand(3)
    state = webtorch.get_rng_state().tolist()
    webtorch.onnx.export(lambda x: x + webtorch.rand(3), x)
    assert webtorch.get_rng_state().tolist() == state
    assert not webtorch.onnx.is_in_onnx_export()


def test_what_cannot_be_exported_is_refused_in_words() -> None:
    from webtorch.onnx import ExportError, export

    with pytest.raises(webtorch.errors.CaptureError, match="cannot read values"):
        export(lambda x: x * 2 if x.sum() > 0 else x, rand(3))
    with pytest.raises(ExportError, match="cumprod"):
        export(lambda x: x.cumprod(0), rand(3))
    with pytest.raises(ValueError, match="opset_version is 9"):
        export(MLP, rand(1, 8), opset_version=9)
    with pytest.raises(ValueError, match="dynamic axis 5"):
        export(MLP, rand(1, 8), dynamic_axes={"input": {5: "n"}})
    with pytest.raises(ExportError, match=r"number of operations depends|depends on the size"):
        export(
            lambda x: webtorch.stack([x[i] * (i + 1) for i in range(x.shape[0])]).sum(0),
            rand(3, 2), dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    with pytest.raises(ExportError, match="returns int"):
        export(lambda x: 3, rand(3))


def sliced(x: Tensor) -> Tensor:
    y = x.clone().transpose(0, 1)
    y += 1
    y[..., 1:].mul_(2)
    return webtorch.roll(y.permute(1, 0, 2)[::2, :, 1], 1, -1)


def test_views_and_writes_follow_a_size_or_are_refused() -> None:
    check(sliced, rand(4, 3, 2), rand(7, 3, 2), dynamic_axes={"x": {0: "n"}})
    with pytest.raises(webtorch.onnx.ExportError, match="positions that depend on a dynamic"):
        webtorch.onnx.export(lambda x: x.unfold(0, 2, 1), rand(6), dynamic_axes={"x": [0]})
    with pytest.raises(webtorch.onnx.ExportError, match="another one at another size"):
        webtorch.onnx.export(
            lambda x: x * webtorch.tensor(range(x.shape[0])), rand(6), dynamic_axes={"x": [0]}
        )


def test_the_checker_accepts_the_file() -> None:
    program = webtorch.onnx.export(MLP, rand(1, 8))
    onnx.checker.check_model(program.model_proto, full_check=True)
    assert program.model_proto.opset_import[0].version == 18


# -- layers with PyTorch's weights, against PyTorch ---------------------------------------------------------------


def _encoder(m: Any, **options: Any) -> Any:
    return m.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, **options)


def _two(m: Any, **options: Any) -> Any:
    return m.nn.TransformerEncoder(_encoder(m, **options), 2, enable_nested_tensor=False)


def _heads(m: Any, **options: Any) -> Any:
    return m.nn.MultiheadAttention(16, 4, **options)


ROWS = (5, 2, 16)
BLOCKED = torch.ones(5, 5).triu(1) > 0
ADDED = torch.zeros(5, 5).masked_fill(BLOCKED, -math.inf)
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
STATES = ((4, 3, 3), (4, 3, 5))
# name -> (module of a library, shapes of its arguments, arguments by name)
OF_PYTORCH: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any]]] = {
    "encoder layer": (_encoder, [ROWS], {}),
    "encoder layer, causal": (_encoder, [ROWS], {"src_mask": ADDED, "is_causal": True}),
    "encoder layer, norm first": (
        lambda m: _encoder(m, norm_first=True, batch_first=True, activation="gelu"),
        [(2, 5, 16)],
        {"src_mask": BLOCKED, "src_key_padding_mask": PADDED},
    ),
    "encoder": (_two, [ROWS], {"mask": ADDED}),
    "transformer": (
        lambda m: m.nn.Transformer(16, 4, 1, 1, 32, dropout=0.0),
        [ROWS, ROWS],
        {"tgt_mask": ADDED, "src_key_padding_mask": PADDED},
    ),
    "LSTM": (
        lambda m: m.nn.LSTM(6, 5, 2, bidirectional=True, proj_size=3),
        [(4, 3, 6), STATES],
        {},
    ),
    "LSTM of one": (lambda m: m.nn.LSTM(6, 5, 2), [(4, 6)], {}),
    "GRU": (lambda m: m.nn.GRU(6, 5, 2, bidirectional=True, batch_first=True), [(4, 3, 6)], {}),
    "GRU with a state": (lambda m: m.nn.GRU(6, 5, bias=False), [(4, 3, 6), (1, 3, 5)], {}),
    "attention": (_heads, [ROWS, ROWS, ROWS], {"attn_mask": BLOCKED}),
    "attention of each head": (_heads, [ROWS] * 3, {"average_attn_weights": False}),
    "attention without weights": (
        lambda m: _heads(m, batch_first=True, add_bias_kv=True, add_zero_attn=True),
        [(2, 5, 16)] * 3,
        {"need_weights": False, "key_padding_mask": PADDED},
    ),
    "attention of other sizes": (
        lambda m: _heads(m, kdim=6, vdim=7),
        [ROWS, (4, 2, 6), (4, 2, 7)],
        {},
    ),
}


@pytest.mark.filterwarnings("ignore:export. the model is in training mode")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:LSTM with projections")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", OF_PYTORCH)
def test_layers_give_what_pytorch_gives(name: str, training: bool) -> None:
    def drawn(shape: Any) -> Any:
        return tuple(map(drawn, shape)) if isinstance(shape[0], tuple) else torch.randn(shape)

    def ours(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(ours, x))
        return webtorch.from_numpy(x.numpy()) if isinstance(x, torch.Tensor) else x

    make, shapes, named = OF_PYTORCH[name]
    torch.manual_seed(0)
    theirs, model = make(torch).train(training), make(webtorch).train(training)
    model.load_state_dict({k: ours(v) for k, v in theirs.state_dict().items()})
    args = tuple(map(drawn, shapes))
    with torch.no_grad():
        wanted = theirs(*args, **named)
    program = webtorch.onnx.export(
        model, tuple(map(ours, args)), kwargs={k: ours(v) for k, v in named.items()}
    )
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    given = [t for t in (*flat(args), *named.values()) if isinstance(t, torch.Tensor)]
    names = [i.name for i in session.get_inputs()]
    found = session.run(None, {n: t.numpy() for n, t in zip(names, given, strict=True)})
    for got, want in zip(found, [t for t in flat(wanted) if t is not None], strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=2e-4, atol=2e-5)


def test_a_kernel_of_the_users_is_written_as_its_formula() -> None:
    unit = webtorch.kernel("fn gelu(x: f32) -> f32 { return select(x, exp(x) * 3.0, x < 0.5); }")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return unit(self.linear(x)) + 1

    check(Model(), webtorch.randn(5, 3))
