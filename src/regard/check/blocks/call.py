"""How a block or a whole model is called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.sandbox.answer import error_text
from regard.check.search.cases import drawn
from regard.check.search.modules import modules_of
from regard.check.search.subject import Subject
from regard.check.target.running import tensors_in
from regard.check.target.token_ids import padding_id

__all__ = ["BATCH", "CONTEXT", "CONTEXT_SEED", "TOKENS", "BlockCall", "called_block"]

BATCH, TOKENS, CONTEXT = 2, 6, 7
"""How many samples, tokens, and tokens of the context."""
CONTEXT_SEED = 50
FEWEST_IDS = 3
"""Of fewer none is left out: a token has to be changed to another one."""


@dataclass(eq=False)
class BlockCall:
    """The whole of what was handed over, and how it is called."""

    subject: Subject
    module: nn.Module
    width: int
    ids: bool = False
    """Whether it takes ids of tokens."""
    layout: str = "btd"
    """Of its inputs: the batch first, or tokens first, "tbd"."""
    seed: int = 0
    """Of what the block draws by itself."""

    def names(self, *means: str) -> list[str]:
        """The arguments that mean one of these."""
        return [name for name, each in self.subject.roles().items() if each in means]

    @property
    def inputs(self) -> tuple[str, str | None]:
        """The names of the arguments for x and for the context."""
        xs = self.names("x", "ids", "q")
        context = self.names("context")
        if len(xs) > 1 and not context and self.subject.called[xs[1]].default is inspect.Parameter.empty:
            return xs[1], xs[0]  # (src, tgt)
        return xs[0], context[0] if context else None

    def x(self, seed: int = 0, tokens: int = TOKENS, batch: int = BATCH) -> Tensor:
        """(batch, tokens, width), or ids; the same for the same seed."""
        if self.ids:
            known = self._known_ids()
            return known[torch.randint(len(known), (batch, tokens), generator=torch.Generator().manual_seed(seed))]
        return drawn(batch, tokens, self.width, seed=seed)

    def _known_ids(self) -> Tensor:
        """Those that all of its embeddings have, in their order, without that of padding: it would be hidden."""
        least = min(each.num_embeddings for each in self.module.modules() if isinstance(each, nn.Embedding))
        ids = torch.arange(least)
        return ids[ids != padding_id(self.module)] if least > FEWEST_IDS else ids

    def __call__(self, x: Tensor, context: Tensor | None = None, given: Mapping[str, Any] | None = None) -> Tensor:
        """What it returns: (batch, tokens, ...)."""
        context = self.x(CONTEXT_SEED, CONTEXT, len(x)) if context is None else context
        return self.laid(self.run(self.laid(x), self.laid(context), given))

    def run(self, x: Tensor, context: Tensor, given: Mapping[str, Any] | None = None) -> Tensor:
        """The output for inputs in the block's own layout, which are handed over as they are.

        Args:
            x: its input.
            context: its context, if it takes one.
            given: other arguments, by their names.

        Raises:
            RuntimeError: it returned no tensor with the samples and tokens of x.
        """
        to, other = self.inputs
        call: dict[str, Any] = {to: x}
        if other is not None:
            call[other] = context
        for name, means in self.subject.roles().items():
            required = self.subject.called[name].default is inspect.Parameter.empty
            if name not in call and required and not means.startswith("size"):
                call[name] = False if means == "causal" else None
        torch.manual_seed(self.seed)
        with self.subject.settings.on():
            result = self.module(**{**call, **(given or {})})
        for tensor in tensors_in(result):
            if tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[:2] == x.shape[:2]:
                return tensor.detach()
        raise RuntimeError(
            f"it returned {', '.join(str(tuple(each.shape)) for each in tensors_in(result)) or 'nothing'}"
        )

    def laid(self, tensor: Tensor) -> Tensor:
        """Batch first to its own layout, and back."""
        return tensor.transpose(0, 1).clone() if self.layout == "tbd" else tensor.clone()

    def moved(self, x: Tensor, sample: int | slice, token: int | slice) -> Tensor:
        """Another token in a sample."""
        other = x.clone()
        if self.ids:
            known = self._known_ids()
            other[sample, token] = known[torch.searchsorted(known, x[sample, token].contiguous()) - 1]
        else:
            other[sample, token] = other[sample, token].flip(-1) * 1.3 + 0.7
        return other


def called_block(subject: Subject) -> tuple[BlockCall | None, str]:
    """The block, ready to be run, in the first layout in which samples do not mix and tokens do; or why it does not."""
    modules, _ = modules_of(subject)
    _, module, width, _ = modules[0]
    if subject.build is None:  # a block's own width is that of its attention
        inside = next((part for part in module.modules() if isinstance(part, nn.MultiheadAttention)), None)
        width = width if inside is None else inside.embed_dim
    if not {"x", "ids", "q"} & set(subject.roles().values()):
        return None, f"its arguments ({', '.join(subject.called)}) are not named x or ids"
    failed, runs = "", []
    embeds = any(isinstance(each, nn.Embedding) for each in module.modules())
    for ids in (True, False) if subject.has("ids") else (False, True) if embeds else (False,):
        for layout in ("btd", "tbd"):
            outer = BlockCall(subject, module, width, ids, layout)
            try:
                x = outer.x()
                before = outer(x)
                apart = torch.equal(before[0], outer(outer.moved(x, 1, slice(None)))[0])
                mixed = not torch.equal(before[0, -1], outer(outer.moved(x, 0, 0))[0, -1])
            except Exception as error:
                failed = failed or f"called with {outer.inputs[0]} {tuple(outer.x().shape)}, {error_text(error)}"
                continue
            runs.append(outer)
            if apart and mixed:
                return outer, ""
    return (runs[0] if runs else None), failed
