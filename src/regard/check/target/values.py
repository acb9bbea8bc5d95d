"""Values to try for each argument of a call."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from regard.check.target.argument import ADDED, BESIDE, MATRICES, OUTPUT_GRADIENT, STREAMS, Argument
from regard.check.target.axes_inside import OF_NO_SAMPLE, OF_QUERIES, map_inside, no_sample_candidates
from regard.check.target.beside_tokens import candidates_beside
from regard.check.target.cache_buffers import buffer_candidates
from regard.check.target.configs import call_configs
from regard.check.target.decoder_steps import (
    LAST_TOKEN,
    OF_STEPS,
    PAST_WEIGHTS,
    asks_in_steps,
    has_cell,
    last_token_candidates,
    layers_of_states,
    past_weight_candidates,
    step_candidates_of,
)
from regard.check.target.documented_shapes import axes_of, documented_letters, documented_shape, is_of_samples
from regard.check.target.draft import Draft
from regard.check.target.errors import Failed
from regard.check.target.feed_forward_arguments import OF_FEED_FORWARD, feed_forward_tensor
from regard.check.target.first_layers import STEP, are_spread, ids_of_samples, step_candidates
from regard.check.target.graph_values import OF_GRAPHS, are_of_each_token, graph_candidates, neighbours
from regard.check.target.layouts import Layout, are_of_sentences
from regard.check.target.looked_up import fields_of
from regard.check.target.made_objects import called, made_config
from regard.check.target.mask_values import TRIED_FORMS, of_asking, open_mask
from regard.check.target.masks_of_sequences import OF_ASKING_TOKENS
from regard.check.target.names import call_meaning, constructor_meaning, is_of_pairs
from regard.check.target.position_values import ROPE_FORMS, position_candidates, rope_candidates
from regard.check.target.preparation import embeds, modules_in
from regard.check.target.relative_tables import OF_DISTANCES, distance_values
from regard.check.target.size_values import size_value
from regard.check.target.time_series import TIME_MARKS, UNREAD, time_mark_candidates
from regard.check.target.token_ids import drawn_ids, ids_left_out, is_candidate, padding_id, without
from regard.check.target.usage import FEW_TOKENS, is_called, is_large_part, is_looked_up
from regard.check.target.written_axes import written_map
from regard.check.target.written_masks import bias_shapes, mask_shapes
from regard.check.target.written_tokens import writes_as_many

__all__ = ["ABSENT", "LAYER_STATE", "ONE_HEAD", "STATE", "TEXT", "VECTOR", "candidates"]

Candidate = Callable[[Draft], Any]
ABSENT = object()
"""The argument is not given."""
STATE = "state"
"""The candidate for a query that is one vector of each sample; of all others no axis is lacking."""
LAYER_STATE = "state of a layer"
"""The same with an axis of layers in front."""
ONE_HEAD = "one head for all"
VECTOR = "vector"
"""The candidate for a query that is one vector of all samples."""
TEXT = "text"
"""The candidate for a context that is a sequence of tokens beside a picture."""
MAP = "map"
"""The candidate for a context with an axis more than a sequence has, as the tokens of several pictures."""


def _absent(_: Draft) -> Any:
    return ABSENT


def _none(_: Draft) -> Any:
    return None


def _constant(value: Any) -> Candidate:
    return lambda draft: value


def candidates(argument: Argument, target: Any, source: str) -> dict[str, Candidate]:
    """What may be given for an argument, by a name for each, the likeliest first."""
    role = argument.role
    found = _of_role(argument, target, source)
    configs = {each.__name__: partial(made_config, kind=each) for each in call_configs(target, argument.name)}
    if argument.required:
        count = is_called(source, argument.name) if role in (None, "rope") else None
        objects = {} if count is None else called(argument.name, target, count)
        return objects or found or {**configs, **_unknown(argument)}
    if configs and role is None:
        return {"absent": _absent, **configs}
    if role in STREAMS or role in ("rope", "cos", "sin", "positions", "vector", "packed vector") or role in MATRICES:
        return {"absent": _absent, **{name: make for name, make in found.items() if name != "none"}}
    if role == "added" and argument.default is None:
        return {"absent": _absent, **found}
    if role == "off" and argument.default is True and "train" in argument.name:
        return {**found, "absent": _absent}
    if role == "off" and argument.default is True and "weights" not in argument.name:
        return {"absent": _absent, **found}
    if role == "causal" and argument.default is True:
        return {"False": _constant(False), "absent": _absent}
    if is_large_part(source, argument.name, argument.default):
        return {"few": _constant(FEW_TOKENS), "absent": _absent}
    if writes_as_many(source, argument.name, argument.default):
        return {"one": _constant(1), "absent": _absent}
    return {"absent": _absent}


def _of_role(argument: Argument, target: Any, source: str) -> dict[str, Candidate]:
    role, name = argument.role or "", argument.name
    if role in STREAMS:
        return _streams(argument, target, source)
    if role in ("mask", "padding"):
        shapes, is_read = mask_shapes(role, name, target, source)
        opened = {f"{form} {shape}": _mask(form, shape, name) for shape in shapes for form in TRIED_FORMS}
        return {**opened, "none": _none} if is_read else {"none": _none, **opened}
    if role == OF_ASKING_TOKENS:
        return dict(of_asking(name))
    if role == "lengths":
        return {"all": lambda draft: torch.full((draft.sizes.batch,), draft.keys), "none": _none}
    if role == "query lengths":
        return {"all": lambda draft: torch.full((draft.sizes.batch,), draft.tokens), "none": _none}
    if role == "token types":
        return {"zeros": lambda draft: torch.zeros(draft.sizes.batch, draft.tokens, dtype=torch.long), "none": _none}
    if role == "marks":
        return {"marked tokens": _marked}
    if role == OF_NO_SAMPLE:
        return dict(no_sample_candidates(name))
    if role == TIME_MARKS:
        return dict(time_mark_candidates())
    if role in (UNREAD, OUTPUT_GRADIENT):
        return {"sequence": lambda draft: draft.draw(*draft.shape("x", draft.layout))}
    if role == STEP:
        return dict(step_candidates())
    if role == "documents":
        return {"one": _one_document, "none": _none}
    if role == "prefix":
        number = {"number": _constant(FEW_TOKENS)}
        each = {"of each sample": lambda draft: torch.full((draft.sizes.batch,), FEW_TOKENS)}
        return {**number, **each} if "int" in argument.annotation else {**each, **number}
    if role == "loss mask":
        return {"all tokens": lambda draft: torch.ones(draft.sizes.batch, draft.tokens), "none": _none}
    if role == "place":
        return {"last": lambda draft: draft.keys - 1}
    if role == "boundaries":
        begin = [] if call_meaning(name) == "lengths" else [0]
        return {"one sequence": lambda draft: torch.tensor([*begin, draft.tokens]), "none": _none}
    if role == "bias":
        shapes = bias_shapes(source, name)
        return {"none": _none} | {f"added {shape}": _mask("added", shape, name) for shape in shapes}
    if role == "causal":
        return {"False": _constant(False), "True": _constant(True)}
    if role in ROPE_FORMS:
        return dict(rope_candidates(role, name, source, target=target))
    if role in OF_DISTANCES:
        return distance_values(role, name)
    if role == "positions":
        return dict((*position_candidates(), *graph_candidates("coordinates")))
    if role == "edges":
        return {f"all {each}": _mask("allowed", each, name) for each in ("qk", "bqk")} | dict(graph_candidates(role))
    if role in OF_GRAPHS:
        return dict(graph_candidates(role, documented_letters(source, name), name))
    if role == LAST_TOKEN:
        return dict(last_token_candidates(source))
    if role in OF_STEPS:
        return step_candidates_of(role, target, source)
    if role == PAST_WEIGHTS:
        return dict(past_weight_candidates(target))
    if role == BESIDE:
        return dict(candidates_beside(target, source, name))
    if role.startswith(ADDED):
        return {"beside each token": lambda draft: _beside(draft, role.removeprefix(ADDED))}
    if role.startswith("w_"):
        return {"weights": lambda draft: _matrix(draft, role)}
    if role == "condition":
        return {"vector of each sample": lambda draft: draft.draw(draft.sizes.batch, draft.context_width)}
    if role == "added":
        sides = {"x": "of the queries", "k": "of the keys"}
        sides = sides if name.lower().startswith(OF_QUERIES) else dict(reversed(sides.items()))
        return {said: partial(_added, side=side) for side, said in sides.items()} | {"none": _none}
    if role in ("vector", "packed vector"):
        return {"vector": lambda draft: draft.draw((3 if role != "vector" else 1) * draft.width) * 0.3, "none": _none}
    if role.startswith("size "):
        return {"size": lambda draft: size_value(draft, role.removeprefix("size "), source, name)}
    if role in ("scale", "temperature"):
        root = {"root": lambda draft: draft.d_head**0.5}
        inverse = {"inverse root": lambda draft: draft.d_head**-0.5}
        divides = re.search(rf"/\s*(?:self\.)?{re.escape(name)}\b", source) is not None
        multiplies = re.search(rf"\*\s*(?:self\.)?{re.escape(name)}\b", source) is not None
        return root if divides or (role == "temperature" and not multiplies) else inverse
    constants: dict[str, dict[str, Candidate]] = {
        "absent": {
            **buffer_candidates(source, name),
            **({"of queries and keys": _of_queries_and_keys} if any(axes_of(source, name, len("bqkd"))) else {}),
            "none": _none,
            "False": _constant(False),
        },
        "off": {"False": _constant(False)},
        "targets": {"none": _none, "ids": lambda draft: _ids(draft, name, "ids", target, 0)},
        "diagonal": {"1": _constant(1), "0": _constant(0)},
        "start": {"0": _constant(0)},
        "layer": {"0": _constant(0)},
        "device": {"cpu": _constant(torch.device("cpu"))},
        "dropout": {"0": _constant(0.0)},
        "window": {
            "window": lambda draft: draft.sizes.window,
            "window before": lambda draft: (draft.sizes.window, 0),
            "none": _none,
        },
        "frames": {"frames": lambda draft: draft.sizes.frames},
        "height": {"rows": lambda draft: draft.grid[0]},
        "width": {"columns": lambda draft: draft.grid[1]},
        "grid": {"grid": lambda draft: draft.grid},
    }
    return constants.get(role, {})


def _written_layout(told: str) -> str:
    """The layout of four axes or more that the documentation writes, as of a cache; empty where it writes none."""
    if len(told) < 4 or told.count("b") != 1 or told.count("t") != 1 or told.count("d") != 2:
        return ""
    return told.replace("d", "h", 1)


def _streams(argument: Argument, target: Any, source: str) -> dict[str, Candidate]:
    name, role = argument.name, str(argument.role)
    sequence = {"sequence": lambda draft: _sequence(draft, name, role)}
    documented = documented_shape(source, name)
    if (
        documented and len(documented[-1]) > 1 and constructor_meaning(documented[-1]) is None
    ):  # it may be written by mistake
        sequence["as wide as the model"] = lambda draft: _as_wide_as_the_model(draft, name, role)
    ids = {
        "ids": lambda draft: _ids(draft, name, role, target, 0),
        "few ids": lambda draft: _ids(draft, name, role, target, 2),
    }
    of_samples = dict(ids_of_samples(target, source, name))
    if of_samples and (are_spread(source, name) or is_of_samples(source, name)):
        return {**of_samples, **ids}
    ids |= of_samples
    if role == "ids":
        count, letters = fields_of(target, name)
        rows = {"ids of fields": lambda draft: _ids_of_fields(draft, name, target, count, letters)} if count else {}
        alike = {"ids of no sample": lambda draft: torch.arange(1, draft.keys)} if is_candidate(name) else {}
        return dict(rows) if letters else {**rows, **ids, **alike, **sequence}
    if role in ("x", "context") and documented_letters(source, name) == "bt":
        return {**ids, **sequence}
    states = {STATE: lambda draft: _state(draft, name), LAYER_STATE: lambda draft: _layer_state(draft, name)}
    if role == "x" and asks_in_steps(source, name):
        return {**(states if has_cell(source) else dict(reversed(states.items()))), **sequence}
    if role in ("x", "context") and (embeds(target) or is_looked_up(source, name)):
        count, _ = fields_of(target, name)
        rows = {"ids of fields": lambda draft: _ids_of_fields(draft, name, target, count, "")} if count else {}
        return {**sequence, **rows, **ids}
    if role == "context":
        told = documented_letters(source, name)
        letters = _written_layout(told) or (written_map(source, name) if len(told) == len("bdyx") else "")
        letters = letters or ("byxd" if len(told) == 4 and told[0] == "b" and told[-1] == "d" else "")
        written = {"as documented": lambda draft: _sequence(draft, name, role, Layout(letters))} if letters else {}
        if letters != "byxd" and map_inside(target, name):
            written["of several things"] = lambda draft: _sequence(draft, name, role, Layout("byxd"))
        own = (
            {"of each query": lambda draft: neighbours(draft, name)} if are_of_each_token(target, source, name) else {}
        )
        return {
            **own,
            **written,
            **sequence,
            **_of_pairs(name),
            **_packed(name, role),
            TEXT: lambda draft: _sequence(draft, name, role, Layout("btd")),
        }
    alone = {VECTOR: lambda draft: draft.draw(draft.width)} if role == "q" else {}
    if role in ("k", "v"):
        # As [bs x n_heads x d_k x seq_len], of keys that are turned before they are handed over.
        is_turned = documented_letters(source, name) == "bddt"
        turned = {"turned": lambda draft: _sequence(draft, name, role, Layout("bhdt"))} if is_turned else {}
        return {**turned, **sequence, ONE_HEAD: lambda draft: _one_head(draft, name)}
    return {**sequence, **states, **alone} if role in ("q", "x") else sequence


def _one_head(draft: Draft, name: str) -> Any:
    """Keys or values that all heads of the queries share, without an axis of heads."""
    draft.axes[name] = Layout("btd")
    return draft.draw(draft.sizes.batch, draft.keys, draft.d_head)


def _state(draft: Draft, name: str) -> Any:
    """One vector of each sample: the state of a decoder, which asks for the next token."""
    draft.axes[name] = Layout("bd")
    return draft.draw(draft.sizes.batch, draft.width_of(name) or draft.width)


def _layer_state(draft: Draft, name: str) -> Any:
    """The same with an axis of layers in front, as recurrent layers return it."""
    draft.axes[name] = Layout("tbd")
    return draft.draw(layers_of_states(draft.target), draft.sizes.batch, draft.width_of(name) or draft.width)


def _sequence(draft: Draft, name: str, role: str, layout: Layout | None = None) -> Any:
    layout = layout or draft.layout
    draft.axes[name] = layout
    draft.shapes[name] = draft.shape(role, layout, name)
    return draft.draw(*draft.shapes[name])


def _as_wide_as_the_model(draft: Draft, name: str, role: str) -> Any:
    """A sequence of which its documentation says another width."""
    draft.axes[name] = draft.layout
    draft.shapes[name] = draft.shape(role, draft.layout)
    return draft.draw(*draft.shapes[name])


def _beside(draft: Draft, name: str) -> Any:
    """A vector beside each of a sequence, the same for all samples."""
    shape = draft.shapes.get(name, draft.shape("x", draft.layout))
    axis = draft.layout.batch_axis
    one = draft.draw(*(1 if number == axis else size for number, size in enumerate(shape)))
    return one.expand(shape).clone()


def _packed(name: str, role: str) -> dict[str, Candidate]:
    """Keys and values in one tensor, where the name says that it is both."""

    def packed(draft: Draft) -> Any:
        return _sequence(draft, name, role, Layout(draft.layout.letters.replace("h", "2h")))

    return {"keys and values": packed} if re.search("kv", name.lower()) else {}


def _added(draft: Draft, side: str) -> Any:
    """A vector for each token of the queries or keys, which is added to it."""
    return draft.draw(*draft.shape(side, draft.layout))


def _of_pairs(name: str) -> dict[str, Candidate]:
    """A vector for each two tokens, where the name speaks of these: nothing attends to it."""
    return {"pairs": _pairs} if is_of_pairs(name) else {}


def _pairs(draft: Draft) -> Any:
    return draft.draw(draft.sizes.batch, draft.tokens, draft.tokens, draft.context_width)


def _of_queries_and_keys(draft: Draft) -> Any:
    """A vector for each query and key, as of their distance, of which a line unpacks the four axes."""
    return draft.draw(draft.sizes.batch, draft.tokens, draft.keys, draft.context_width)


def _ids_of_fields(draft: Draft, name: str, target: Any, count: int, letters: str) -> Any:
    """Several ids of each token, one of each field, of the fewest that a table has.

    Raises:
        Failed: the axes are written in another order.
    """
    several = [_ids(draft, name, "ids", target, 0) for _ in range(count)]
    if letters not in ("", draft.layout.letters):
        raise Failed("the axes are written in another order")
    draft.axes[name] = draft.layout
    return torch.stack([each.roll(number, -1) for number, each in enumerate(several)], -1)


def _ids(draft: Draft, name: str, role: str, target: Any, most: int) -> Any:
    letters = draft.layout.letters.replace("d", "").replace("f", "")
    is_deep = letters == "byx" and are_of_sentences(draft.source, name)
    layout = Layout(letters if ("t" in letters or is_deep) and "h" not in letters else "bt")
    sizes = [
        each.num_embeddings
        for module in modules_in(target)
        for each in module.modules()
        if isinstance(each, nn.Embedding)
    ]
    vocab = most or min([draft.sizes.vocab, *(size for size in sizes if size > 2)])
    draft.axes[name] = layout
    generator = torch.Generator().manual_seed(len(draft.axes))
    padding = padding_id(draft.target, name)
    drawn = drawn_ids(draft.shape(role, layout), vocab, generator, padding)
    return without(drawn, ids_left_out(draft.target, draft.source, name), padding, vocab)


def _one_document(draft: Draft) -> Any:
    """The number of its text for each token: one text."""
    is_batch = draft.layout.batch_axis is not None
    return torch.zeros((draft.sizes.batch, draft.keys) if is_batch else (draft.keys,), dtype=torch.long)


def _marked(draft: Draft) -> Any:
    """True for some tokens of each sample, the first, as for those that are global."""
    marked = torch.zeros(draft.sizes.batch, draft.tokens, dtype=torch.bool)
    marked[:, 0] = True
    return marked


def _mask(form: str, shape: str, name: str) -> Candidate:
    return lambda draft: open_mask(draft, form, shape, name)


def _matrix(draft: Draft, role: str) -> Any:
    if role in OF_FEED_FORWARD:
        return feed_forward_tensor(draft, role)
    inner, outer = draft.width, draft.matrix_columns
    heads, d_head = draft.sizes.heads, draft.sizes.d_head
    shape: tuple[int, ...] = (inner, outer)
    if role == "w_qkv" and draft.weights.startswith("per head"):
        shape = (3, heads, inner, d_head)
    elif role == "w_qkv":
        shape = (3 * outer, inner) if draft.weights.endswith("out-in") else (inner, 3 * outer)
    elif draft.weights.startswith("per head") and role != "w_o":
        shape = (heads, inner, d_head)
    elif draft.weights.startswith("per head"):
        shape = (heads * d_head, inner) if draft.weights.endswith("joined") else (heads, d_head, inner)
    elif (role == "w_o") != draft.weights.endswith("out-in"):
        shape = (outer, inner)
    return draft.draw(*shape) * inner**-0.5


def _unknown(argument: Argument) -> dict[str, Candidate]:
    """For an argument that has to be given and of which nothing is known."""
    name = argument.name
    if "bool" in argument.annotation:
        return {"False": _constant(False), "True": _constant(True)}
    if "int" in argument.annotation and "Tensor" not in argument.annotation:
        return {
            "heads": lambda draft: draft.sizes.heads,
            "tokens": lambda draft: draft.tokens,
            "width": lambda draft: draft.width,
            "0": _constant(0),
        }
    of_a_head = {"vector of each head": lambda draft: draft.draw(draft.sizes.heads, draft.d_head)}
    return {
        **(of_a_head if "bias" in name.lower().split("_") else {}),
        "none": _none,
        "sequence": lambda draft: _sequence(draft, name, "context"),
        **_of_pairs(name),
        "False": _constant(False),
        "heads": lambda draft: draft.sizes.heads,
        "mask": _mask("allowed", "qk", name),
        "marked tokens": _marked,
        "vector": lambda draft: draft.draw(draft.width),
        "column": lambda draft: draft.draw(draft.width, 1),
        "vector of each sample": lambda draft: draft.draw(draft.sizes.batch, draft.context_width),
        **of_a_head,
        "vector of each token": lambda draft: draft.draw(draft.keys, draft.width),
        MAP: lambda draft: _sequence(draft, name, "context", Layout("byxd")),
    }
