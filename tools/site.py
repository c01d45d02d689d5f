"""Hooks of MkDocs (mkdocs.yml): pages of the reference and of the examples, pages that lie elsewhere, Run buttons.

`make docs` builds the site. Nothing is fetched for it but, where npm is and once, the package that Python in the
reader's tab is made of; where that cannot be had, the pages have no Run buttons. `make docs LIVE=1` also runs the
examples that write pages, which takes some minutes, and shows each page beside its program.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from tools.reference import CLASSES, MODULES
from webtorch.web.playground import PyodideMissingError, build_playground, find_pyodide

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("mkdocs.site")
# Pages that lie outside of docs/: page -> source.
ELSEWHERE = {
    "benchmarks.md": "benchmarks/README.md",
    "operations.md": "benchmarks/operations.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "examples/index.md": "examples/README.md",
}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
# An example that writes a page says so where it says how it is run.
_WRITES_A_PAGE = "webtorch serve site"
_playground = False
_live = os.environ.get("LIVE", "") not in ("", "0")


def examples() -> list[Path]:
    """Return the programs of the gallery, in the order of the examples' table."""
    table = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    return [ROOT / "examples" / name for name in re.findall(r"\]\(((?:pages/)?\w+\.py)\)", table)]


def sources() -> dict[str, str]:
    """Return where each page comes from that is not in docs/: page -> path in the repository."""
    programs = [path.relative_to(ROOT) for path in examples()]
    return ELSEWHERE | {path.with_suffix(".md").as_posix(): path.as_posix() for path in programs}


def on_config(config: Any) -> Any:
    """List the pages that are made here, and see whether Python is there for the reader's tab."""
    global _playground
    names = (*MODULES[:1], *CLASSES, *MODULES[1:])
    listed = {
        "Reference": [{name.removeprefix("webtorch."): f"reference/{name}.md"} for name in names],
        "Gallery": [
            {"Programs": "examples/index.md"},
            *(
                {Path(page).stem.replace("_", " "): page}
                for page, source in sources().items()
                if source.endswith(".py")
            ),
        ],
    }
    for part in config.nav:
        part.update({title: pages for title, pages in listed.items() if title in part})
    try:
        _playground = bool(find_pyodide())
    except PyodideMissingError as missing:
        LOG.info("no Run buttons: %s", missing)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the reference, those of the examples and those that lie elsewhere."""
    for name in (*MODULES, *CLASSES):
        text = f"---\nsearch:\n  boost: 0.5\n---\n\n# {name}\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for page, source in sources().items():
        path = ROOT / source
        if path.suffix == ".md":
            files.append(File.generated(config, page, abs_src_path=str(path)))
            continue
        program = path.read_text(encoding="utf-8")
        shown = ""
        if _live and _WRITES_A_PAGE in program:
            live = f"live/{path.stem}/index.html"
            shown = (
                f'<iframe class="live" src="{live}" title="{path.stem}" allow="camera; microphone">'
                f'</iframe>\n<p><a href="{live}">The page by itself</a></p>\n\n'
            )
        text = f"# {path.stem.replace('_', ' ')}\n\n{shown}```python\n{program}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links out of docs/ to the site's pages, or to the sources where these can be seen."""
    uri = page.file.src_uri
    places = sources()
    source = places.get(uri, f"docs/{uri}")
    pages = {place: name for name, place in places.items()}

    def turned(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = pages.get(place) or (place[5:] if place.startswith("docs/") else "")
        if found and files.get_file_from_path(found):
            return f"[{text}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{anchor})"
        if place.startswith("docs/") and not (ROOT / place).exists():
            return link[0]
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{place}{anchor})"
        return text

    if uri.startswith("reference/"):
        return markdown
    markdown = "".join(
        part if part.startswith("```") else _LINK.sub(turned, part)
        for part in re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    )
    if _playground and any(fnmatch.fnmatch(uri, pattern) for pattern in config.extra["run"]):
        argv = ""
        if source.endswith(".py"):
            if _WRITES_A_PAGE in markdown:
                return markdown
            # Programs of the gallery take their device from the command line.
            words = [f"'{posixpath.basename(source)}'", "'--quick'", "'--device'"]
            argv = (
                f" data-argv=\"{', '.join(words)}, str(__import__('torch').get_default_device())\""
            )
        markdown += f'\n\n<div id="runs-here"{argv} hidden></div>\n'
    return markdown


def on_post_build(config: Any) -> None:
    """Write the playground, which runs the pages' programs, and the pages that examples write."""
    site = Path(config.site_dir)
    if _playground:
        build_playground(site / "playground")
    for path in examples() if _live else []:
        if _WRITES_A_PAGE in path.read_text(encoding="utf-8"):
            page = (site / path.relative_to(ROOT)).parent / "live" / path.stem
            subprocess.run([sys.executable, str(path), str(page)], check=True)
