"""A hook of mkdocs: the site's pages are the Markdown files of the repository, under their own paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".github", "fsspec_cas", "lockprovider", "tests", "benchmarks")
_LINK = re.compile(r"\]\(([^)\s#]+)")


def repository_pages() -> list[Path]:
    """Return each Markdown file that is a page: the READMEs, the guides, the decisions."""
    found = [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
    return [ROOT / "README.md", *(page for page in found if "ISSUE_TEMPLATE" not in page.parts)]


def linked_files(page: Path) -> set[Path]:
    """Return the files beside the pages that a page links to, such as pictures and programs."""
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    targets = {(page.parent / link).resolve() for link in links if "://" not in link}
    return {target for target in targets if target.is_file() and target.suffix != ".md"}


def title_of(page: Path) -> str:
    """Return the text of the first line, a heading."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_config(config: Any) -> Any:
    """Fill the navigation's list of guides: each file in a folder `guides`."""
    guides = [page for page in repository_pages() if page.parent.name == "guides"]
    entries = [{title_of(page): str(page.relative_to(ROOT))} for page in guides]
    for section in config.nav:
        if "Guides" in section:
            section["Guides"] = entries
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the repository's pages, and what they link to, to the files of the site."""
    pages = repository_pages()
    for path in (*pages, *sorted({file for page in pages for file in linked_files(page)})):
        uri = str(path.relative_to(ROOT))
        files.append(File.generated(config, uri, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))
    return files
