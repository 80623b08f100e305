"""The documentation's site in the real browser: its theme and search work, and it asks no other host for anything."""

from __future__ import annotations

import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium", path=f"{os.environ.get('PATH', '')}:/usr/bin")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="no Chromium: make chromium installs Debian's"
)


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.rotating(3)
@pytest.mark.filterwarnings("ignore")  # the theme's libraries
def test_a_page_is_found_by_its_words_and_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    """Our settings on two pages: building all of them is `make docs`'s work."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    assert CHROMIUM is not None, "CI has Chromium: make chromium"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n- a\n\n```yaml\nkey: value\n```\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\nAbout waterlines.\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(tmp_path / "docs"), site_dir=str(tmp_path / "site"), nav=None, hooks=[]
    )
    build(config)
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.get_by_role("textbox", name="Search").click()
            page.keyboard.type("waterlines")
            found = page.locator(".md-search-result__link").first
            expect(found).to_contain_text("Other", timeout=30_000)
            found.click()
            expect(page.locator("h1")).to_contain_text("Other")
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert asked
    assert [
        url for url in asked if not url.startswith((f"http://127.0.0.1:{server.server_port}/", "blob:", "data:"))
    ] == []
