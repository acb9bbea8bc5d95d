"""What may not reach an output of a block: later tokens, in what is causal; other samples."""

from __future__ import annotations

import inspect
import re

from torch import Tensor, nn

from regard.check.blocks.call import TOKENS, BlockCall
from regard.check.blocks.mistakes import add_mistake
from regard.check.sandbox.answer import error_text
from regard.check.search.diagnose import is_switched_off, triangular
from regard.check.search.stage import Diagnosis
from regard.check.search.subject import Subject
from regard.check.target.names import call_meaning

__all__ = ["judge_leaks"]

NEGLIGIBLE = 1e-9
"""A smaller change of an output is rounding, or what exp(-10000) lets pass."""


def judge_leaks(diagnosis: Diagnosis, outer: BlockCall) -> None:
    """Whether a later token moves an earlier output, in what is causal; and whether one sample moves another."""
    x = outer.x()
    flags = {} if outer.names("mask") else dict.fromkeys(outer.names("causal"), True)
    try:
        before = outer(x, given=flags)
        other = outer(outer.moved(x, 1, slice(None)), given=flags)
    except Exception as error:
        diagnosis.why.append(f"called as a whole, {error_text(error)}")
        return
    mixed = float((before[0] - other[0]).abs().max())
    if mixed > NEGLIGIBLE:
        add_mistake(diagnosis, "batch-mixed", number=mixed)
    named, sure = _causal(outer, before)
    if not named:
        return
    for key in range(TOKENS - 1, 0, -1):
        after = outer(outer.moved(x, 0, key), given=flags)
        gaps = (before[0, :key] - after[0, :key]).abs().flatten(1).amax(-1)
        if bool((gaps > NEGLIGIBLE).any()):
            query = int(gaps.argmax())
            if sure:
                numbers = {"named": named, "number": float(gaps.max()), "query": query, "key": key}
                add_mistake(diagnosis, "future-leak", **numbers)
            else:
                diagnosis.why.append(
                    f"{named}; its output at position {query} changes by up to {float(gaps.max()):.2g} with the token "
                    f"at position {key}: right for a masked language model, and a leak in a model that generates"
                )
            return


def _is_causal_mask(argument: str) -> bool:
    """Whether an argument may be the causal mask: it is a mask, and its name speaks of no padding or other sequence."""
    return call_meaning(argument) == "mask" and not re.search("pad|enc|memory|cross|context", argument)


def _is_set_not_causal(subject: Subject) -> bool:
    """Whether a setting of the constructor asks if it is causal, and is False: its name promises nothing then."""
    settings = {} if subject.kind is None else inspect.signature(subject.kind).parameters
    values = {name: subject.args.get(name, each.default) for name, each in settings.items() if "causal" in name.lower()}
    return any(each is False for each in values.values())


def _may_be_of_a_set(outer: BlockCall) -> bool:
    """Whether it is a decoder by its name alone, of vectors that ask a context, and gives no word a score.

    That of a set of queries (Carion et al. 2020, "End-to-End Object Detection with Transformers") has no order: all
    queries see each other.
    """
    name, said = outer.subject.name, type(outer.module).__doc__ or ""
    is_named = re.search("decoder", name, re.I) and not re.search("causal|autoregress|lm|language|text", name, re.I)
    is_of_words = any(isinstance(each, nn.Embedding) for each in outer.module.modules())
    is_told = re.search("causal|autoregress|masked|translat|language|generat", said, re.I)
    return bool(is_named) and outer.inputs[1] is not None and not (outer.ids or is_of_words or is_told)


def _causal(outer: BlockCall, output: Tensor) -> tuple[str, bool]:
    """What says that no position sees later ones; and whether it says so for sure."""
    subject, name = outer.subject, outer.subject.name
    flags = outer.names("causal")
    if flags and not outer.names("mask"):
        return f"its flag {flags[0]}", True
    if outer.names("mask") or any(map(_is_causal_mask, subject.called)):
        return "", False
    if _is_set_not_causal(subject) or subject.says_two_ways or subject.takes_one_token:
        return "", False
    if re.search("bert|encoder|classif|mlm|fill|bidirect", name.lower()) and "decoder" not in name.lower():
        return "", False
    if _may_be_of_a_set(outer):
        return "", False
    if re.search("decoder|causal|gpt|languagemodel|autoregress|llama|bigram|(?<=[a-z])LM$", name, re.I):
        return f"its name, {name}", True
    for path, buffer in outer.module.named_buffers():
        if triangular(buffer) and not is_switched_off(outer.module, path):
            return f"its buffer {path}", True
    vocabularies = {each.num_embeddings for each in outer.module.modules() if isinstance(each, nn.Embedding)}
    if outer.ids and output.shape[-1] in vocabularies:
        return "it makes a score for every token of its vocabulary from ids", False
    return "", False
