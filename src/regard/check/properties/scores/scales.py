"""Scales other than 1/sqrt(width) that are meant: learned, handed over, or left to a gate or the initialization."""

from __future__ import annotations

import inspect
import linecache
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from regard.check.location import CodeLocation
from regard.check.properties.documentation import documentation_of, name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.formula import SAME_NUMBER, ScoreFit
from regard.check.properties.scores.projected_residuals import scale_of_all_heads
from regard.check.properties.scores.unscaled import (
    LUONG,
    chosen_temperature,
    is_introductory,
    is_of_one_state,
    is_of_states,
    is_of_tokens_alone,
    is_read_by_one_token,
    scale_left_out,
)
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in, numbers_of
from regard.check.trace.operation import Operation, TensorRecord

__all__ = ["scale_design"]

PRODUCTS = frozenset({"mul", "div"})
ARGUMENTS = re.compile(r"scal|temperature|multiplier|tau$")
"""Names of arguments that are a scale of scores."""
FIELDS = re.compile(r"att\w*_(mult|scal|temp)|(softmax|logits?|qk)_scal|query_pre_attn")
"""The same of the fields of a config, which has scales of other things as well."""
MAX_TEMPERATURE = 1 + 0.1 * math.log(256)
"""YaRN's, of queries and of keys, for texts 256 times as long: models are stretched to 128 times (Mistral 4)."""
LEFT_TO_THE_INITIALIZATION = re.compile(r"GPTNeo(?!X)|T5")
"""Published models whose scores are not scaled, by the names of their classes."""
DISENTANGLED = re.compile(r"disentangled|deberta", re.I)
"""In the name of a class: scores are sums of up to three products (He et al. 2021, equation 4: 1/sqrt(3d))."""
SWITCHES = re.compile(
    r"(use_|with_|is_)?(softmax_|attn_|attention_|qk_)?scal(e|ed|ing)(_(attn|attention|qk|scores?)\w*)?"
)
"""Options that say whether scores are scaled, or by what."""
BILINEAR = re.compile(r"bi[-_ ]?linear|general|multiplicative|luong", re.I)
"""Options that name scores q W k, which are not scaled (Luong et al. 2015, section 3.1)."""
UNSCALED = re.compile(r"\b(?:no|not|without|un)[- ]?(?:any )?(?:softmax )?scal(?:e|ed|ing)\b", re.I)
"""In a comment, or in the documentation."""
COMMENTED_OUT = re.compile(
    r"\s*#+\s*(?:(\w+)\s*[*/]=|(\w+)\s*=\s*\2\s*[*/])\s*[^#\n]*(?:sqrt|\*\*\s*-?0?\.5|scal|temperature|\d)", re.I
)
"""A scaling that is commented out: a statement that multiplies or divides a variable by a root, a scale or a number."""
LINES_NEAR = 4
"""Before the line of the scores, and after it, that a comment may be of it."""
NEIGHBOURHOODS = frozenset({"unfold", "im2col"})
"""Operations that cut the neighbourhood of each pixel out of a map."""
EMBEDDINGS = re.compile(r"(?:^|[._])(theta|phi)(?=[._\d]|$)")
"""Names of the projections of a non-local block."""
RELATIVE_BIAS = re.compile(r"has_relative_(?:attention_|position_)?bias")
"""An option of T5's attention: in all but the first layer the bias is handed over, and scores are not scaled either."""


