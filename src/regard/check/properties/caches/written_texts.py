"""Methods that write a text on: how they are called, what they read in each step, and what comes out of it."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.cache_forms import FLAG
from regard.check.target.double_precision import double_precision
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = [
    "FEWEST_STEPS",
    "PROMPT",
    "SAME",
    "STEPS",
    "WRITES_THE_SAME",
    "WrittenText",
    "ends_of",
    "first_apart",
    "first_logits",
    "is_of_ids",
    "last_logits",
    "prompt_of",
    "ways_to_write",
    "writing_methods",
    "written_apart",
    "written_text",
]

_WRITES = re.compile(r"(?:\w+_)?(?:generate|greedy|sample|complete|decode|translate|summari[sz]e)(?:_\w+)?", re.I)
_PROMPT = re.compile(
    r"prompts?|context|start(?:_ids)?|idx|input_?ids?|tokens?|ids"
    r"|(?:start|input|prompt|initial|context|src|seed)_(?:tokens?|ids?|idx|seq(?:uence)?|context)",
    re.I,
)
_NEW = re.compile(
    r"(?:max_?)?(?:new_?|num_?|n_?)*(?:tokens?|steps?|words)(?:_to_\w+)?|max_new\w*|n(?:um)?_new\w*|n|num|count|how_many",
    re.I,
)
_WHOLE = re.compile(r"(?:max_?|min_?)?(?:seq(?:uence)?_?|gen(?:eration)?_?)?len(?:gth)?|max_seq\w*", re.I)
"""Names of how many tokens are to be written, and of how many there are to be in the end."""
PROMPT, STEPS = 3, 5
FEWEST_STEPS = 3
"""Of a method that is compared with the call of all tokens at once."""
SAME, OTHER = 1e-6, 1e-3
"""Of the largest logit: more is another one in the first step, or in later ones, as a cache may round what it keeps."""
WRITES_THE_SAME = "writes the same tokens whichever have the largest logits: what the model predicts changes nothing"
"""What is wrong with a method, behind its name."""


@dataclass(eq=False)
class WrittenText:
    """What a method read and wrote."""

    fed: list[Tensor] = field(default_factory=list)
    """The ids that each step read: (samples, tokens)."""
    logits: list[Tensor] = field(default_factory=list)
    """The logits behind the last of them: (samples, ids)."""
    begun: list[Any] = field(default_factory=list)
    """What the first step was given."""
    returned: list[Tensor] = field(default_factory=list)
    """The ids that the method returned."""

    def text(self) -> Tensor | None:
        """The prompt and what was written behind it: (samples, tokens); None where that is not told."""
        if not self.fed or not self.returned or len(self.returned[0]) != len(self.fed[0]):
            return None
        prompt, text = self.fed[0], self.returned[0]
        size = prompt.shape[1]
        is_whole = text.shape[1] >= size and torch.equal(text[:, :size], prompt)
        return text if is_whole else torch.cat([prompt, text], 1)

    def ends(self) -> list[int]:
        """How many tokens of the text each step has read; empty where it is not fed token by token, or as a whole."""
        text = self.text()
        if text is None:
            return []
        found = [self.fed[0].shape[1]]
        for each in self.fed[1:]:
            end = found[-1] + 1
            if end > text.shape[1] or not any(torch.equal(each, text[:, first:end]) for first in (end - 1, 0)):
                return []
            found.append(end)
        return found


def prompt_of(invocation: Invocation) -> tuple[str, Tensor] | None:
    """The name of the one sequence of a module's call, and its ids (samples, tokens), enough for a prompt; or None."""
    if not isinstance(invocation.target, nn.Module) or len(invocation.streams) != 1:
        return None
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    is_prompt = (
        not given.is_floating_point() and stream.batch_axis == 0 and given.ndim == 2 and given.shape[1] >= PROMPT
    )
    return (stream.argument, given) if is_prompt else None


def first_apart(mine: Sequence[Tensor], others: Sequence[Tensor | None]) -> tuple[int, float] | None:
    """The first step with other logits, and how far apart these are; None where there is none, or it is not known.

    Args:
        mine: of each step the logits by which a method writes on.
        others: of each the logits behind the same token of the call of all tokens up to it.
    """
    for number, (one, other) in enumerate(zip(mine, others, strict=True)):
        if other is None or one.shape != other.shape:
            return None
        gap = float((one - other).abs().max())
        if gap > (OTHER if number else SAME) * float(other.abs().max().clamp(min=1e-12)):
            return number, gap
    return None


def written_apart(name: str, method: Callable[..., Any], token: int, gap: float) -> Finding:
    """That a method writes by other logits than the call of all tokens gives, at its line.

    Args:
        name: of the method.
        method: of a module's class.
        token: behind which the first ones stand.
        gap: by how much these differ.
    """
    message = (
        f"{name}() writes a text on; in it the logits behind token {token} differ by up to {gap:.2g} from those of the "
        f"call of all {token + 1} tokens at once: what stands beside the tokens, as a cache, a mask, positions or the "
        "text so far, does not go on as they do"
    )
    return Finding("violation", "cache-equals-whole", "output", message, line_of(method))


def writing_methods(name: str, method: Callable[..., Any], argument: str, given: Tensor) -> Iterator[dict[str, Any]]:
    """The arguments with which a method writes a few tokens on; none where its name tells of another thing.

    Args:
        name: of the method.
        method: of a module's class.
        argument: what a sequence is called in the call of the module.
        given: such a sequence, (samples, tokens, ...).
    """
    if _WRITES.fullmatch(name) and not method.__module__.startswith("torch.") and "beam" not in name.lower():
        yield from ways_to_write(method, argument, given[:, :PROMPT])


