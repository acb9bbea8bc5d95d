"""What the documentation of an implementation promises of its masks: read only where it says so in plain words."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any, Literal

from torch import nn

from regard.check.properties.mask_values import ADDED, VALUE, meanings_of
from regard.check.target.argument import source_of

__all__ = [
    "boolean_meaning",
    "comment_blocks_of",
    "comments_of",
    "documentation_of",
    "documents_a_use",
    "groups_are_consecutive",
    "index_direction",
    "is_exclusive",
    "is_inclusive",
    "is_of_each_side",
    "is_two_sided",
    "keeps_positions_from_values",
    "lets_samples_attend",
    "mask_meaning",
    "name_and_documentation",
    "promises_causal_attention",
    "promises_causal_mask",
    "promises_causality",
    "promises_co_attention",
    "promises_parts",
    "rotates_values",
    "says_causal",
    "says_unused",
    "works_in_low_precision",
]

_SENTENCES = re.compile(r"(?<=[.;])\s+|\n\s*\n|\n(?=\s*[`*]*\w+[`*]*\s*(?:\(.*?\))?\s*:)")
_NEGATED = re.compile(r"\b(?:not|non|no|never|cannot|without|un\w+|in(?:valid|visible))\b|n't", re.I)
_EITHER, _BOOLEAN = re.compile(r"\bor\b|;", re.I), re.compile(r"\bbool(?:ean)?s?\b", re.I)
_INCLUSIVE = re.compile(
    r"\b(?:itself|own (?:position|token)|current (?:position|token|one))\s+(?:is\s+)?included"
    r"|\b(?:including|inclusive of|counting)\s+(?:itself|its own|the (?:query|current)|self)"
    r"|(?<![-−])(?<![-−] )\b\w*window\w*\W{0,4}[-−]\s*1\b|[-−]\W{0,4}\w*window\w*\W{0,4}\+\s*1\b",
    re.I,
)
"""In words, or by a formula: a query and the window - 1 keys before it."""
_WINDOW_BEFORE = (
    r"(?:(?:the )?\W?\w*window\w*\W? (?:previous|preceding|earlier) (?:tokens|keys|positions)"
    r"|(?:the )?\W?\w*window\w*\W? (?:tokens|keys|positions) (?:before|preceding) (?:it|the query)"
    r"|(?:the )?(?:previous|preceding) \W?\w*window\w*\W? (?:tokens|keys|positions))"
)
_EXCLUSIVE = re.compile(rf"\bitself,? and (?:to )?{_WINDOW_BEFORE}|{_WINDOW_BEFORE},? and (?:to )?itself\b", re.I)
"""A query and, besides, as many keys before it as the window is told."""
_NORMALIZED = re.compile(
    r"normali[sz](?:e|es|ed|ing) (?:both )?(?:the )?(?:queries|query|q) (?:and|&) (?:the )?(?:keys?|k)\b|"
    r"\b(?:queries|query|q) (?:and|&) (?:keys?|k)(?: vectors)? are (?:both )?(?:\w+-)?normali[sz]ed|"
    r"\bqk[-_ ]?norm|\bquery-key norm",
    re.I,
)
_ON_EACH_SIDE = re.compile(
    r"(?<![/*+−-] )(?<![/*+−-])\b\w*window\w*\W? (?:tokens|keys|positions|neighbou?rs) (?:on|to|at) (?:each|either) "
    r"side\b",
    re.I,
)
"""As many keys to each side as the window is told, and not as many in all."""
_APART = re.compile(
    r"(?:\||\babs\()\s*(?:i\s*[-−]\s*j|j\s*[-−]\s*i|q\s*[-−]\s*k|k\s*[-−]\s*q)\s*[|)]\s*(?:<=?|≤)"
    r"|\b(?:on|to|at|from|of)\s+(?:each|either|both)\s+sides?\b"
    r"|\b(?:at most|up to|within)\s+\S+\s+(?:\w+\s+)?(?:before|behind|ahead|after|back|(?:to the )?left)\s+"
    r"(?:or|and)\s+(?:before|behind|ahead|after|forward|(?:to the )?right)\b",
    re.I,
)
"""As many tokens before a query as after it: by a formula, or in words."""
_SEES = re.compile(r"\b(?:attend(?:s|ed|ing)?|sees?|seen|visible|reads?|looks?|keys?|local|band(?:ed)?)\b|window", re.I)
_NOT_OF_BOTH = re.compile(
    r"\b(?:(?<!not )(?<!non-)causal\w*|bias\w*|past|previous|preceding|global|shift\w*|dilat\w*|if|when|unless)\b",
    re.I,
)
_AFTER, _BEFORE = r"after|ahead|later|to the right", r"before|back|earlier|to the left"
_KEY_AT = re.compile(
    rf"\bkeys?\b(?:(?!\bquer).)*?\b(?P<symbol>[a-z]\w*)`?\s+(?:tokens?|positions?|places?|steps?)\s+"
    rf"(?:(?P<after>{_AFTER})|(?P<before>{_BEFORE}))\b",
    re.I | re.S,
)
"""A key, and by how many tokens it comes after or before, in a symbol."""
_ENTRY = re.compile(r"\b(?:entry|entries|row|index|column|slot|element)\b|\[", re.I)
_ROTATED_VALUES = re.compile(
    r"\b(?:rotary|rotat(?:es?|ed|ing|ions?)|rope)\b\W+(?:\w+\W+){0,6}?values?\b"
    r"|\bvalues?\W+(?:\w+\W+){0,4}?(?:rotary|rotat|rope)|(?:rotary|rope|rotate)_(?:embed_|emb_)?v(?:alues?)?\b",
    re.I,
)
_ALONE = re.compile(r"\b(?:not|never|no|only|alone|unlike)\b", re.I)
_HEADS = re.compile(r"\bheads?\b", re.I)
_CONSECUTIVE = re.compile(
    r"\b(?:consecutive|adjacent|neighbou?ring|contiguous|side by side|(?:are|being) neighbou?rs)\b"
    r"|\bh(?:ead)?(?:[\s`]*\w)?\s*//\s*\(?\w"
    r"|\[\s*(\w+)\s*\*\s*(\w+)\s*,\s*\(\s*\1\s*\+\s*1\s*\)\s*\*\s*\2"
    r"|\bheads?\s+0\s*(?:(?:\.{2,3}|…|[-–]|\bto\b|\bthrough\b)\s*[a-z1-9]|(?:,|\band\b)\s*1\b)[^.;]*"
    r"\b(?:share|use|read|attend to|belong to)s?\b[^.;]*\b(?:kv|keys?|group)\b",
    re.I,
)
"""In words, or by the numbers of the heads: h // group, [g * r, (g + 1) * r), or heads 0..g-1 share kv head 0."""
_OF_CONSECUTIVE_HEADS = re.compile(
    r"(?:grouped|\bgqa)[^.;]*\b(?:Llama|Mistral|Qwen|Gemma)(?:[-\s]?\d\S*)?\b"
    r"|\b(?:Llama|Mistral|Qwen|Gemma)(?:[-\s]?\d\S*)?\b[^.;]*(?:grouped|\bgqa)",
    re.I,
)
_EACH_REPEATED = re.compile(r"(?m)^(?!.*\b(?:not|unlike|instead|rather|than|faster)\b).*\brepeat_interleave\(")
_POSITIONS = re.compile(r"\w*pos(?:\b|_|ition)", re.I)
_NOT_TO_VALUES = re.compile(
    r"\b(?:not|never)\s+(?:\w+\s+){0,2}(?:to|in|into|on)\s+(?:the\s+)?(?:values?|v)\b"
    r"|\b(?:to|in|into|on)\s+(?:the\s+)?(?:quer(?:y|ies)|keys?|q|k)\s*(?:and|,|/)\s*(?:keys?|quer(?:y|ies)|q|k)\s+"
    r"(?:only|alone)\b|\bonly\s+(?:added\s+)?(?:to|in|into|on)\s+(?:the\s+)?(?:queries|keys|q|k)\s*(?:and|,|/)\s*"
    r"(?:keys|queries|q|k)\b|\bvalues?\s+(?:have|has|hold|holds|get|gets)\s+no\s+positions?\b",
    re.I,
)

