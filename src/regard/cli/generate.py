"""The command `regard generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

import regard
from regard.cli.app import app
from regard.cli.decoding import (
    BadWords,
    ForceWords,
    LengthPenalty,
    NumReturnSequences,
    decoding_strategy,
    hypothesis_facts,
    max_new_tokens_option,
    print_hypotheses,
)
from regard.cli.options import (
    DEFAULT_DECODER,
    DEFAULT_DECODER_HELP,
    MODEL_HELP,
    ensure_json_writable,
    import_torch,
    json_option,
    load_model,
    option,
    read_argument,
    status,
    write_json,
)
from regard.decoding import Beam
from regard.errors import InputError
from regard.escape import visible


@app.command(
    help="Generate text from a prompt, and print it while it is generated.\n\n"
    "A language model continues the text of PROMPT. A model that was trained with messages answers a question better "
    "where it gets it as one: --chat writes PROMPT as a user's message into the model's chat template, --system a "
    "message before it that says how to answer. The special tokens of a template stay letters in what you write.\n\n"
    "By default each token is the likeliest one. With --temperature, --top-k, --top-p, --min-p, --repetition-penalty "
    "or --seed tokens are sampled; --num-beams starts a beam search, which prints its text at the end. Only the new "
    "text is printed; then, on standard error, how many tokens it has, and how many were generated in a second, the "
    "reading of the prompt included.\n\n"
    "A model that reads images writes about one: there PROMPT is the image's path.",
    epilog='Example: regard generate "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 1\n\n'
    'A question: regard generate --chat "What is the capital of France?"\n\n'
    "A file: regard generate - --model NAME < prompt.txt",
)
def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT",
            help="The text to continue, or with --chat the message to answer, in quotes; - reads it from standard "
            "input. The path of an image where the model reads images.",
        ),
    ],
    model: Annotated[
        str,
        option(
            "NAME",
            f"{MODEL_HELP}GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5; vision-encoder-decoder. "
            f"{DEFAULT_DECODER_HELP}",
            "--model",
        ),
    ] = DEFAULT_DECODER,
    chat: Annotated[
        bool, typer.Option("--chat", help="PROMPT is a user's message, in the model's chat template.")
    ] = False,
    system: Annotated[
        str | None, option("TEXT", "The system's message, which says how to answer; with it PROMPT is a user's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        max_new_tokens_option("The most new tokens; by default 128, or as many as the model has positions for."),
    ] = None,
    temperature: Annotated[
        float | None, option("T", "Sample: below 1 likely tokens become likelier; 0 takes the likeliest. By default 1.")
    ] = None,
    top_k: Annotated[int | None, option("K", "Sample among the K likeliest tokens; by default all.")] = None,
    top_p: Annotated[
        float | None, option("P", "Sample among the likeliest tokens that together have probability P; by default all.")
    ] = None,
    min_p: Annotated[
        float | None, option("P", "Sample among tokens with at least P times the largest probability; by default all.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, option("R", "Sample: above 1, tokens that the text already has become less likely. By default 1.")
    ] = None,
    seed: Annotated[
        int | None, option("N", "Sample: the same seed gives the same text; by default another one each time.")
    ] = None,
    num_beams: Annotated[int | None, option("N", "Beam search with N texts at once; by default none.")] = None,
    length_penalty: LengthPenalty = 1.0,
    num_return_sequences: NumReturnSequences = 1,
    force_words: ForceWords = None,
    bad_words: BadWords = None,
    stop: Annotated[
        list[str] | None,
        option("TEXT", "End before this text, as well as at the model's own end. May be given several times."),
    ] = None,
    json_path: Annotated[
        Path | None,
        json_option(
            "prompt (of a chat messages), model and hypotheses, each with text, ids, tokens, score (of a beam search), "
            "stop_reason,"
        ),
    ] = None,
) -> None:
    """Generate text from a prompt, and print it while it is generated."""
    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    if temperature == 0:  # each token the likeliest one
        sampling = {}
    strategy = decoding_strategy(
        {name: value for name, value in sampling.items() if value is not None},
        num_beams,
        length_penalty,
        num_return_sequences,
        force_words,
        bad_words,
    )
    ensure_json_writable(json_path)
    import_torch()
    pretrained = load_model(model)
    is_chat = chat or system is not None
    text = _read_prompt(prompt, pretrained, is_chat)
    messages = _messages(text, system) if is_chat else None
    source: Any = text if messages is None else messages
    if max_new_tokens is None:
        from regard.generation import max_new_tokens_left

        max_new_tokens = min(128, max_new_tokens_left(pretrained, source))
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "strategy": strategy, "stop": stop or None}
    started = perf_counter()
    if json_path is not None or isinstance(strategy, Beam):
        with status("generating"):
            result: Any = regard.generate(pretrained, source, return_hypotheses=True, **options)
        seconds = perf_counter() - started
        hypotheses = [result] if num_return_sequences == 1 else result
        given = {"prompt": text} if messages is None else {"messages": messages}
        facts = {**given, "model": model, "hypotheses": hypothesis_facts(hypotheses, pretrained)}
        if not write_json(facts, json_path):
            print_hypotheses(hypotheses, _escape)
            _print_speed(sum(len(each.ids) for each in hypotheses), seconds)
        return
    stream: Any = regard.stream(pretrained, source, **options)
    try:
        for piece in stream:
            print(_escape(piece), end="", flush=True)
    finally:
        print(flush=True)  # also after Ctrl-C, so that the shell's next line is a line of its own
    _print_speed(len(stream.ids), perf_counter() - started)


def _read_prompt(prompt: str, pretrained: Any, is_chat: bool) -> str:
    """The text of the prompt, or the path of an image."""
    if pretrained.modality != "images":
        return read_argument(prompt, f"regard generate - < {prompt}")
    if is_chat:
        raise InputError(f"{pretrained.name} reads images and no messages: leave out --chat and --system")
    if prompt == "-":
        raise InputError(
            f"{pretrained.name} reads images, and standard input is read as text: give the path of an image"
        )
    return prompt


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": prompt}]


def _print_speed(num_tokens: int, seconds: float) -> None:
    tokens = "1 token" if num_tokens == 1 else f"{num_tokens:,} tokens"
    print(f"{tokens}, {num_tokens / seconds:.1f} tokens/s", file=sys.stderr)


def _escape(text: str) -> str:
    """A text that cannot control the terminal; line breaks and tabs stay."""
    return "".join(c if c in "\n\t" else visible(c) for c in text)
