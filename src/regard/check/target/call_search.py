"""The search for a call that runs: which layout, which number of tokens, which value for each argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.location import first_line
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import MATRICES, OUTPUT_GRADIENT, STREAMS, Argument
from regard.check.target.best_first import best_first
from regard.check.target.cache_forms import cache_names
from regard.check.target.call_budget import Budget
from regard.check.target.configs import is_config
from regard.check.target.decoder_steps import LAST_TOKEN, LAST_VECTOR, loses_first_axis, state_widths
from regard.check.target.documented_shapes import documented_letters, documented_shape, written_letters
from regard.check.target.draft import (
    FRAMED,
    MAX_TOKENS,
    SMALL_GRID,
    Draft,
    grids,
    pictures_of_frames,
    sides_of_pictures,
    token_counts,
    widths,
)
from regard.check.target.errors import Failed
from regard.check.target.facts import facts_of
from regard.check.target.graph_values import NUMBERS_OF_PAIRS
from regard.check.target.influence import Influence, given_stream
from regard.check.target.layouts import Layout, layouts
from regard.check.target.mask_values import MASK_FORMS, of_keys_first
from regard.check.target.names import call_meaning
from regard.check.target.numpy_by_torch import names_numpy
from regard.check.target.open_masks import with_open_masks
from regard.check.target.position_values import ROPE_FORMS, ROPE_SHAPES, check_rotated, rope_widths
from regard.check.target.preparation import embeds, modules_in
from regard.check.target.running import Invocation, Stream, first_of_several
from regard.check.target.sizes import Sizes
from regard.check.target.turning_tables import first_output, with_turning_tables
from regard.check.target.user_inputs import UserInputs
from regard.check.target.values import ABSENT, LAYER_STATE, ONE_HEAD, STATE, TEXT, VECTOR, candidates
from regard.check.target.weight_stores import WEIGHT_STORES, weight_stores
from regard.check.target.written_axes import written_sides

__all__ = ["FAR", "ONE_QUERY", "CallPlan", "search_calls"]

ONE_QUERY = "one query"
"""The choice of lengths by which one query is beside several keys, as in a step of a decoder."""
IN_PLACE = re.compile(r"modified in-?place|leaf Variable that requires grad .*in-place")
"""What PyTorch says of writing in place where it keeps track of gradients, and only there."""
SIZE_CHOICES = ("lengths", "width", "context width", "tokens", "image", "grid", "weights")
"""That change how long the axes of tensors are, and not how many there are."""
_GRID_OF_TOKENS = re.compile(rf"(?:grid|{FRAMED}) (?P<rows>\d+)x(?P<columns>\d+)(?:, and one)?")
"""A number of tokens that are those of a map of features: its sides, where they are handed over, are these."""
JOINS = re.compile(r"\bcat\([^\n]*(?:dim\s*=\s*|,\s*)(?:1|2|-2)\s*\)")
"""What joins tensors along an axis of tokens."""
FAR = 1 << 30
"""The progress of a call that runs to its end."""
SEQUENCE = "btd"
"""The letters of a documented shape that tell of an argument that it is a sequence of vectors."""
ROLES = {"image": "x", "qkv": "x"}
"""The role of a stream in a report, where it is another."""


@dataclass(eq=False)
class CallPlan:
    """One way to call a target of any size."""

    arguments: list[Argument]
    layout: Layout
    source: str
    """The text of the target."""
    choices: dict[str, str] = field(default_factory=dict)
    """For each choice, the name of the candidate that is taken."""
    user_inputs: UserInputs = field(default_factory=UserInputs)
    settings: UserSettings = field(default_factory=UserSettings)
    in_steps: bool = False
    """Whether the tokens are handed over one at a time."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The candidates of some choices that no other is tried beside."""

    def options(self, target: Any, sizes: Sizes) -> dict[str, list[str]]:
        """For each choice the names of its candidates, the likeliest first."""
        roles = {each.role for each in self.arguments if each.name not in self.user_inputs.names}
        found = {"lengths": ["other", "same"] if roles & {"k", "v", "context"} else ["same"]}
        if [each.role for each in self.arguments if each.role in STREAMS] == ["context"]:
            found["lengths"].reverse()  # it attends to itself
        asked = {"q", "k"} <= roles or {"q", "v"} <= roles or {"x", "context"} <= roles
        if asked and "documents" not in roles:
            found["lengths"].append(ONE_QUERY)
        if roles & {"boundaries", NUMBERS_OF_PAIRS}:  # one sequence, or the nodes of one graph
            found["lengths"] = ["same"]
        if not {"ids", "image"} >= roles & set(STREAMS) or not roles or ("ids" in roles and not embeds(target)):
            found["width"] = _distinct(widths(target, sizes))
        if roles & {"k", "v", "context", "condition"}:
            found["context width"] = _distinct(_context_widths(target, sizes))
        of_states = state_widths(target) if roles & {LAST_TOKEN, LAST_VECTOR} else []
        if len(of_states) == 1:  # beside it a state, and several
            known = _context_widths(target, sizes)
            for choice in {"width", "context width"} & {*found}:
                found[choice].sort(key=lambda name: known.get(name) not in of_states)
        found |= {"context width": found["context width"][:4]} if "context width" in found else {}
        counts = token_counts(target, sizes)
        has_frames = "frames" in roles
        if "grid" in roles or {"height", "width"} <= roles:  # the sides of a map are handed over: by its name
            counts = dict(sorted(counts.items(), key=lambda each: not each[0].startswith("grid ")))
        else:  # no token beside those of a map
            counts = {name: n for name, n in counts.items() if not (name.startswith("grid ") and name.endswith("one"))}
        found["tokens"] = _distinct({each: counts[each] for each in counts if each.startswith(FRAMED) == has_frames})
        if sizes.names_length(name for each in self.arguments for name in documented_shape(self.source, each.name)):
            found["tokens"].sort(key=lambda each: counts[each] != sizes.length)
        if "image" in roles:
            told, others = sides_of_pictures(target, sizes)
            found["image"] = list(dict.fromkeys([*map(str, told), "image", *map(str, others), "224", "32"]))
            found["width"] = ["3", "1", *_distinct(widths(target, sizes))]
        elif "y" in self.layout.letters:
            sides = grids(target, sizes)
            if "z" in self.layout.letters:
                small = [SMALL_GRID, *(each for each in sides if sizes.frames * each[0] * each[1] <= MAX_TOKENS)]
                pictures = pictures_of_frames(target, sizes)
                sides = [*small, *pictures]
                found["width"] = [*found.get("width", []), *(["3"] if pictures else [])]
            named = [each.name for each in self.arguments if each.required and each.role in STREAMS][:1]
            for asking in named:
                rows, columns = written_sides(self.source, asking, self.layout.letters, dict(sizes.named))
                if rows or columns:  # beside it few: there are as many rows of tokens as the other side is long
                    sides = [(rows or height, columns or width) for height, width in (SMALL_GRID, *sides)]
            found["grid"] = list(dict.fromkeys(f"{height}x{width}" for height, width in sides))
        if roles & set(ROPE_FORMS):
            check_rotated(target)
            draft = self._draft(target, sizes)
            found["rope"] = [f"{shape} {size}" for size in _distinct(rope_widths(draft)) for shape in ROPE_SHAPES]
            if {"x", "context"} <= {each.role for each in self.arguments if each.required} and JOINS.search(
                self.source
            ):
                found["rope tokens"] = ["of both", "of one"]  # two sequences may be joined before they are turned
        if roles & MATRICES - {"w_o"}:
            # Who asks for the width of the tokens alone takes it for that of all heads as well.
            required = {each.role for each in self.arguments if each.required}
            is_square = "size d_model" in required and "size d_head" not in required
            found["weights"] = weight_stores(self.arguments, self.source, is_square=is_square)
        found["numbers"] = ["tensors"]
        if names_numpy(target):
            found["numbers"] += ["arrays"] if "torch" not in self.source or "ids" in roles else []
            found["numbers"].sort(key=lambda each: (each == "tensors") == ("torch" not in self.source))
        asked_of_keys = bool({each.role for each in self.arguments} & {"k", "v", "context"})
        for each in self.arguments:
            if each.name not in self.user_inputs.names:
                several = list(self._makers(each, target))
                left_out = set() if self._may_have_a_state else {STATE}
                left_out |= set() if self._may_have_a_state and self.layout.letters == "btd" else {LAYER_STATE}
                left_out |= set() if "y" in self.layout.letters else {TEXT}
                left_out |= set() if self.layout.letters == "bhtd" else {ONE_HEAD}
                left_out |= {VECTOR} if each.role in STREAMS and asked_of_keys else set()
                if self._may_have_a_state and each.role == "mask":
                    several = of_keys_first(several)
                if self.layout.letters != "tbd":  # samples that stand last
                    several = [one for one in several if not one.endswith(" kb")]
                if STATE in several:
                    written = self._written_state(each.name)
                    several.sort(key=lambda one: one != written)
                if STATE in several and any(one.role in (LAST_TOKEN, LAST_VECTOR) for one in self.arguments):
                    several, left_out = [one for one in several if one in (STATE, LAYER_STATE)], set()
                found[f"argument {each.name}"] = [one for one in several if one not in left_out]
                if STATE in several and self._may_have_a_state and call_meaning(each.name) is None:
                    # A sequence of as many tokens as there are keys runs by accident where a state is meant.
                    found["lengths"] = found.pop("lengths")
        return found | {name: [choice] for name, choice in self.fixed.items()}

    def _makers(self, argument: Argument, target: Any) -> Mapping[str, Callable[[Draft], Any]]:
        """What may be given for an argument, read once of a target."""
        facts, key = facts_of(target), (CallPlan, id(argument), self.source)
        if key not in facts:
            facts[key] = (argument, candidates(argument, target, self.source))  # kept, so that its number stays its own
        makers: Mapping[str, Callable[[Draft], Any]] = facts[key][1]
        return makers

    @property
    def _may_have_a_state(self) -> bool:
        """Whether it may be asked by one vector of each sample: beside keys, or a context, that are sequences."""
        required = {each.role for each in self.arguments if each.required}
        is_asked = bool(required & {"k", "v", "context"}) and not required >= {"k", "v"}
        told = {each.role: written_letters(self.source, each.name) for each in self.arguments if each.required}
        is_asked = is_asked or (told.get("q") == "bd" and len(told.get("k", "")) == len("btd"))
        return self.layout.letters in ("btd", "tbd") and is_asked

    def _written_state(self, name: str) -> str:
        """Which vector of each sample the documentation writes, or the code takes the last layer's of; or none."""
        told = written_letters(self.source, name)
        if told == "bd":
            return STATE
        is_of_layers = f"{name}[-1]" in self.source or loses_first_axis(self.source, name)
        return LAYER_STATE if told in ("dbd", "1bd") or is_of_layers else ""

    @property
    def has_wide_mask(self) -> bool:
        """Whether a mask that has to be given has more axes than one for each key of each sample."""
        chosen = [self.choices.get(f"argument {each.name}", "") for each in self.arguments]
        return any(
            form in MASK_FORMS and len(shape) > 2 for form, _, shape in (each.rpartition(" ") for each in chosen)
        )

    def _is_spread_out(
        self, outputs: Sequence[Tensor], options: Mapping[str, Sequence[str]], target: Any, sizes: Sizes
    ) -> bool:
        """Whether vectors as wide as a sequence are returned with an axis more, where one asking vector may be meant.

        A state with an axis in front, beside which a sequence of states is broadcast, meets every key by accident; or
        each query meets one key alone, and all weights are 1.
        """
        draft, shape = self._draft(target, sizes), outputs[0].shape
        may_be_a_state = any(STATE in names for names in options.values())
        is_longer = len(shape) == len(self.layout.letters) + 1
        is_wide = shape[-1] in (draft.width, draft.context_width) and shape[-1] != draft.d_head
        are_equal = all(bool((each == each.flatten()[:1]).all()) for each in outputs)
        return may_be_a_state and is_longer and (is_wide or are_equal)

    def is_square(self, target: Any, sizes: Sizes) -> bool:
        """Whether it has as many tokens as channels, and not those that were tried first, before a convolution.

        Or before an einsum, which multiplies channels that stand in front of the tokens by a matrix just as well.
        """
        is_crossed = "einsum(" in self.source
        if not any(
            isinstance(each, nn.Conv1d) or (is_crossed and any(one.ndim == 2 for one in each.parameters(recurse=False)))
            for module in modules_in(target)
            for each in module.modules()
        ):
            return False
        draft = self._draft(target, sizes)
        return "td" in self.layout.letters and draft.tokens == draft.width != sizes.tokens

    def invocation(self, target: Any, sizes: Sizes) -> Invocation:
        """The call, which may not run.

        The axes of the user's inputs are found by influence: such a call has to run.
        """
        draft = self._draft(target, sizes)
        given: dict[str, Any] = {}
        handed_over = self.user_inputs.of(sizes)
        for each in self.arguments:
            if each.name in handed_over:
                given[each.name] = handed_over[each.name]
                continue
            makers = self._makers(each, target)
            name = self.choices.get(f"argument {each.name}", next(iter(makers)))
            value = makers.get(name, next(iter(makers.values())))(draft)
            if value is not ABSENT:
                given[each.name] = value
        for name, value in handed_over.items():
            given.setdefault(name, value)
        positional = [each.name for each in self.arguments if each.positional and each.name in given]
        streams = [
            Stream(each.name, ROLES.get(role, role), axes.batch_axis, axes.token_axes, axes.head_axis)
            for each in self.arguments
            if (axes := draft.axes.get(each.name)) is not None
            for role in ["ids" if not given[each.name].is_floating_point() else each.role or "x"]
        ]
        invocation = Invocation(target, given, positional, streams, settings=self.settings)
        image = bool(handed_over) and "y" in layouts(target, self.arguments)[0].letters
        for each in self.arguments:
            value = given.get(each.name)
            if each.name in handed_over and each.role in STREAMS and isinstance(value, torch.Tensor) and value.ndim:
                role = "ids" if not value.is_floating_point() else ROLES.get(each.role, each.role)
                streams.append(given_stream(invocation, each.name, role, image))
        for each in self.arguments:
            if each.within:
                invocation.packed.setdefault(each.within, []).append(each.name)
        roles = {each.name: call_meaning(each.name) if each.role == "given" else each.role for each in self.arguments}
        invocation.masks = [name for name, role in roles.items() if role in ("mask", "padding")]
        invocation.causal_flags = [name for name, role in roles.items() if role == "causal"]
        invocation.lengths = [name for name, role in roles.items() if role == "lengths"]
        invocation.documents = [name for name, role in roles.items() if role == "documents"]
        invocation.prefixes = [name for name, role in roles.items() if role == "prefix"]
        invocation.boundaries = [name for name, role in roles.items() if role == "boundaries"]
        invocation.guessed = [
            each.name
            for each in self.arguments
            if each.required and (each.role is None or each.guessed) and each.name not in handed_over
            if given.get(each.name) is not None and not is_config(given[each.name])
            if not (each.name in draft.axes and documented_letters(self.source, each.name) == SEQUENCE)
        ]
        invocation.rows = self.user_inputs.rows
        invocation.sizes = draft.known()
        invocation.arrays = self.choices.get("numbers") == "arrays" or self.user_inputs.are_arrays
        invocation.gradients = self.choices.get("gradients") != "off"
        invocation.completion = first_of_several if OUTPUT_GRADIENT in {each.role for each in self.arguments} else None
        if self.in_steps:
            invocation.in_steps, names = True, [each.name for each in self.arguments if each.role == "start"]
            invocation.steps_from = next(iter(names), "")
            invocation.carried = () if names else cache_names(invocation).arguments
        return invocation

    def _draft(self, target: Any, sizes: Sizes) -> Draft:
        choice = self.choices.get
        width = widths(target, sizes)
        label = choice("width", "d_model")
        wide = int(label) if label.isdigit() else width.get(label, sizes.d_model)
        counts = token_counts(target, sizes)
        tokens = counts.get(choice("tokens", "tokens"), sizes.tokens)
        if "image" in self.choices:
            tokens = sizes.image if self.choices["image"] == "image" else int(self.choices["image"])
        keys = tokens if choice("lengths", "other") == "same" else sizes.context
        tokens = 1 if choice("lengths") == ONE_QUERY else tokens
        context = _context_widths(target, sizes).get(choice("context width", "d_context"), wide)
        draft = Draft(target, self.source, sizes, self.layout, tokens, keys, wide, context)
        if "grid" in self.choices:
            rows, columns = map(int, self.choices["grid"].split("x"))
            draft.grid = (rows, columns)
        elif (sides := _GRID_OF_TOKENS.fullmatch(choice("tokens", ""))) is not None:
            draft.grid = (int(sides["rows"]), int(sides["columns"]))
        draft.grouped = choice("heads") == "grouped"
        draft.weights = choice("weights", WEIGHT_STORES[0])
        roles = {each.role for each in self.arguments}
        if roles & MATRICES - {"w_o"} and not draft.weights.startswith("per head"):
            contexts = [each.name for each in self.arguments if each.role == "context" and each.required]
            has_heads = any(len(documented_letters(self.source, each)) > 3 for each in contexts)
            draft.matrix_heads = sizes.heads if "size heads" in roles or has_heads else 1
        draft.pairs, draft.first = choice("pairs", ""), int(choice("first", "0"))
        rope = choice("rope", "1td whole")
        draft.rope_tokens = tokens + keys if choice("rope tokens") == "of both" else tokens
        draft.rope = (rope, rope_widths(draft).get(rope.partition(" ")[2], draft.d_head))
        return draft


