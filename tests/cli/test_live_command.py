"""`regard live`: the command in a terminal of its own, and what it refuses."""

import http.client
import os
import pty
import re
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from terminals import refusal

SECONDS = 60
"""In which a command must answer or end."""

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]{32}/")


class Terminal:
    """A command on a terminal of its own, on which Ctrl-C can be typed."""

    def __init__(self, *arguments, **environment):
        self.ours, theirs = pty.openpty()
        self.shown = ""
        command = [sys.executable, "-m", "regard", *map(str, arguments)]
        # The terminal becomes that of the command, which then gets its signals.
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen(command, env=environment, preexec_fn=lambda: os.login_tty(theirs))
        os.close(theirs)

    def wait_for(self, pattern):
        """What the pattern matches in all that was shown."""
        ends = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < ends, self.shown
            with suppress(OSError):  # how Linux says that the other end is closed
                self.shown += os.read(self.ours, 65536).decode()
        return found.group()

    def type(self, keys):
        os.write(self.ours, keys)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.fixture
def terminal():
    """A function that starts a command; the process ends with the test."""
    started = []
    yield lambda *arguments, **environment: started.append(Terminal(*arguments, **environment)) or started[-1]
    for each in started:
        each.close()


def status_of(url):
    """The status with which an address answers."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)) as connection:
        connection.request("GET", parts.path)
        return connection.getresponse().status


def test_it_answers_at_the_address_that_it_prints_until_ctrl_c_and_leaves_nothing(terminal, models):
    command = terminal("live", "--model", models["gpt2"])
    url = command.wait_for(ADDRESS)
    assert status_of(url) == 200
    assert status_of(url.replace(urlsplit(url).path, "/")) == 404
    command.type(b"\x03")
    assert command.process.wait(SECONDS) == 0
    with closing(socket.socket()) as again:
        again.bind(("127.0.0.1", urlsplit(url).port))
    assert "Traceback" not in command.shown


@pytest.mark.more
def test_other_machines_are_let_in_with_a_warning(terminal, models):
    command = terminal("live", "--model", models["gpt2"], "--host", "0.0.0.0", "--allow-remote")
    assert status_of(command.wait_for(ADDRESS)) == 200
    assert command.wait_for("nothing is encrypted")


@pytest.mark.more
def test_open_gives_the_address_to_the_browser(terminal, models, tmp_path):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    command = terminal("live", "--model", models["gpt2"], "--open", BROWSER=str(browser))
    url = command.wait_for(ADDRESS)
    ends = time.monotonic() + SECONDS
    while not opened.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert opened.read_text() == url


def test_another_host_needs_to_be_allowed_and_the_error_says_why(command):
    said = refusal(command, "live", "--host", "0.0.0.0")
    assert "--host '0.0.0.0'" in said
    assert "nothing is encrypted" in said
    assert "127.0.0.1" in said
    assert said.endswith("--allow-remote\n")


def test_a_port_in_use_is_named_with_the_way_out(command, models):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(command, "live", "--model", models["gpt2"], "--port", port)
    assert f"--port {port} of 127.0.0.1" in said
    assert "0 for any that is free" in said


def test_an_unknown_model_is_named(command):
    assert "no-such-model" in refusal(command, "live", "--model", "no-such-model")


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named_before_the_model_is_read(command, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)  # how Python notes that a module cannot be imported
    said = refusal(command, "live", "--model", "no-such-model")
    assert library in said
    assert "live" in said.split("install")[-1]


def test_a_port_that_none_can_have_is_refused(command):
    assert "65535" in refusal(command, "live", "--port", "70000")
