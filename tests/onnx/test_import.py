"""webtorch.onnx.load: onnx's own tests of nodes, files of PyTorch, gradients, refusals."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import webtorch
from tests import long
from tests.onnx import backend
from webtorch import nn
from webtorch.errors import DTypeError
from webtorch.nn import functional as F
from webtorch.onnx import UnsupportedOperator, export, load


def model(nodes: Any, inputs: Any, outputs: Any, weights: Any = (), opset: int = 18) -> Any:
    def infos(given: Any) -> list[Any]:
        return [helper.make_tensor_value_info(n, t, s) for n, t, s in given]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


FLOAT = TensorProto.FLOAT


CHOSEN = (
    "ConvTranspose", "GRU", "GatherND", "LSTM", "Pad", "Resize", "ScatterND", "Slice", "TopK",
)  # fmt: skip
# Whose cases onnx computes for seconds.
SLOW = ("AveragePool", "MaxPool")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.one_in(4)
@pytest.mark.parametrize("part", range(4))
def test_onnx_own_tests_of_nodes(part: int) -> None:
    """Of the operations with the most cases; `python -m tests.onnx.backend` runs them all."""
    chosen = CHOSEN + SLOW if long.runs() else CHOSEN
    found = [(c.name, *backend.outcome(c)) for c in backend.cases(chosen)[part::4]]
    assert [f for f in found if f[1] == "fail"] == []
    assert sum(f[1] == "pass" for f in found) > 10


@pytest.mark.parametrize(
    "op", ["Celu", "Elu", "HardSigmoid", "LeakyRelu", "Selu", "Shrink", "ThresholdedRelu"]
)
def test_attributes_that_a_node_leaves_out_have_onnx_defaults(op: str) -> None:
    node = helper.make_node(op, ["x"], ["y"])
    proto = model([node], [("x", FLOAT, [9])], [("y", FLOAT, [9])])
    proto.ir_version = 8
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    found = load(proto, device="cpu")(webtorch.tensor(x))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def mlp() -> Any:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    return export(net.eval(), webtorch.zeros(1, 3, device="cpu")).model_proto


@pytest.mark.covers("L5")
def test_weights_are_parameters_that_learn(device: str) -> None:
    webtorch.manual_seed(0)
    net = load(mlp(), device=device)
    assert sorted(net.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert {p.device.type for p in net.parameters()} == {webtorch.device(device).type}
    optimizer = webtorch.optim.Adam(net.parameters(), 0.05)
    x = webtorch.randn(16, 3, device=device)
    y = webtorch.stack([x.sum(1), x[:, 0] * 2], 1)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
    assert losses[-1] < losses[0] / 4
    assert not any(p.requires_grad for p in load(mlp(), trainable=False).parameters())


def test_an_imported_module_compiles_and_is_exported_again() -> None:
    net = load(mlp(), device="cpu")
    x = webtorch.randn(4, 3, device="cpu")
    compiled = webtorch.compile(net)
    with webtorch.no_grad():
        for _ in range(3):
            np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), atol=1e-6)
        (found,) = export(net, x)(x)
        np.testing.assert_allclose(found.numpy(), net(x).numpy(), atol=1e-6)


def test_paths_bytes_streams_and_weights_beside_them(tmp_path: Any) -> None:
    proto = mlp()
    x = webtorch.randn(2, 3, device="cpu")
    expected = load(proto)(x).tolist()
    data = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), data, io.BytesIO(data)):
        assert load(source)(x).tolist() == expected
    onnx.save_model(
        proto,
        str(tmp_path / "e.onnx"),
        save_as_external_data=True,
        location="e.bin",
        size_threshold=0,
    )
    assert load(tmp_path / "e.onnx")(x).tolist() == expected
    with pytest.raises(ValueError, match="pass the path instead of bytes"):
        load((tmp_path / "e.onnx").read_bytes())
    (tmp_path / "e.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"cannot be read|is damaged"):
        load(tmp_path / "e.onnx")


def test_shapes_are_computed_on_the_host() -> None:
    """The nodes that exporters write around a Reshape; no value is waited for."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("ConstantOfShape", ["target0"], ["ones"]),
        helper.make_node("Add", ["flat", "ones"], ["y"]),
    ]
    weights = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
        helper.make_tensor("minus", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("target0", TensorProto.INT64, [1], [12]),
    ]
    proto = model(nodes, [("x", FLOAT, ["n", 3, 4])], [("y", FLOAT, None)], weights)
    net = load(proto)
    x = webtorch.randn(2, 3, 4, device="cpu")
    assert net(x).tolist() == x.reshape(2, 12).tolist()
    assert list(net.state_dict()) == []
    assert webtorch.compile(net)(x).tolist() == x.reshape(2, 12).tolist()


