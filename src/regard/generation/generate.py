"""`generate`, `stream` and `beam_search`: a model and prompts in, new tokens or text out."""

from __future__ import annotations

from collections.abc import Iterator

from regard.decoding import Beam, Greedy, Sample, Strategy
from regard.errors import InputError
from regard.generation.beam import BeamRules, search_beams
from regard.generation.constraints import Constraints
from regard.generation.hypothesis import Hypothesis
from regard.generation.loop import decode_tokens
from regard.generation.request import Generated, GenerationRequest, Prompt, Prompts, Stop, build_request
from regard.generation.sampling import token_selector
from regard.generation.streaming import BannedWords, TextStream, phrase_ids
from regard.pretrained import Pretrained
from regard.transformer import Decoder, EncoderDecoder

GREEDY = Greedy()


def generate(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompts,
    *,
    max_new_tokens: int,
    strategy: Strategy = GREEDY,
    stop: Stop | None = None,
    decoder_start: int | None = None,
    pad: int | None = None,
    return_hypotheses: bool = False,
) -> Generated:
    """Generate the continuation of a prompt, or with an encoder-decoder the target of a source.

    The result has the format of the prompts. Token ids are all tokens of the decoder: the prompt, or an
    encoder-decoder's start token, then the new tokens with the stop token. Text is the new text only, without special
    tokens. A model that reads images returns texts for images, and ids for pixels.

    Args:
        model: a decoder, an encoder-decoder, or what `regard.load` returned.
        ids: token ids, ``(tokens,)`` or ``(batch, tokens)`` or a list; several lists of different lengths make a
            ragged batch. With a loaded model also a text, or a list of texts; or a chat, which is a list of messages
            such as ``{"role": "user", "content": "What is attention?"}`` for `Pretrained.apply_chat_template`, or a
            list of chats: then the text is the answer. For a model that reads images: what `Pretrained.pixel_values`
            takes, one or a list of them, or pixels ``(channels, height, width)`` or ``(batch, channels, height,
            width)``.
        max_new_tokens: the most new tokens of a text.
        strategy: `Greedy`, `Sample` or `Beam`.
        stop: token ids that end a text, and with a loaded model also strings; the text ends before such a string.
            By default the stop tokens of the model; ``()`` for none.
        decoder_start: the first token that the decoder of an encoder-decoder reads; by default the model's own.
        pad: fills shorter rows of a tensor; by default the model's own padding token, or the first stop token.
        return_hypotheses: return each text as a `Hypothesis`: its new tokens, its score in a beam search (the
            ``sequences_scores`` of transformers), its text, and why it ended.

    Returns:
        For a tensor ``(tokens,)`` or ``(batch, tokens)``, for lists a list of ids or of such lists, for text a text or
        a list of texts. With ``Beam(num_return_sequences=n)`` above 1 there are n for each prompt, the best first.
        With `return_hypotheses`, hypotheses in the place of texts, and lists in the place of tensors.

    Raises:
        InputError: an empty prompt; ids outside the vocabulary; more tokens than the model has positions; constraints
            that no text can meet; a chat for a model without a chat template, or one that the template refuses.
        TypeError: an encoder, or no model of regard; text for a model without a tokenizer; an image of another type;
            messages of another form.
        ValueError: max_new_tokens below 1.
    """
    request = build_request(model, ids, max_new_tokens, stop, decoder_start, pad)
    hypotheses = _generate(request, strategy)
    num_return_sequences = getattr(strategy, "num_return_sequences", 1)
    if return_hypotheses:
        return request.format.restore(hypotheses, num_return_sequences)
    if request.format.is_text:
        return request.format.restore([[h.text for h in row] for row in hypotheses], num_return_sequences)
    prompts = request.decoder_prompts
    rows = [[[*prompt, *h.ids] for h in row] for prompt, row in zip(prompts, hypotheses, strict=True)]
    if request.format.is_tensor:
        return request.format.pad(rows, num_return_sequences, request.pad)
    return request.format.restore(rows, num_return_sequences)


def beam_search(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompts,
    *,
    max_new_tokens: int,
    strategy: Beam,
    stop: Stop | None = None,
    decoder_start: int | None = None,
) -> list[list[Hypothesis]]:
    """All finished hypotheses of each prompt, the best first: new ids and scores. Arguments as in `generate`."""
    if not isinstance(strategy, Beam):
        raise TypeError(f"strategy must be a Beam: other strategies have one text and no score; got {strategy!r}")
    return _beam_search(build_request(model, ids, max_new_tokens, stop, decoder_start), strategy)


