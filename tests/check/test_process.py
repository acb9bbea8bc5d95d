"""Work in a process of its own: what it returns and raises, and every way in which it can go wrong; all are real."""

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from regard import InputError
from regard.check.process import GIB, GRACE, PRINTED, Stopped, isolated
from regard.check.report import CodeLocation

SECONDS = 60.0
"""More than any of them needs, also on a busy machine."""


def alive(process):
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(process):
    """Whether it has ended, or ends within 30 seconds."""
    until = time.monotonic() + 30
    while alive(process) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(process)


def do(work, *, timeout=SECONDS, memory=4 * GIB, watch=None):
    return isolated(work, timeout=float(timeout), memory=memory, watch=watch)


def stopped(work, **options):
    with pytest.raises(Stopped) as caught:
        do(work, **options)
    assert str(caught.value) == caught.value.reason
    return caught.value


@pytest.fixture
def written(tmp_path):
    """Write a file with a function `work`, and import it as nobody's module; its path, and the work."""

    def write(source, name="attention.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")

        def work():
            names = {"__name__": "somebodys"}
            exec(compile(path.read_bytes(), str(path), "exec"), names)
            return names["work"]()

        return path, work

    return write


class TestItsResult:
    def test_comes_back(self):
        q = torch.randn(3, 4, dtype=torch.float64)
        line = CodeLocation("a.py", 1, "x = 1")
        got = do(lambda: {"weights": (q @ q.T).softmax(-1), "process": os.getpid(), "line": line})
        assert torch.equal(got["weights"], (q @ q.T).softmax(-1))
        assert got["process"] != os.getpid()
        assert got["line"] == line

    def test_may_be_large(self):
        assert do(lambda: torch.arange(2_000_000)).sum() == 1_999_999_000_000

    def test_changes_nothing_here(self):
        ours, seed, threads = torch.zeros(3), torch.initial_seed(), torch.get_num_threads()

        def work():
            torch.manual_seed(123)
            os.chdir("/")
            return ours.add_(1).tolist()

        here = Path.cwd()
        assert do(work) == [1, 1, 1]
        assert (ours.tolist(), torch.initial_seed(), torch.get_num_threads()) == ([0, 0, 0], seed, threads)
        assert Path.cwd() == here

    def test_comes_soon(self):
        """The quickest of ten, since other programs may run beside it."""
        seconds = []
        for _ in range(10):
            start = time.perf_counter()
            do(lambda: None)
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 0.5

    def test_computes_where_many_threads_computed_here(self):
        """A fork has no threads but one; who waits for the others waits for ever."""
        code = """
            import torch
            from regard.check.process import isolated
            torch.set_num_threads(4)
            x = torch.randn(600, 600, requires_grad=True)
            (x @ x).softmax(-1).sum().backward()
            def work():
                (x @ x).softmax(-1).sum().backward()
                return torch.get_num_threads()
            print(isolated(work, timeout=30, memory=2**32))
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "4"}
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment
        )
        assert (ended.stdout, ended.stderr) == ("1\n", "")

    def test_that_cannot_be_pickled(self):
        assert re.match(
            "returned a result that cannot be pickled: .*<lambda>",
            stopped(lambda: lambda: 0, watch=Path("x.py")).reason,
        )

    def test_of_a_class_that_only_the_work_knows(self, written, tmp_path, monkeypatch):
        """Reading it must not import the user's file here."""
        (tmp_path / "somebodys_file.py").write_text("class Mine: pass\nprint('imported', flush=True)\n")
        monkeypatch.syspath_prepend(str(tmp_path))

        def work():
            import somebodys_file

            return somebodys_file.Mine()

        assert "somebodys_file is not imported here" in stopped(work).reason
        assert "somebodys_file" not in sys.modules

    def test_of_a_fork_in_the_work_is_not_taken_for_its_own(self):
        def work():
            if os.fork() == 0:
                return "a fork's"
            os.wait()
            return "its own"

        assert do(work) == "its own"


class TestWhatItRaises:
    def test_comes_as_it_was(self):
        def work():
            raise InputError("no such name: 'Atention'")

        with pytest.raises(InputError, match=r"^no such name: 'Atention'$"):
            do(work)

    def test_comes_as_its_text_where_only_the_work_knows_it(self, written):
        _, work = written(
            """
            class Mine(Exception):
                def __init__(self, a, b):
                    super().__init__(f"{a} of {b}")

            def work():
                raise Mine(1, 2)
            """
        )
        with pytest.raises(RuntimeError, match=r"^Mine: 1 of 2$"):
            do(work)

    def test_comes_as_its_text_where_it_cannot_be_pickled(self):
        def work():
            raise ValueError(lambda: 0)

        with pytest.raises(RuntimeError, match=r"^ValueError: <function"):
            do(work)

    def test_that_cannot_say_what_it_is(self):
        class Silent(Exception):
            def __str__(self):
                raise ValueError("no word")

        def work():
            raise Silent(lambda: 0)

        with pytest.raises(RuntimeError, match=r"^Silent$"):
            do(work)

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
    def test_and_is_no_exception(self, kind):
        def work():
            raise kind("what now")

        assert stopped(work).reason == f"raised something that is not an Exception: {kind.__name__}: what now"

    def test_a_recursion_without_end(self):
        def work():
            return work()

        with pytest.raises(RecursionError):
            do(work)


