"""An explanation in the terminal: tables and bars, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text
from torch import Tensor

from regard.escape import visible
from regard.lens import Explanation
from regard.views.terminal.console import full_block, marker_notes, print_heading, print_line
from regard.views.terminal.explained_tokens import ShownTokens
from regard.views.terminal.formula import formula, in_words, positions
from regard.views.terminal.table import FittingTable

BAR_WIDTH, MIN_BAR_WIDTH = 30, 8
"""The columns of a weight of 1; of a narrow console the least."""

MIN_WIDE_COLUMNS = 100
"""A console with fewer columns gets fewer numbers of each value vector."""
MAX_TOP_KEYS = 8
FIRST_NUMBERS = 4
COUNTS = {2: "two", 3: "three"}


def draw(explanation: Explanation, console: Console, *, max_keys: int | None = None) -> None:
    """Draw an explanation part by part.

    Args:
        explanation: what is drawn.
        console: from `regard.views.terminal.console.console_for`.
        max_keys: of a text with more tokens than this only the word and so many of its strongest keys are listed, and
            the sum of the others; all by default.
    """
    e = explanation
    shown = ShownTokens.of(e, max_keys)
    console.print(Text.assemble(("regard explain", "bold"), f"  {visible(e.model.name)}"))
    print_line(console, visible(e.text))
    if e.target is not None:
        print_line(console, f"-> {visible(e.target)}")
    parts = [_tokens, _weights, *([_next_tokens] if e.next_tokens else []), _arithmetic]
    parts += [*([_context] if e.comparisons else []), _proof]
    for number, part in enumerate(parts, 1):
        console.print()
        part(e, console, number, shown)


def _tokens(e: Explanation, console: Console, number: int, shown: ShownTokens) -> None:
    print_heading(console, f"{number}. The tokens, and what goes in")
    if e.attention == "cross":
        print_line(console, "The source, which the encoder reads:")
        console.print(_source_table(e, shown.keys))
        _left_out(console, len(e.keys.tokens) - len(shown.keys), "tokens of the source")
        console.print()
        print_line(console, "The target, which the decoder writes. At each position it reads the token written before:")
    table = FittingTable(
        ("position", "right"),
        *([("reads", "left")] if e.decoder_inputs is not None else []),
        ("token" if e.decoder_inputs is None else "writes", "left"),
        ("id", "right"),
        ("", "left"),
    )
    for i in shown.queries:
        reads = [] if e.decoder_inputs is None else [Text(visible(e.decoder_inputs[i]))]
        table.add_row(str(i), *reads, _token(e, i, e.queries.tokens[i]), str(e.queries.ids[i]), Text(_remark(e, i)))
    console.print(table)
    _left_out(console, len(e.queries.tokens) - len(shown.queries), "tokens")
    _token_notes(e, console)
    if len(e.word.occurrences) > 1:
        places = ", ".join(str(place[0]) for place in e.word.occurrences)
        print_line(
            console, f"{_quoted(e.word.text)} stands at {places}; this is the first. For another: --token POSITION."
        )
    _input(e, console)


def _source_table(e: Explanation, keys: list[int]) -> FittingTable:
    table = FittingTable(("position", "right"), ("token", "left"), ("id", "right"), ("", "left"))
    for i in keys:
        token, form = e.keys.tokens[i], e.keys.surface_forms[i]
        table.add_row(str(i), Text(visible(token)), str(e.keys.ids[i]), Text(_stands_for(token, form)))
    return table


def _left_out(console: Console, count: int, what: str) -> None:
    """Say how many rows a table leaves out."""
    if count:
        print_line(console, f"{count:,} other {what} are not shown.")


def _token_notes(e: Explanation, console: Console) -> None:
    """Explain special tokens, and the markers inside other tokens."""
    forms = list(zip(e.queries.tokens, e.queries.surface_forms, strict=True))
    # No tokenizer adds the start token of a decoder.
    has_start = e.model.kind == "encoder-decoder" and e.model.stack == "decoder" and e.attention == "self"
    special = [token for token, form in forms[has_start:] if not form]
    if e.attention == "cross":
        special += [token for token, form in zip(e.keys.tokens, e.keys.surface_forms, strict=True) if not form]
    if special := list(dict.fromkeys(special)):
        are = "are" if len(special) > 1 else "is"
        print_line(console, f"{' and '.join(map(visible, special))} {are} put around the text by the tokenizer.")
    if has_start or e.decoder_inputs:
        start_token = e.decoder_inputs[0] if e.decoder_inputs else e.queries.tokens[0]
        print_line(console, f"{visible(start_token)} is what the decoder reads first.")
    for note in marker_notes([*e.queries.tokens, *e.keys.tokens]):
        print_line(console, note)


def _input(e: Explanation, console: Console) -> None:
    tokens, d_model = e.input.shape
    labels = {"token": "  token", "position": "+ position", "token_type": "+ token type"}
    parts = {label: part for name, label in labels.items() if (part := getattr(e.input, name)) is not None}
    sum_text = f"{COUNTS[len(parts)]} vectors are added" if len(parts) > 1 else "there is one vector"
    norm_text = ", and the sum is normed" if len(parts) > 1 else ", which is normed"
    owner = "" if e.model.kind != "encoder-decoder" else f" of the {e.model.stack}"
    position_text = "" if e.input.position is not None else f" {positions(e)}"
    if len(parts) > 1:
        parts["= sum"] = e.input.sum
    if e.input.normed is not None:
        parts["  normed"] = e.input.normed
    print_line(
        console,
        f"The input of the first layer{owner}: {tokens} tokens x {d_model} numbers. For each "
        f"token {sum_text}{norm_text if e.input.normed is not None else ''}.{position_text} The first "
        f"{FIRST_NUMBERS} numbers of each:",
    )
    for row, i in enumerate(e.word.token_index):
        table = FittingTable(
            (e.queries.tokens[i] if e.decoder_inputs is None else f"read: {e.decoder_inputs[i]}", "left"),
            ("", "numbers"),
        )
        for label, part in parts.items():
            table.add_row(label, _numbers(part[row]))
        console.print(table)


def _weights(e: Explanation, console: Console, number: int, shown: ShownTokens) -> None:
    cross = e.attention == "cross"
    verb = "came from" if cross else "looks"
    print_heading(console, f"{number}. Where {_quoted(e.word.text)} {verb}: layer {e.layer}, head {e.head}")
    owner = "model" if e.model.kind != "encoder-decoder" else e.model.stack
    print_line(
        console, f"The {owner} has {e.model.num_layers} layers of {e.model.num_heads} heads, both counted from 0."
    )
    if cross:
        several = len(e.word.token_index) > 1
        print_line(
            console,
            f"Cross-attention, from the target to the source: the row{'s' if several else ''} of the "
            f"position{'s' if several else ''} that write{'' if several else 's'} {_quoted(e.word.text)}.",
        )
    if e.variant.causal:
        print_line(console, "A token of a decoder sees itself and those before it; those after it are masked.")
    if e.variant.window is not None:
        side = "before it" if e.variant.causal else "on each side of it"
        print_line(console, f"This layer has a window: a token sees itself and the {e.variant.window - 1} {side}.")
    bar_width = min(BAR_WIDTH, max(MIN_BAR_WIDTH, console.width - BAR_WIDTH))
    place = [("position", "right")] if shown.is_part else []
    table = FittingTable(("token", "left"), *place, ("weight", "right"), ("", "bar"))
    weights = e.row.weights.mean(dim=0)
    full = full_block(console)
    for i in shown.by_weight(weights):
        weight = weights[i].item()
        masked = e.row.allowed is not None and not e.row.allowed[:, i].any()
        cells = ("masked", _why_masked(e, i)) if masked else (f"{weight:.4f}", full * round(weight * bar_width))
        table.add_row(_key(e, i, e.keys.tokens[i]), *([str(i)] if place else []), *cells)
    if shown.is_part:
        table.add_row(shown.others, "", f"{shown.rest(weights):.4f}", "")
    console.print(table)
    if shown.is_part:
        print_line(console, f"The {len(shown.keys)} largest weights. For all of them: --all, or --json PATH.")
    if len(e.word.token_index) > 1:
        print_line(console, f"The mean over the {len(e.word.token_index)} tokens of the word.")
    if e.variant.sink is not None:
        print_line(
            console,
            f"The weights sum to {weights.sum().item():.4f}: the head's sink takes the rest, and carries no value.",
        )
    _positional_pattern(e, console)
    _top_keys(e, console)


def _positional_pattern(e: Explanation, console: Console) -> None:
    other = e.content_head
    if e.positional_pattern:
        print_line(console, f"A habit: in this head {e.positional_pattern}, whatever they mean.")
        if other:
            print_line(
                console,
                f"Among heads without one, {_quoted(e.word.text)} gives most to {_quoted(other.token)}, "
                f"{other.weight:.4f}: --layer {other.layer} --head {other.head}",
            )
    elif other and (other.layer, other.head) == (e.layer, e.head):
        print_line(
            console,
            "Among heads without a habit, none gives another token more. A habit: nearly all tokens give most to the "
            "same place, such as the token just before them, whatever they mean.",
        )


def _top_keys(e: Explanation, console: Console) -> None:
    cross = e.attention == "cross"
    if not e.top_keys:
        only_word = len([form for form in e.queries.surface_forms if form]) <= len(e.word.token_index)
        print_line(console, f"The text has no other token of its own{'' if only_word else ' that it could see'}.")
        return
    top_keys = e.top_keys[:MAX_TOP_KEYS]
    range_text = "" if len(top_keys) == len(e.top_keys) else f" (the first {len(top_keys)} of {len(e.top_keys)})"
    console.print()
    if cross:
        print_line(
            console,
            f"The words of the source that {_quoted(e.word.text)} came from: the mean share over all layers and heads, "
            f"and where each gets its largest{range_text}:",
        )
    else:
        print_line(
            console,
            f"The largest share that {_quoted(e.word.text)} gives to each other token of the text"
            f"{' that it can see' if e.variant.causal else ''}, over all layers and heads{range_text}:",
        )
    table = FittingTable(
        ("word" if cross else "token", "left"),
        ("position", "right"),
        *([("mean", "right")] if cross else []),
        ("largest" if cross else "weight", "right"),
        ("layer", "right"),
        ("head", "right"),
        compact=True,
    )
    for p in top_keys:
        mean = [f"{p.mean:.4f}"] if cross else []
        table.add_row(Text(visible(p.token)), str(p.index), *mean, f"{p.weight:.4f}", str(p.layer), str(p.head))
    console.print(table)


def _next_tokens(e: Explanation, console: Console, number: int, shown: ShownTokens) -> None:
    print_heading(console, f"{number}. What comes next")
    is_last = max(e.word.token_index) == len(e.queries.tokens) - 1
    behind = "" if is_last else f" after {_quoted(e.word.text)}, before it reads on"
    print_line(console, f"What the model, all its layers and heads together, expects as the next token{behind}:")
    bar_width = min(BAR_WIDTH, max(MIN_BAR_WIDTH, console.width - BAR_WIDTH))
    table = FittingTable(("token", "left"), ("id", "right"), ("probability", "right"), ("", "bar"))
    for each in e.next_tokens:
        bar = full_block(console) * round(each.probability * bar_width)
        table.add_row(Text(visible(each.token)), str(each.id), f"{each.probability:.4f}", bar)
    console.print(table)


def _why_masked(e: Explanation, key: int) -> str:
    """Why no token of the word may attend to a key."""
    if e.variant.causal and key > max(e.word.token_index):
        return "after it"
    return "out of the window"


def _arithmetic(e: Explanation, console: Console, number: int, shown: ShownTokens) -> None:
    d_value = e.row.v.shape[-1]
    print_heading(console, f"{number}. The arithmetic of that row: {formula(e)}")
    print_line(console, in_words(e))
    steps = {"q . k": e.row.scores, "scaled": e.row.scaled}
    steps |= {name: step for name, step in (("capped", e.row.capped), ("biased", e.row.biased)) if step is not None}
    count = FIRST_NUMBERS if console.width >= MIN_WIDE_COLUMNS else FIRST_NUMBERS // 2
    for row, i in enumerate(e.word.token_index):
        console.print()
        print_line(console, _query(e, row, i))
        table = FittingTable(
            ("key", "left"),
            *((name, "right") for name in steps),
            ("weight", "right"),
            (f"v, {d_value} numbers", "numbers"),
        )
        for j in shown.by_weight(e.row.weights[row]):
            masked = e.row.allowed is not None and not e.row.allowed[row, j]
            weight = "masked" if masked else f"{e.row.weights[row, j].item():.4f}"
            scores = (f"{step[row, j].item():.4f}" for step in steps.values())
            table.add_row(_key(e, j, e.keys.tokens[j]), *scores, weight, f"{_numbers(e.row.v[j], count)} ...")
        empty = [""] * (len(steps) - 1)
        if shown.is_part:
            table.add_row(shown.others, "", *empty, f"{shown.rest(e.row.weights[row]):.4f}", "")
        table.add_section()
        total = e.row.weights[row].sum().item()
        if e.variant.sink is not None:
            table.add_row("sink", *empty, f"{e.variant.sink:.4f}", f"{1 - total:.4f}", "")
        table.add_row("weights @ v", "", *empty, f"{total:.4f}", f"{_numbers(e.row.output[row], count)} ...")
        console.print(table)


def _query(e: Explanation, row: int, index: int) -> str:
    token = _quoted(e.queries.tokens[index])
    name = f"{token}, position {index}"
    if e.decoder_inputs is not None:
        name = f"position {index}, which reads {_quoted(e.decoder_inputs[index])} and writes {token}"
    return f"q of {name}, {e.row.q.shape[-1]} numbers: {_numbers(e.row.q[row])} ..."


def _context(e: Explanation, console: Console, number: int, shown: ShownTokens) -> None:
    print_heading(
        console, f"{number}. How context changes {_quoted(e.word.text)}: cosine of its vectors in two sentences"
    )
    print_line(
        console,
        "1 is the same direction. At the input the word's vector knows nothing of the other words; each layer mixes in "
        f"{'those before it' if e.variant.causal else 'the other words'}.",
    )
    for n, comparison in enumerate(e.comparisons):
        places = ", ".join(str(i) for i in comparison.token_index)
        print_line(console, f"{_letter(n)}  {visible(comparison.text)}  (position {places})")
    table = FittingTable(("", "left"), *((_letter(n), "right") for n in range(len(e.comparisons))))
    for step, cosines in enumerate(zip(*(comparison.cosine for comparison in e.comparisons), strict=True)):
        name = "at the input" if step == 0 else f"after layer {step - 1}"
        table.add_row(name, *(f"{cosine:.4f}" for cosine in cosines))
    console.print(table)


def _proof(e: Explanation, console: Console, number: int, shown: ShownTokens) -> None:
    proof = e.proof
    print_heading(console, f"{number}. The proof")
    kernel = "some rows at a time" if e.variant.kernel == "chunked" else "on PyTorch's fused kernel"
    print_line(
        console,
        f"The same row twice, from the same q, k and v: by the model in its own forward pass, {kernel}, and by the "
        "definition, regard.steps, in float64.",
    )
    table = FittingTable(
        ("weights @ v", "left"), (f"the first {FIRST_NUMBERS} of {e.row.v.shape[-1]} numbers", "numbers")
    )
    table.add_row("the model", _numbers(proof.model_output[0]))
    table.add_row("the definition", _numbers(e.row.output[0]))
    console.print(table)
    verdict = "The proof holds" if proof.verified else "THE PROOF FAILS, do not trust these numbers"
    print_line(
        console,
        f"{verdict}: the largest difference of all {proof.num_values} numbers is {proof.max_error:.1e}; "
        f"up to {proof.tolerance:.1e} can be rounding.",
        style="" if proof.verified else "bold red",
    )


def _remark(e: Explanation, index: int) -> str:
    """The last column of a token: whether it is explained, and its text where the token looks different."""
    explained = "<- explained " if index in e.word.token_index else ""
    return explained + _stands_for(e.queries.tokens[index], e.queries.surface_forms[index])


def _stands_for(token: str, form: str) -> str:
    return f"for {_quoted(form)}" if form.casefold() not in token.casefold() else ""


def _token(e: Explanation, index: int, token: str) -> Text:
    return Text(visible(token), style="bold yellow" if index in e.word.token_index else "")


def _key(e: Explanation, index: int, token: str) -> Text:
    """A key; in cross-attention it belongs to another text, in which no token is explained."""
    return _token(e, index, token) if e.attention == "self" else Text(visible(token))


def _quoted(word: str) -> str:
    return f"'{visible(word)}'"


def _numbers(row: Tensor | Iterable[float], count: int = FIRST_NUMBERS) -> str:
    return "  ".join(f"{float(x):8.4f}" for x, _ in zip(row, range(count), strict=False))


def _letter(n: int) -> str:
    return chr(ord("A") + n) if n < 26 else str(n)
