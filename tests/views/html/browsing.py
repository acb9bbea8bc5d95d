"""Debian's Chromium, driven by Playwright: a page of a file or a server, and what it did that no page of ours may."""

import json
import os
import signal
from contextlib import ExitStack, closing, contextmanager, suppress
from threading import Timer
from urllib.parse import quote

ARGUMENTS = ["--disable-gpu", "--disable-quic"]  # what else keeps it quiet, Playwright says by itself
TIMEOUT = 10.0  # seconds for a page to open, and for whatever a test waits for in it
TEST_TIMEOUT = 60.0  # seconds until a browser is killed; a script that never ends would hold evaluate for ever

# The event says what was refused; the console says it too, but in words that change with Chromium.
REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  reportViolation(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`.trim()), true);
"""


class Tab:
    """One page of one context, which opens one file after the other, and writes down what they do.

    The origin is that of a server, which its pages may ask; files may ask nobody.
    """

    def __init__(self, context, origin=None):
        self.address, self.opened, self.log = "", 0, []
        self.harmless = ("data:", "blob:") if origin is None else ("data:", "blob:", f"{origin}/")
        context.on("request", lambda made: self._request(made.url))
        context.on("page", lambda page: page.on("websocket", lambda socket: self._request(socket.url)))
        context.on("page", lambda page: page.on("crash", lambda _: self.log.append("the page crashed")))
        context.on("console", self._message)
        context.on("weberror", lambda raised: self.log.append(f"thrown: {raised.error}"))
        context.on("dialog", self._dialog)
        context.expose_function("reportViolation", lambda text: self.log.append(f"violation: {text}"))
        context.add_init_script(REPORT_VIOLATIONS)
        self.page = context.new_page()

    def _request(self, url):
        if url.partition("#")[0] != self.address and not url.startswith(self.harmless):
            self.log.append(f"request: {url}")

    def _message(self, message):
        if message.type in ("error", "warning"):
            self.log.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog):
        self.log.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()


class Chromium:
    """One browser with one tab; started when it is first used, and again where it was killed."""

    def __init__(self, playwright, executable):
        self._playwright, self._executable = playwright, executable
        self._browser = None

    def tab(self):
        if self._browser is None or not self._browser.is_connected():
            launch = self._playwright.chromium.launch
            self._browser = launch(executable_path=self._executable, args=ARGUMENTS, timeout=6 * TIMEOUT * 1000)
            self._tab = Tab(self._browser.new_context(locale="en-US", offline=True))
            # The process's number is what can still be killed when nothing answers.
            processes = self._browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
            (self._pid,) = (process["id"] for process in processes if process["type"] == "browser")
        return self._tab

    @contextmanager
    def without_scripts(self, path):
        """A page from disk where no script may run."""
        self.tab()
        with closing(self._browser.new_context(java_script_enabled=False, offline=True)) as context:
            page = context.new_page()
            page.set_default_timeout(TIMEOUT * 1000)
            page.goto(path.resolve().as_uri())
            yield page

    @contextmanager
    def served(self, url, *, width=1280, height=900, dark=False, timeout=4 * TIMEOUT):
        """A page from a server of this machine, in a context of its own, and what it did in words, as with `opened`.

        What is waited for may take the server's time, too.
        """
        self.tab()
        watchdog = Timer(TEST_TIMEOUT, self.kill)
        watchdog.daemon = True
        size, scheme = {"width": width, "height": height}, "dark" if dark else "light"
        with closing(self._browser.new_context(locale="en-US", viewport=size, color_scheme=scheme)) as context:
            tab = Tab(context, "/".join(url.split("/")[:3]))
            tab.page.set_default_timeout(timeout * 1000)
            watchdog.start()
            try:
                tab.page.goto(url)
                yield tab.page, tab.log
                tab.page.evaluate("() => new Promise((done) => setTimeout(done, 20))")
            finally:
                watchdog.cancel()

    def kill(self):
        """From any thread; playwright itself hears of it later."""
        self._browser = None
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def close(self):
        if self._browser is not None:
            self._browser.close()


def sound_pages(visit):
    """For a fixture: a function that opens pages in a state, as a link to them says, and answers each when it is ready.

    When the test has ended, every page has made no request that it may not make, said no error or warning, raised
    nothing and kept to its policy.
    """
    logs = []
    with ExitStack() as pages:

        def call(where, state=None, *, ready="html[data-ready]", **options):
            hash = "" if state is None else quote(json.dumps(state))
            page, log = pages.enter_context(visit(where, hash=hash, **options))
            logs.append(log)
            page.wait_for_selector(ready)
            return page

        yield call
    assert [line for log in logs for line in log] == []


@contextmanager
def opened(chromium, path, *, width=1280, height=900, dark=False, hash="", timeout=TIMEOUT):
    """A page from disk in a browser without a network, and what it did in words, complete when the block has ended.

    It is opened in the same tab as the page before. Of a sound page there is nothing to say. The hash is what stands
    behind "#" in the address; seconds of the timeout are for whatever is waited for, opening included.
    """
    tab = chromium.tab()
    page, watchdog = tab.page, Timer(TEST_TIMEOUT, chromium.kill)
    watchdog.daemon = True
    try:
        page.set_default_timeout(timeout * 1000)
        if page.viewport_size != (size := {"width": width, "height": height}):
            page.set_viewport_size(size)
        page.emulate_media(color_scheme="dark" if dark else "light", media="null")
        # From one "#" to another nothing would be loaded, so that each page has a "?" of its own.
        tab.opened += 1
        tab.address, tab.log = f"{path.resolve().as_uri()}?{tab.opened}", (log := [])
        page.goto(tab.address + (f"#{hash}" if hash else ""), wait_until="load")
        watchdog.start()
        yield page, log
        page.evaluate("() => new Promise((done) => setTimeout(done, 20))")  # what is on its way is counted, too
    except BaseException:
        chromium.kill()  # what hangs here would hang the next test; that one starts another browser
        raise
    finally:
        watchdog.cancel()
