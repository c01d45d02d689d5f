"""Charts of the reports: ticks are round numbers, and odd data give no broken drawing."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from webtorch.show.charts import Guide, Series, line_chart, log_ticks, nice_ticks, pixel_picture


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1, 20, [5, 10, 15, 20]),
        (0.31, 0.98, [0.4, 0.6, 0.8]),
        (-3, 3, [-2, 0, 2]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


def test_log_ticks_are_one_two_five() -> None:
    assert log_ticks(0.15, 2.2) == pytest.approx([0.2, 0.5, 1.0, 2.0])
    assert log_ticks(1e-4, 100) == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100])
    assert len(log_ticks(1.7, 2.6)) >= 3


def drawing(html: str) -> ElementTree.Element:
    """Return the SVG element of a figure, which must be well-formed XML."""
    return ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])


def test_a_point_is_drawn_for_each_finite_value() -> None:
    html = line_chart(
        [Series("a & b", range(1, 6), [2.0, math.nan, math.inf, 0.0, 0.5])],
        title="<Loss>", x_label="epoch", y_label="nats", log_y=True,
    )  # fmt: skip
    root = drawing(html)
    assert len(root.findall("circle")) == 2
    assert "nan" not in html
    assert "<Loss>" not in html


def test_no_finite_value_gives_no_chart() -> None:
    nothing = Series("loss", [1], [math.nan])
    assert line_chart([nothing], title="t", x_label="x", y_label="y") == ""


def test_a_single_point_and_a_guide_stay_inside_the_picture() -> None:
    root = drawing(
        line_chart([Series("loss", [3], [0.7])], title="Loss", x_label="epoch", y_label="nats",
                   guides=[Guide("blind", 4.5)])
    )  # fmt: skip
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    (dot,) = root.findall("circle")
    assert 0 <= float(dot.attrib["cx"]) <= width
    assert 0 <= float(dot.attrib["cy"]) <= height


def test_the_drawing_is_told_in_words() -> None:
    root = drawing(
        line_chart([Series("test", [1, 2], [0.5, 0.9])], title="Accuracy", x_label="epoch",
                   y_label="share", percent=True)
    )  # fmt: skip
    assert root.attrib["aria-label"] == "Accuracy: test from 50 % to 90 %"


def test_a_picture_has_a_square_for_each_inked_pixel() -> None:
    root = drawing(pixel_picture([[0.0, 1.0], [0.5, 0.0]], "a seven"))
    assert [path.attrib["fill-opacity"] for path in root] == ["1.00", "0.50"]
    assert root.attrib["aria-label"] == "a seven"
