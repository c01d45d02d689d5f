"""The README's commands are those that continuous integration runs, and its program runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import webtorch
from webtorch import cli
from webtorch.cli.demo import gpt

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    """Return the README's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def make_targets() -> dict[str, str]:
    """Return the Makefile's targets, each with what it depends on; variables of targets are left out."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    matches = (re.match(r"([a-z][a-z -]*):\s*([^#=]*)(#|$)", line) for line in lines)
    return {name: match[2] for match in matches if match for name in match[1].split()}


def test_the_set_up_is_exactly_two_commands() -> None:
    (block,) = code_blocks("sh")
    commands = [line.split("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make demo", "make test"]
    assert {"demo", "test", "venv"} <= make_targets().keys()


@pytest.mark.covers("T12")
def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [
        line.removeprefix("exec ")
        for line in script.splitlines()
        if re.match(r"(exec )?(make|pytest|python|ruff|mypy)\b", line)
    ]
    assert commands == ["make test"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_test_command_lints_checks_types_and_runs_the_suite() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    def recipe(target: str) -> str:
        return makefile.split(f"\n{target}:")[1].split("\n\n")[0]

    assert {"suite", "checks"} <= set(recipe("test test-all").split())
    assert {"lint", "types"} <= set(recipe("checks").split())
    assert "-m pytest" in recipe("suite")


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert links
    assert missing == []


@pytest.mark.covers("R5", "R9", "S9")
def test_the_first_program_learns(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = code_blocks("python")
    assert program.count("\n") <= 20
    exec(compile(program, "README.md", "exec"), {})
    match = re.search(r"loss ([\d.]+), accuracy ([\d.]+)", capsys.readouterr().out)
    assert match
    assert float(match[2]) >= 0.95


def test_its_figures_stand_where_they_were_measured() -> None:
    """Each ratio has its row in the benchmarks; what is counted in words is counted here."""
    measured = "".join(
        (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
        for name in ("README.md", "operations.md")
    )
    table = re.search(r"^\| \| ratio \|\n(.*?)\n\n", README, re.M | re.S)
    assert table
    fast = re.search(r"\*\*How fast\.\*\*(.*?)\[More", README, re.S)
    assert fast
    ratios = set(
        re.findall(
            r"(?<![\d.])\d+\.\d+(?![\d.])", re.sub(r"Qwen\S+|Diffusion 1.5", "", table[1] + fast[1])
        )
    )
    assert len(ratios) > 20
    missing = [r for r in ratios if not re.search(rf"(?<![\d.]){re.escape(r)}(?![\d.])", measured)]
    assert not missing, missing
    for said in re.findall(
        r"installing takes (\d+) s|first result ([\d.]+) s|with (\d+) s of a", README
    ):
        (seconds,) = filter(None, said)
        rows = re.findall(
            r"(?<![\d.])[\d.]+(?= s\b)", measured.split("## From nothing")[1].split("\n## ")[0]
        )
        assert any(f"{float(row):.{len(seconds.partition('.')[2])}f}" == seconds for row in rows)
    models = (ROOT / "docs" / "pytorch-models.md").read_text(encoding="utf-8")
    families = len(re.findall(r"^\| (?!model |---)", models, re.M))
    assert f"{families} families of models" in README
    examples = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    programs = len(re.findall(r"^\| \[\w+\]\(\w+\.py\)", examples, re.M))
    assert programs == 22 and "Twenty-two more programs" in README
    conformance = (ROOT / "docs" / "conformance-torch.md").read_text(encoding="utf-8")
    shares = [float(p) for p in re.findall(r" ([\d.]+) % \|$", conformance, re.M)]
    assert shares and min(shares) > 99 and "more than\n99 % pass" in README


def test_its_tables_are_those_of_the_command_and_the_package() -> None:
    """Every command and option of the command line stands in the parser, every extra in pyproject.toml."""
    parser = cli._parser()
    (commands,) = [a.choices for a in parser._actions if isinstance(a.choices, dict)]
    table = README.split("## The command line")[1].split("\n## ")[0]
    named = set(re.findall(r"`(?:webtorch )?([a-z][a-z-]+)[` ]", table.split("| option |")[0]))
    assert len(named & commands.keys()) > 15, named
    for option, where in re.findall(r"^\| `(--\w+)[^|]*\| ([^|]*) \|", table, re.M):
        for name in where.replace("demo gpt", "demo").split(", "):
            assert option in commands[name]._option_string_actions, (option, name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = README.split("| extra |")[1].split("\n\n")[0]
    extras = re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|$)", rows, re.M)
    assert len(extras) > 8 and set(extras) <= project["optional-dependencies"].keys()


def test_the_demo_has_as_many_parameters_as_it_says() -> None:
    said = re.search(r"`--preset ([a-z\\|]+)` \|[^|]*\| ([\d., or]+) million", README)
    assert said
    counts = re.findall(r"[\d.]+", said[2])
    for name, count in zip(said[1].replace("\\", "").split("|"), counts, strict=True):
        with webtorch.device("meta"):
            model = gpt.GPT(gpt.PRESETS[name], 96)
        assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}" == count
