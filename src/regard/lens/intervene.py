"""`regard.intervene`: change what any PyTorch model attends to while it runs, and leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.attention.hooks import register_hook
from regard.attention.mask import Mask
from regard.lens.capture.call import CapturedCall, attend_axes, attend_call
from regard.lens.capture.module_finder import list_modules, uses_attend_only
from regard.lens.interventions.editor import Editor
from regard.lens.interventions.function_mode import InterventionMode
from regard.lens.interventions.intervention import Intervention

MAX_NAMED = 4
"""How many attentions a message names."""


@contextmanager
def intervene(model: nn.Module, *, verify: bool = True) -> Iterator[Intervention]:
    """Edit what a model attends to: any model that `regard.watch` sees, on the kernel that it uses.

    ::

        with regard.intervene(model) as edit:
            edit["model.layers.9.self_attn"].heads[4].ablate("zero")
            edit["model.layers.12.self_attn"].block(queries=[-1], keys=[3, 4])
            y = model(x)
        print(edit.report())

    The model computes its attention as ever; then the edited rows of the output are replaced, so that the others keep
    their bits. Without edits nothing is intercepted at all. Nothing of the model or of PyTorch is patched, other
    threads are not edited, and gradients flow through what is edited. PyTorch's own layers leave their fused inference
    path while they are edited, which the report notes. Where `regard.watch` records too, the map of an edited attention
    is the one before its edit, and a note tells so.

    An edit counts for every call of its module until the block ends: for all steps of a generation, and for all
    passes. With a cache, positions of queries and keys count from the beginning of the sequence.

    Args:
        model: the model to edit.
        verify: whether to compare some edited rows of each call with the definition in float64, for the report.

    Yields:
        The `Intervention`, to which edits are written.

    Raises:
        KeyError: a path that is no module of the model.
        IndexError: a head, batch row or key that is not there.
        TypeError: not a module.
        ValueError: a compiled model; an edit that met no attention call; an edit that cannot be made, and why; edits of
            one attention in two nested blocks.
    """
    modules = list_modules(model, "intervene")
    editor = Editor(modules, verify=verify)
    with ExitStack() as stack:
        intervention = Intervention(editor, partial(_start, editor, stack))
        yield intervention
    _raise_if_unmet(editor)


def _start(editor: Editor, stack: ExitStack) -> None:
    """See the model's calls from the first edit on."""
    if editor.edits:
        return
    stack.enter_context(editor.activate())
    stack.enter_context(register_hook(partial(_edit_attend, editor)))
    modules = list(editor.finder.values())
    if not uses_attend_only(modules):
        stack.enter_context(InterventionMode(editor))


def _edit_attend(
    editor: Editor, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, *, output: Tensor, **options: Any
) -> Tensor | None:
    """The hook of `regard.attend`."""

    def make_call(_: nn.Module) -> tuple[CapturedCall, Tensor]:
        return attend_call(q, k, v, mask, output, **options), attend_axes(output)

    edited = editor.edit(make_call, sys._getframe(2))
    return None if edited is None else edited.view(output.shape)


def _raise_if_unmet(editor: Editor) -> None:
    """Raise if an edit met no attention call, no query or no key."""
    for edit in editor.edits:
        name = f"{edit.path}{edit.place}.{edit.description}"
        if edit.path not in editor.paths:
            ran = [path for path in editor.paths if path.startswith(edit.path)] or list(editor.paths)
            raise ValueError(
                f"{name} met no attention call: this module computed none in this block and this thread"
                + (f"; attentions that ran: {', '.join(ran[:MAX_NAMED])}" if ran else "")
            )
        if not edit.calls:
            raise ValueError(f"{name} met no query: no call had one of queries={list(edit.queries or ())}")
        if edit.missing_keys:
            raise IndexError(f"{name}: no call had the keys {sorted(edit.missing_keys)}")
