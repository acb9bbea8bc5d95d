"""The wheel and the sdist: what somebody installs tomorrow."""

import email
import os
import subprocess
import sys
import tarfile
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel

from release.distributions import sdist_problems, wheel_problems
from release.environments import EmptyEnvironment
from weights import RIVER

ROOT = Path(__file__).parent.parent
CORE = {"torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich"}
INFO = "regard-0.1.0.dist-info"


def run(*command, **options):
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def built(build, root, folder):
    with chdir(root):
        return folder / build(str(folder))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(build_wheel, ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return built(build_sdist, ROOT, tmp_path_factory.mktemp("sdist"))


def names(sdist):
    with tarfile.open(sdist) as archive:
        return set(archive.getnames())


def test_the_wheel_holds_the_library_and_what_pyproject_says_of_it(wheel):
    assert wheel_problems(wheel, ROOT) == []


def test_it_needs_the_eight_core_packages_and_no_more(wheel):
    with zipfile.ZipFile(wheel) as archive:
        needs = email.message_from_bytes(archive.read(f"{INFO}/METADATA")).get_all("Requires-Dist")
    assert {need.split(">")[0].replace("-", "_") for need in needs if "extra ==" not in need} == CORE


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("regard/py.typed", None, "regard/py.typed is missing"),
        ("regard/views/html/static/main.js", None, "regard/views/html/static/main.js is missing"),
        ("regard/notes.txt", b"", "regard/notes.txt does not belong there"),
        ("tests/conftest.py", b"", "tests/conftest.py is neither of the library nor of its metadata"),
        (f"{INFO}/licenses/LICENSE", None, f"{INFO}/licenses/LICENSE is not the checkout's LICENSE"),
        (f"{INFO}/METADATA", b"Name: regard\nVersion: 0.0.9\n\n", "Version is ['0.0.9'], expected ['0.1.0']"),
        (f"{INFO}/METADATA", b"Name: regard\n\nAnother", "the description is not README.md without its relative links"),
        (f"{INFO}/entry_points.txt", b"", "entry points console_scripts are {}"),
    ],
)
def test_a_wheel_with_a_fault_is_noticed(wheel, tmp_path, name, content, problem):
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(changed, "w") as target:
        for entry in source.namelist():
            if entry != name:
                target.writestr(entry, source.read(entry))
        if content is not None:
            target.writestr(name, content)
    assert any(line.startswith(problem) for line in wheel_problems(changed, ROOT))


@pytest.mark.more
def test_the_sdist_holds_what_is_committed(sdist):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: git does not say what is committed")
    assert sdist_problems(sdist, ROOT) == []


@pytest.mark.more
def test_an_sdist_of_the_unpacked_sdist_has_the_same_files_also_after_a_build_of_the_site(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for ignored in ("docs/_build/html/index.html", "node_modules/a.js", "tests/__pycache__/a.pyc"):
        (unpacked / ignored).parent.mkdir(parents=True)
        (unpacked / ignored).touch()
    assert names(built(build_sdist, unpacked, tmp_path)) == names(sdist)


@pytest.mark.more
def test_installed_apart_from_the_checkout_it_explains(wheel, tmp_path):
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    shown = run(site / "bin/regard", "explain", RIVER, "--token", "bank", cwd=tmp_path, env=environment)
    assert "layer 0, head 4" in shown


@pytest.mark.slow
def test_in_an_empty_environment_it_does_what_somebody_does_first(wheel, tmp_path):
    """Every dependency from the registry, at the versions of constraints.txt; nothing of this environment."""
    environment = EmptyEnvironment(Path(sys.executable), tmp_path / "empty", ROOT, with_cuda=True)
    assert environment.check(wheel) == ""