_LISTED = r"^[ \t]*(?::param\s+)?[`*]*{}[`*]*[ \t]*(?:\([^)\n]*\))?[ \t]*:"
"""The begin of what a list of arguments says of one of them, in each style of documentation."""
_UNUSED = re.compile(
    r"(?:(?:\b(?:is|are)\s+|^\W*)(?:currently\s+|always\s+)?(?:not\s+used|unused|ignored)|\b(?:has|have)\s+no\s+effect)"
    r"(?=\s*(?:$|[.,;:(]|\bhere\b|\bin this\b|\bby this\b|\bonly\b|\band\b|\bbut\b))",
    re.I,
)
"""What begins what is said of an argument, or ends a clause without a condition."""
_FOR_NO_USE = re.compile(
    r"compat|interface|\bAPI\b|signature|placeholder|reserved|(?:not|n't|un)\s*(?:yet\s+)?(?:\w+\s+)?"
    r"(?:used|supported|needed|read|implemented|applied)|\bignor|(?:must|should|has to) be `*None|\bno effect\b",
    re.I,
)
"""That an argument is there because others are called with it, and not read."""
_SEE_EACH_OTHER = re.compile(
    r"\ball (?:the )?(?:tokens|positions|patches)(?: of a \w+)? (?:see|attend to) (?:each other|one another)\b", re.I
)
_OF_PADDING = re.compile(r"pad|key|valid|present", re.I)
_OF_HIDING = re.compile(r"mask|\bpad|\bhid|\bblock|\bunless\b|\bexcept\b", re.I)

