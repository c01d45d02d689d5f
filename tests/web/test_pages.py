"""What an exported page shows on a phone and on a desk, and models of which a part is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from tests.browser import Page
from webtorch import nn
from webtorch.errors import ShapeError
from webtorch.io.safetensors import loads
from webtorch.nn import functional as F


def pictures(folder: Path) -> Path:
    """Export a classifier of small pictures: bright on the left or on the right."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    decayed, others = [p for p in model.parameters() if p.ndim > 1], [model[1].bias, model[3].bias]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    labels = torch.arange(12) % 2
    images = 0.3 * torch.rand(12, 1, 8, 8)
    images[0::2, :, :, :4] += 0.7
    images[1::2, :, :, 4:] += 0.7

    def train(images: Any, labels: Any) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return torch.export(
        {"train": train, "infer": model}, folder, {"train": (images, labels), "infer": (images,)},
        labels=["left", "right"], title="Left or right",
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the pictures."""
    return pictures(tmp_path_factory.mktemp("pictures"))


def ready(page: Page) -> None:
    page.until("document.getElementById('status').dataset.ready")


@pytest.mark.covers("R8")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_whole_page_and_takes_touches(
    scheme: str, site: Path, chromium: Any, serve: Any
) -> None:
    context = chromium.new_context(
        viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True, color_scheme=scheme,
        device_scale_factor=2,
    )  # fmt: skip
    page = Page(context.new_page())
    page.page.goto(serve(site))
    ready(page)
    page.page.tap("#run")
    page.until("Number(document.getElementById('steps').textContent) >= 50")
    page.page.tap("#run")
    # Nothing is wider than the screen, and what is tapped is as large as a finger needs.
    assert page.run("() => document.documentElement.scrollWidth") == 360
    heights = "() => [...document.querySelectorAll('button, .button')].map((b) => b.offsetHeight).filter((h) => h)"
    assert min(page.run(heights)) >= 36
    channel = "() => Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert page.run(channel) > 200 if scheme == "light" else page.run(channel) < 60
    # A finger draws on the left side.
    page.page.locator("canvas.draw").scroll_into_view_if_needed()
    box = page.page.locator("canvas.draw").bounding_box()
    assert box is not None and box["width"] >= 200
    for down in (0.2, 0.4, 0.6, 0.8):
        page.page.touchscreen.tap(box["x"] + 0.25 * box["width"], box["y"] + down * box["height"])
    page.until("document.querySelector('#answers .first')?.textContent === 'left'")
    assert page.problems == []
    context.close()


@pytest.mark.covers("P12")
def test_training_is_stepped_through(site: Path, page: Page, serve: Any) -> None:
    page.page.goto(serve(site) + "?device=webgpu")
    ready(page)
    samples = (
        "[...document.querySelectorAll('#samples figcaption')].map((c) => c.textContent).join()"
    )
    seen = [page.run(f"() => {samples}")]
    for step in range(1, 4):
        page.page.click("#once")
        page.until(f"document.getElementById('sampled').textContent === 'after {step} steps'")
        seen.append(page.run(f"() => {samples}"))
    assert len(set(seen)) == 4, "each step shows what the model thinks after it"
    losses = [float(t) for t in page.page.locator("#values li").all_text_contents()]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert page.page.get_attribute("#chart .curve", "d").count("L") == 2
    # Back at the first step: the page loads again.
    with page.page.expect_navigation():
        page.page.click("#reset")
    page.until("document.getElementById('steps')?.textContent === '0'")
    ready(page)
    assert page.run(f"() => {samples}") == seen[0]


def test_one_slider_is_for_all_groups_and_the_curve_has_a_mean(
    site: Path, page: Page, serve: Any
) -> None:
    page.page.goto(serve(site))
    ready(page)
    names = [text.strip() for text in page.page.locator("#settings label").all_inner_texts()]
    assert [n.split("\n")[0] for n in names] == ["lr", "weight_decay"]
    page.page.locator("[aria-label=lr]").evaluate(
        "(input) => { input.value = -1.5; input.dispatchEvent(new Event('input')); }"
    )
    rates = page.run("() => Object.entries(model.settings).filter(([n]) => n.endsWith('lr'))")
    assert [value for _, value in rates] == pytest.approx([10**-1.5] * 2)
    assert page.page.locator("#chart .faint").count() == 0
    page.page.click("#run")
    page.until("Number(document.getElementById('steps').textContent) >= 60")
    page.page.click("#run")
    page.until("document.querySelectorAll('#chart .curve').length === 2")
    assert "the mean of 17 steps" in page.page.inner_text("#curve figcaption")


def test_pictures_come_out_as_pictures(page: Page, serve: Any, tmp_path: Path) -> None:
    x = torch.zeros(1, 3, 6, 5)
    x[0, 0, 2, 1] = 1.0
    torch.export(lambda image: 1 - image, tmp_path, (x,), title="Negative")
    page.page.goto(serve(tmp_path))
    ready(page)
    page.page.click("#ask")
    page.until("document.querySelector('#answers canvas.painted')")
    script = """() => [...document.querySelectorAll("#inputs canvas, #answers canvas")].map((c) =>
      Array.from(c.getContext("2d").getImageData(0, 0, c.width, c.height).data))"""
    shown, found = page.run(script)
    dot = 4 * (2 * 5 + 1)
    assert shown[dot : dot + 4] == [255, 0, 0, 255] and shown[:4] == [0, 0, 0, 255]
    assert found[dot : dot + 4] == [0, 255, 255, 255] and found[:4] == [255, 255, 255, 255]
    assert "out: float32[1, 3, 6, 5]" in page.page.inner_text("#answers pre")


@pytest.mark.covers("T4")
@pytest.mark.parametrize("device", ["webgpu", "cpu"])
def test_a_head_is_trained_on_a_frozen_backbone(
    device: str, page: Page, serve: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()
    )
    head = nn.Linear(24, 3)
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    backbone.eval()
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    images, labels = torch.rand(9, 1, 8, 8), torch.arange(9) % 3

    def train(images: Any, labels: Any) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(backbone(images)), labels)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    torch.export(
        {"train": train, "infer": nn.Sequential(backbone, head)}, tmp_path,
        {"train": (images, labels), "infer": (images,)}, cpu=True,
    )  # fmt: skip
    before = loads((tmp_path / "weights.safetensors").read_bytes())
    page.page.goto(serve(tmp_path) + "blank")
    script = """async ([images, labels, device]) => {
      const { load } = await import("./runtime.js");
      const m = await load("./", { device });
      const losses = [];
      for (let i = 0; i < 12; i++) losses.push((await m.train({ images, labels })).loss.data[0]);
      const state = Array.from(await m.state());
      await m.destroy();
      return { losses, state };
    }"""
    found = page.run(script, [images.tolist(), labels.tolist(), device])
    expected = [train(images, labels)["loss"].item() for _ in range(12)]
    assert found["losses"] == pytest.approx(expected, rel=1e-3)
    after = loads(bytes(found["state"]))
    changed = {k for k, v in after.items() if bytes(v.data) != bytes(before[k].data)}
    assert {"head.weight", "head.bias"} <= changed
    assert not {k for k in changed if k.startswith("backbone.")}
    assert page.problems == []


def test_a_page_of_several_files_says_that_it_wants_a_server(site: Path, page: Page) -> None:
    page.page.goto((site / "index.html").as_uri())
    page.until("document.getElementById('status').textContent.includes('webtorch serve FOLDER')")


def test_state_before_training_is_checked_and_whole(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5)

    def train(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(4, 3)
    train(x)
    fresh = nn.Linear(3, 2)
    for one in (True, False):
        torch.export(train, tmp_path, (x,), initial=fresh if one else fresh.state_dict(), cpu=False)
        found = loads((tmp_path / "initial.safetensors").read_bytes())
        assert set(found) == set(loads((tmp_path / "weights.safetensors").read_bytes()))
        assert bytes(found["model.weight"].data) == fresh.weight.detach().numpy().tobytes()
        assert set(memoryview(found["optimizer.sum.model.bias"].data).cast("f")) == {0.5}
    with pytest.raises(ShapeError, match=r"initial: model.weight is \[2, 4\], the model's is"):
        torch.export(train, tmp_path, (x,), initial=nn.Linear(4, 2), cpu=False)
    torch.export(train, tmp_path, (x,), cpu=False)
    assert not (tmp_path / "initial.safetensors").exists()
