"""A `GraphModule` is a module: it is copied, written, compiled and transformed as others are."""

import copy
import importlib.util
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch import fx, nn
from webtorch.dispatch.call import active, looking
from webtorch.fx.experimental.optimization import fuse, remove_dropout
from webtorch.nn.module import GLOBAL, Module


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        self.scale = nn.Parameter(webtorch.tensor([2.0]))
        self.register_buffer("shift", webtorch.tensor([0.5, -0.5]))

    def forward(self, x):  # type: ignore[no-untyped-def]
        return webtorch.tanh(self.layers(x) * self.scale) + self.shift


def make() -> tuple[Net, Any, Any]:
    webtorch.manual_seed(0)
    model = Net().eval()
    return model, fx.symbolic_trace(model), webtorch.randn(3, 4)


def test_a_traced_module_shares_its_parameters_and_trains() -> None:
    model, traced, x = make()
    assert list(traced.state_dict()) == [
        "scale",
        "shift",
        *(k for k in model.state_dict() if "layers" in k),
    ]
    assert all(a is b for a, b in zip(traced.layers.parameters(), model.layers.parameters()))
    assert not traced.training
    optimizer = webtorch.optim.SGD(traced.parameters(), lr=0.1)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = traced(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert traced(x).tolist() == model(x).tolist()


@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "save"])
def test_a_copy_has_its_graph_and_its_values(how: str) -> None:
    model, traced, x = make()
    traced.meta["kept"] = 1
    if how == "deepcopy":
        copied = copy.deepcopy(traced)
    elif how == "copy":
        copied = copy.copy(traced)
    elif how == "pickle":
        copied = pickle.loads(pickle.dumps(traced))
    else:
        file = io.BytesIO()
        webtorch.save(traced, file)
        file.seek(0)
        copied = webtorch.load(file, weights_only=False)
    assert type(copied).__name__ == "GraphModule" or how != "deepcopy"
    assert copied.code == traced.code and str(copied.graph) == str(traced.graph)
    assert copied(x).tolist() == model(x).tolist()
    assert list(copied.state_dict()) == list(traced.state_dict())
    assert copied.graph.owning_module is copied
    # As in PyTorch, a file has no notes.
    assert copied.meta == ({"kept": 1} if "copy" in how else {})
    if how != "copy":
        with webtorch.no_grad():
            copied.scale.fill_(0.0)
        assert traced(x).tolist() == model(x).tolist() != copied(x).tolist()


def test_a_changed_graph_runs_after_it_was_compiled_anew() -> None:
    model, traced, x = make()
    step = webtorch.compile(traced)
    for _ in range(3):
        assert webtorch.allclose(step(x), model(x))
    tanh = traced.graph.find_nodes(op="call_function", target=webtorch.tanh)[0]
    with traced.graph.inserting_after(tanh):
        new = traced.graph.call_function(webtorch.sigmoid, tanh.args)
    tanh.replace_all_uses_with(new)
    traced.graph.erase_node(tanh)
    traced.recompile()
    expected = webtorch.sigmoid(model.layers(x) * model.scale) + model.shift
    assert webtorch.allclose(traced(x), expected)
    assert webtorch.allclose(step(x), expected)


def test_a_traced_module_runs_in_every_mode() -> None:
    model, traced, x = make()
    expected = model(x)
    batched = webtorch.vmap(traced)(x)
    assert webtorch.allclose(batched, expected)
    params = dict(traced.named_parameters())
    called = webtorch.func.functional_call(traced, params, (x,))
    assert webtorch.allclose(called, expected)
    with webtorch.autocast("cpu", dtype=webtorch.bfloat16):
        assert traced(x).tolist() == model(x).tolist()
    assert webtorch.allclose(fx.Interpreter(traced).run(x), expected)
    assert webtorch.allclose(fx.symbolic_trace(traced)(x), expected)