_AMONG_SAMPLES = re.compile(
    r"inter[\s_-]?(?:sample|instance|batch)"
    r"|\b(?:attend\w*|attention|interact\w*)(?:\s+to\s+(?:each|one another|one)(?:\s+other)?)?"
    r"\s+(?:across|between|among)\s+(?:the |all |different )*(?:batch|samples|data\s?points|instances)\b",
    re.I,
)
_SAMPLES_AS_TOKENS = re.compile(r"['\"]\s*(b\w*) [^'\"]*->\s*(?:1|\(\s*\)) \1 (?:\w+|\([\w ]+\))\s*['\"]")
_SEEN_BY_ALL = re.compile(r"\b(?:prefix|prompt|global|registers?\b|memory|memories)", re.I)
_MEMORY = re.compile(r"\b(?:memory|memories)\b", re.I)
_DOCSTRING = re.compile(r"(?:def|class) [^\"']*?:[ \t]*\n\s*[rR]?(?:\"{3}|'{3})(.*?)(?:\"{3}|'{3})", re.S)
_CAUSAL_MASK = re.compile(
    r"\W*(?:[\w-]+ ){0,3}?(?:causal|auto-?regressive)[\s-]+(?:[\w-]+[\s-]+){0,3}?(?:masks?|patterns?)\b", re.I
)
_CAUSAL = re.compile(r"(?<!non-)(?<!non )(?<!not )\b(?:causal(?:ly)?|auto-?regressive(?:ly)?)\b(?!\s*[=:])", re.I)
_QUALIFIED = re.compile(
    r"\b(?:if|when|where|whether|optional(?:ly)?|unless|or|not|no|non|may|can|cannot|bi-?directional(?:ly)?|full(?:y)?"
    r"|across|between|over|among)\b|[=?]",
    re.I,
)
"""What makes of a promise a choice, or one of blocks and not of tokens."""
_CAUSAL_ATTENTION = re.compile(r"^\W*(?:[\w-]+ ){0,4}?causal(?:ly)?[\s-]+(?:[\w-]+[\s-]+){0,4}?attention\b", re.I)
"""A sentence about a causal attention, from its first words on."""
_OF_EARLIER_ALONE = re.compile(
    r"\b(?:token|position|query|queries|output)s?\b[^.;]*\b(?:depends?|attends?|sees?)\b"
    r"(?=[^.;]*\bonly\b)[^.;]*\b(?:itself|themselves)\b[^.;]*\b(?:earlier|previous|past|preceding)\b",
    re.I,
)
"""What a token depends on: itself and the tokens before it, and nothing else."""
_NOTHING = r"[`'\"(]*(?:0(?:\.0?)?|zero|[-−]\s*(?:inf\w*|∞))"
_CAUSAL_FORMULA = re.compile(
    rf"\b(?:j\s*(?:<=|≤)\s*i|s\s*(?:<=|≤)\s*t|m\s*(?:<=|≤)\s*n|i\s*(?:>=|≥)\s*j|t\s*(?:>=|≥)\s*s|n\s*(?:>=|≥)\s*m)"
    rf"\W{{1,3}}(?:and\s+)?(?:(?:else|otherwise)\W{{1,2}}(?:it is\s+)?{_NOTHING}|{_NOTHING}\W{{0,2}}(?:else|otherwise))"
    rf"|{_NOTHING}[,`]*\s+(?:if|for|where|when)\s+[`$]?(?:j\s*>\s*i|s\s*>\s*t|m\s*>\s*n|i\s*<\s*j|t\s*<\s*s|n\s*<\s*m)\b",
    re.I,
)
"""What a query has of later keys, by a formula: nothing, as in "for j <= i, else 0"."""
_NO_FORMULA = re.compile(r"causal|mask|bidirection|optional|window|encoder|\bif not\b|bias|buckets?", re.I)
"""Where such a formula is of a choice, or of something that a mask is to be added to."""
_FOR_OTHERS = re.compile(r"\b(?:for|of|support\w*|allow\w*|enabl\w*|expect\w*|require\w*|caller|from|see|like)\b", re.I)
"""Words before it that make it another's."""
_CO_ATTENTION = re.compile(
    r"\bco-?attention|\b(?:mutual|bi-?directional) cross-?attention"
    r"|\b(?:each|both)(?: \w+){0,4} attends? to (?:\w+ ){0,5}(?:the|each) other\b",
    re.I,
)
_IN_PARTS = re.compile(
    r"\b(?:in|by)\s+(?:(?:several|multiple|many|any number of|one or more|successive|consecutive|smaller)\s+)?"
    r"(?:chunks|pieces|parts|segments)\b|\bchunked\s+(?:prefill|prompt)"
    r"|\b(?:chunk by chunk|piece by piece|(?:a|one) (?:chunk|piece|segment) at a time)\b"
    r"|\b(?:several|any number of|one or more|multiple)\s+(?:new\s+)?tokens\b",
    re.I,
)
_NEW_TOKENS = re.compile(r"\bnew tokens\b\W{1,3}\w+\s*,\s*(?!1\b)\w+\s*,", re.I)
_LOW_PRECISION = re.compile(
    r"\b(?:works?|runs?|usable|used|supports?|supported|trained|safe)\b[^.;]*\b(?:bfloat16|bf16|float16|fp16|half)\b",
    re.I,
)
_AUTOCAST = re.compile(r"autocast|\bamp\b|mixed|\bcasts?\b|\bupcast", re.I)
"""What leaves positions in float32, or speaks of a part of the code."""
_CACHED = re.compile(r"\b(?:cach\w+|past|prompts?|prefill\w*)\b", re.I)