def scale_design(invocation: Invocation, evidence: Evidence, fit: ScoreFit) -> Finding | None:
    """Why scores are scaled by another number than 1/sqrt(width); None where nothing says that it is meant.

    Args:
        invocation: the call.
        evidence: of the attention.
        fit: what its scores are.
    """
    instance = evidence.base.instance
    line = instance.scores_location
    folded = _folded(instance)
    if folded is not None:
        return _of_folded(fit.total * folded[0], folded[1], line)
    if _is_learned(instance, evidence.base.num_heads):
        return Finding(
            "design", "learned-scale", "scale", f"scores are times a learned number, now {fit.total:.4g}", line
        )
    for name, number in _numbers(invocation):
        if any(abs(fit.total - each) < SAME_NUMBER * each for each in (number, 1 / number, number**-0.5)):
            message = f"scores are times {fit.total:.4g}, as {name} = {number:.4g} says"
            return Finding("design", "scale-handed-over", "scale", message, line)
    extended = _length_factor(fit)
    if extended:
        message = (
            f"scores are times {fit.total:.4g}: 1/sqrt({fit.width}) and the temperature of positions that were "
            f"stretched {extended:g} times, (0.1 ln {extended:g} + 1)^2 (YaRN)"
        )
        return Finding("design", "scale-of-length", "scale", message, line)
    if (of_all := scale_of_all_heads(instance, fit)) is not None:
        return of_all
    parts = round(fit.total**-2 / fit.width) if fit.total > 0 else 0
    is_of_parts = parts in (2, 3) and abs(fit.total * (parts * fit.width) ** 0.5 - 1) < SAME_NUMBER
    if is_of_parts and any(DISENTANGLED.search(type(each).__name__) for each in modules_in(invocation.target)):
        message = f"1/sqrt({parts} * {fit.width}): scores are sums of {parts} products, some of positions (DeBERTa)"
        return Finding("design", "scale-of-sums", "scale", message, line)
    made_for = None if instance.is_projected else _width_made_for(invocation, fit)
    if made_for is not None:
        name, width = made_for
        message = f"1/sqrt({width}), as {name} = {width} says: it was called with queries of width {fit.width}"
        return Finding("holds", "scale", "scale", message, line)
    if chosen := chosen_temperature(invocation, fit.total):
        message = f"scores are times {chosen}, as is written in the code: the root of no width"
        return Finding("design", "scale-chosen", "scale", message, line)
    if abs(fit.total - 1) > SAME_NUMBER:
        return None
    if any(LEFT_TO_THE_INITIALIZATION.match(type(each).__name__) for each in modules_in(invocation.target)):
        message = "scores are not scaled: the initialization does it"
        return Finding("design", "no-scale", "scale", message, line)
    for name, value in _attributes(invocation):
        is_one = type(value) in (int, float) and value == 1 and name not in _arguments(invocation)
        is_one = is_one and not _is_computed(invocation, name)
        if SWITCHES.fullmatch(name) and (value is False or is_one):
            message = f"scores are not scaled, as {name} = {value} says"
            return Finding("design", "no-scale", "scale", message, line)
    if left_out := scale_left_out(invocation):
        message = f"scores are not scaled, as {left_out} = None says: they are where it is handed over"
        return Finding("design", "no-scale", "scale", message, line)
    for name, value in _attributes(invocation):
        if isinstance(value, str) and (other := _scaled_choice(invocation, name, value)):
            message = f"scores are not scaled, as {name} = {value} says: {other} is what it may be as well"
            return Finding("design", "no-scale", "scale", message, line)
    if any(RELATIVE_BIAS.fullmatch(name) for name, _ in _attributes(invocation)):
        message = "scores are not scaled, as in T5, where a layer may have a relative bias: the initialization does it"
        return Finding("design", "no-scale", "scale", message, line)
    named = {
        each
        for part in modules_in(invocation.target)
        for name, _ in part.named_parameters()
        for each in EMBEDDINGS.findall(name)
    }
    if named == {"theta", "phi"}:
        message = "scores are not scaled, as in a non-local block, by theta and phi (Wang et al. 2018, equation 4)"
        return Finding("design", "no-scale", "scale", message, line)
    if any(len(each.token_axes) == 2 for each in invocation.streams):
        said = _unscaled_on_maps(instance)
        if said:
            return Finding("design", "no-scale", "scale", f"scores are not scaled, {said}", line)
    if switched_off := _scaling_in_a_comment(line):
        message = f"scores are not scaled: {switched_off}, which scales them, is commented out"
        return Finding("design", "no-scale", "scale", message, line)
    said = "its documentation" if UNSCALED.search(documentation_of(invocation.target)) else _commented(line)
    if said:
        message = f"scores are not scaled, as {said} says"
        return Finding("design", "no-scale", "scale", message, line)
    if is_introductory(invocation, evidence):
        message = "tokens are multiplied as they are, without weights and a scale (introductory self-attention)"
        return Finding("design", "no-scale", "scale", message, line)
    if is_of_tokens_alone(invocation, evidence):
        message = "scores are not scaled: a function of tokens as they are, which learns nothing (non-local, Gaussian)"
        return Finding("design", "no-scale", "scale", message, line)
    scaled = _scaled_twin(invocation.target)
    if scaled:
        message = f"scores are not scaled: beside it stands {scaled}, which is what it is without a scale"
        return Finding("design", "no-scale", "scale", message, line)
    if is_read_by_one_token(invocation, evidence):
        message = "scores are not scaled: one token asks the others for what they are (Luong, general)"
        return Finding("design", "no-scale", "scale", message, line)
    is_of_luong = LUONG.search(name_and_documentation(invocation.target)) is not None
    if is_of_luong or is_of_states(evidence) or is_of_one_state(invocation, evidence):
        message = "scores are not scaled: states attend to states as they are, with one matrix at most (Luong)"
        return Finding("design", "no-scale", "scale", message, line)
    return None


