"""The README's pictures, drawn by what they show: `make pictures`.

see.png is the page of `regard see` in Chromium; check.svg is the report of `regard check` on attention.py, beside this.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

import regard

HERE = Path(__file__).parent
SENTENCE = "Write a poem about a man fishing on a river bank."
WIDTH, HEIGHT = 1100, 860  # pixels of the page
COLUMNS = 108  # of the terminal
# rich's own SVG asks a network for its font.
FONT_FROM_NETWORK = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def draw_page(path: Path) -> None:
    """A screenshot of the page of a sentence, in the head that it opens on."""
    executable = shutil.which("chromium")
    if executable is None:
        raise SystemExit("no Chromium here: make install-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = regard.see(SENTENCE, Path(folder, "see.html"), token="bank").path
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(page_path.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.screenshot(path=path)
        browser.close()


def draw_report(path: Path) -> None:
    """The first steps of the report and the mistake that it names, as a terminal shows them."""
    call = [sys.executable, "-m", "regard", "check", "attention.py:CausalSelfAttention"]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    done = subprocess.run(call, cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode != 1:  # 1 is "wrong", which it is
        raise SystemExit(done.stdout + done.stderr)
    console = Console(width=COLUMNS, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("$ regard check attention.py:CausalSelfAttention\n" + done.stdout))
    svg = console.export_svg(title="regard check")
    path.write_text(FONT_FROM_NETWORK.sub("", svg), encoding="utf-8")


if __name__ == "__main__":
    draw_page(HERE / "see.png")
    draw_report(HERE / "check.svg")
    for name in ("see.png", "check.svg"):
        print(f"docs/pictures/{name}: {(HERE / name).stat().st_size / 1e3:.0f} KB")
