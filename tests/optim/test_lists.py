"""Steps on lists: what optimizers derived from PyTorch's call or replace, and functions that take its lists."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

import webtorch

# Optimizer, its module in PyTorch and here, its function, options beyond the defaults.
FUNCTIONS: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("SGD", "sgd", "sgd", "sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", "sgd", "sgd", "sgd", {}),
    ("Adam", "adam", "adam", "adam", {"amsgrad": True, "maximize": True}),
    ("Adam", "adam", "adam", "adam", {}),
    ("AdamW", "adamw", "adam", "adamw", {}),
    ("RMSprop", "rmsprop", "rmsprop", "rmsprop", {"momentum": 0.5, "centered": True}),
    ("Rprop", "rprop", "rprop", "rprop", {}),
    ("NAdam", "nadam", "nadam", "nadam", {}),
    ("RAdam", "radam", "radam", "radam", {"weight_decay": 0.1}),
    ("ASGD", "asgd", "asgd", "asgd", {"t0": 1.0}),
    ("Adagrad", "adagrad", "adagrad", "adagrad", {"lr_decay": 0.1}),
    ("Adadelta", "adadelta", "adadelta", "adadelta", {}),
    ("Adamax", "adamax", "adamax", "adamax", {}),
    ("Adafactor", "_adafactor", "adafactor", "adafactor", {}),
    ("Muon", "_muon", "muon", "muon", {}),
]
IDS = [f"{row[0]}-{'-'.join(row[4])}" for row in FUNCTIONS]
# Names of numbers that a group has in pairs.
PAIRS = {
    "beta1": ("betas", 0), "beta2": ("betas", 1), "etaminus": ("etas", 0), "etaplus": ("etas", 1),
    "step_size_min": ("step_sizes", 0), "step_size_max": ("step_sizes", 1), "eps1": ("eps", 0), "eps2": ("eps", 1),
}  # fmt: skip


def _function(lib: Any, row: tuple[str, str, str, str, dict[str, Any]]) -> Any:
    _, theirs, ours, function, _ = row
    home = f"torch.optim.{theirs}" if lib is torch else f"webtorch.optim.{ours}"
    return getattr(importlib.import_module(home), function)


def _stepped(lib: Any, row: tuple[str, str, str, str, dict[str, Any]]) -> list[Any]:
    """Make three steps as a derived class does: the lists of `_init_group`, given to the function."""
    function = _function(lib, row)
    base = getattr(lib.optim, row[0])
    listed = list(inspect.signature(getattr(torch.optim, row[0])._init_group).parameters)[2:]
    told: list[Any] = []

    class Derived(base):  # type: ignore[misc]
        @lib.no_grad()  # type: ignore[untyped-decorator]
        def step(self, closure: object = None) -> None:
            for group in self.param_groups:
                lists: dict[str, list[Any]] = {name: [] for name in listed}
                told.append(self._init_group(group, *lists.values()))
                told.append([len(values) for values in lists.values()])
                given = [lists["params" if "params" in lists else "params_with_grad"]]
                options: dict[str, Any] = {}
                for name, parameter in inspect.signature(function).parameters.items():
                    if name in ("grads", "d_p_list"):
                        given.append(lists["grads"])
                    elif name in lists and name != "params":
                        given.append(lists[name])
                    elif name in PAIRS:
                        pair, place = PAIRS[name]
                        options[name] = group[pair][place]
                    elif name in group and name != "params":
                        options[name] = group[name]
                    elif name == "has_complex" and parameter.default is inspect.Parameter.empty:
                        options[name] = False
                function(*given, **options)
                if "momentum_buffer_list" in lists and row[0] == "SGD":
                    for p, buffer in zip(lists["params"], lists["momentum_buffer_list"]):
                        self.state[p]["momentum_buffer"] = buffer

    params = [lib.linspace(-1.0, 1.0, 6).reshape(3, 2).requires_grad_() for _ in range(3)]
    optimizer = Derived(params, **row[4])
    for turn in range(3):
        for number, p in enumerate(params[:2]):
            p.grad = p.detach() * (number + 1) + 0.1 * turn
        optimizer.step()
    states = [optimizer.state[p] for p in params[:2]]
    return [
        told,
        [p.detach().tolist() for p in params],
        [
            {k: v if isinstance(v, int) else v.tolist() for k, v in sorted(s.items())}
            for s in states
        ],
    ]


@pytest.mark.parametrize("row", FUNCTIONS, ids=IDS)
def test_a_derived_class_steps_on_lists(row: tuple[str, str, str, str, dict[str, Any]]) -> None:
    ours, theirs = _stepped(webtorch, row), _stepped(torch, row)
    assert ours[0] == theirs[0]
    tolerance = 2e-2 if row[0] == "Muon" else 2e-6
    for mine, other in zip(ours[1], theirs[1]):
        torch.testing.assert_close(
            torch.tensor(mine), torch.tensor(other), atol=tolerance, rtol=1e-5
        )
    for mine, other in zip(ours[2], theirs[2]):
        assert mine.keys() == other.keys()
        for key in mine:
            torch.testing.assert_close(
                torch.tensor(mine[key]), torch.tensor(other[key]), atol=2e-6, rtol=1e-5
            )


@pytest.mark.parametrize("row", FUNCTIONS, ids=IDS)
def test_functions_have_pytorch_s_signatures(
    row: tuple[str, str, str, str, dict[str, Any]],
) -> None:
    mine, other = (inspect.signature(_function(lib, row)).parameters for lib in (webtorch, torch))
    assert [(n, p.kind, p.default) for n, p in mine.items()] == [
        (n, p.kind, p.default) for n, p in other.items()
    ]


@pytest.mark.parametrize("lib", [torch, webtorch], ids=["torch", "webtorch"])
def test_a_class_replaces_the_lists_of_a_step(lib: Any) -> None:
    class Signs(lib.optim.SGD):  # type: ignore[misc, name-defined]
        def _init_group(self, group: Any, params: Any, grads: Any, *lists: Any) -> Any:
            found = super()._init_group(group, params, grads, *lists)
            grads[:] = [g.sign() for g in grads]
            return found

    p = lib.tensor([1.0, -3.0], requires_grad=True)
    optimizer = Signs([p], lr=0.5, momentum=0.5)
    for _ in range(4):
        p.grad = p.detach().clone()
        optimizer.step()
    assert p.tolist() == [0.4375, 0.0625]


def test_steps_of_a_class_and_of_lists_go_on_from_each_other() -> None:
    """The count that parameters share in a step is one for each in the lists."""
    params = [webtorch.ones(2, requires_grad=True) for _ in range(2)]
    optimizer = webtorch.optim.Adam(params)
    for p in params:
        p.grad = webtorch.ones(2)
    optimizer.step()
    lists: list[list[Any]] = [[] for _ in range(6)]
    assert optimizer._init_group(optimizer.param_groups[0], *lists) is False
    for step in lists[5]:
        step += 1
    assert [optimizer.state[p]["step"].item() for p in params] == [2, 2]
    optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in params] == [3, 3]
