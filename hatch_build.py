"""The README as package indexes can show it: links into this repository are made absolute, or become plain words.

An index has only the text. With `Repository` in [project.urls] each link leads there; without it a link that would
lead nowhere is left out. Hatchling calls this when it builds.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
HOMELESS = "\nThe pages named here are in the folder `docs` of the source distribution.\n"


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        shown = for_an_index(text, metadata.get("urls", {}).get("Repository", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}


def for_an_index(text: str, repository: str) -> str:
    """The text with links that work outside the repository, whose address is that of its first page."""

    def link(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        if not repository or target.startswith("#"):
            return "" if image else words
        return f"{image}[{words}]({repository.rstrip('/')}/{'raw' if image else 'blob'}/HEAD/{target})"

    shown = LINK.sub(link, text)
    return shown if repository else shown + HOMELESS
