"""A page for each mistake that can be named: ``python -m regard.check.pages docs/mistakes`` writes them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from regard.check.causes import MISTAKES, Mistake
from regard.check.worked import MatrixPair, Worked, drawn, worked

__all__ = ["pages", "write"]

STEPS = {
    "call": "Call",
    "q": "Queries, keys and values, and their heads",
    "k": "Keys and values",
    "scores": "Scores",
    "scaled": "Scaled scores",
    "biased": "Biased scores",
    "masked": "Masked scores",
    "weights": "Weights",
    "output": "Output",
    "heads": "Concatenated heads",
    "projected": "Projected output",
    "block": "Block",
    "positions": "Positions",
}
"""The steps in their order, with the headings of the index."""

FIXES: Mapping[str, str] = {
    "k-from-x": "k, v = self.k(context), self.v(context)",
    "context-ignored": "k, v = self.k(context), self.v(context)",
    "q-from-context": "q = self.q(x)",
    "untransposed": "q = self.wq(x)  # or x @ self.wq.weight.T",
    "not-projected": "v = self.v(x)",
    "shared-projection": "k = self.k(x)",
    "bias-dropped": "q, k, v = self.qkv(x).chunk(3, -1)",
    "split-by-view": "q = q.view(B, T, H, D).transpose(1, 2)",
    "heads-attend-heads": "q = q.view(B, T, H, D).transpose(1, 2)",
    "one-head-only": "out = torch.cat([head(x) for head in self.heads], -1)",
    "kv-first-head": "k = k.repeat_interleave(H // k.size(1), 1)",
    "kv-swapped": "scores = q @ k.mT; out = weights @ v",
    "q-as-k": "scores = q @ k.transpose(-2, -1)",
    "k-as-q": "scores = q @ k.transpose(-2, -1)",
    "v-as-k": "scores = q @ k.transpose(-2, -1)",
    "k-as-v": "out = weights @ v",
    "q-as-v": "out = weights @ v",
    "mask-dropped": "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
    "mask-inverted": "scores = scores.masked_fill(~causal, -torch.inf)  # causal: True = may attend",
    "mask-strict": "torch.tril(ones)",
    "mask-one-ahead": "torch.tril(ones)",
    "mask-rows": "scores.masked_fill(~keep[:, None, None, :], -torch.inf)",
    "mask-transposed": "scores = scores.masked_fill(~mask, -torch.inf)  # rows of the mask are queries",
    "mask-first-only": "mask = mask[:, None]  # every sample's own, for all of its heads",
    "mask-one-head": "scores = scores.masked_fill(~mask, -torch.inf)  # mask: (batch, 1, queries, keys)",
    "padding-as-zeros": "scores = scores.masked_fill(~keep[:, None, None, :], -torch.inf)",
    "scores-transposed": "scores = q @ k.transpose(-2, -1)",
    "key-reshaped": "scores = q @ k.transpose(-2, -1)",
    "scores-negated": "scores = q @ k.transpose(-2, -1)",
    "no-scale": "weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)",
    **dict.fromkeys(
        (
            "scale-d",
            "scale-d-model",
            "scale-d-value",
            "scale-tokens",
            "scale-heads",
            "scale-batch",
            "scale-multiplied",
            "scale-half",
            "scale-constant",
            "scale-floor",
        ),
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
    ),
    "scale-fourth-root": "q, k = q * d_k**-0.25, k * d_k**-0.25",
    "bias-before-scale": "scores = q @ k.transpose(-2, -1) / math.sqrt(d_k) + bias",
    "bias-ignored": "scores = q @ k.transpose(-2, -1) / math.sqrt(d_k) + bias",
    "bias-after-softmax": "weights = (scores + bias).softmax(-1)",
    **dict.fromkeys(
        ("mask-zero-fill", "mask-weak-fill", "mask-added-01", "mask-positive-fill"),
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
    ),
    "mask-after-softmax": "weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)",
    **dict.fromkeys(
        (
            "softmax-queries",
            "softmax-heads",
            "softmax-batch",
            "softmax-all",
            "softmax-twice",
            "softmax-log",
            "softmax-unnormalised",
            "softmax-l1",
            "batch-mixed",
        ),
        "weights = scores.softmax(dim=-1)",
    ),
    "softmax-missing": "out = (scores / math.sqrt(d_k)).softmax(dim=-1) @ v",
    "scale-after-softmax": "weights = (scores / math.sqrt(d_k)).softmax(-1)",
    "weights-transposed": "out = weights @ v",
    "output-v": "return weights @ v",
    "output-mean": "return weights @ v",
    "merge-without-transpose": "out = out.transpose(1, 2).reshape(B, T, H * D)",
    "heads-added": "out = torch.cat(heads, -1)",
    "out-projection-skipped": "return self.out_proj(heads)",
    "out-projection-untransposed": "return self.out_proj(heads)",
    "out-projection-twice": "return self.out_proj(heads)",
    "batch-as-tokens": "q = q.reshape(B, T, D)",
    "absolute-axes": "k.transpose(-2, -1); scores.softmax(dim=-1)",
    "dropout-in-eval": "F.dropout(weights, 0.1, training=self.training)",
    "dropout-before-softmax": "weights = self.dropout(scores.softmax(-1))",
    "detached": "weights = scores.softmax(-1)",
    "inputs-changed": "q = q / math.sqrt(d_k)",
    "stateful": "k = self.k(x)  # what is kept is handed over, and belongs to one sequence",
    "future-leak": "mask = torch.ones(T, T, dtype=torch.bool).tril()",
    "mask-not-passed": "self.heads[i](q, k, v, mask=mask)",
    "residual-missing": "x = x + self.attention(self.norm(x))",
    "residual-of-norm": "x = x + self.attention(self.norm(x))",
    "ffn-skipped": "return x + self.mlp(self.norm(x))",
    "pe-exponent": "angle = pos / 10000 ** ((i - i % 2) / d)  # i: the channel",
    "pe-angle": "angle = pos / 10000 ** ((i - i % 2) / d)",
    "pe-base": "angle = pos / 10000 ** ((i - i % 2) / d)",
    "pe-swapped": "pe[:, 0::2] = sin; pe[:, 1::2] = cos",
}
"""For each mistake, a line of code without it."""


def pages() -> dict[str, str]:
    """Every page by its file name, and README.md, which lists them."""
    examples = {name: worked(known) for name, known in MISTAKES.items()}
    written = {f"{name}.md": _page(MISTAKES[name], example) for name, example in examples.items()}
    return {"README.md": _index(examples), **written}


def write(folder: Path) -> None:
    """Write every page into a folder; what else is in it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def _index(examples: Mapping[str, Worked]) -> str:
    lines = [
        "# Known mistakes",
        "",
        "Every mistake that `regard check FILE.py:NAME` knows, by the step of the definition in which it is made. Each",
        "page shows the mistake on three tokens of two numbers, its impact and a fix. All indices count from 0.",
        "These pages are generated: `python -m regard.check.pages docs/mistakes`.",
    ]
    for step, title in STEPS.items():
        known = [each for each in MISTAKES.values() if each.step == step]
        if known:
            lines += ["", f"## {title}", ""]
            lines += [f"- [{each.id}]({each.id}.md): {_filled(each.message, examples[each.id])}" for each in known]
    return "\n".join(lines) + "\n"