def ways_to_write(
    method: Callable[..., Any], argument: str, prompt: Tensor, steps: int = STEPS
) -> Iterator[dict[str, Any]]:
    """The arguments with which a method may write a few tokens; none where it needs others.

    Args:
        method: of a module's class.
        argument: what a sequence is called in the call of the module.
        prompt: what the text begins with.
        steps: how many tokens are to be written.
    """
    told, flags = dict[str, Any](), list[str]()
    for each in [*inspect.signature(method).parameters.values()][1:]:
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        is_prompt = each.name == argument or call_meaning(each.name) == "ids" or _PROMPT.fullmatch(each.name)
        if is_prompt and each.default is each.empty and not any(isinstance(one, Tensor) for one in told.values()):
            told[each.name] = prompt
        elif _NEW.fullmatch(each.name) and not isinstance(each.default, str):
            told[each.name] = steps
        elif _WHOLE.fullmatch(each.name):
            told[each.name] = prompt.shape[1] + steps
        elif each.default is False and FLAG.search(each.name.lower()):
            flags.append(each.name)
        elif each.default is each.empty:
            return
    if any(isinstance(each, Tensor) for each in told.values()):
        yield told | dict.fromkeys(flags, True)


def written_text(
    target: nn.Module,
    method: str,
    told: dict[str, Any],
    step: str = "forward",
    change: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> WrittenText:
    """What a method reads and writes; what code of others raises is not caught here.

    Where it does not call the module, but its layers one after the other, these tell it: the embedding that reads the
    ids, and the layer whose output the logits are.

    Args:
        target: a module.
        method: the name of its method that writes.
        told: what this is given.
        step: the name of the method that it feeds.
        change: what is done to the logits of each step before the method has them.
    """
    model, text = copied(target), WrittenText()
    forward = getattr(model, step)
    inside = list[int]()

    def note(fed: Tensor | None, first: Tensor | None) -> Tensor | None:
        """Write a step down; the logits that take the place of its own."""
        last = None if first is None else _last_of(first)
        if fed is None or first is None or last is None:
            return None
        changed = change(first)
        text.fed.append(fed)
        text.logits.append(_last_of(changed).clone())  # type: ignore[union-attr]
        return changed

    def watched(*args: Any, **kwargs: Any) -> Any:
        inputs = [each.clone() for each in tree_leaves((args, kwargs)) if is_of_ids(each)]
        if not text.begun:
            text.begun.append(copy.deepcopy((args, kwargs)))
        inside.append(1)
        try:
            output = forward(*args, **kwargs)
        finally:
            inside.pop()
        first = first_logits(output)
        changed = note(inputs[0] if inputs else None, first)
        if changed is None or changed is first:
            return output
        return tree_map(lambda each: changed if each is first else each, output)

    setattr(model, step, watched)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
        if step == "forward":
            _watch_layers(model, target, told, inside, note)
        given = {name: each.clone() if isinstance(each, Tensor) else each for name, each in told.items()}
        text.returned += [each for each in tree_leaves(getattr(model, method)(**given)) if is_of_ids(each)]
    return text


def _watch_layers(
    model: nn.Module,
    target: nn.Module,
    told: dict[str, Any],
    inside: Sequence[int],
    note: Callable[[Tensor | None, Tensor | None], Tensor | None],
) -> None:
    """Note each step that the layers of a module take outside of its call."""
    reading, making = ends_of(copied(target), [next(each for each in told.values() if isinstance(each, Tensor))])
    parts = dict(model.named_modules())
    if reading not in parts or making not in parts:
        return
    waiting = list[Tensor]()

    def reads(_: nn.Module, args: tuple[Any, ...]) -> None:
        if not inside and args and is_of_ids(args[0]):
            waiting[:] = [args[0].clone()]

    def makes(_: nn.Module, __: Any, output: Any) -> Any:
        if inside or not waiting or not isinstance(output, Tensor):
            return None
        return note(waiting.pop(), output)

    parts[reading].register_forward_pre_hook(reads)
    parts[making].register_forward_hook(makes)


def ends_of(model: nn.Module, texts: Sequence[Tensor]) -> tuple[str | None, str | None]:
    """The names of the embedding that reads the ids of a call, and of the layer whose output its logits are.

    Args:
        model: that is called.
        texts: its arguments; of several, the first is the one that is read.
    """
    made, read = list[tuple[str, Tensor]](), list[str]()

    def see(name: str, part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            made.append((name, output))
        if isinstance(part, nn.Embedding) and args and torch.equal(args[0], texts[0]):
            read.append(name)

    for name, part in model.named_modules():
        if part is not model:
            part.register_forward_hook(partial(see, name))
    try:
        logits = first_logits(model(*(each.clone() for each in texts)))
    except Exception:  # code of others may raise anything
        return None, None
    return next(iter(read), None), next((name for name, output in reversed(made) if output is logits), None)


def first_logits(output: Any) -> Tensor | None:
    """The first tensor of floating-point numbers in what a call returned."""
    return next((each for each in tree_leaves(output) if isinstance(each, Tensor) and each.is_floating_point()), None)


def last_logits(output: Any) -> Tensor | None:
    """(samples, ids): the logits behind the last token; None where there are none."""
    found = first_logits(output)
    return None if found is None else _last_of(found)


def _last_of(logits: Tensor) -> Tensor | None:
    if logits.ndim not in (2, 3):
        return None
    return (logits[:, -1] if logits.ndim == 3 else logits).clone()


def is_of_ids(value: Any) -> bool:
    """Whether something is a tensor of ids of several samples."""
    return isinstance(value, Tensor) and value.ndim == 2 and value.dtype == torch.long
