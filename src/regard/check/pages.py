"""A page for each mistake that can be named: ``python -m regard.check.pages docs/mistakes`` writes them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.course_numbers import course_weights
from regard.check.mistakes.mistake import Mistake
from regard.check.mistakes.recipe_examples import worked_example
from regard.check.mistakes.worked_example import MatrixPair, WorkedExample
from regard.check.properties.catalog import PROPERTIES

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

PROPERTIES_PAGE = "properties.md"


def pages() -> dict[str, str]:
    """Every page by its file name, and README.md, which lists them."""
    examples = {name: worked_example(known) for name, known in MISTAKES.items()}
    written = {f"{name}.md": _page(MISTAKES[name], example) for name, example in examples.items()}
    return {"README.md": _index(examples), PROPERTIES_PAGE: _properties(), **written}


def write(folder: Path) -> None:
    """Write every page into a folder; what else is in it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def _index(examples: Mapping[str, WorkedExample]) -> str:
    lines = [
        "# Known mistakes",
        "",
        "Every mistake that `regard check FILE.py:NAME` knows, by the step of the definition in which it is made. Each",
        "page shows the mistake on three tokens of two numbers, its impact and a fix. All indices count from 0.",
        "These pages are generated: `python -m regard.check.pages docs/mistakes`.",
        "",
        f"What defines attention, and is held against code that makes no known mistake: [{len(PROPERTIES)} properties]"
        f"({PROPERTIES_PAGE}).",
    ]
    for step, title in STEPS.items():
        known = [each for each in MISTAKES.values() if each.step == step]
        if known:
            lines += ["", f"## {title}", ""]
            lines += [f"- [{each.id}]({each.id}.md): {_filled(each.message, examples[each.id])}" for each in known]
    return "\n".join(lines) + "\n"


def _properties() -> str:
    """The page of all properties."""
    lines = [
        "# Properties of attention",
        "",
        "`regard check` watches every operation of an implementation, finds which token, sample and head each number",
        "is of, and holds each step against the properties below. Code that violates one is wrong, also where no known",
        "[mistake](README.md) explains it; the report then names the property.",
    ]
    for step, title in STEPS.items():
        known = [each for each in PROPERTIES.values() if (each.step if each.step in STEPS else "k") == step]
        if known:
            lines += ["", f"## {title}"]
        for each in known:
            lines += ["", f"### {each.id}", "", _sentence(each.definition), "", f"Impact: {each.impact}"]
            lines += ["", *_code("python", each.fix)]
    return "\n".join(lines) + "\n"


def _filled(text: str, example: WorkedExample) -> str:
    """A sentence with the numbers of the example."""
    return text.format(**example.numbers)


def _sentence(text: str) -> str:
    """With a capital and an end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _page(known: Mistake, example: WorkedExample) -> str:
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
    lines += ["", "## Fix", "", *_code("python", known.fix)]
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


def _given(example: WorkedExample) -> list[str]:
    """The inputs of an example."""
    if example.step == "positions":
        return [_sentence(example.setting)]
    w_q, w_k, w_v, _ = course_weights()
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
