"""What the text of a class does with an argument of its constructor or of its call."""

from __future__ import annotations

import ast
import re
from functools import cache, partial

from torch import Tensor

from regard.check.target.argument import nodes_of
from regard.check.target.compared_numbers import is_compared_with_itself
from regard.check.target.documented_shapes import (
    are_of_one_row,
    documented_letters,
    documented_role,
    is_of_samples,
)
from regard.check.target.kept_arguments import any_name, attributes_of, is_tested, is_this
from regard.check.target.rotations import is_rotated_by
from regard.check.target.summed_ids import is_part_of_ids
from regard.check.target.written_axes import is_projected_per_sample

__all__ = [
    "FEW_TOKENS",
    "PARTS",
    "added_to",
    "applied_modules",
    "begins_a_cache",
    "called_with",
    "divides",
    "fields_of",
    "has_fields",
    "has_heads_last",
    "has_places",
    "is_bound",
    "is_called",
    "is_called_unasked",
    "is_context",
    "is_demanded",
    "is_given_anew",
    "is_large_part",
    "is_looked_up",
    "is_measured",
    "is_part",
    "is_step",
    "is_two_sides",
    "is_where_infinite",
    "parts_of",
    "places_of",
    "role_by_use",
    "squared",
]

OVER_TOKENS = r"(?:,\s*(?:dim\s*=\s*)?(?:0|1|-2)\s*)?\)"
"""The end of a call that splits an axis of tokens: the channels are the last axis."""

FEW_TOKENS = 2
"""In a part of a sequence: so few that there are several parts."""
PARTS = re.compile(r"^(?!num_|n_|max_|.*seq_len)(?:.*_)?(?:block|chunk|segment|tile|bucket|partition)(?:_|s?$)")
"""Names of a number of tokens."""


@cache
def has_fields(source: str, name: str) -> bool:
    """Whether fields are read from it by their names, as from a dict: it is a config, whatever its name says."""
    return re.search(rf"\b{re.escape(name)}(?:\s*\[\s*[\"']|\.get\(\s*[\"'])", source) is not None


def fields_of(source: str, name: str) -> list[str]:
    """The names by which something is read from it, as from a dict of weights, or from an object that has them.

    None where it is read otherwise, or by what every tensor has, as its shape.
    """
    tree = nodes_of(source, ast.expr)
    found = [(each.lineno, each.col_offset, field) for each in tree if (field := _field_of(each, name))]
    reads = sum(isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load) for each in tree)
    return list(dict.fromkeys(field for *_, field in sorted(found))) if len(found) == reads else []


def _field_of(tree: ast.expr, name: str) -> str:
    """What is read from something of a name, as q by name["q"] or name.q; empty where this is nothing of the kind."""
    if not isinstance(tree, ast.Subscript | ast.Attribute) or not isinstance(tree.value, ast.Name):
        return ""
    if tree.value.id != name:
        return ""
    if isinstance(tree, ast.Attribute):
        return "" if hasattr(Tensor, tree.attr) else tree.attr
    key = tree.slice.value if isinstance(tree.slice, ast.Constant) else ""
    return key if isinstance(key, str) else ""


def divides(source: str, name: str) -> bool:
    """Whether numbers are divided by it into whole parts, as the width of the tokens by the number of heads."""
    return re.search(rf"(?://|%)\s*{any_name(source, name)}(?![\w.(])", source) is not None


@cache
def called_with(source: str, name: str) -> int | None:
    """With how many arguments it is called by their place, or what keeps it: it is a module; None where it is not."""
    kept = attributes_of(source, name)
    for each in nodes_of(source, ast.Call) if kept else ():
        if any(isinstance(given, ast.Starred) for given in each.args):
            continue
        of_self = isinstance(each.func, ast.Attribute) and isinstance(each.func.value, ast.Name)
        if of_self and each.func.value.id == "self" and each.func.attr in kept:
            return len(each.args)
    return None


@cache
def is_called_unasked(source: str, name: str) -> bool:
    """Whether a module calls what it keeps by the name of an argument, and nothing asks whether that is there."""
    named = re.escape(name)
    asked = rf"(?<!\w){named} is (?:not )?None|\b(?:if|not|and|or) (?:self\.)?{named}\b|(?<!\w){named} (?:or|and) "
    return re.search(rf"\bself\.{named}\(", source) is not None and re.search(asked, source) is None


