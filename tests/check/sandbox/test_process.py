"""Work in a process of its own: what it returns and raises, and every way in which it can go wrong; all are real."""

import os
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
from regard.check.report import CodeLocation
from regard.check.sandbox.answer import MAX_ANSWER_BYTES, MAX_CHARACTERS
from regard.check.sandbox.process import GIB, Stopped, isolated

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
        facts = {
            "texts": ["é", "\n", ""],
            "numbers": [1, -2.5, 1e-300],
            "others": [True, None],
            "many": ["x"] * 100_000,
        }
        process, result = do(lambda: [os.getpid(), facts])
        assert (process != os.getpid(), result) == (True, facts)

    def test_changes_nothing_here(self):
        ours, seed, threads, folder = torch.zeros(3), torch.initial_seed(), torch.get_num_threads(), Path.cwd()

        def work():
            torch.manual_seed(123)
            os.chdir("/")
            return ours.add_(1).tolist()

        assert do(work) == [1, 1, 1]
        assert (ours.tolist(), torch.initial_seed(), torch.get_num_threads()) == ([0, 0, 0], seed, threads)
        assert Path.cwd() == folder

    def test_of_a_fork_in_the_work_is_not_taken_for_its_own(self):
        def work():
            if os.fork() == 0:
                return "a fork's"
            os.wait()
            return "its own"

        assert do(work) == "its own"

    @pytest.mark.parametrize(
        ("result", "says"),
        [
            (lambda: 0, "Object of type function is not JSON serializable"),
            ("x" * MAX_ANSWER_BYTES, f"bytes, of {MAX_ANSWER_BYTES} at most"),
        ],
        ids=["no JSON", "too much"],
    )
    def test_that_cannot_be_sent(self, result, says):
        reason = stopped(lambda: result).reason
        assert reason.startswith("returned a result that cannot be sent as JSON: ")
        assert says in reason


@pytest.mark.more
def test_it_computes_where_many_threads_computed_and_what_was_printed_before_is_printed_once():
    """A fork has no threads but one; who waits for the others, as faulthandler does, waits for ever."""
    code = """
        import faulthandler
        import torch
        from regard.check.sandbox.process import isolated
        faulthandler.dump_traceback_later(1000)
        torch.set_num_threads(4)
        x = torch.randn(600, 600, requires_grad=True)
        (x @ x).softmax(-1).sum().backward()
        def work():
            print("within")
            (x @ x).softmax(-1).sum().backward()
            return torch.get_num_threads()
        print("before")  # in a buffer, where there is no terminal
        print(isolated(work, timeout=30, memory=2**32))
    """
    command, env = [sys.executable, "-c", textwrap.dedent(code)], {**os.environ, "OMP_NUM_THREADS": "4"}
    ended = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (ended.stdout, ended.stderr) == ("before\n1\n", "")


class Silent(Exception):
    def __str__(self):
        raise ValueError("no word")


def raising(error):
    def work():
        raise error

    return work


def endless():
    return endless()


def test_what_regard_refuses_is_refused_here():
    with pytest.raises(InputError, match=r"^no such name: 'Atention'$"):
        do(raising(InputError("no such name: 'Atention'")))


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (raising(ValueError(lambda: 0)), "ValueError: <function"),
        (raising(Silent(lambda: 0)), "Silent"),
        (raising(BrokenPipeError()), "BrokenPipeError"),
        (raising(SystemExit(0)), "SystemExit: 0"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(GeneratorExit("what now")), "GeneratorExit: what now"),
        (endless, "RecursionError: maximum recursion depth"),
        (lambda: input("your name? "), "EOFError: EOF when reading a line"),  # that nobody writes
    ],
)
def test_whatever_else_it_raises_is_told_and_not_raised_here(work, text):
    assert stopped(work).reason.startswith(f"raised {text}")


LATE = "did not end within 1 s"


@pytest.mark.parametrize(
    ("source", "reason", "line"),
    [
        ("def work():\n    while True: pass\n", LATE, 2),
        ("import re\ndef work():\n    re.match('(a|a)*b', 'a' * 200)\n", LATE, 3),  # no other thread has its turn
        pytest.param("def work():\n    while True: print('héllo ' * 1000)\n", LATE, 2, marks=pytest.mark.more),
        ("import os\n\ndef work():\n    os.abort()\n", "ended by signal SIGABRT", 4),
        ("import ctypes\ndef work():\n    ctypes.string_at(0)\n", "ended by signal SIGSEGV", 3),
        ("import sys\ndef work():\n    sys.exit(3)\n", "raised SystemExit: 3", 3),
        ("def work():\n    return bytearray(100 * 2**30)\n", "asked for more than 4.0 GiB of memory", 2),
    ],
)
def test_the_reason_and_the_line_are_told(written, capfd, source, reason, line):
    """The line of the file, also where it waits within a library."""
    path, work = written(source, "é [1].py")
    why = stopped(work, watch=path, timeout=1 if reason is LATE else SECONDS)
    assert why.where == CodeLocation(str(path), line, source.splitlines()[line - 1].strip())
    assert why.reason == f"{reason}; it was at {path}:{line}"
    assert (len(why.printed) == MAX_CHARACTERS) == ("print" in source)
    assert set(why.printed) <= set("héllo \n\ufffd") or "print" not in source
    assert capfd.readouterr() == ("", "")


def catch_everything():
    while True:
        with suppress(BaseException):
            time.sleep(1000)


