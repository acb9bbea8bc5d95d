"""How many heads there are, beside the number that a module was told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import torch

from regard.check.properties.code import line_in
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.rows import rows_of_queries
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.argument import nodes_of, source_of, tree_of
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.told_numbers import numbers_told

__all__ = ["exchanged_head_number_findings", "told_head_findings", "unsplit_head_findings"]

_LAYER = re.compile(r"(?:Linear|Conv\dd)$")


def told_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Heads that are as wide as the number of heads that was told, and another number of them.

    As where the channels are viewed as (width, heads) and read as (heads, width): then they are not as wide as a head
    was told to be. Heads whose weights or outputs are subtracted from one another are twice as many as are told
    (differential attention).
    """
    table = evidence.base
    number, width = _told(invocation), _told(invocation, "d_head")
    if number is None or table.width == width or table.instance.are_weights_subtracted or table.instance.run.additive:
        return
    num_heads = _heads_of_one_query(table)
    if number > 1 and table.width == number != num_heads > 1:
        message = (
            f"it is told {number} heads, and computes {num_heads} of width {number}: "
            "the axes of the heads and of their channels are taken for each other"
        )
        yield Finding("violation", "heads-as-told", "heads", message, table.instance.scores_location)


def unsplit_head_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Several heads that were told, and one alone in every attention; or as many as there are channels.

    Attentions that are as many as the heads, or a multiple of them, may each be one of the heads; so may one alone that
    is narrower than the tokens. Vaswani et al. 2017,
    "Attention Is All You Need", section 3.2.2.

    Args:
        invocation: the call.
        several: all attentions in it.
    """
    number, tables = _told(invocation), [each.base for each in several]
    if not tables or any(each.instance.are_weights_subtracted or not each.whole for each in tables):
        return
    line = tables[0].instance.scores_location
    kept = _heads_that_are_a_width(invocation.target)
    if kept is not None and all(each.width == 1 < each.num_heads for each in tables):
        attribute, name, argument = kept
        message = (
            f"self.{attribute} is {name}, a width, and not the {argument} that is told: there are "
            f"{max(each.num_heads for each in tables)} heads, one for each channel"
        )
        yield Finding("violation", "heads-as-told", "heads", message, line)
        return
    if any(each.instance.run.additive for each in tables):
        return
    if number is None or number < 2 or len(tables) % number == 0:
        return
    if all(_is_told_beside(invocation, each.instance.module) for each in tables):
        return
    widths = {invocation.arguments[each.argument].shape[-1] for each in invocation.streams}
    widths |= {value for name, value in numbers_told(invocation) if constructor_meaning(name.strip("_")) == "d_model"}
    if all(each.num_heads == 1 and each.width in widths for each in tables):
        message = f"it is told {number} heads, and computes one: nothing splits the {tables[0].width} channels"
        yield Finding("violation", "heads-as-told", "heads", message, line)
    elif any(each.width == 1 < each.num_heads != number for each in tables):
        message = (
            f"it is told {number} heads, and computes {max(each.num_heads for each in tables)}: one for each channel"
        )
        yield Finding("violation", "heads-as-told", "heads", message, line)


def exchanged_head_number_findings(target: object) -> Iterator[Finding]:
    """A constructor that is told both the heads and their width, takes the width for their number, and no more.

    As in `self.num_heads = dim_head`, beside heads that nothing reads.

    Args:
        target: what was called.
    """
    kinds = (type(each) for owner in modules_in(target) for each in owner.modules())
    for kind in dict.fromkeys(each for each in kinds if not each.__module__.startswith("torch.")):
        functions = [*nodes_of(source_of(kind.__init__), ast.FunctionDef)][:1]
        told = [each.arg for one in functions for each in (*one.args.args, *one.args.kwonlyargs)]
        heads = [each for each in told if constructor_meaning(each) == "heads"]
        widths = {each for each in told if constructor_meaning(each) == "d_head"}
        read = {
            each.id
            for one in functions
            for each in ast.walk(one)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
        }
        if len(heads) != 1 or heads[0] in read:
            continue
        for each in ast.walk(functions[0]):
            match each:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)], value=ast.Name(id=name)
                ):
                    if constructor_meaning(attribute) == "heads" and name in widths:
                        message = f"self.{attribute} is {name}, the width of a head, and {heads[0]} is not read"
                        line = line_in(kind.__init__, each.lineno)
                        yield Finding("violation", "heads-as-told", "heads", message, line)
                        return
                case _:
                    pass


def _heads_that_are_a_width(target: object) -> tuple[str, str, str] | None:
    """An attribute for the number of heads that a constructor sets to what a layer has for a width, though told heads.

    As in `self.heads = inner_dim` beside `nn.Linear(dim, inner_dim)`.

    Returns:
        The attribute, what it is set to, and the argument of the constructor for the heads; None where there is none.
    """
    kinds = (type(each) for owner in modules_in(target) for each in owner.modules())
    for kind in dict.fromkeys(each for each in kinds if not each.__module__.startswith("torch.")):
        tree = tree_of(source_of(kind.__init__))
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
        told = [each.arg for one in functions[:1] for each in (*one.args.args, *one.args.kwonlyargs)]
        heads = next((each for each in told if constructor_meaning(each) == "heads"), None)
        if heads is None:
            continue
        nodes = [*ast.walk(functions[0])]
        layers = [each for each in nodes if isinstance(each, ast.Call) and _LAYER.search(ast.unparse(each.func))]
        widths = {one.id for each in layers for one in each.args if isinstance(one, ast.Name)}
        for each in nodes:
            match each:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)], value=ast.Name(id=name)
                ) if constructor_meaning(attribute) == "heads" != constructor_meaning(name) and name in widths:
                    return attribute, name, heads
                case _:
                    pass
    return None


def _heads_of_one_query(table: AttentionTable) -> int:
    """How many heads there are; 0 where queries of no token are not known to be one or several."""
    if not table.of_no_token:
        return table.num_heads
    rows = torch.unique(rows_of_queries(table)[table.query.sample <= 0])
    is_known = bool((rows >= 0).all()) and len(rows) > 0 and table.num_heads % len(rows) == 0
    return table.num_heads // len(rows) if is_known else 0


def _told(invocation: Invocation, meaning: str = "heads") -> int | None:
    """The number of heads that a call, its modules or their constructor were told; None where that is no one number.

    Or another number of a meaning, as the channels of a head.
    """
    for told in (_assumed(invocation), numbers_told(invocation)):
        numbers = {value for name, value in told if constructor_meaning(name.strip("_")) == meaning}
        if numbers:
            return numbers.pop() if len(numbers) == 1 else None
    return None


def _is_told_beside(invocation: Invocation, path: str) -> bool:
    """Whether modules keep a number of heads, and none of them is an attention's, around it or within it.

    Args:
        invocation: the call.
        path: of the attention's module.
    """
    keeping = [
        name
        for owner in modules_in(invocation.target)
        for name, module in owner.named_modules()
        if any(constructor_meaning(each.strip("_")) == "heads" for each in vars(module))
    ]
    return (
        bool(keeping)
        and not any(f"{path}.".startswith(f"{each}." if each else "") for each in keeping)
        and (not any(each.startswith(f"{path}.") for each in keeping))
    )


def _assumed(invocation: Invocation) -> Iterator[tuple[str, int]]:
    """The numbers that its constructor was given for want of others."""
    for each in invocation.assumptions:
        name, _, value = each.partition("=")
        if value.isdecimal():
            yield name, int(value)