def documentation_of(target: Any) -> str:
    """The documentation of a function, or of a class and its call."""
    if isinstance(target, nn.Module):
        kind = type(target)
        texts = [kind.__doc__, kind.forward.__doc__]
    else:
        texts = [inspect.getdoc(target)] if inspect.isroutine(target) else [type(target).__doc__]
    return "\n\n".join(inspect.cleandoc(each) for each in texts if each)


def comments_of(target: Any) -> list[str]:
    """The comments in a function or a class, a line each."""
    return re.findall(r"(?<!['\"])#+\s*(\w.*)$", source_of(target), re.M)


def comment_blocks_of(target: Any) -> list[str]:
    """The same, of lines that hold nothing else, those one below the other as one text: a sentence may need several."""
    blocks = re.findall(r"(?:^[ \t]*#.*\n)+", source_of(target), re.M)
    return [" ".join(re.findall(r"#+\s*(\w.*)$", each, re.M)) for each in blocks]


def name_and_documentation(target: Any) -> str:
    """The name of a function or a class, and its documentation."""
    kind = type(target) if isinstance(target, nn.Module) else target
    return f"{getattr(kind, '__name__', '')}\n\n{documentation_of(target)}"


def mask_meaning(text: str, name: str, *, is_only: bool, of_one: bool = False) -> Literal["allowed", "blocked"] | None:
    """What 1, or True, in a mask means; None where nothing says it, or two sentences say different things.

    Args:
        text: the documentation.
        name: the argument.
        is_only: whether it is the only mask, so that "the mask" is this one.
        of_one: whether only what is said of 1 or True counts, not what is said of 0 or False: a mask of 0 and large
            negative numbers is 0 at allowed keys as well.
    """
    about = re.compile(rf"\b{re.escape(name)}\b" + (r"|\bmask\b" if is_only else ""), re.I)
    sentences = ["", *_SENTENCES.split(text)]
    told = {
        meaning
        for before, sentence in itertools.pairwise(sentences)
        # After "mask: bool, of any shape;" what begins with a value is of the mask as well.
        if about.search(sentence) or (about.search(before) and VALUE.match(sentence))
        for value, meaning in meanings_of(sentence)
        if value == 1 or not of_one
    }
    return told.pop() if len(told) == 1 else None  # type: ignore[return-value]


