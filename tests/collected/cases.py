"""What is checked: cases in folders, with the verdict that each deserves, and classes of installed packages."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

__all__ = ["LABELS", "CollectedCase", "cases_in", "classes_of"]

LABELS = ("right", "design", "wrong")
KEPT_SHARE = 3
"""One case of so many is kept unread."""
CLASS = re.compile(r"^class (\w*(?:Attention|Attn|MHA)\w*)\(", re.MULTILINE)
IS_MODULE = """
import importlib, sys, torch
for name in sys.argv[1:]:
    module, _, kind = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), kind)
    except BaseException:
        continue
    if issubclass(found, torch.nn.Module):
        print("module", name)
"""


@dataclass(frozen=True)
class CollectedCase:
    """Code of a stranger and what is known of it."""

    name: str
    target: str
    """What `regard check` is given: ``FILE.py:NAME`` or ``package.module:NAME``."""
    label: str
    """Of `LABELS`: standard attention, a documented departure from it, or a mistake."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Of its constructor, as ``--arg`` takes them."""
    why: str = ""

    @property
    def kept(self) -> bool:
        """Whether nobody reads it before the last measure; a mended twin goes with its case."""
        digest = hashlib.sha256(self.name.removesuffix("-mended").encode()).digest()
        return digest[0] % KEPT_SHARE == 0


def cases_in(folder: Path) -> Iterator[CollectedCase]:
    """The cases below a folder, by name.

    Raises:
        ValueError: there is none, or one has no target, or a label that is none.
    """
    files = sorted(folder.rglob("case.json"))
    if not files:
        raise ValueError(f"{folder} holds no case: a folder with subject.py and case.json for each")
    for file in files:
        told = json.loads(file.read_text())
        if told.get("label") not in LABELS or "target" not in told:
            raise ValueError(f'{file} needs a "target" and a "label" of {", ".join(LABELS)}; it has {told}')
        yield CollectedCase(
            str(file.parent.relative_to(folder)),
            f"{file.parent / 'subject.py'}:{told['target']}",
            told["label"],
            {name: value if isinstance(value, str) else repr(value) for name, value in told.get("args", {}).items()},
            told.get("why", ""),
        )


def classes_of(package: str, *, count: int, seed: int) -> list[CollectedCase]:
    """Modules of an installed package with "Attention" in their names, drawn at random; they are held to be right.

    Raises:
        ValueError: it is not installed, or has none that can be imported.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{package} is no installed package")
    root = Path(spec.submodule_search_locations[0])
    names = [
        f"{'.'.join((package, *file.relative_to(root).with_suffix('').parts)).removesuffix('.__init__')}:{kind}"
        for file in sorted(root.rglob("*.py"))
        for kind in CLASS.findall(file.read_text(encoding="utf-8", errors="ignore"))
    ]
    random.Random(seed).shuffle(names)
    command = [sys.executable, "-c", IS_MODULE, *names[: 3 * count]]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    modules = [line.removeprefix("module ") for line in printed.splitlines() if line.startswith("module ")]
    if not modules:
        raise ValueError(f"{package} has no module with Attention in its name that can be imported here")
    return [CollectedCase(name, name, "right") for name in modules[:count]]