def _filled(text: str, example: Worked) -> str:
    """A sentence with the numbers of the example."""
    return text.format(**example.numbers)


def _sentence(text: str) -> str:
    """With a capital and an end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _page(known: Mistake, example: Worked) -> str:
    lines = [
        f"# {known.id}",
        "",
        _sentence(_filled(known.message, example)),
        "",
        *_code("python", known.example),
        "",
        "## Example",
        "",
        *_given(example),
        "",
        f"The first step that differs: **{example.step}**.",
    ]
    for pair in example.pairs:
        lines += ["", *_table(pair)]
    impact = _filled(known.impact, example)
    if impact:
        lines += ["", "## Impact", "", _sentence(impact)]
    lines += ["", "## Fix", "", *_code("python", FIXES[known.id])]
    if known.references:
        lines += ["", "## References", "", *(f"- {_link(each)}" for each in known.references)]
    lines += [
        "",
        "## How to find it",
        "",
        *_code("sh", "regard check FILE.py:NAME"),
        "",
        f"reports it as `{known.id}`. [All known mistakes](README.md).",
    ]
    return "\n".join(lines) + "\n"


def _code(language: str, text: str) -> list[str]:
    code, hash_sign, said = text.partition("  # ")  # a line for each statement, as `ruff format` has it in Markdown too
    return [f"```{language}", *f"{code.replace('; ', chr(10))}{hash_sign}{said}".split(chr(10)), "```"]


def _link(reference: str) -> str:
    repository, _, number = reference.partition("#")
    return f"[{reference}](https://github.com/{repository}/issues/{number})"


def _given(example: Worked) -> list[str]:
    """The inputs of an example."""
    if example.step == "positions":
        return [_sentence(example.setting)]
    w_q, w_k, w_v, _ = drawn()
    names = ("W_q", "W_k", "W_v")
    held = "; ".join(f"{name} = {_matrix(each)}" for name, each in zip(names, (w_q, w_k, w_v), strict=True))
    return [
        "The course's X = [1.16 0.23], [0.57 1.36], [4.41 -2.16], and its weights (seed 42), as `torch.nn.Linear`",
        f"stores them: {held}. All indices count from 0.",
        _sentence(example.setting),
    ]


def _matrix(matrix: Tensor) -> str:
    return ", ".join(f"[{' '.join(_number(number) for number in row)}]" for row in matrix.tolist())


def _number(number: float) -> str:
    """To four digits, as the course prints them; large ones to six in all."""
    if not math.isfinite(number) or abs(number) >= 1e6:
        return f"{number:g}"
    text = f"{round(number, 6):.4f}"  # 0.11915 has float32 noise behind it, on each CPU another
    return text.removeprefix("-") if float(text) == 0 else text


def _table(pair: MatrixPair) -> list[str]:
    """Your step next to the definition's, a row for each token."""
    left, right = pair.yours.tolist(), pair.definition.tolist()
    wide, wider = len(left[0]), len(right[0])

    def heads(side: str, count: int) -> list[str]:
        return [f"{side}{pair.columns} {n}" for n in range(count)]

    titles = [pair.rows, *heads("yours: ", wide), *heads("definition: ", wider)]
    lines = [_sentence(pair.title), "", _row(titles), _row(["---"] * len(titles))]
    for n in range(max(len(left), len(right))):
        cells = [_number(number) for number in left[n]] if n < len(left) else [""] * wide
        cells += [_number(number) for number in right[n]] if n < len(right) else [""] * wider
        lines.append(_row([str(n), *cells]))
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m regard.check.pages FOLDER")
    write(Path(sys.argv[1]))