def boolean_meaning(text: str, name: str, *, is_only: bool) -> Literal["allowed", "blocked"] | None:
    """What True means in a mask that may be one of booleans, or else one that is added; None where nothing says so.

    As in "additive (0 and -inf), or boolean with True where a key may be attended": both are promised.

    Args:
        text: the documentation.
        name: the argument.
        is_only: whether it is the only mask, so that "the mask" is this one.
    """
    about = re.compile(rf"\b{re.escape(name)}\b" + (r"|\bmask\b" if is_only else ""), re.I)
    told = set()
    for sentence in _SENTENCES.split(text):
        if not about.search(sentence) or not ADDED.search(sentence) or not _EITHER.search(sentence):
            continue
        parts = _EITHER.split(sentence)
        told |= {
            meaning for each in parts if _BOOLEAN.search(each) for value, meaning in meanings_of(each) if value == 1
        }
    return told.pop() if len(told) == 1 else None  # type: ignore[return-value]


def says_unused(text: str, name: str) -> bool:
    """Whether it says of a mask that it is not used, without a condition.

    Where it lists the argument, or as it says that all tokens see each other, and speaks of no key that is hidden.
    """
    if _SEE_EACH_OTHER.search(text) and not _OF_HIDING.search(text) and not _OF_PADDING.search(name):
        return True
    said = _said_of(text, name)
    return any(_UNUSED.search(" ".join(each.split())) for each in re.split(r"(?<=[.;])\s+|\n", said))


def documents_a_use(text: str, name: str) -> bool:
    """Whether it lists an argument, and says nothing of its being there for others, or not to be handed over."""
    said = _said_of(text, name)
    return bool(said.strip()) and not _FOR_NO_USE.search(said) and not says_unused(text, name)


def says_causal(text: str, name: str) -> bool:
    """Whether it says of an argument, where it lists it, that by it the attention is causal."""
    return _CAUSAL.search(_said_of(text, name)) is not None


def _said_of(text: str, name: str) -> str:
    """What a list of arguments says of one of them; empty where there is none."""
    listed = re.search(_LISTED.format(re.escape(name)), text, re.M)
    if listed is None:
        return ""
    rest = text[listed.end() :]
    end = re.compile(_LISTED.format(r"\w+") + r"|^[ \t]*$", re.M).search(rest, 1)
    return rest[: end.start()] if end is not None else rest


def lets_samples_attend(target: Any) -> bool:
    """Whether it says that the samples of a batch attend to each other: in words, or by a pattern of einops.

    As in "intersample attention" and in "b n d -> 1 b (n d)", in which the samples stand where tokens are.
    """
    text = f"{name_and_documentation(target)}\n\n{source_of(target)}"
    told = (each for each in _SENTENCES.split(text) if _AMONG_SAMPLES.search(each))
    return _SAMPLES_AS_TOKENS.search(text) is not None or any(not _NEGATED.search(each) for each in told)


def promises_causality(text: str) -> bool:
    """Whether it says of all tokens, without a condition, that none sees what comes later."""
    return not _SEEN_BY_ALL.search(text) and any(
        _CAUSAL.search(each) and not _QUALIFIED.search(each) for each in _SENTENCES.split(text)
    )


def promises_causal_attention(text: str, *, beside_memory: bool = False) -> bool:
    """Whether it begins a sentence with a causal attention, or has a formula: nothing is said of who masks, or when.

    Args:
        text: a documentation.
        beside_memory: whether the sentence may speak of a memory as well, which all tokens see.
    """
    if any(_CAUSAL_FORMULA.search(each) and not _NO_FORMULA.search(each) for each in _SENTENCES.split(text)):
        return True
    if any(_OF_EARLIER_ALONE.search(each) and not _QUALIFIED.search(each) for each in _SENTENCES.split(text)):
        return True
    found = ((each, _CAUSAL_ATTENTION.match(each)) for each in _SENTENCES.split(text))
    return any(
        said and not (_QUALIFIED.search(each) or _SEEN_BY_ALL.search(each) or _FOR_OTHERS.search(said[0]))
        for each, said in ((_MEMORY.sub("", one) if beside_memory else one, said) for one, said in found)
    )