@cache
def is_called(source: str, name: str) -> int | None:
    """With how many arguments by their place a function, or a call of a module, calls what it is given by this name."""
    calls = (each for each in nodes_of(source, ast.Call) if isinstance(each.func, ast.Name))
    return next((len(each.args) for each in calls if each.func.id == name), None)


@cache
def is_demanded(source: str, name: str) -> bool:
    """Whether a call does not go on without an argument that it could do without by its signature.

    It says so, or reads the argument's shape and never asks whether it is None.
    """
    named = re.escape(name)
    asserts = rf"^\s*assert\s+{named}\s+is\s+not\s+None\b"
    raises = rf"^\s*if\s+{named}\s+is\s+None\s*:\s*raise\b"
    if re.search(f"{asserts}|{raises}", source, re.M) is not None:
        return True
    asked = rf"\b{named}\s+(?:is|or|and)\b|\b(?:if|not|and|or|bool)\b[ (]*{named}\b(?!\.)"
    is_asked = re.search(rf"{asked}|\b(?:exists|default)\(\s*{named}\s*[,)]", source) is not None
    is_read = re.search(rf"(?<![\w.]){named}\.(?:shape|ndim|dtype|size\(|dim\()", source) is not None
    if is_read and not is_asked:
        return True
    if is_asked:
        return False
    if re.search(rf"(?<=[\w\])])\[[^\[\]]*\b{named}\s*\]", source) is not None and not _is_set(source, name):
        return True  # something is looked up by it
    return bool(_summands(source, name)) and not is_tested(source, name) and not _is_set(source, name)


def added_to(source: str, name: str) -> str | None:
    """The name of what it is added to, as tokens to which positions are; None of what is added to nothing of a name."""
    return next(iter(_summands(source, name)), None)


def _summands(source: str, name: str) -> list[str]:
    """The names that stand beside it in sums."""
    found = list[str]()
    for each in nodes_of(source, ast.BinOp):
        if isinstance(each.op, ast.Add):
            sides = [side.id if isinstance(side, ast.Name) else "" for side in (each.left, each.right)]
            found += [other for one, other in (sides, sides[::-1]) if one == name and other]
    return found


def _is_set(source: str, name: str) -> bool:
    """Whether the code gives it another value, or compares it, as with None."""
    compared = [side for each in nodes_of(source, ast.Compare) for side in (each.left, *each.comparators)]
    stored = [each for each in nodes_of(source, ast.Name) if isinstance(each.ctx, ast.Store)]
    return any(isinstance(each, ast.Name) and each.id == name for each in (*compared, *stored))


def is_where_infinite(source: str, name: str) -> bool:
    """Whether it is compared with -inf, as by mask == float("-inf"), or mask.isinf(): no finite number is meant."""
    named = re.escape(name)
    infinite = r"-?\s*(?:(?:torch|math|np|numpy)\.inf\b|float\(\s*['\"]-?inf(?:inity)?['\"]\s*\))"
    return (
        re.search(rf"\b{named}\s*==\s*{infinite}|\bis(?:neg)?inf\(\s*{named}\b|\b{named}\.is(?:neg)?inf\(", source)
        is not None
    )


def is_two_sides(source: str, name: str) -> bool:
    """Whether it is the height and the width of a map of features, as by H, W = feat_size."""
    sides = r"\(?\s*[hH]\w*\s*,\s*[wW]\w*\s*\)?"
    return re.search(rf"^\s*{sides}\s*=\s*{re.escape(name)}\s*(?:#.*)?$", source, re.M) is not None


@cache
def squared(source: str) -> tuple[str, ...]:
    """The sides of square maps: what a view has the square of as an axis, as size in x.view(-1, self.size**2).

    Or what einops is told as the height and as the width, as in rearrange(x, "(b w) c h -> b c h w", w=self.size).
    """
    views = re.findall(r"\.(?:view|reshape)\(((?:[^()]|\([^()]*\))*)\)", source)
    square = re.compile(r"(?:self\.)?\b(\w+)\s*(?:\*\s*(?:self\.)?\1\b|\*\*\s*2\b)")
    told = {side: re.findall(rf"\b{side}\s*=\s*self\.(\w+)\s*[,)]", source) for side in "hw"}
    both = [name for name in told["h"] if name in told["w"]] if "rearrange(" in source else []
    return tuple(dict.fromkeys((*(name for view in views for name in square.findall(view)), *both)))


