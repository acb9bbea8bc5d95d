"""The shapes that documentation and comments write beside the name of an argument."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache

from regard.check.target.argument import taken_by

__all__ = [
    "are_documented_marks",
    "are_of_one_row",
    "axes_of",
    "before_reordering",
    "begins_with_tokens",
    "documented_letters",
    "documented_role",
    "documented_shape",
    "first_documented_shape",
    "is_of_samples",
    "is_unpacked_sequence",
    "letters_of",
    "said_of",
    "written_letters",
]

_BETWEEN = re.compile(r"\s*(?:,|\u00d7|\b[xX]\b)\s*")
_SIZE = r"[\w*]+(?:\s*[*+/-]\s*[\w*]+)*"
_AT_ONCE = r"\[\s*(?:\([A-Z]\w*\)\s*,\s*)?([A-Z]\w*(?:\s*,\s*[A-Z]\w*)+)\s*\]"
"""The axes right behind a name, as in "key[B, T, D]", or "query[(Bs), B, D]" of one that may have more in front."""
_BATCH = re.compile(r"b|n|bs|bsz|(?:n_?|num_?)?batch(?:_?size)?|[\w*]*\*\s*(?:b|batch(?:_?size)?)", re.I)
_TOKENS = re.compile(r"[tls]|\w*(?:seq|len|time|tokens|nodes|keys|queries)\w*", re.I)
_ASKED_BY_ONE = re.compile(
    r"(?:matmul|bmm)\(\s*(?P<query>\w+)\.unsqueeze\((?:dim\s*=\s*)?1\)\s*,"
    r"\s*(?P<keys>\w+)\.(?:transpose\((?:1,\s*2|2,\s*1)\)|permute\(0,\s*2,\s*1\))"
)
"""Of one query beside the keys of each sample: these have three axes, and so the query has two."""
_LENGTH = re.compile(
    r"\b(?:seq(?:uence)?[\s_-]*len(?:gth)?|(?:number|num|no) of (?:tokens|words|frames|steps))\b", re.I
)
_MARKED = (
    r"[^\n.;]{0,60}?(?<![\w.])(?:true|1s?|ones?)\b\W{0,3}(?:where|for|at|on|if|means?|is|are|marks?|=)"
    r"[^\n.;]{0,40}?\b(?:tokens?|words?|keys?|nodes?|pad(?:s|ded|ding)?|visible|hidden|valid|attend\w*)\b"
)
"""What is said of a mask behind its name: which tokens its booleans, or its ones, stand for."""
_CALLS = ("forward", "__call__")
_EDGES = re.compile(r"edges?(?![a-z])|(?:link|pair|ind(?:ex|ices)|idx|graph)s? \(E\)")
"""In the name of what holds two nodes for each of them, or of that axis."""
_ONE_ROW = re.compile(r"[(\[]\s*1\s*,\s*\w*(?:total|packed|sum)\w*\s*,", re.I)
_COMMENT = re.compile(r"#+(.*)")
_BEHIND = re.compile(r"[^#\"']*?,?\s*#+(?P<said>.*)")
"""What stands behind an argument that has a line of its own, and the comment there."""


@cache
def documented_shape(source: str, name: str) -> tuple[str, ...]:
    """The names of the axes of an argument; none where nothing is written, or shapes of several numbers of axes.

    Args:
        source: the text of a class or a function, with its documentation and its comments.
        name: of the argument, as in "`query` has shape `[seq_len, batch_size, d_model]`" or in "|query| = (B, 1, D)".
    """
    found = next(_written_shapes(source, name), [])
    return found[0] if len({len(each) for each in found}) == 1 else ()


def first_documented_shape(source: str, name: str) -> tuple[str, ...]:
    """The same, the first of several, as where comments follow what is made of the argument under its name."""
    return next(_written_shapes(source, name), [()])[0]


def _written_shapes(source: str, name: str) -> Iterator[list[tuple[str, ...]]]:
    """The shapes that each text writes behind a name, where it writes some."""
    shape = rf"[(\[]\s*({_SIZE}(?:\s*(?:,|\u00d7|\bx\b)\s*{_SIZE})+)\s*,?\s*[)\]]"
    stands = re.compile(rf"(?<![\w.]){re.escape(name)}(?:(?![\w.(\[])[^\n()\[\]]{{0,80}}?{shape}|{_AT_ONCE})")
    begin = rf"^[ \t]*{re.escape(name)}[ \t]*:[ \t]*(?:[\w \t]*\b[Tt]ensor[ \t]+)?"
    alone = re.compile(rf"{begin}({_SIZE}(?:[ \t]+[xX\u00d7][ \t]+{_SIZE})+)[ \t]*$", re.M)
    for text in _told(source):
        found = [tuple(_BETWEEN.split(one or other)) for one, other in stands.findall(text)]
        found += [tuple(_BETWEEN.split(each)) for each in alone.findall(text)]  # "hidden: length x batch x width"
        if found:
            yield found


@cache
def is_of_samples(source: str, name: str) -> bool:
    """Whether an argument is written to have one number for each sample, as in "y: (B,)"."""
    stands = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.(\[])[^\n()\[\]]{{0,80}}?[(\[]\s*({_SIZE})\s*,?\s*[)\]]")
    for text in _told(source):
        found = stands.findall(text)
        if found:
            return all(_BATCH.fullmatch(each) is not None for each in found)
    return False


def documented_letters(source: str, name: str) -> str:
    """The same with one letter an axis: b for samples, t for tokens, a digit for itself, d for any other.

    N is the number of samples where no other axis is, as in (N, L, D), and else of tokens, as in (B, N, D).
    """
    return letters_of(documented_shape(source, name))


def written_letters(source: str, name: str) -> str:
    """The letters that the documentation gives; or else those of a query that gets its axis of tokens, and of its keys.

    As of q and k in torch.matmul(q.unsqueeze(1), k.transpose(1, 2)), where q is one vector of each sample.
    """
    if told := documented_letters(source, name) or _letters_of_einsum(source, name):
        return told
    pairs = [(each["query"], each["keys"]) for each in _ASKED_BY_ONE.finditer(source)]
    return next(
        (letters for pair in pairs for one, letters in zip(pair, ("bd", "btd"), strict=True) if one == name), ""
    )


def _letters_of_einsum(source: str, name: str) -> str:
    """The letters of an argument that is summed by its subscripts, as it is or behind a layer: "bd" of state.

    As in einsum("bd,bsd->bs", self.att(state), source), where each line that sums it has as many subscripts.
    """
    found = set[str]()
    for call in re.findall(r"\beinsum\(((?:[^()]|\([^()]*\))*)\)", source):
        subscripts = re.match(r"\s*['\"]([a-zA-Z, ]+)->", call)
        operands = re.split(r",\s*(?![^()]*\))", call[subscripts.end() :])[1:] if subscripts is not None else []
        several = subscripts[1].replace(" ", "").split(",") if subscripts is not None else []
        for axes, operand in zip(several, operands, strict=False):
            if re.fullmatch(rf"(?:self\.\w+\()?{re.escape(name)}\)?", operand.strip()):
                found.add(letters_of(tuple(axes)))
    return found.pop() if len(found) == 1 else ""


def letters_of(shape: tuple[str, ...]) -> str:
    """The letters of the names of axes."""
    has_samples = any(_BATCH.fullmatch(each) and each.lower() != "n" for each in shape)

    def letter(axis: str) -> str:
        if axis in ("1", "2", "3"):
            return axis
        if axis.lower() == "n" and has_samples:
            return "t"
        return "b" if _BATCH.fullmatch(axis) else "t" if _TOKENS.fullmatch(axis) else "d"

    return "".join(map(letter, shape))


@cache
def said_of(source: str, name: str) -> str:
    """The line in which a documentation lists an argument, as ":param h: encoder hidden states"; empty without."""
    listed = re.compile(
        rf"^[ \t]*(?::param\s+|[-*]\s+)?[`*]*{re.escape(name)}[`*]*[ \t]*(?:\([^)\n]*\))?[ \t]*:(.*)$", re.M
    )
    return next((each.strip() for text in _told(source) for each in listed.findall(text)), "")


@cache
def begins_with_tokens(source: str, name: str) -> bool:
    """Whether the first axis of an argument is said to be its tokens, so that it has no batch in front.

    As in "x: (tokens, width)", in seq_len = x.shape[0], and in n = len(x)  # sequence length.
    """
    if documented_letters(source, name) == "td":
        return True
    length = rf"(?:{re.escape(name)}\.(?:shape\[0\]|size\((?:dim\s*=\s*)?0\))|len\({re.escape(name)}\))"
    taken = re.findall(rf"^\s*(\w+)\s*=\s*{length}\s*(?:#(.*))?$", source, re.M)
    return any(_TOKENS.fullmatch(variable) or _LENGTH.search(said) for variable, said in taken)


@cache
def are_documented_marks(source: str, name: str) -> bool:
    """Whether an argument is written to be booleans, one for each token of each sample, as "bool (batch, text)"."""
    shape = r"(?:[(\[][^()\[\]\n]*[)\]][\s,;:-]*(?:of )?)?"
    stands = re.compile(rf"(?<![\w.])[`*]*{re.escape(name)}[`*]*\s*[:=(-]+\s*{shape}(?:torch\.)?bool", re.I)
    is_boolean = any(stands.search(text) is not None for text in _told(source))
    return is_boolean and len(documented_letters(source, name)) == 2 and documented_letters(source, name)[0] == "b"


@cache
def are_of_one_row(source: str, name: str) -> bool:
    """Whether lengths are those of sequences that stand one after the other in one row, as in "x: [1, total, dim]"."""
    is_taken = re.search(rf"(?<![\w.]){re.escape(name)}\b", source) is not None
    return is_taken and any(_ONE_ROW.search(text) for text in _told(source))


@cache
def documented_role(source: str, name: str) -> str | None:
    """What an argument is by what is written of it: marks of tokens, a mask, edges of a graph, where texts begin.

    As in "real: (b, n), True where there is a token", "edges: (2, n_edges)", and
    "bounds = [0, l0, l0 + l1, ..., total]".
    """
    if are_documented_marks(source, name):
        return "marks"
    marked = re.compile(rf"(?<![\w.])[`*]*{re.escape(name)}[`*]*\s*[:=(-]{_MARKED}", re.I)
    if any(marked.search(text) for text in _told(source)):
        return "padding" if documented_letters(source, name) == "bt" else "mask"
    shape = documented_shape(source, name)
    if len(shape) == 2 and shape[0] == "2" and _EDGES.search(f"{name} ({shape[1]})"):
        return "edge index"
    row = r"[\[(]\s*0\s*,[^\[\]()\n]*(?:\.\.\.|\u2026|\+)[^\[\]()\n]*[\])]"
    stands = re.compile(rf"(?<![\w.])[`*]*{re.escape(name)}[`*]*\s*[:=]\s*{row}")
    return "boundaries" if any(stands.search(text) for text in _told(source)) else None


@cache
def _told(source: str) -> tuple[str, ...]:
    """What tells of arguments, the plainest first: the documentation of a call, that of a class, then all comments."""
    return tuple(_texts_of(source))


def _texts_of(source: str) -> Iterator[str]:
    """The same, one after the other."""
    text = textwrap.dedent(source)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = text.splitlines()
    for kinds in (ast.FunctionDef, ast.ClassDef):
        for each in ast.walk(tree):
            if isinstance(each, kinds) and (each in tree.body or each.name in _CALLS):
                yield ast.get_docstring(each) or ""
                yield "\n".join(_behind(each, lines)) if isinstance(each, ast.FunctionDef) else ""
    yield "\n".join(each for line in text.splitlines() for each in _COMMENT.findall(line))


def _behind(function: ast.FunctionDef, lines: list[str]) -> Iterator[str]:
    """Each argument with the comment that stands behind it, where it has a line of its own."""
    several = taken_by(function)
    for each in several:
        is_alone = [one.lineno for one in several].count(each.lineno) == 1 and each.lineno != function.lineno
        said = _BEHIND.fullmatch(lines[each.lineno - 1][each.col_offset :]) if is_alone else None
        if said is not None:
            yield f"{each.arg}: {said['said'].strip()}"


def axes_of(source: str, name: str, axes: int) -> Iterator[list[str]]:
    """The names of the axes of an argument that has so many, as a line unpacks them: B, N, _ = x.shape."""
    shape = rf"{re.escape(name)}\.(?:shape|size\(\))"
    stands = re.compile(rf"^\s*(\w+(?:\s*,\s*\w+){{{axes - 1}}})\s*=\s*{shape}\s*(?:#.*)?$", re.M)
    for unpacked in stands.findall(before_reordering(source, name)):
        yield re.split(r"\s*,\s*", unpacked)


def is_unpacked_sequence(source: str, name: str) -> bool:
    """Whether a line unpacks its axes as samples, tokens and channels: b, length, _ = x.shape."""
    return any(letters_of(tuple(each)) == "btd" for each in axes_of(source, name, 3))


def before_reordering(source: str, name: str) -> str:
    """The text up to the line that gives an argument's axes another order: x = x.permute(1, 0, 2)."""
    moves = r"(?:permute|transpose|swapaxes|swapdims|movedim|moveaxis)"
    name = re.escape(name)
    moved = re.search(rf"^\s*{name}\s*=\s*(?:{name}\.{moves}\(|(?:torch\.)?{moves}\(\s*{name}\b)", source, re.M)
    return source if moved is None else source[: moved.start()]