def search_calls(plan: CallPlan, target: Any, sizes: Sizes, max_tries: int, budget: Budget) -> Iterator[CallPlan]:
    """Every plan found that runs, the likeliest first; one whose output is not finite comes last.

    Raises:
        Failed: none runs; with the error of the one that came farthest.
    """
    options = plan.options(target, sizes)

    def attempt(indices: dict[str, int]) -> CallPlan:
        budget.spend()
        choices = {name: names[indices.get(name, 0)] for name, names in options.items()}
        tried = replace(plan, choices=choices)
        invocation = tried.invocation(target, sizes)
        try:
            result = invocation.run()
        except Failed as failed:
            if IN_PLACE.search(str(failed)) is None:
                raise
            tried = replace(plan, choices={**choices, "gradients": "off"})
            result = tried.invocation(target, sizes).run()
        if result is None:
            raise Failed("returns None", FAR, first_line(target.forward if isinstance(target, nn.Module) else target))
        outputs = invocation.outputs(result)
        if not any(each.numel() > 1 for each in outputs):
            raise Failed("it returned no tensor of floats")
        if any(not bool(each.isfinite().all()) for each in outputs if each.numel()):
            broken.append(tried)
            raise Failed("it returned NaN or infinity")
        if outputs[0].is_complex() and all(
            not invocation.arguments[each.argument].is_complex() for each in invocation.streams
        ):
            broken.append(tried)
            raise Failed("it returned complex numbers: what turns real ones was handed over as complex")
        if outputs[0].ndim > len(plan.layout.letters) and tried.has_wide_mask:
            broken.append(tried)
            raise Failed("it returned a tensor with the axes of the mask")
        letters, shape = plan.layout.letters, outputs[0].shape
        if tried._is_spread_out(outputs, options, target, sizes):
            broken.append(tried)
            raise Failed("it returned an axis more than its sequences have, before the width: it runs by broadcasting")
        is_one = choices["lengths"] == ONE_QUERY and len(shape) == len(letters) and 1 not in shape
        tokens = tried._draft(target, sizes).tokens
        if "p" in letters and not (len(shape) == len(letters) and shape[letters.index("t")] == tokens):
            raise Failed("it returned another number of tokens: what was taken for tokens are the channels", FAR - 1)
        is_guessed = any(each.required and each.role is None for each in plan.arguments)
        if len(shape) > len(letters) + (not is_guessed) or is_one:  # an axis more may be of heads
            broken.append(tried)
            raise Failed("it returned a tensor of other axes than its sequences: it runs by broadcasting")
        return tried

    broken: list[CallPlan] = []

    def of_arrays(indices: dict[str, int]) -> CallPlan:
        """The same; functions of numpy take tensors as well, and what they make of them is not seen."""
        found = attempt(indices)
        if "arrays" in options["numbers"] and found.choices["numbers"] == "tensors":
            with suppress(Failed):
                return attempt({**indices, "numbers": 0})
        return found

    counts = {name: len(names) for name, names in options.items()}
    search = best_first(counts, of_arrays, budget.granted(max_tries), SIZE_CHOICES)
    found = False
    for each in search.results():
        found = True
        each = _of_one_query(each, target, sizes)
        yield with_open_masks(with_turning_tables(each, target, sizes), target, sizes)
    yield from broken[:1]
    if not found and not broken:
        raise search.failure or Failed("nothing was tried")


