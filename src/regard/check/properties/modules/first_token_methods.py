"""A method that reads out one token of what is causal: not the first one, which sees no other."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of, run_of_method
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import Source, changed, differs
from regard.check.roles.instances import SOFTMAXES
from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Trace

__all__ = ["first_token_findings"]

MIN_TOKENS = 3


def first_token_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method whose output hangs on the first token alone, though all tokens attend to those before them.

    Args:
        invocation: a call of a module, by whose arguments those of its methods are known. One argument more holds what
            the tokens hold, as the items that are ranked by those that somebody bought.
    """
    target = invocation.target
    for name, method in inspect.getmembers(type(target), inspect.isfunction) if isinstance(target, nn.Module) else ():
        needs = needs_of(method)
        sequences = [each for each in invocation.streams if each.argument in needs and len(each.token_axes) == 1]
        if method.__module__.startswith("torch.") or len({*needs} - {*invocation.arguments}) > 1:
            continue
        for stream in sequences if name != "forward" else ():
            if invocation.tokens_of(stream) >= MIN_TOKENS and _hangs_on_the_first(invocation, stream, name, needs):
                message = (
                    f"{name}() returns what hangs on the first token of {stream.argument} alone, which sees no other "
                    "in its attentions: the last one has read all of them"
                )
                yield Finding("violation", "read-behind-the-text", "output", message, line_of(method))
                return


def _hangs_on_the_first(invocation: Invocation, stream: Stream, method: str, needs: list[str]) -> bool:
    """Whether a method attends among the tokens of a sequence, each to those before it, and reads out the first."""
    name, tokens = stream.argument, invocation.tokens_of(stream)
    given = {each: invocation.arguments.get(each, invocation.arguments[name]) for each in needs}
    call = replace(invocation, arguments=given)
    base = run_of_method(call, method, name, given[name])
    if base.error or not base.outputs or not _is_causal(base, tokens):
        return False
    for token in range(tokens):
        other = changed(invocation, Source(name, "token", token))[name]
        run = run_of_method(call, method, name, other)
        if run.error or not run.same_operations(base):
            return False
        pairs = zip(base.outputs, run.outputs, strict=True)
        if any(bool(differs(one.data, two.data).any()) for one, two in pairs) != (token == 0):
            return False
    return True


def _is_causal(run: Trace, tokens: int) -> bool:
    """Whether weights of all tokens on all tokens are made, and each hides the later ones."""
    made = [each.outputs[0].data for each in run if each.name in SOFTMAXES]
    weights = [each for each in made if each.ndim > 2 and each.shape[-2:] == (tokens, tokens)]
    return bool(weights) and all(bool((each.triu(1) <= ZERO_WEIGHT).all()) for each in weights)
