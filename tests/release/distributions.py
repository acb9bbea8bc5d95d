"""What must be in a wheel and in an sdist, and what must not."""

import ast
import email
import re
import subprocess
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from email.message import Message
from pathlib import Path
from typing import Any

CACHES = {"__pycache__"}
NOT_IN_THE_SDIST = (".ci/", ".pre-commit-config.yaml")


def project(root: Path) -> dict[str, Any]:
    """The table ``[project]`` of a checkout's pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version(root: Path) -> str:
    """``__version__``, read without importing what it belongs to."""
    for statement in ast.parse((root / "src/regard/__init__.py").read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(text))):
                return text
    raise ValueError(f"{root}/src/regard/__init__.py has no __version__")


def library_files(root: Path) -> set[str]:
    """Every file of the library: modules, the page's scripts, styles and templates, and py.typed."""
    files = (path for path in (root / "src/regard").rglob("*") if path.is_file() and not CACHES & {*path.parts})
    return {path.relative_to(root / "src").as_posix() for path in files}


def committed_files(root: Path) -> set[str]:
    """What git has or does not ignore, less what only a checkout needs."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.check_output(command, cwd=root, text=True).split("\0")
    return {name for name in names if name and not name.startswith(NOT_IN_THE_SDIST) and (root / name).is_file()}


def wheel_problems(wheel: Path, root: Path) -> list[str]:
    """How a wheel differs from what the checkout says it is; empty where it does not."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    info = f"regard-{version(root)}.dist-info/"
    outside = sorted(name for name in contents if not name.startswith(("regard/", info)))
    problems = [f"{name} is neither of the library nor of its metadata" for name in outside]
    problems += _different_files({name for name in contents if name.startswith("regard/")}, library_files(root))
    if f"{info}METADATA" not in contents:
        return [*problems, f"{info}METADATA is missing"]
    problems += _metadata_problems(email.message_from_bytes(contents[f"{info}METADATA"]), root)
    if contents.get(f"{info}licenses/LICENSE") != (root / "LICENSE").read_bytes():
        problems.append(f"{info}licenses/LICENSE is not the checkout's LICENSE")
    entries = ConfigParser()
    entries.read_string(contents.get(f"{info}entry_points.txt", b"").decode())
    for group, expected in {"console_scripts": project(root)["scripts"], **project(root)["entry-points"]}.items():
        found = dict(entries[group]) if group in entries else {}
        problems += [] if found == expected else [f"entry points {group} are {found}, expected {expected}"]
    return problems


def _metadata_problems(metadata: Message, root: Path) -> list[str]:
    table = project(root)
    expected = {
        "Name": [table["name"]],
        "Version": [version(root)],
        "Summary": [table["description"]],
        "Requires-Python": [table["requires-python"]],
        "License-Expression": [table["license"]],
        "License-File": table["license-files"],
        "Provides-Extra": sorted(table["optional-dependencies"]),
        "Classifier": sorted(table["classifiers"]),
        "Description-Content-Type": ["text/markdown"],
    }
    found = {name: sorted(map(str, metadata.get_all(name, []))) for name in expected}
    problems = [
        f"{name} is {found[name]}, expected {expected[name]}" for name in expected if found[name] != expected[name]
    ]
    description = bytes(metadata.get_payload(decode=True)).decode("utf-8")
    if description.strip() != _without_relative_links((root / "README.md").read_text(encoding="utf-8")).strip():
        problems.append("the description is not README.md without its relative links")
    return problems


def sdist_problems(sdist: Path, root: Path) -> list[str]:
    """How an sdist differs from the committed files of a checkout; empty where it does not."""
    folder = f"regard-{version(root)}/"
    with tarfile.open(sdist) as archive:
        names = {member.name for member in archive.getmembers() if not member.isdir()}
    problems = [f"{name} is not in {folder}" for name in sorted(names) if not name.startswith(folder)]
    found = {name.removeprefix(folder) for name in names} - {"PKG-INFO"}
    return problems + _different_files(found, committed_files(root))


def _without_relative_links(text: str) -> str:
    """The words of links that lead nowhere outside the repository stay, its pictures go."""
    pictures_gone = re.sub(r"^!\[.*\]\((?!https?:).*\)\n\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", pictures_gone)


def _different_files(found: set[str], expected: set[str]) -> list[str]:
    missing = [f"{name} is missing" for name in sorted(expected - found)]
    return missing + [f"{name} does not belong there" for name in sorted(found - expected)]