def test_a_trace_leaves_nothing_on() -> None:
    before = active.count, looking.count, vars(Module)["__getattr__"]
    with pytest.raises(fx.proxy.TraceError):
        fx.symbolic_trace(lambda x: 1 if x else 2)
    make()
    assert (active.count, looking.count, vars(Module)["__getattr__"]) == before
    assert GLOBAL.traces == 0


def calls_what_is_missing(x):  # type: ignore[no-untyped-def]
    return x.missing_method()


def test_an_error_in_generated_code_shows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    traced = fx.symbolic_trace(calls_what_is_missing)
    with pytest.raises(AttributeError, match="missing_method"):
        traced(webtorch.ones(2))
    said = capsys.readouterr().err
    assert (
        "Call using an FX-traced Module, line 5 of the traced Module's generated forward function"
        in said
    )
    assert "missing_method = x.missing_method();  x = None\n" in said and "<--- HERE" in said


def test_submodules_are_added_and_taken_out() -> None:
    _, traced, _ = make()
    assert traced.add_submodule("extra.inner.one", nn.Linear(1, 1))
    assert not traced.add_submodule("scale.one", nn.Linear(1, 1))
    assert traced.get_submodule("extra.inner.one").in_features == 1
    assert not traced.delete_submodule("extra.other")
    assert traced.delete_submodule("extra.inner.one")
    traced.add_submodule("more", nn.Linear(1, 1))
    traced.delete_all_unused_submodules()
    assert [n for n, _ in traced.named_children()] == ["layers"]


def test_hooks_are_told_of_changes() -> None:
    _, traced, _ = make()
    told: list[str] = []
    traced._register_create_node_hook(lambda n: told.append(f"new {n}"))
    traced._register_erase_node_hook(lambda n: told.append(f"gone {n}"))
    x = next(iter(traced.graph.nodes))
    with traced.graph.inserting_after(x):
        neg = traced.graph.call_function(webtorch.neg, (x,))
    with traced._set_replace_hook(lambda old, new, user: told.append(f"{user}: {old} -> {new}")):
        x.replace_all_uses_with(neg, delete_user_cb=lambda n: n is not neg)
        neg.replace_all_uses_with(x)
    traced.graph.erase_node(neg)
    assert told == ["new neg", "layers_0: x -> neg", "layers_0: neg -> x", "gone neg"]


@pytest.mark.filterwarnings("ignore:Was not able to save the following children")
def test_a_folder_holds_the_module_as_a_package(tmp_path: Path) -> None:
    model, traced, x = make()
    traced.to_folder(tmp_path / "net", "Written")
    place = tmp_path / "net" / "__init__.py"
    spec = importlib.util.spec_from_file_location("net_of_fx", place)
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["net_of_fx"] = package
    try:
        spec.loader.exec_module(package)
        assert webtorch.allclose(package.Written()(x), model(x))
    finally:
        for name in [n for n in sys.modules if n.startswith("net_of_fx")]:
            del sys.modules[name]


def test_batch_norms_and_dropouts_go() -> None:
    webtorch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.5))
    model(webtorch.randn(4, 1, 5, 5))
    model.eval()
    x = webtorch.randn(2, 1, 5, 5)
    fused = remove_dropout(fuse(model))
    assert [type(m).__name__ for _, m in fused.named_children()] == ["Conv2d", "ReLU"]
    assert webtorch.allclose(fused(x), model(x), atol=1e-5)


def test_hooks_of_modules_run_where_a_module_is_entered() -> None:
    model = Net()
    model.layers.register_forward_hook(lambda m, args, out: out * 3)
    model.layers[0].register_forward_hook(lambda m, args, out: out * 5)
    traced = fx.symbolic_trace(model)
    code = traced.code
    assert "mul = layers_3 * 3" in code and "* 5" not in code


def test_a_trace_of_layers_is_pickled() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), webtorch.ones(1, 3)
    # Annotations of our own layers stand as text.
    again = pickle.loads(pickle.dumps(fx.symbolic_trace(model)))
    assert webtorch.equal(again(x), model(x))