@cache
def has_places(source: str, name: str) -> bool:
    """Whether something is made with as many rows as the square of it, and no more than one: it is a side."""
    made = r"\b(?:randn|rand|zeros|ones|empty|Embedding)\(\s*(?:1\s*,\s*)?\(?\s*"
    return re.search(rf"{made}{re.escape(name)}\s*(?:\*\*\s*2|\*\s*{re.escape(name)})\b", source) is not None


@cache
def is_looked_up(source: str, name: str) -> bool:
    """Whether an embedding looks up what it is given by this name, or whole numbers are made of it: ids of tokens."""
    named = re.escape(name)
    tables = rf"\b\w*(?:emb|embed|embedding|embeddings|lookup)\w*\(\s*{named}\s*\)"
    return re.search(rf"\bLongTensor\(\s*{named}\s*\)|{tables}", source, re.I) is not None


def is_written_whole(source: str, name: str) -> bool:
    """Whether the documentation says that it holds whole numbers, as in "x: LongTensor (batch, fields)"."""
    kinds = r"(?:torch\.)?(?:long|int(?:eger)?)[ _]?tensor\b"
    return re.search(rf"(?<![\w.]){re.escape(name)}[^\w\n]{{1,4}}(?:an? )?{kinds}", source, re.I) is not None


def is_modulation(source: str, name: str) -> bool:
    """Whether a layer makes scales and shifts of it, as self.adaLN_modulation(c): it is a vector of each sample."""
    return re.search(rf"\bself\.\w*(?:ada_?ln|modulation)\w*\(\s*{re.escape(name)}\s*\)", source, re.I) is not None


def is_tensor(source: str, name: str) -> bool:
    """Whether it is used as no number can be: by an axis that it gets, by its shape, or by what makes a mask of it."""
    used = r"\.(?:unsqueeze|view|reshape|shape|size|expand|dim)\b|\[[^\]]*(?:None|:)[^\]]*\]"
    found = re.search(rf"(?<![\w.]){re.escape(name)}(?:{used})|len\w*_mask\(\s*{re.escape(name)}\b", source)
    return found is not None or is_of_samples(source, name)


def applied_modules(source: str, name: str) -> list[str]:
    """The attributes of self that are called with it alone, as with a sequence that is projected."""
    return re.findall(rf"\bself\.(\w+)\(\s*{re.escape(name)}\s*\)", source)


def is_given_anew(source: str, name: str) -> bool:
    """Whether a line gives the name another value, as x = self.norm(x), and not its last tokens, as x = x[:, -8:]."""
    named = re.escape(name)
    given = rf"^\s*(?:\w+\s*,\s*)*{named}\s*(?:,[\w\s,]+)?[-+*/@]?=(?!=)(?!\s*{named}\[:,\s*-[^\]\n]+:\])"
    return re.search(given, source, re.M) is not None


def role_by_use(source: str, name: str, role: str | None) -> str | None:
    """What an argument of a call is by what the code does with it; None where that says no more than its name.

    Args:
        source: the text of the code.
        name: of the argument.
        role: by its name.
    """
    if role is None and is_looked_up(source, name) and documented_letters(source, name) in ("btd", "bt1"):
        return "x"  # vectors that a linear layer embeds
    if role is None and (told := documented_role(source, name)) and not is_looked_up(source, name):
        return told
    uses = (
        ("ids", (None,), is_looked_up),
        ("ids", (None, "x", "q"), is_part_of_ids),
        ("token types", (None,), partial(is_part_of_ids, is_times=True)),
        ("documents", (None, "token types"), is_compared_with_itself),
        ("diagonal", (None, "mask"), is_diagonal),
        ("ids", (None, "x"), is_written_whole),
        ("positions", (None,), is_gathered_by),
        ("lengths", (None,), is_bound_of_places),
        ("lengths", ("size length",), is_tensor),
        ("boundaries", ("lengths",), are_of_one_row),
        ("condition", (None, "context"), is_modulation),
        ("condition", (None, "context"), is_projected_per_sample),
        ("rope", (None, "absent"), is_spread),
        ("rope", (None,), is_rotated_by),
    )
    found = next((each for each, roles, is_used in uses if role in roles and is_used(source, name)), None)
    may_be_a_side = found is None and (role is None or len(name) == 1)
    return side_told_to_einops(source, name) if may_be_a_side else found


