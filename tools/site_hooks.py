"""What mkdocs does not do by itself: links from the docs to files of the repository lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Replace links that leave ``docs/`` by the address of the file in the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, found[1]))
        return found[0] if path.startswith("docs/") else f"]({config.repo_url}/blob/main/{path})"

    return LINK.sub(replaced, markdown)
