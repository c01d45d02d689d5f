"""What notebooks show of tensors after `%load_ext webtorch.show`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import webtorch as torch
from webtorch import show
from webtorch.tensors.tensor import Tensor


class Formatter(dict[str, Callable[[object], Any]]):
    """IPython's formatter of one kind, as far as an extension knows it."""

    def for_type_by_name(self, module: str, name: str, function: Callable[[object], Any]) -> None:
        self[f"{module}.{name}"] = function


def test_pictures_are_shown_as_such_and_other_tensors_as_text() -> None:
    formatter = Formatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    show.load_ipython_extension(shell)
    as_html = formatter[f"{Tensor.__module__}.{Tensor.__name__}"]
    html = as_html(torch.linspace(0, 1, 192).reshape(3, 8, 8))
    source = html.partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(source).startswith(b"\x89PNG")
    assert 'alt="float32[3, 8, 8]"' in html and "<pre>tensor([[[0.0000" in html
    assert as_html(torch.zeros(2, 1, 9, 8, dtype=torch.uint8)).startswith("<img")
    for x in (
        torch.zeros(8, 8),
        torch.zeros(5, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.int64),
        torch.zeros(3, 4, 4),
    ):
        assert as_html(x) is None
    assert as_html(torch.zeros(3, 8, 8, device="meta")) is None
    show.unload_ipython_extension(shell)
    assert not formatter


def test_the_names_of_curves_have_their_colours_in_a_notebook() -> None:
    shown = show.plot({"train": [1.0, 0.5], "test": [1.0, 0.7]})._repr_html_()
    assert shown is not None and 'class="swatch s1"></i>test' in shown and ".swatch.s1{" in shown