def counts_heads(source: str, name: str, role: str | None, default: object) -> bool:
    """Whether a number with a default, called heads or by one letter, says into how many parts a width is divided."""
    may_count = role == "size heads" or len(name) == 1
    is_number = isinstance(default, int) and not isinstance(default, bool)
    return may_count and is_number and re.search(rf"//\s*{re.escape(name)}\b", source) is not None


def is_gathered_by(source: str, name: str) -> bool:
    """Whether tokens are gathered by it along their axis, or numbers are scattered: each of its own is a place."""
    return (
        re.search(
            rf"\b(?:gather|scatter(?:_add)?_?)\((?:[^()]*,)?\s*(?:dim\s*=\s*)?1\s*,\s*(?:index\s*=\s*)?{re.escape(name)}\b",
            source,
        )
        is not None
    )


def side_told_to_einops(source: str, name: str) -> str | None:
    """Which size an argument is that einops is told beside the sides of a map, as T in rearrange(..., h=H, w=W, t=T).

    By itself h may count heads, and t tokens.
    """
    sizes = {"b": "size batch", "t": "frames", "f": "frames", "h": "height", "w": "width"}
    axes = set[str]()
    for call in nodes_of(source, ast.Call) if "rearrange" in source else ():
        told = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg is not None}
        if ast.unparse(call.func).rpartition(".")[2] == "rearrange" and {"h", "w"} <= told.keys():
            axes.update(axis for axis, value in told.items() if value == name)
    return sizes.get(min(axes)) if len(axes) == 1 else None


def is_measured(source: str, name: str) -> bool:
    """Whether the distances between its vectors are taken: each says where a point is."""
    return re.search(rf"\bcdist\(\s*(?:[\w.]+\s*,\s*)?{re.escape(name)}\b", source) is not None


def is_bound(source: str, name: str) -> bool:
    """Whether something is read up to it, or from it on: it is the number of a place.

    What is read as far as it is long, as up to x.size(1), is a sequence.
    """
    bounds = [
        one
        for each in nodes_of(source, ast.Slice)
        for bound in (each.lower, each.upper)
        if bound is not None
        for one in ast.walk(bound)
    ]
    measured = {id(each.value) for each in bounds if isinstance(each, ast.Attribute) and each.attr in ("shape", "size")}
    return any(isinstance(each, ast.Name) and each.id == name and id(each) not in measured for each in bounds)


def begins_a_cache(source: str, name: str) -> bool:
    """Whether what a module keeps is written from it on, as by self.cache[:, start : start + n] = k, tokens at once.

    A first call begins at 0: from any other place on it would read what nobody wrote. One place, [start : start + 1],
    is that of a step.
    """
    for each in nodes_of(source, ast.Subscript):
        if not isinstance(each.ctx, ast.Store) or not isinstance(each.value, ast.Attribute):
            continue
        for part in each.slice.elts if isinstance(each.slice, ast.Tuple) else (each.slice,):
            if isinstance(part, ast.Slice) and isinstance(part.lower, ast.Name) and part.lower.id == name:
                ends = [part.upper.left, part.upper.right] if isinstance(part.upper, ast.BinOp) else [part.upper]
                return not any(each is None or isinstance(each, ast.Constant) for each in ends)
    return False


def parts_of(source: str, name: str) -> list[str]:
    """The names of what is handed over as one argument, as by nodes, edges = data; none where it is read otherwise."""
    found, reads = list[str](), 0
    for each in nodes_of(source):
        reads += isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        if isinstance(each, ast.Assign) and is_this(each.value, name) and isinstance(each.value, ast.Name):
            parts = [one for to in each.targets if isinstance(to, ast.Tuple | ast.List) for one in to.elts]
            found = [one.id for one in parts if isinstance(one, ast.Name)]
            found = found if len(found) == len(parts) > 1 and name not in found else []
    by_place = _parts_by_place(source, name)
    if len(by_place) == reads - _asked_of_kind(source, name):
        return by_place
    return found if reads - _asked_of_kind(source, name) == 1 else []