class TestItsTime:
    def test_a_loop_is_ended_in_its_line(self, written):
        path, work = written(
            """
            import json

            def attend():
                x = 0
                while True:
                    x += 1

            def work():
                return attend()
            """
        )
        start = time.perf_counter()
        why = stopped(work, timeout=1, watch=path)
        assert time.perf_counter() - start < 1 + GRACE  # it ends itself
        assert why.where in (CodeLocation(str(path), 6, "while True:"), CodeLocation(str(path), 7, "x += 1"))
        assert why.reason == f"did not end within 1 s; it was at {path}:{why.where.line}"

    def test_the_line_is_the_files_own_where_it_waits_within_a_library(self, written):
        path, work = written("import subprocess\ndef work():\n    subprocess.run(['sleep', '1000'])\n", "é [1].py")
        why = stopped(work, timeout=1, watch=path)
        assert why.where == CodeLocation(str(path), 3, "subprocess.run(['sleep', '1000'])")

    def test_a_loop_that_holds_python_itself(self, written):
        """In which no other thread of Python ever has its turn."""
        path, work = written("import re\ndef work():\n    re.match('(a|a)*b', 'a' * 200)\n")
        assert stopped(work, timeout=1, watch=path).where == CodeLocation(
            str(path), 3, "re.match('(a|a)*b', 'a' * 200)"
        )

    def test_a_thread_of_its_own_does_not_hide_the_line(self, written):
        path, work = written(
            """
            import threading, time

            def aside():
                time.sleep(1000)

            def work():
                threading.Thread(target=aside).start()
                time.sleep(1000)
            """
        )
        assert stopped(work, timeout=1, watch=path).where.line == 9

    def test_without_a_file_to_watch(self):
        why = stopped(lambda: time.sleep(1000), timeout=0.3)
        assert (why.reason, why.where) == ("did not end within 0.3 s", None)

    def test_a_process_that_holds_still_is_ended_too(self):
        assert stopped(lambda: os.kill(os.getpid(), signal.SIGSTOP), timeout=0.3).reason == "did not end within 0.3 s"

    def test_who_catches_everything_is_ended_too(self):
        def work():
            while True:
                with suppress(BaseException):
                    time.sleep(1000)

        assert stopped(work, timeout=0.3).reason == "did not end within 0.3 s"


