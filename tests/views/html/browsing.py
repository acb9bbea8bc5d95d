"""Debian's Chromium, driven by Playwright: a page from disk, and what it did that no page of ours may do."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Timer
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Playwright

ARGUMENTS = [
    "--no-sandbox",  # its sandbox cannot be had in a container, and it reads nothing but our pages
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT = 10.0  # seconds for a page to open, and for whatever a test waits for in it
WHOLE = 60.0  # seconds for all that is done with a page; a script that never ends would hold page.evaluate for ever

# The event says what was refused; the console says it too, but in words that change with Chromium.
REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  seenViolation(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`.trim()), true);
"""


class Chromium:
    """One browser, started when it is first used, and again where it was killed."""

    def __init__(self, playwright: Playwright, executable: str, folder: Path) -> None:
        self._playwright = playwright
        self._browser: Browser | None = None
        self._pid = folder / "chromium.pid"
        # Playwright does not tell the process's number, which is what can still be killed when nothing answers.
        self._start = folder / "chromium"
        self._start.write_text(f'#!/bin/sh\necho $$ > "{self._pid}"\nexec "{executable}" "$@"\n')
        self._start.chmod(0o755)

    @property
    def lives(self) -> bool:
        return self._browser is not None and self._browser.is_connected()

    def browser(self) -> Browser:
        if not self.lives:
            self._browser = self._playwright.chromium.launch(
                executable_path=self._start, args=ARGUMENTS, timeout=6 * WAIT * 1000
            )
        assert self._browser is not None
        return self._browser

    def kill(self) -> None:
        """From any thread; playwright itself hears of it later."""
        self._browser = None
        with suppress(ProcessLookupError):
            os.kill(int(self._pid.read_text()), signal.SIGKILL)

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()


@dataclass
class Seen:
    """What a page did, in words; all four lists of a sound page are empty."""

    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(f"{each.name}: {said}" for each in fields(self) for said in getattr(self, each.name))


@contextmanager
def opened(
    chromium: Chromium,
    path: Path,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    hash: str = "",
    wait: float = WAIT,
    whole: float = WHOLE,
    **context: Any,
) -> Iterator[tuple[Page, Seen]]:
    """A page from disk in a browser without a network.

    Args:
        chromium: Where it is opened.
        path: Of the HTML file.
        width, height: Of the window, in CSS pixels.
        dark: Whether the reader prefers dark pages.
        hash: What stands behind "#" in the address.
        wait: Seconds for whatever is waited for, opening included.
        whole: Seconds after which the browser is killed; what is done with the page then raises playwright's Error.
        context: Further options of playwright's `Browser.new_context`, such as `has_touch=True`.

    Yields:
        The page, and what it did, complete when the block has ended.
    """
    browser = chromium.browser()
    watchdog = Timer(whole, chromium.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        options = {"locale": "en-US", "offline": True, "color_scheme": "dark" if dark else "light", **context}
        session = browser.new_context(viewport={"width": width, "height": height}, **options)
        session.set_default_timeout(wait * 1000)
        address = path.resolve().as_uri()
        seen = Seen()
        listen(session, address, seen)
        page = session.new_page()
        page.goto(address + (f"#{hash}" if hash else ""), wait_until="load")
        yield page, seen
        if not chromium.lives:
            seen.errors.append(f"the browser ended before the test did; {whole:g} seconds are all it gets")
        else:
            if not page.is_closed():
                page.evaluate("() => new Promise((done) => setTimeout(done, 20))")  # what is on its way is counted, too
            session.close()
    except BaseException:
        # A hung page would hold close() as well; the next test starts another browser.
        chromium.kill()
        raise
    finally:
        watchdog.cancel()


def listen(session: BrowserContext, address: str, seen: Seen) -> None:
    """Writes down what any page, frame or worker of a session does."""

    def request(url: str) -> None:
        if url.partition("#")[0] != address and not url.startswith(("data:", "blob:")):
            seen.requests.append(url)

    session.on("request", lambda made: request(made.url))
    session.on("page", lambda page: page.on("websocket", lambda socket: request(socket.url)))
    session.on("page", lambda page: page.on("crash", lambda _: seen.errors.append("the page crashed")))
    session.on(
        "console",
        lambda said: seen.messages.append(f"{said.type}: {said.text}") if said.type in ("error", "warning") else None,
    )
    session.on("weberror", lambda raised: seen.errors.append(str(raised.error)))
    session.on("dialog", lambda dialog: (seen.errors.append(f"{dialog.type}: {dialog.message}"), dialog.dismiss()))
    session.expose_function("seenViolation", lambda said: seen.violations.append(said))
    session.add_init_script(REPORT_VIOLATIONS)


def executable() -> str | None:
    """Where Chromium is; None where it is not."""
    return shutil.which("chromium")
