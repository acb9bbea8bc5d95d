"""An explanation in the terminal: tables and bars, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.escape import visible
from regard.lens import Explanation
from regard.views.terminal.console import full_block, marker_notes, new_table, print_heading, print_line
from regard.views.terminal.formula import formula, in_words, positions

__all__ = ["draw"]

BAR_WIDTH = 30
NARROW = 100
"""A console below this width gets fewer numbers of a vector beside the scores."""
PARTNERS = 8
FIRST_NUMBERS = 4
COUNTS = {2: "two", 3: "three"}


def draw(explanation: Explanation, console: Console) -> None:
    """Show an explanation part by part."""
    e = explanation
    console.print(Text.assemble(("regard explain", "bold"), f"  {visible(e.model)}"))
    print_line(console, visible(e.text))
    if e.target is not None:
        print_line(console, f"-> {visible(e.target)}")
    parts = [_tokens, _where, _arithmetic, *([_context] if e.compare else []), _proof]
    for number, part in enumerate(parts, 1):
        console.print()
        part(e, console, number)


def _tokens(e: Explanation, console: Console, number: int) -> None:
    print_heading(console, f"{number}. The tokens, and what goes in")
    if e.attention == "cross":
        print_line(console, "The source, which the encoder reads:")
        console.print(_source(e))
        console.print()
        print_line(console, "The target, which the decoder writes. At each position it reads the token written before:")
    table = new_table(
        ("position", "right"),
        *([("reads", "left")] if e.reads is not None else []),
        ("token" if e.reads is None else "writes", "left"),
        ("id", "right"),
        ("", "left"),
    )
    for i, (token, id_) in enumerate(zip(e.tokens, e.ids, strict=True)):
        reads = [] if e.reads is None else [visible(e.reads[i])]
        table.add_row(str(i), *reads, _token(e, i, token), str(id_), Text(_remark(e, i)))
    console.print(table)
    _signs(e, console)
    if len(e.occurrences) > 1:
        places = ", ".join(str(place[0]) for place in e.occurrences)
        print_line(console, f"{_quoted(e.token)} stands at {places}; this is the first. For another: --token POSITION.")
    _what_goes_in(e, console)


def _source(e: Explanation) -> Table:
    table = new_table(("position", "right"), ("token", "left"), ("id", "right"), ("", "left"))
    for i, (token, id_, written) in enumerate(zip(e.keys, e.key_ids or [], e.key_written or [], strict=True)):
        table.add_row(str(i), Text(visible(token)), str(id_), Text(_stands_for(token, written)))
    return table


def _signs(e: Explanation, console: Console) -> None:
    """What the tokens that are no words mean, and the signs inside others."""
    written = list(zip(e.tokens, e.written, strict=True))
    # The first token that a decoder reads is put there by nobody's tokenizer.
    started = e.kind == "encoder-decoder" and e.stack == "decoder" and e.attention == "self"
    around = [token for token, stands_for in written[started:] if not stands_for]
    around += [token for token, stands_for in zip(e.keys, e.key_written or [], strict=False) if not stands_for]
    if around := list(dict.fromkeys(around)):
        are = "are" if len(around) > 1 else "is"
        print_line(console, f"{' and '.join(map(visible, around))} {are} put around the text by the tokenizer.")
    if started or e.reads:
        print_line(console, f"{visible(e.reads[0] if e.reads else e.tokens[0])} is what the decoder reads first.")
    every = [*e.tokens, *(e.key_tokens or [])]
    for note in marker_notes(every):
        print_line(console, note)


def _what_goes_in(e: Explanation, console: Console) -> None:
    tokens, d_model = e.input.shape
    labels = {"token": "  token", "position": "+ position", "segment": "+ segment"}
    given = {label: part for name, label in labels.items() if (part := getattr(e.input, name)) is not None}
    added = f"{COUNTS[len(given)]} vectors are added" if len(given) > 1 else "there is one vector"
    normed = ", and the sum is normed" if len(given) > 1 else ", which is normed"
    rest = "" if e.input.position is not None else f" {positions(e)}"
    if len(given) > 1:
        given["= sum"] = e.input.sum
    if e.input.normed is not None:
        given["  normed"] = e.input.normed
    print_line(
        console,
        f"The input of the first layer{'' if e.kind != 'encoder-decoder' else f' of the {e.stack}'}: {tokens} tokens x "
        f"{d_model} numbers. For each token {added}{normed if e.input.normed is not None else ''}.{rest} The first "
        f"{FIRST_NUMBERS} numbers of each:",
    )
    for row, i in enumerate(e.token_index):
        table = new_table((e.tokens[i] if e.reads is None else f"read: {e.reads[i]}", "left"), ("", "left"))
        for label, part in given.items():
            table.add_row(label, _numbers(part[row]))
        console.print(table)


def _where(e: Explanation, console: Console, number: int) -> None:
    cross = e.attention == "cross"
    verb = "came from" if cross else "looks"
    print_heading(console, f"{number}. Where {_quoted(e.token)} {verb}: layer {e.layer}, head {e.head}")
    owner = "model" if e.kind != "encoder-decoder" else e.stack
    print_line(console, f"The {owner} has {e.num_layers} layers of {e.num_heads} heads, both counted from 0.")
    if cross:
        several = len(e.token_index) > 1
        print_line(
            console,
            f"Cross-attention, from the target to the source: the row{'s' if several else ''} of the "
            f"position{'s' if several else ''} that write{'' if several else 's'} {_quoted(e.token)}.",
        )
    if e.how.causal:
        print_line(console, "A token of a decoder sees itself and those before it; those after it are masked.")
    if e.how.window is not None:
        side = "before it" if e.how.causal else "on each side of it"
        print_line(console, f"This layer has a window: a token sees itself and the {e.how.window - 1} {side}.")
    table = new_table(("token", "left"), ("weight", "right"), ("", "left"))
    weights = e.weights.mean(dim=0)
    full = full_block(console)
    for i, (token, weight) in enumerate(zip(e.keys, weights.tolist(), strict=True)):
        masked = e.may is not None and not e.may[:, i].any()
        cells = ("masked", _why_masked(e, i)) if masked else (f"{weight:.4f}", full * round(weight * BAR_WIDTH))
        table.add_row(_key(e, i, token), *cells)
    console.print(table)
    if len(e.token_index) > 1:
        print_line(console, f"The mean over the {len(e.token_index)} tokens of the word.")
    if e.how.sink is not None:
        print_line(
            console,
            f"The weights sum to {weights.sum().item():.4f}: the head's sink takes the rest, and carries no value.",
        )
    if e.habit:
        print_line(console, f"A habit: in this head {e.habit}, whatever they mean.")
        if e.without_habit:
            p = e.without_habit
            print_line(
                console,
                f"Among heads without one, {_quoted(e.token)} gives most to {_quoted(p.token)}, {p.weight:.4f}: "
                f"--layer {p.layer} --head {p.head}",
            )
    _partners(e, console)


def _partners(e: Explanation, console: Console) -> None:
    cross = e.attention == "cross"
    if not e.partners:
        alone = len([written for written in e.written if written]) <= len(e.token_index)
        print_line(console, f"The text has no other token of its own{'' if alone else ' that it could see'}.")
        return
    shown = e.partners[:PARTNERS]
    cut = "" if len(shown) == len(e.partners) else f" (the first {len(shown)} of {len(e.partners)})"
    console.print()
    if cross:
        print_line(
            console,
            f"The words of the source that {_quoted(e.token)} came from: the mean share over all layers and heads, "
            f"and where each gets its largest{cut}:",
        )
    else:
        print_line(
            console,
            f"The largest share that {_quoted(e.token)} gives to each other token of the text"
            f"{' that it can see' if e.how.causal else ''}, over all layers and heads{cut}:",
        )
    table = new_table(
        ("word" if cross else "token", "left"),
        ("position", "right"),
        *([("mean", "right")] if cross else []),
        ("largest" if cross else "weight", "right"),
        ("layer", "right"),
        ("head", "right"),
    )
    for p in shown:
        mean = [f"{p.mean:.4f}"] if cross else []
        table.add_row(Text(visible(p.token)), str(p.index), *mean, f"{p.weight:.4f}", str(p.layer), str(p.head))
    console.print(table)


def _why_masked(e: Explanation, key: int) -> str:
    """Why a key may not be attended to by any token of the word."""
    if e.how.causal and key > max(e.token_index):
        return "after it"
    return "out of the window"


def _arithmetic(e: Explanation, console: Console, number: int) -> None:
    d_value = e.v.shape[-1]
    print_heading(console, f"{number}. The arithmetic of that row: {formula(e)}")
    print_line(console, in_words(e))
    steps = {"q . k": e.scores, "scaled": e.scaled}
    steps |= {name: step for name, step in (("capped", e.capped), ("biased", e.biased)) if step is not None}
    count = FIRST_NUMBERS if console.width >= NARROW else FIRST_NUMBERS // 2
    for row, i in enumerate(e.token_index):
        console.print()
        print_line(console, _query(e, row, i))
        table = new_table(
            ("key", "left"),
            *((name, "right") for name in steps),
            ("weight", "right"),
            (f"v, {d_value} numbers", "left"),
        )
        for j, token in enumerate(e.keys):
            masked = e.may is not None and not e.may[row, j]
            weight = "masked" if masked else f"{e.weights[row, j].item():.4f}"
            scores = (f"{step[row, j].item():.4f}" for step in steps.values())
            table.add_row(_key(e, j, token), *scores, weight, f"{_numbers(e.v[j], count)} ...")
        table.add_section()
        empty = [""] * (len(steps) - 1)
        total = e.weights[row].sum().item()
        if e.how.sink is not None:
            table.add_row("sink", *empty, f"{e.how.sink:.4f}", f"{1 - total:.4f}", "")
        table.add_row("weights @ v", "", *empty, f"{total:.4f}", f"{_numbers(e.output[row], count)} ...")
        console.print(table)


def _query(e: Explanation, row: int, index: int) -> str:
    token = _quoted(e.tokens[index])
    of = f"{token}, position {index}"
    if e.reads is not None:
        of = f"position {index}, which reads {_quoted(e.reads[index])} and writes {token}"
    return f"q of {of}, {e.q.shape[-1]} numbers: {_numbers(e.q[row])} ..."


def _context(e: Explanation, console: Console, number: int) -> None:
    print_heading(console, f"{number}. How context changes {_quoted(e.token)}: cosine of its vectors in two sentences")
    print_line(
        console,
        "1 is the same direction. At the input the word's vector knows nothing of the other words; each layer mixes in "
        f"{'those before it' if e.how.causal else 'the other words'}.",
    )
    for n, comparison in enumerate(e.compare):
        places = ", ".join(str(i) for i in comparison.token_index)
        print_line(console, f"{_letter(n)}  {visible(comparison.text)}  (position {places})")
    table = new_table(("", "left"), *((_letter(n), "right") for n in range(len(e.compare))))
    for step, cosines in enumerate(zip(*(comparison.cosine for comparison in e.compare), strict=True)):
        name = "at the input" if step == 0 else f"after layer {step - 1}"
        table.add_row(name, *(f"{cosine:.4f}" for cosine in cosines))
    console.print(table)


def _proof(e: Explanation, console: Console, number: int) -> None:
    proof = e.proof
    print_heading(console, f"{number}. The proof")
    by = "some rows at a time" if e.how.kernel == "chunked" else "on PyTorch's fused kernel"
    print_line(
        console,
        f"The same row twice, from the same input of the layer: by the model in its own forward pass, {by}, and by the "
        "definition, regard.steps, in float64.",
    )
    table = new_table(("weights @ v", "left"), (f"the first {FIRST_NUMBERS} of {e.v.shape[-1]} numbers", "left"))
    table.add_row("the model", _numbers(proof.model_output[0]))
    table.add_row("the definition", _numbers(e.output[0]))
    console.print(table)
    verdict = "The proof holds" if proof.holds else "THE PROOF FAILS, do not trust these numbers"
    print_line(
        console,
        f"{verdict}: the largest difference of all {proof.numbers} numbers is {proof.largest_difference:.1e}; "
        f"up to {proof.tolerance:.1e} can be rounding.",
        style="" if proof.holds else "bold red",
    )


def _remark(e: Explanation, index: int) -> str:
    """That a token is explained, and what it stands for where that cannot be seen in it: an accent, an emoji."""
    explained = "<- explained " if index in e.token_index else ""
    return explained + _stands_for(e.tokens[index], e.written[index])


def _stands_for(token: str, written: str) -> str:
    return f"for {_quoted(written)}" if written.casefold() not in token.casefold() else ""


def _token(e: Explanation, index: int, token: str) -> Text:
    return Text(visible(token), style="bold yellow" if index in e.token_index else "")


def _key(e: Explanation, index: int, token: str) -> Text:
    """A token that is looked at: in cross-attention one of another text."""
    return _token(e, index, token) if e.key_tokens is None else Text(visible(token))


def _quoted(word: str) -> str:
    return f"'{visible(word)}'"


def _numbers(row: Tensor | Iterable[float], count: int = FIRST_NUMBERS) -> str:
    return "  ".join(f"{float(x):8.4f}" for x, _ in zip(row, range(count), strict=False))


def _letter(n: int) -> str:
    return chr(ord("A") + n) if n < 26 else str(n)