def promises_causal_mask(code: str) -> bool:
    """Whether a function or class in it is documented as a causal mask, from the first words on and on no condition."""
    first = (each.strip().split("\n\n")[0] for each in _DOCSTRING.findall(code))
    return any(
        _CAUSAL_MASK.match(each) and not (_QUALIFIED.search(each) or _SEEN_BY_ALL.search(each)) for each in first
    )


def promises_co_attention(text: str) -> bool:
    """Whether it says of two sequences that each attends to the other one (Lu et al. 2019, ViLBERT)."""
    return any(
        _CO_ATTENTION.search(" ".join(each.split())) and not _NEGATED.search(each) for each in _SENTENCES.split(text)
    )


def promises_parts(text: str) -> bool:
    """Whether it says that a prompt may come in parts, of several tokens at once, beside what is cached.

    Or that what is handed over are the new tokens, as many as an axis of theirs, as in "the new tokens (b, t, d)".
    """
    return (_NEW_TOKENS.search(text) is not None and _CACHED.search(text) is not None) or any(
        _IN_PARTS.search(each) and _CACHED.search(each) and not _NEGATED.search(each) for each in _SENTENCES.split(text)
    )


def works_in_low_precision(text: str) -> bool:
    """Whether it says that it works in bfloat16 or float16 as well."""
    return any(
        _LOW_PRECISION.search(each) and not (_NEGATED.search(each) or _AUTOCAST.search(each))
        for each in _SENTENCES.split(text)
    )


def is_inclusive(text: str) -> bool:
    """Whether it says of a window that a token itself is one of those that it sees."""
    return any("window" in each.lower() and _INCLUSIVE.search(each) for each in _SENTENCES.split(text))


def is_exclusive(text: str) -> bool:
    """Whether it says of a window that a token sees itself and, besides, as many before it as the window is told."""
    return any(_EXCLUSIVE.search(" ".join(each.split())) for each in _SENTENCES.split(text))


def is_of_each_side(text: str) -> bool:
    """Whether it says that a window reaches as many tokens to each side as it is told."""
    return is_two_sided(text) and any(_ON_EACH_SIDE.search(" ".join(each.split())) for each in _SENTENCES.split(text))


def is_two_sided(text: str) -> bool:
    """Whether it says of what a query sees, without a condition, that it reaches as far ahead as back."""
    return any(
        _APART.search(each) and _SEES.search(each) and not _NOT_OF_BOTH.search(each) for each in _SENTENCES.split(text)
    )


def normalizes_queries_and_keys(text: str) -> bool:
    """Whether it says that queries and keys, both, are normalized (QK-norm; Henry et al. 2020)."""
    return bool(_NORMALIZED.search(" ".join(text.split())))


def rotates_values(text: str) -> bool:
    """Whether a documentation, comments or names say that rotary positions are of the values as well."""
    return any(_ROTATED_VALUES.search(each) and not _ALONE.search(each) for each in _SENTENCES.split(text))


def groups_are_consecutive(text: str) -> bool:
    """Whether it says that the queries that share a head of keys are those of consecutive heads.

    Or that it is the attention of a published model of which they are, or what repeat_interleave makes of heads.
    """
    return any(_HEADS.search(each) and _CONSECUTIVE.search(each) for each in _SENTENCES.split(text)) or bool(
        _OF_CONSECUTIVE_HEADS.search(text) or _EACH_REPEATED.search(text)
    )


def keeps_positions_from_values(text: str) -> bool:
    """Whether it says that positions are added to queries and keys, and not to values."""
    return any(_POSITIONS.search(each) and _NOT_TO_VALUES.search(each) for each in _SENTENCES.split(text))


def index_direction(text: str) -> int:
    """What it says of a table by distance: 1 where entries of later keys come later, -1 where earlier, 0 where nothing.

    As in "entry n + r is of a key r tokens after the query".
    """
    found = set[int]()
    for sentence in _SENTENCES.split(text):
        key = _KEY_AT.search(sentence)
        if key is None or not _ENTRY.search(sentence[: key.start()]):
            continue
        symbol = rf"(?<!\w){re.escape(key['symbol'])}(?!\w)"
        signs = re.findall(rf"([+−-]?)\s*{symbol}(?=\s*([+−-]|\]|`|\s))", sentence[: key.start()])
        if len(signs) == 1 and any(signs[0]):
            found.add((-1 if signs[0][0] in ("-", "−") else 1) * (1 if key["after"] else -1))
    return found.pop() if len(found) == 1 else 0
