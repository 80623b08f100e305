"""`python -m docs_site`: builds the documentation into build/site and lists every broken link, in pages and site."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path

from docs_site.built import faults
from docs_site.links import dead_links, pages


def main(root: Path) -> int:
    """1 where a link is broken or MkDocs warns; each fault is a line of standard error."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # a banner of the theme's about another project
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    broken = [f"{page.relative_to(root)}: {link} leads nowhere" for page in pages(root) for link in dead_links(page)]
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    config = load_config(str(root / "mkdocs.yml"), strict=True)
    shutil.rmtree(config.site_dir, ignore_errors=True)
    try:
        build(config)
    except Abort as stopped:
        broken.append(f"MkDocs: {stopped}")
    else:
        broken += faults(Path(config.site_dir).resolve())
    sys.stderr.writelines(f"{line}\n" for line in broken)
    if not broken:
        sys.stdout.write(f"{config.site_dir}/index.html: {len(pages(root))} pages, every link leads somewhere\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
