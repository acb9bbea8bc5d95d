"""`make bench`: measure, print, and write the tables of BENCHMARKS.md."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

import regard
from bench.timing import ratio
from regard import mask

PAGE = Path(__file__).parent.parent / "BENCHMARKS.md"
BEGIN, END = "<!-- make bench writes from here -->\n", "<!-- to here -->\n"
Row = tuple[str, str, float, str]


def importing() -> Iterator[Row]:
    """A whole process each, which has imported all of regard's mechanism, or torch alone."""

    def start(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    ours, theirs = ratio(lambda: start("import regard; regard.attend"), lambda: start("import torch"), rounds=5)
    yield "import regard and its mechanism", "import torch", theirs / ours, "0.87x (15 % longer at most)"


def attending() -> Iterator[Row]:
    """12 heads of 64, float32, no gradient."""
    for tokens in (128, 512, 2048, 8192):
        q, k, v = torch.randn(3, 1, 12, tokens, 64)
        yield _against_fused(f"attend, full, {tokens:,} tokens", q, k, v)
        yield _against_fused(f"attend, causal, {tokens:,} tokens", q, k, v, causal=True)
    q, k = torch.randn(2, 1, 12, 2048, 64)
    for width in (32, 128):
        v = torch.randn(1, 12, 2048, width)
        yield _against_fused(f"attend, values of {width}, 2,048 tokens", q, k, v)
    q, k, v = torch.randn(3, 12, 2048, 64)
    yield _against_fused("attend without a batch axis, 2,048 tokens", q, k, v)


def _against_fused(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> Row:
    who = mask.causal() if causal else None
    ours, theirs = ratio(
        lambda: regard.attend(q, k, v, who), lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    )
    return name, "F.scaled_dot_product_attention", theirs / ours, ""


def embedding() -> Iterator[Row]:
    """Sentences of Python's documentation through the default model."""
    import pydoc_data.topics
    import re

    from sentence_transformers import SentenceTransformer

    from regard.pretrained.locate import DEFAULT, locate

    prose = " ".join(" ".join(topic.split()) for topic in pydoc_data.topics.topics.values())
    texts = [s for s in re.split(r"(?<=[.!?]) (?=[A-Z])", prose) if 5 <= len(s.split()) <= 60][:200]
    pretrained, rival = (
        regard.load(),
        SentenceTransformer(str(locate(DEFAULT).need("config.json").parent), device="cpu"),
    )
    ours, theirs = ratio(lambda: pretrained.embed(texts), lambda: rival.encode(texts, batch_size=32), rounds=5)
    yield "embed 200 sentences", "sentence-transformers, batch 32", theirs / ours, ""


@torch.inference_mode()
def main() -> None:
    rows = []
    for measure in (importing, attending, embedding):
        for row in measure():
            print(f"{row[0]:50} {row[2]:.2f}x the speed of {row[1]}", flush=True)
            rows.append(row)
    table = ["| case | against | speed | at least |", "|---|---|---|---|"]
    table += [f"| {case} | {rival} | {speed:.2f}x | {bar} |" for case, rival, speed, bar in rows]
    machine = (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}."
    )
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text("".join([before, BEGIN, machine, "\n\n", "\n".join(table), "\n", END, after]), encoding="utf-8")
    print(f"written to {PAGE.name}")


main()