def stream(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompt,
    *,
    max_new_tokens: int,
    strategy: Greedy | Sample = GREEDY,
    stop: Stop | None = None,
    decoder_start: int | None = None,
) -> Iterator[int] | TextStream:
    """What `generate` returns, during generation: the new tokens one by one, or the text in pieces.

    A piece of text comes as soon as it is final: a character of several tokens with its last token, and what could be
    the beginning of a stop string with the first character that rules the stop string out.

    Args:
        model: as in `generate`.
        ids: one prompt: token ids, ``(tokens,)`` or a list, a text or a list of messages; or an image, as in
            `generate`.
        max_new_tokens: the most new tokens.
        strategy: `Greedy` or `Sample`; a beam search knows its text only at its end.
        stop: as in `generate`.
        decoder_start: as in `generate`.

    Returns:
        An iterator of token ids, or of pieces of text where `generate` returns a text: a `TextStream`, whose ``ids``
        are the new tokens so far.

    Raises:
        InputError: as `generate` does.
        TypeError: as `generate` does; a `Beam`.
        ValueError: several prompts; max_new_tokens below 1.
    """
    if isinstance(strategy, Beam):
        raise TypeError("a beam search knows its text only at its end: use generate, or stream a Greedy or Sample")
    if not isinstance(strategy, (Greedy, Sample)):
        raise TypeError(f"strategy must be a Greedy or a Sample; got {strategy!r}")
    request = build_request(model, ids, max_new_tokens, stop, decoder_start)
    if len(request.prompts) != 1 or request.format.is_batch:
        raise ValueError(f"stream writes one text; got {len(request.prompts)} prompts")
    new = (step[0] for step in _decode(request, strategy))
    return TextStream(request.streamer(0), new) if request.format.is_text else new


def _generate(request: GenerationRequest, strategy: Strategy) -> list[list[Hypothesis]]:
    """The texts of each prompt, the best first; a beam search may return several."""
    if isinstance(strategy, Beam):
        found = [row[: strategy.num_return_sequences] for row in _beam_search(request, strategy)]
    elif isinstance(strategy, (Greedy, Sample)):
        found = [[Hypothesis([], None)] for _ in request.prompts]
        for step in _decode(request, strategy):
            for row, token in step.items():
                found[row][0].ids.append(token)
    else:
        raise TypeError(f"strategy must be a Greedy, Sample or Beam; got {strategy!r}")
    return [[_with_text(request, n, hypothesis) for hypothesis in row] for n, row in enumerate(found)]


def _with_text(request: GenerationRequest, row: int, hypothesis: Hypothesis) -> Hypothesis:
    """A hypothesis with its text, and why it ended."""
    ids = hypothesis.ids
    text = "".join(request.streamer(row).pieces(iter(ids))) if request.format.is_text else None
    if request.has_stop_string(row, ids):
        reason = "stop_string"
    else:
        reason = "eos_token" if ids[-1] in request.special_tokens.eos else "max_new_tokens"
    return hypothesis._replace(text=text, stop_reason=reason)


def _decode(request: GenerationRequest, strategy: Greedy | Sample) -> Iterator[dict[int, int]]:
    return decode_tokens(
        request.start_session(),
        request.decoder_prompts,
        token_selector(strategy, len(request.prompts)),
        request.max_new_tokens,
        request.special_tokens,
        request.has_stop_string,
    )


def _beam_search(request: GenerationRequest, strategy: Beam) -> list[list[Hypothesis]]:
    vocab_size, pretrained = request.decoder.config.vocab_size, request.pretrained
    force_ids = [phrase_ids(phrase, "force_words", pretrained, vocab_size) for phrase in strategy.force_words]
    words = [phrase for phrase in strategy.bad_words if isinstance(phrase, str)]
    bad_ids = [
        phrase_ids(phrase, "bad_words", pretrained, vocab_size) for phrase in strategy.bad_words if phrase not in words
    ]
    if words and pretrained is None:
        raise TypeError(f"bad_words={words}: words need a tokenizer, and a bare model has none; use regard.load")
    banned_words = BannedWords(words, request.decode)
    for phrase, ids in zip(strategy.force_words, force_ids, strict=True):
        if banned_words(0, ids):
            banned = next(word for word in words if BannedWords([word], request.decode)(0, ids))
            raise InputError(f"force_words={phrase!r} and bad_words={banned!r} contradict each other")
    try:
        constraints = Constraints(force_ids, bad_ids, request.special_tokens.eos, request.max_new_tokens)
    except ValueError as error:
        raise InputError(str(error)) from error
    rules = BeamRules(
        strategy, request.max_new_tokens, request.special_tokens, constraints, request.has_stop_string, banned_words
    )
    hypotheses = search_beams(request.start_session(strategy.num_beams), len(request.prompts), rules)
    for row in hypotheses:
        if len(row) < strategy.num_return_sequences:
            phrases = [f"{name}={p!r}" for name in ("force_words", "bad_words") for p in getattr(strategy, name)]
            raise InputError(
                f"the search found {len(row)} texts of up to {request.max_new_tokens} tokens"
                f"{' with ' if phrases else ''}{', '.join(phrases)}, fewer than "
                f"num_return_sequences={strategy.num_return_sequences}: allow more tokens, or more than "
                f"num_beams={strategy.num_beams}"
            )
    return hypotheses