def _parts_by_place(source: str, name: str) -> list[str]:
    """The same of what is read by its places, as by nodes = data[0] and edges = data[1]; none of one place alone."""
    found = dict[int, str]()
    for each in nodes_of(source, ast.Assign):
        if len(each.targets) != 1 or not isinstance(each.targets[0], ast.Name):
            continue
        value = each.value
        is_part = isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id == name
        if is_part and isinstance(value.slice, ast.Constant) and type(value.slice.value) is int:
            found[value.slice.value] = each.targets[0].id
    names = [found[each] for each in sorted(found)]
    is_whole = len(names) > 1 and sorted(found) == list(range(len(names)))
    return names if is_whole and name not in names and len({*names}) == len(names) else []


def places_of(source: str, name: str) -> int:
    """How many tensors it holds, where it is read by places alone, as inputs[0] and inputs[1]; 0 where it is not."""
    of_it = [each for each in nodes_of(source, ast.Subscript) if _is_name(each.value, name)]
    found = [each.slice.value for each in of_it if isinstance(each.slice, ast.Constant)]
    reads = sum(_is_name(each, name) for each in nodes_of(source)) - _asked_of_kind(source, name)
    is_whole = len(found) == reads and sorted({*found}, key=str) == list(range(len({*found})))
    return len({*found}) if is_whole else 0


def _is_name(value: ast.AST, name: str) -> bool:
    return isinstance(value, ast.Name) and value.id == name


def _asked_of_kind(source: str, name: str) -> int:
    """How often it is only asked of what type it is, or how long."""
    return len(re.findall(rf"\b(?:isinstance|len|type)\(\s*{re.escape(name)}\s*[,)]", source))


def is_spread(source: str, name: str) -> bool:
    """Whether a call takes it apart, as in rotate(q, *name): it is a tuple."""
    return re.search(rf"[(,]\s*\*{re.escape(name)}\s*[,)]", source) is not None


def has_heads_last(source: str, name: str) -> bool:
    """Whether the code puts the last of three axes in front, as of a bias that a table of distances was asked for."""
    moved = rf"(?<![\w.]){re.escape(name)}\.permute\(\s*[\[(]?\s*2\s*,\s*0\s*,\s*1\s*[,\])]"
    return re.search(moved, source) is not None


def is_diagonal(source: str, name: str) -> bool:
    """Whether a triangle begins at it, as in triu(ones, k=name): it is a number."""
    calls = nodes_of(source, ast.Call) if re.search("triu|tril", source) else ()
    triangles = (each for each in calls if ast.unparse(each.func).rpartition(".")[2] in ("triu", "tril"))
    told = ([*each.args[1:2], *(one.value for one in each.keywords)] for each in triangles)
    return any(isinstance(one, ast.Name) and one.id == name for each in told for one in each)


def is_bound_of_places(source: str, name: str) -> bool:
    """Whether the numbers of places are compared with it, as in arange(n) < name[:, None]: it counts tokens."""
    places = r"\barange\((?:[^()]|\([^()]*\))*\)(?:\[[^\]]*\]|\.\w+\([^()]*\))*"
    return re.search(rf"{places}\s*(?:<|>=)\s*{re.escape(name)}\b", source) is not None


def is_part(source: str, name: str) -> bool:
    """Whether it is the number of tokens in a part of a sequence: by what the code does with it, or by its name."""
    return is_step(source, name) or (PARTS.search(name.lower()) is not None and not is_context(source, name))


def is_context(source: str, name: str) -> bool:
    """Whether a table has a row for each of so many places, or of a text the last so many are read: all of its context.

    Not what a number of tokens is divided by, as a table may be of the places in a part.
    """
    named = any_name(source, name)
    is_read = re.search(rf"\bEmbedding\(\s*{named}\s*,|\[[^\[\]\n]*-\s*{named}\s*:", source) is not None
    return is_read and not divides(source, name)


def is_large_part(source: str, name: str, default: object) -> bool:
    """Whether it is such a number by default as would make a single part of all tokens."""
    return type(default) is int and default > FEW_TOKENS and is_part(source, name)


def is_step(source: str, name: str) -> bool:
    """Whether a sequence is split into parts of its length, or a loop goes on by it: it is no largest length."""
    named = any_name(source, name)
    patterns = (
        rf"\.split\(\s*{named}\s*{OVER_TOKENS}",
        rf"\btorch\.split\([^(),]*,\s*{named}\s*{OVER_TOKENS}",
        rf"\brange\([^,\n]+,[^,\n]+,\s*{named}\s*\)",
        rf"\bunfold\([^()]*,\s*{named}\s*,\s*{named}\s*\)",
    )
    return any(re.search(each, source) is not None for each in patterns)