def _of_one_query(plan: CallPlan, target: Any, sizes: Sizes) -> CallPlan:
    """The plan with a single query, where several run only as many as keys, and then meet one key each.

    As by Bahdanau's decoder, whose query (batch, 1, width) is added to every key: of several, each output would depend
    on all of them.
    """
    if plan.choices.get("lengths") != "same":
        return plan
    invocation = plan.invocation(target, sizes)
    asking = {"q": {"k", "v"}, "x": {"context"}}
    roles = {each.role for each in invocation.streams}
    query = next((each for each in invocation.streams if asking.get(each.role, set()) & roles), None)
    if query is None or len(query.token_axes) != 1:
        return plan
    alone = replace(plan, choices={**plan.choices, "lengths": ONE_QUERY})
    try:
        if Influence(invocation).locality(query.argument, query.token_axes[0]) is not False:
            return plan
        several, one = (tuple(first_output(each, target, sizes).shape) for each in (plan, alone))
    except Failed:
        return plan
    asks = invocation.arguments[query.argument].shape
    if asks[-1] not in several:  # weights alone are returned, of each key
        several = tuple(sizes.context if size == asks[query.token_axes[0]] else size for size in several)
    return alone if one == several else plan  # else what was taken for the tokens are the channels


def _context_widths(target: Any, sizes: Sizes) -> dict[str, int]:
    """The widths that keys and values may have, the likeliest first; beside a query, what its layers take in all."""
    found = widths(target, sizes)
    rest = {f"rest of {name}": n - sizes.d_model for name, n in found.items() if name.startswith("input of")}
    return {"d_context": sizes.d_context, **{name: n for name, n in rest.items() if n > 0}, **found}


def _distinct(named: Mapping[str, int]) -> list[str]:
    """The names of the different numbers, the first name of each."""
    found: dict[int, str] = {}
    for name, value in named.items():
        found.setdefault(value, name)
    return list(found.values())