def _attributes(invocation: Invocation) -> Iterator[tuple[str, Any]]:
    """What the target's modules hold, by name."""
    for owner in modules_in(invocation.target):
        for module in owner.modules():
            yield from vars(module).items()


def _sources(invocation: Invocation) -> Iterator[str]:
    """The text of each class of its modules that is none of PyTorch's, and of those that it inherits from."""
    own = {type(each) for owner in modules_in(invocation.target) for each in owner.modules()}
    kinds = dict.fromkeys(each for kind in own for each in kind.__mro__ if each is not object)
    yield from (source_of(each) for each in kinds if not each.__module__.startswith("torch."))


def _is_computed(invocation: Invocation, name: str) -> bool:
    """Whether a constructor computes a scale by a power, a root or a fraction: that it became 1 is nobody's choice."""
    assigned = re.compile(rf"\bself\.{re.escape(name)}\b[^=\n]*=(?!=)[^#\n]*(?:\*\*|sqrt|/)")
    return any(map(assigned.search, _sources(invocation)))


def _scaled_choice(invocation: Invocation, name: str, value: str) -> str:
    """What its code compares an option with that names the same scores, scaled, as "scaled_dot" for "dot"; or empty.

    Or any scaled scores, as "scaled_dot_product" beside "bi_linear", where the option names scores that have no scale.
    """
    if not value:
        return ""
    same = re.compile(rf"[=(\[{{,]\s*[\"'](scaled[-_ ]?{re.escape(value)})[\"']", re.I)
    beside = re.compile(rf"\b{re.escape(name)}\s*==\s*[\"'](scaled[-_ ]?\w+)[\"']", re.I)
    patterns = [same, beside] if BILINEAR.fullmatch(value) else [same]
    found = (each[1] for text in _sources(invocation) for one in patterns if (each := one.search(text)))
    return next(found, "")


def _arguments(invocation: Invocation) -> set[str]:
    """The arguments of its modules' constructors: the default of one is nobody's choice."""
    found: set[str] = set()
    for owner in modules_in(invocation.target):
        for module in owner.modules():
            with suppress(ValueError, TypeError):
                found |= set(inspect.signature(type(module)).parameters)
    return found


def _of_folded(total: float, width: int, line: CodeLocation | None) -> Finding:
    right = width**-0.5
    inside = "the projections of queries and keys are one matrix, their product: it"
    if abs(total - right) < SAME_NUMBER * right:
        return Finding("holds", "scale", "scale", f"{inside} is times 1/sqrt({width}) = {right:.4g}", line)
    message = f"{inside} is times {total:.4g}, not 1/sqrt({width}) = {right:.4g}"
    return Finding("violation", "scale", "scale", message, line)


def _folded(instance: AttentionInstance) -> tuple[float, int] | None:
    """By what the product of both projections is multiplied, and over how wide a head it sums.

    None where tokens meet two matrices, one each, and not one that was made of both.
    """
    run = instance.run
    products = {each.operation.index: each for each in run.products}
    for score in instance.scores:
        left, right = (run.owner_of(run.tags.inputs[at][number]) for at, number in score.places)
        if not left or not right:  # tokens as they are
            for index in (left | right) & set(products):
                made = products[index]
                matrices = [each for each in made.places if each not in run.depends]
                factors = [_times_a_product(run, each, products) for each in matrices]
                if len(factors) == 1 and factors[0] is not None:
                    return factors[0]
    return None


