"""Metadata that setup.cfg cannot hold: addresses made from the repository's.

PyPI shows the README alone, so its links to other files lead to the repository there.
"""

import configparser
import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
PAGES = {
    "Documentation": "tree/main/docs",
    "Changelog": "blob/main/CHANGELOG.md",
    "Issues": "issues",
}


def repository() -> str:
    """The address of the repository."""
    parser = configparser.ConfigParser()
    parser.read(HERE / "setup.cfg", encoding="utf-8")
    return parser["metadata"]["url"]


def with_addresses(text: str, url: str) -> str:
    """A page whose links to files of the repository work anywhere."""
    text = re.sub(r"\]\((?![a-z]+:|#)", f"]({url}/blob/main/", text)
    return re.sub(r'(src|srcset)="(?![a-z]+:)', rf'\1="{url}/raw/main/', text)


if __name__ == "__main__":
    url = repository()
    setup(
        long_description=with_addresses(
            (HERE / "README.md").read_text(encoding="utf-8"), url
        ),
        project_urls={name: f"{url}/{page}" for name, page in PAGES.items()},
    )
