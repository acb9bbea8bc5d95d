"""The record of an exercise: what it asks for, in texts alone. Imports no PyTorch, so that listing is quick."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAGES", "Exercise"]

PAGES = {
    2: "Text to vectors",
    3: "Similarity",
    4: "Attention without weights",
    5: "Queries, keys, values",
    6: "Scale and softmax",
    7: "Order",
    8: "Masks",
    9: "Many heads",
    10: "Write your own",
    11: "Cross-attention",
    12: "The three transformers",
    14: "Choosing words",
    15: "Real models",
}
"""The pages of the course that have exercises, by their numbers."""


@dataclass(frozen=True)
class Exercise:
    """One exercise, without its solution: the solution is nowhere in regard."""

    number: int
    slug: str
    title: str
    page: int
    """Of the course; a key of `PAGES`."""
    name: str
    """The function or the class to write."""
    statement: str
    """What to write, in two or three sentences."""
    shapes: tuple[str, ...]
    """Of every argument and of the result, one a line: "x: (tokens, d_model)"."""
    formula: tuple[str, ...]
    """In plain text, a line each; the last one may name the source."""
    stub: str
    """The code to fill in."""
    numbers: str
    """Code that makes the numbers of the course with which the file calls the stub; float32, as in the tutorials."""
    call: str
    """The expression that calls the stub with these numbers."""
    hints: tuple[str, str, str]
    """From a question to the operations to use; none is the solution."""

    @property
    def code(self) -> str:
        """The number in two digits and the slug, as the file is called: "05 projections"."""
        return f"{self.number:02d} {self.slug}"

    @property
    def file_name(self) -> str:
        """The file that `regard exercise` writes: "05_projections.py"."""
        return f"{self.number:02d}_{self.slug.replace('-', '_')}.py"

    @property
    def page_title(self) -> str:
        """The page of the course: "page 5 of the course: Queries, keys, values"."""
        return f"page {self.page} of the course: {PAGES[self.page]}"
