"""Figures of the kept runs in the built pages: read as files, docs/ finds them next to it; the site has them inside.

There what a figure shows stands below it, too: on paper and screens nobody sees an alternative text.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_FIGURE = r"""<figure markdown="span">
\1
<figcaption>\2</figcaption>
</figure>"""


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    for figure in sorted(root.glob("results/**/*.svg")):
        path = figure.relative_to(root).as_posix()
        files.append(File(path, str(root), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's path to results/ is one folder shorter there."""
    found = re.sub(r"\]\(((?:\.\./)*)\.\./results/", r"](\1results/", markdown)
    return re.sub(r"^(!\[([^\]]+)\]\([^)]+\))$", _FIGURE, found, flags=re.MULTILINE)