def _times_a_product(
    run: TaggedRun, place: tuple[int, int], products: Mapping[int, Contraction]
) -> tuple[float, int] | None:
    """By which one number a matrix is the product of two learned ones, and the width that it sums over."""
    tags = run.tags.inputs[place[0]][place[1]]
    made = run.owner_of(tags) & set(products)
    if len(made) != 1 or not bool((tags > 0).all()):
        return None
    product = products[made.pop()]
    if not product.left.learned or not product.right.learned:
        return None
    before = product.output.data.flatten()[tags - run.first_tag[product.operation.index]]
    ratio = run.trace.taken(place).data / before
    is_one = float(ratio.max() - ratio.min()) < SAME_NUMBER * float(ratio.abs().max())
    return (float(ratio.mean()), product.left_terms.shape[-1]) if is_one else None


def _length_factor(fit: ScoreFit) -> float:
    """By how much positions were stretched, as YaRN's temperature says; 0 where the scale has no such factor.

    The temperature multiplies queries and keys, or their product, by a number that hardly any other mistake has.
    """
    temperature = (fit.total * fit.width**0.5) ** 0.5 if fit.total > 0 else 0.0
    factor = math.exp(10 * (temperature - 1)) if 1 < temperature < MAX_TEMPERATURE + SAME_NUMBER else 0.0
    nearest = round(4 * factor) / 4
    return nearest if nearest > 1 and abs(factor - nearest) < SAME_NUMBER * nearest else 0.0


def _commented(line: CodeLocation | None) -> str:
    """Which line near the scores has a comment that says that they are not scaled; empty without."""
    if line is None:
        return ""
    first = max(1, line.line - LINES_NEAR)
    near = range(first, line.line + LINES_NEAR + 1)
    comments = {at: linecache.getline(line.file, at).partition("#")[2] for at in near}
    return next((f"line {at}" for at, comment in comments.items() if UNSCALED.search(comment)), "")


def _scaling_in_a_comment(line: CodeLocation | None) -> str:
    """Which line near the scores was a statement that scales queries, keys or scores; empty where none was.

    One that changes a variable of the line of the scores, as Q /= sqrt(d): what explains the line writes a formula.
    """
    if line is None:
        return ""
    names = set(re.findall(r"\b[A-Za-z_]\w*", linecache.getline(line.file, line.line)))
    for at in range(max(1, line.line - LINES_NEAR), line.line + LINES_NEAR + 1):
        found = COMMENTED_OUT.match(linecache.getline(line.file, at))
        if found and (found[1] or found[2]) in names:
            return f"line {at}"
    return ""


def _scaled_twin(target: Any) -> str:
    """The name of a class or function of the same file that is called as the target is, and scaled; empty without."""
    kind = type(target) if modules_in(target) else target
    name = getattr(kind, "__name__", "")
    file = getattr(kind, "__module__", "")
    others = [each for each, other in vars(sys.modules.get(file, object)).items() if _file_of(other) == file]
    wanted = f"scaled{name}".replace("_", "").lower()
    return next((each for each in others if name and each.replace("_", "").lower() == wanted), "")


def _file_of(value: Any) -> str:
    """The module that a class or function is written in; empty for other things."""
    return value.__module__ if inspect.isclass(value) or inspect.isfunction(value) else ""


def _is_learned(instance: AttentionInstance, num_heads: int) -> bool:
    """Whether scores, queries or keys are multiplied by a learned number, or by one for each head, before a softmax."""
    run = instance.run
    softmax = max((each.index for each in instance.softmaxes), default=len(run.trace))
    own = {each.operation.index for each in instance.scores}
    for each in instance.scores:
        for operation, number in each.places:
            own |= run.owner_of(run.tags.inputs[operation][number])
    return any(run.owner_of(tags) & own for tags in _times_learned(instance, num_heads, softmax))


def _is_gated(instance: AttentionInstance) -> bool:
    """Whether the weighted sums, or their projection, are multiplied by a learned number."""
    run = instance.run
    own = {each.operation.index for each in instance.sums}
    own |= {index for index in run.first_tag if any(run.owner_of(tags) & own for tags in run.tags.inputs[index])}
    if any(run.owner_of(tags) & own for tags in _times_learned(instance, 1)):
        return True
    # A sum of two attentions is of the first alone by its tags.
    made = run.trace.made_of(each.operation.outputs[0].storage for each in instance.sums)
    return any(
        each.name.rstrip("_") == "mul"
        and any(one.storage in made for one in each.inputs)
        and _is_a_learned_number(each)
        for each in run.trace
    )