def test_outputs_are_those_of_onnxruntime() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("HardSigmoid", ["c"], ["h"], alpha=0.3),
        helper.make_node("Resize", ["h", "", "scales"], ["y"], mode="linear"),
        helper.make_node("TopK", ["flat", "k"], ["v", "i"]),
        helper.make_node("Flatten", ["h"], ["flat"]),
    ]
    nodes[3], nodes[4] = nodes[4], nodes[3]
    generator = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(generator.normal(size=(4, 3, 3, 3)).astype("f4"), "w"),
        onnx.numpy_helper.from_array(np.array([1, 1, 1.5, 2.5], "f4"), "scales"),
        onnx.numpy_helper.from_array(np.array([3]), "k"),
    ]
    outputs = [("y", FLOAT, None), ("v", FLOAT, None), ("i", TensorProto.INT64, None)]
    proto = model(nodes, [("x", FLOAT, [2, 3, 7, 6])], outputs, weights)
    x = generator.normal(size=(2, 3, 7, 6)).astype("f4")
    proto.ir_version = 8
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    net = load(proto, device="cpu")
    assert list(net.state_dict()) == ["w"]
    with webtorch.no_grad():
        found = net(webtorch.from_numpy(x))
    for got, want in zip(found, session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_functions_of_the_file_are_written_out() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    function = helper.make_function(
        "mine", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 18)]
    )
    node = helper.make_node("Square", ["x"], ["y"], domain="mine")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [3])],
        [helper.make_tensor_value_info("y", FLOAT, [3])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, functions=[function])
    assert load(proto)(webtorch.tensor([1.0, 2.0, 3.0])).tolist() == [1, 4, 9]


def test_what_cannot_run_is_refused_by_node_and_opset() -> None:
    branch = helper.make_graph([], "b", [], [helper.make_tensor_value_info("x", FLOAT, [3])])
    control = helper.make_node("If", ["c"], ["y"], "choose", then_branch=branch, else_branch=branch)
    proto = model([control], [("c", TensorProto.BOOL, [])], [("y", FLOAT, [3])])
    with pytest.raises(
        UnsupportedOperator, match=r"the node 'choose' is If \(opset 18\).*webtorch.where"
    ):
        load(proto)
    foreign = helper.make_node("FusedGemm", ["x"], ["y"], domain="com.microsoft")
    proto = model([foreign], [("x", FLOAT, [3])], [("y", FLOAT, [3])])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedOperator, match=r"that gives 'y' is com.microsoft.FusedGemm"):
        load(proto)
    relu = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(UnsupportedOperator, match="has opset 5"):
        load(model([relu], [("x", FLOAT, [3])], [("y", FLOAT, [3])], opset=5))
    for damaged in (b"not a model", b"", b"\x08\x07" + b"\xff" * 40):
        with pytest.raises(ValueError, match="is no ONNX file"):
            load(damaged)


def test_wrong_calls_say_what_the_file_takes() -> None:
    net = load(mlp(), device="cpu")
    x = webtorch.randn(2, 3, device="cpu")
    assert net(input=x).shape == (2, 2)
    with pytest.raises(TypeError, match=r"the inputs \['input'\] are missing"):
        net()
    with pytest.raises(TypeError, match=r"has no inputs \['z'\]; it takes \['input'\]"):
        net(x, z=x)
    with pytest.raises(TypeError, match="2 were given"):
        net(x, x)
    with pytest.raises(DTypeError, match=r"the input .input. is torch\.float32"):
        net(x.double())
    with pytest.raises(RuntimeError) as caught:
        net(webtorch.randn(2, 5, device="cpu"))
    assert "(Gemm)" in caught.value.__notes__[0]
