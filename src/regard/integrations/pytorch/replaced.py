"""`Replaced`: what `regard.replace` replaced, how near it is, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from torch import nn

from regard.integrations.pytorch.modules import Replacement

SPEED_NOTE = (
    "long texts with a causal mask or a window are faster. Slower than PyTorch can be short texts in inference without "
    "a mask (about a tenth), dropout in training (a tenth, at length a third, in less memory) "
    "and need_weights=True without a mask (a third): see regard.replace in BENCHMARKS.md"
)
"""What the table says about speed; measured by `make bench`."""


@dataclass(frozen=True)
class ReplacedModule:
    """A module that was replaced."""

    paths: tuple[str, ...]
    """Where it stands in the model; a shared module has several paths."""
    original: type[nn.Module]
    """The class that it was of."""
    replacement: type[nn.Module]
    """The class that it is of."""
    difference: float
    """The largest difference of its outputs, in its own dtype."""
    calls: int
    """How many calls were compared."""
    proved_on: str
    """``"example inputs"``, or ``"random input"`` where there were none, or where they did not reach it."""


class Replaced:
    """The modules of a model that `regard.replace` replaced; as a context manager it undoes the replacement at the end.

    Attributes:
        modules: a `ReplacedModule` each.
        output_difference: the largest difference of the model's outputs on the example inputs; None without them.
        notes: what was left on purpose, and what could not be compared.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: list[nn.Module],
        modules: tuple[ReplacedModule, ...],
        output_difference: float | None,
        notes: tuple[str, ...],
    ) -> None:
        self.modules = modules
        self.output_difference = output_difference
        self.notes = notes
        self._model_name = type(model).__name__
        self._parts = parts

    def restore(self, model: nn.Module | None = None) -> None:
        """Give every replaced module its own class again. What was restored before is left alone.

        Args:
            model: a copy or a loaded file of the replaced model, to restore that in place of the model itself; all
                replacements in it are restored.

        Raises:
            ValueError: a module's class was changed since, as by torch.nn.utils.parametrize; nothing is restored.
        """
        if model is not None:
            restore_classes(list(model.modules()))
            return
        changed = [
            f"{record.paths[0] or 'the model itself'} is now of the class {type(part).__name__}"
            for part, record in zip(self._parts, self.modules, strict=True)
            if type(part) not in (record.replacement, record.original)
        ]
        if changed:
            raise ValueError(
                f"cannot restore: {'; '.join(changed)}. Undo what changed it (torch.nn.utils.parametrize?), then "
                "restore"
            )
        restore_classes(self._parts)

    def __enter__(self) -> Replaced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        rows = [("module", "was", "is now", "difference", "proved on")]
        for record in self.modules:
            calls = f"{record.proved_on}, {record.calls} call{'s' if record.calls != 1 else ''}"
            shared = f" (and {', '.join(record.paths[1:])})" if len(record.paths) > 1 else ""
            path = f"{record.paths[0] or 'the model itself'}{shared}"
            names = record.original.__name__, record.replacement.__name__
            rows.append((path, *names, f"{record.difference:.1e}", calls))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        lines.insert(1, "─" * (sum(widths) + 3 * (len(widths) - 1)))
        output = ""
        if self.output_difference is not None:
            output = f"; its output on the example inputs differs by {self.output_difference:.1e} at most"
        return "\n".join([f"{self._model_name}: {len(self.modules)} modules replaced{output}.", *lines, *self._notes()])

    __repr__ = __str__

    def _notes(self) -> list[str]:
        return [f"Note: {note}." for note in (*self.notes, SPEED_NOTE)]


def restore_classes(modules: list[nn.Module]) -> None:
    """Give the replacements among these modules the classes that they had."""
    for module in modules:
        cls = type(module)
        if issubclass(cls, Replacement) and "replaced_class" in vars(cls):
            module.__class__ = cls.replaced_class