def abort_beside_a_fork():
    """Which holds the pipes."""
    if os.fork() == 0:
        time.sleep(1000)
    os.abort()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def grow():
    grown = []
    while True:
        grown.append(bytearray(2**20))


@pytest.mark.more
@pytest.mark.parametrize(
    ("work", "options", "reason"),
    [
        (lambda: time.sleep(1000), {"timeout": 0.3}, "did not end within 0.3 s"),
        (catch_everything, {"timeout": 0.3}, "did not end within 0.3 s"),
        (abort_beside_a_fork, {}, "ended by signal SIGABRT"),
        (kill, {}, "ended by signal SIGKILL, as the system does when memory runs out"),
        (lambda: os._exit(0), {}, "ended with exit code 0 and no answer, as by os._exit"),
        (lambda: os._exit(7), {}, "ended with exit code 7 and no answer, as by os._exit"),
        (grow, {"memory": GIB // 2}, "asked for more than 0.5 GiB of memory"),
    ],
)
def test_the_reason_is_told_without_a_file_to_watch(work, options, reason):
    why = stopped(work, **options)
    assert (why.reason, why.where) == (reason, None)


@pytest.mark.parametrize("end", ["pass", "os.abort()", pytest.param("time.sleep(1000)", marks=pytest.mark.more)])
def test_it_leaves_no_process_of_its_own(written, tmp_path, end):
    source = f"""
        import os, subprocess, time
        def work():
            sleeps = subprocess.Popen(["sleep", "1000"])
            open({str(tmp_path / "process")!r}, "w").write(str(sleeps.pid))
            {end}
    """
    with suppress(Stopped):
        do(written(source)[1], timeout=2 if "sleep" in end else SECONDS)
    assert gone(int((tmp_path / "process").read_text()))


def test_a_process_that_left_the_group_and_holds_the_pipes_is_not_waited_for(tmp_path):
    ended = tmp_path / "ended"

    def work():
        return subprocess.Popen(["sh", "-c", f"sleep 15; echo > '{ended}'"], start_new_session=True).pid

    group = do(work)
    assert not ended.exists()
    os.killpg(group, signal.SIGKILL)


def test_it_leaves_no_file_open_here():
    before = os.listdir("/proc/self/fd")
    do(lambda: None)
    stopped(os.abort)
    assert os.listdir("/proc/self/fd") == before


def test_what_it_prints_is_caught_at_every_level_and_does_not_hold_it_up(capfd):
    def work():
        print("by print")
        os.write(2, b"by write\n")
        subprocess.run(["echo", "by a child"])
        sys.exit()

    assert stopped(work).printed == "by print\nby write\nby a child\n"
    assert do(lambda: [os.write(1, b"x" * 2**20) for _ in range(50)]) is not None
    assert capfd.readouterr() == ("", "")


@pytest.mark.more
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_who_watches_may_be_interrupted(sent, tmp_path):
    """By Ctrl-C at once; where the watcher itself is killed, the work ends with its time."""
    note = tmp_path / "processes"
    code = f"""
        import os, subprocess, time
        from regard.check.sandbox.process import isolated

        def work():
            sleeps = subprocess.Popen(["sleep", "1000"])
            open({str(note)!r} + ".part", "w").write(f"{{os.getpid()}} {{sleeps.pid}}")
            os.rename({str(note)!r} + ".part", {str(note)!r})
            time.sleep(1000)

        try:
            isolated(work, timeout={4 if sent == signal.SIGKILL else 1000}, memory=None)
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
    said, _ = process.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert said == b"interrupted\n"
        assert gone(sleeps)
    else:
        os.kill(sleeps, signal.SIGKILL)  # nobody is left to end it
    assert gone(worker)


@pytest.mark.more
def test_an_interrupt_in_the_middle_of_the_fork_is_not_lost():
    """Python only tells of an error in a fork's callbacks, such as those of logging, and goes on."""
    code = """
        import os, signal, time
        from regard.check.sandbox.process import isolated

        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            isolated(lambda: time.sleep(1000), timeout=1000, memory=None)
        except KeyboardInterrupt:
            print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("interrupted True\n", "")


def test_where_nothing_forks_the_work_is_done_here(monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert do(os.getpid) == os.getpid()


def test_where_nothing_forks_nothing_is_raised_or_printed_here_either(monkeypatch, capsys):
    monkeypatch.delattr(os, "fork")
    why = stopped(lambda: sys.exit(print("leaving")))
    assert (why.reason, why.printed) == ("raised SystemExit", "leaving\n")
    assert capsys.readouterr() == ("", "")


@pytest.mark.more
def test_code_that_a_test_run_altered_never_gets_into_pythons_cache(tmp_path):
    """A check reads the code of our modules; a loader that enforces types would keep it where every Python finds it."""
    kept = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    enforced = """
        import jaxtyping
        with jaxtyping.install_import_hook("regard", "beartype.beartype"):
            import regard
            print(regard.check(lambda q, k, v: regard.attend(q, k, v)).verdict)
    """
    for code, said in ((enforced, "right\n"), ("from regard.attention import steps; print(steps.__name__)", "steps\n")):
        run = [sys.executable, "-c", textwrap.dedent(code)]
        ended = subprocess.run(run, env=kept, capture_output=True, text=True, timeout=300)
        assert (ended.stdout, ended.stderr) == (said, "")