class TestItsEnd:
    def test_by_a_crash(self, written):
        path, work = written("import os\n\ndef work():\n    os.abort()\n")
        why = stopped(work, watch=path)
        assert why.reason == f"ended by signal SIGABRT at {path}:4"
        assert why.where == CodeLocation(str(path), 4, "os.abort()")

    def test_by_a_wrong_address(self, written):
        path, work = written("import ctypes\ndef work():\n    ctypes.string_at(0)\n")
        assert stopped(work, watch=path).reason == f"ended by signal SIGSEGV at {path}:3"

    def test_by_the_system(self):
        why = stopped(lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert why.reason == "ended by signal SIGKILL, as the system does when memory runs out"

    def test_by_sys_exit(self, written):
        path, work = written("import sys\ndef work():\n    sys.exit(3)\n")
        why = stopped(work, watch=path)
        assert (why.reason, why.where) == ("called sys.exit(3)", CodeLocation(str(path), 3, "sys.exit(3)"))

    @pytest.mark.parametrize("code", [0, 7])
    def test_by_os_exit(self, code):
        assert stopped(lambda: os._exit(code)).reason == f"ended with exit code {code}, as by os._exit"

    def test_leaves_no_process_of_its_own(self, written, tmp_path):
        for work in ("pass", "os.abort()", "time.sleep(1000)"):
            note = tmp_path / "process"
            _, run = written(
                f"""
                import os, subprocess, time
                def work():
                    sleeps = subprocess.Popen(["sleep", "1000"])
                    open({str(note)!r}, "w").write(str(sleeps.pid))
                    {work}
                """
            )
            if work == "pass":
                do(run)
            else:
                stopped(run, timeout=2)
            assert gone(int(note.read_text())), work

    def test_is_seen_where_a_fork_holds_its_pipes(self):
        def work():
            if os.fork() == 0:
                time.sleep(1000)
            os.abort()

        start = time.perf_counter()
        assert stopped(work).reason == "ended by signal SIGABRT"
        assert time.perf_counter() - start < SECONDS / 2

    def test_leaves_no_file_open_here(self):
        before = os.listdir("/proc/self/fd")
        do(lambda: None)
        stopped(os.abort)
        assert os.listdir("/proc/self/fd") == before


class TestItsMemory:
    @pytest.mark.parametrize("kind", ["torch.empty(100 * 2**30, dtype=torch.uint8)", "bytearray(100 * 2**30)"])
    def test_of_which_it_asks_too_much(self, written, kind):
        path, work = written(f"import torch\ndef work():\n    return {kind}\n")
        why = stopped(work, watch=path)
        assert why.reason == f"asked for more than 4.0 GiB of memory at {path}:3"
        assert why.where == CodeLocation(str(path), 3, f"return {kind}")

    def test_that_grows_bit_by_bit(self):
        def work():
            kept = []
            while True:
                kept.append(bytearray(2**20))

        assert stopped(work, memory=GIB // 2).reason == "asked for more than 0.5 GiB of memory"

    def test_without_a_limit(self):
        assert do(lambda: len(bytearray(2**20)), memory=None) == 2**20


class TestWhatItPrints:
    def test_is_caught_at_every_level(self, capfd):
        def work():
            print("by print")
            os.write(2, b"by write\n")
            subprocess.run(["echo", "by a child"])
            sys.exit()

        assert stopped(work).printed == "by print\nby write\nby a child\n"
        assert capfd.readouterr() == ("", "")

    def test_without_end_is_a_loop_that_is_ended(self, written, capfd):
        path, work = written("def work():\n    while True:\n        print('héllo ' * 1000)\n")
        why = stopped(work, timeout=1, watch=path)
        assert why.reason == f"did not end within 1 s; it was at {path}:3"
        assert len(why.printed) == PRINTED
        assert set(why.printed) <= set("héllo \n\ufffd")
        assert capfd.readouterr() == ("", "")

    def test_does_not_hold_it_up(self):
        assert do(lambda: [os.write(1, b"x" * 2**20) for _ in range(50)]) is not None

    def test_before_is_printed_once(self):
        code = """
            from regard.check.process import isolated
            print("before")  # in a buffer, where there is no terminal
            isolated(lambda: print("within"), timeout=30, memory=None)
            print("after")
        """
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
        assert (ended.stdout, ended.stderr) == ("before\nafter\n", "")

    def test_has_nothing_to_read(self):
        with pytest.raises(EOFError):
            do(lambda: input("your name? "))


@pytest.mark.parametrize("redirect", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_mix_with_its_pipes(redirect, tmp_path):
    code = f"""
        import os
        from regard.check.process import isolated
        got = isolated(lambda: os.write(1, b"x") + os.write(2, b"y"), timeout=30, memory=None)
        open({str(tmp_path / "got")!r}, "w").write(str(got))
    """
    (tmp_path / "run.py").write_text(textwrap.dedent(code))
    subprocess.run(["bash", "-c", f"'{sys.executable}' '{tmp_path / 'run.py'}' {redirect}"], check=True)
    assert (tmp_path / "got").read_text() == "2"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_who_watches_may_be_interrupted(sent, tmp_path):
    """By Ctrl-C at once; where the watcher itself is killed, the work ends with its time."""
    note = tmp_path / "processes"
    code = f"""
        import os, subprocess, time
        from regard.check.process import isolated

        def work():
            sleeps = subprocess.Popen(["sleep", "1000"])
            open({str(note)!r} + ".part", "w").write(f"{{os.getpid()}} {{sleeps.pid}}")
            os.rename({str(note)!r} + ".part", {str(note)!r})
            time.sleep(1000)

        try:
            isolated(work, timeout=4, memory=None)
        except KeyboardInterrupt:
            print("interrupted")
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not note.exists():
        assert process.poll() is None
        time.sleep(0.01)
    worker, sleeps = map(int, note.read_text().split())
    assert alive(worker)
    process.send_signal(sent)
    said, _ = process.communicate(timeout=20)
    if sent == signal.SIGINT:
        assert said == b"interrupted\n"
        assert gone(sleeps)
    else:
        os.kill(sleeps, signal.SIGKILL)  # nobody is left to end it
    assert gone(worker)


def test_where_nothing_forks_the_work_is_done_here(monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert do(os.getpid) == os.getpid()


def test_the_word_can_be_passed_on():
    why = Stopped("did not end within 1 s", CodeLocation("a.py", 3, "x"), "said")
    assert vars(pickle.loads(pickle.dumps(why))) == vars(why)
