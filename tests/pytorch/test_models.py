"""The quick part of the table of models (docs/pytorch-models.md): `make models-torch` runs all of it."""

from __future__ import annotations

import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="no transformers (make models-torch)")
pytest.importorskip("diffusers", reason="no diffusers (make models-torch)")

from tests.pytorch.zoo import check  # noqa: E402
from tests.pytorch.zoo.families import FAMILIES  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet() -> None:
    torch._dynamo.reset()
    # Of the packages, about themselves.
    warnings.simplefilter("ignore")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["Qwen2", "ViT"])
def test_forward_and_training(webgpu: str, name: str, compiled: bool) -> None:
    case = FAMILIES[name]()
    assert check.forward(case, compiled) == ""
    assert check.training(case, compiled) == ""


@pytest.mark.one_in(2)
@pytest.mark.covers("S7")
@pytest.mark.parametrize("cache", [None, "static"])
def test_generation(webgpu: str, cache: str | None) -> None:
    assert check.generate(FAMILIES["GPT-2"](), False, cache) == ""


def test_a_wrong_model_is_told(webgpu: str) -> None:
    case = FAMILIES["ViT"]()
    expected = check._model(case, "cpu")
    with torch.no_grad():
        case.model.classifier.weight.mul_(1.1)
    actual = check._model(case, "cpu")
    assert check._differences(actual(**case.inputs), expected(**case.inputs))
    for model in (actual, expected):
        model(**case.inputs).loss.backward()
    assert "gradient of" in check._gradients(actual, expected)