def _unscaled_on_maps(instance: AttentionInstance) -> str:
    """By which work an attention of the pixels of a map has no scale; empty where by none."""
    run = instance.run
    if _is_gated(instance):
        return "and the output is times a learned number (non-local block, SAGAN)"
    if _has_places_in_neighbourhoods(instance):
        return "as by Ramachandran et al. (2019, equation 3): each pixel reads its neighbours"
    if any(not run.depends >= {each.left_place, each.right_place} for each in instance.added):
        return "as in figure 4 of Srinivas et al. (2021, BoTNet): q . k and q . r of learned rows r are added"
    return ""


def _has_places_in_neighbourhoods(instance: AttentionInstance) -> bool:
    """Whether learned vectors are added to keys that were cut out of a map around each pixel."""
    operations = [each for each in instance.run.trace if each.index < instance.scores[0].operation.index]
    cut = next((each.index for each in operations if each.name in NEIGHBOURHOODS), None)
    return cut is not None and any(
        each.name.rstrip("_") == "add"
        and each.index > cut
        and any(one.learned and one.data.numel() > 1 for one in each.inputs)
        for each in operations
    )


def _is_a_learned_number(product: Operation) -> bool:
    return any(each.learned and each.data.numel() == 1 for each in product.inputs)


def _times_learned(instance: AttentionInstance, most: int, end: int | None = None) -> Iterator[Any]:
    """The tags of each tensor that is multiplied by at most so many learned numbers, up to an operation."""
    run = instance.run
    of_inputs = run.trace.made_of(each.storage for each in run.trace.arguments.values())
    for operation in run.trace.operations[:end]:
        if operation.name.rstrip("_") not in PRODUCTS or len(operation.inputs) != 2:
            continue
        for one, other in ((0, 1), (1, 0)):
            factor: TensorRecord = operation.inputs[other]
            if factor.learned and factor.data.numel() <= most and factor.storage not in of_inputs:
                yield run.tags.inputs[operation.index][one]


def _numbers(invocation: Invocation) -> Iterator[tuple[str, float]]:
    """Numbers that were handed over as a scale: to the call, to a constructor, or in a config."""
    given: list[tuple[str, Any]] = [
        (name, value) for name, value in invocation.arguments.items() if ARGUMENTS.search(name)
    ]
    for owner in modules_in(invocation.target):
        is_told = any(map(ARGUMENTS.search, inspect.signature(type(owner)).parameters))
        for module in owner.modules():  # what it constructs itself it chooses itself
            given += _constructed_with(module) if module is owner or is_told else ()
            config = getattr(module, "config", None)
            fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
            given += [(name, value) for name, value in fields.items() if FIELDS.search(str(name))]
    for name, value in given:
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            yield name, float(value)


def _width_made_for(invocation: Invocation, fit: ScoreFit) -> tuple[str, int] | None:
    """The one number that a module without parameters was made with, where the scale is one over its root.

    It takes queries of any width, so that the one it was made for is known by this number alone. A second number that
    divides it may be that of the heads, and what is called the model's width is none of one head.
    """
    modules = modules_in(invocation.target)
    if any(True for module in modules for _ in module.parameters()):
        return None
    of_heads = any(each.head_axis is not None for each in invocation.streams)
    for module in modules:
        held = {name: number for name, number in numbers_of(module).items() if number > 1}
        for name, number in held.items():
            is_alone = not any(number % other == 0 for each, other in held.items() if each != name)
            is_of_model = of_heads and constructor_meaning(name) == "d_model"
            if is_alone and not is_of_model and abs(fit.total - number**-0.5) < SAME_NUMBER * number**-0.5:
                return name, number
    return None


def _constructed_with(module: Any) -> Iterator[tuple[str, Any]]:
    """Attributes that hold an argument of the constructor, where it is not the default."""
    try:
        parameters = inspect.signature(type(module)).parameters
    except (ValueError, TypeError):
        return
    for name, parameter in parameters.items():
        value = getattr(module, name, None)
        if ARGUMENTS.search(name) and isinstance(value, int | float) and value != parameter.default:
            yield name, value
