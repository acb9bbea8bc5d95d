"""Small random models for the tests of generation, and searches by brute force."""

from __future__ import annotations

from itertools import product

import torch

from regard.transformer import Config, Decoder, EncoderDecoder, SpecialTokens

SMALL = {"d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 10, "dropout": 0.0}


def randomized(model, seed):
    """A model with random parameters, in float64 and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=generator))
    return model


def tiny(vocab_size=5, seed=0, *, kind=Decoder, stop=(), last=None, **changes):
    """A model with `vocab_size` tokens: a decoder, or an encoder-decoder whose decoder begins with token 1."""
    special = SpecialTokens(decoder_start=None if kind is Decoder else 1, eos=stop, forced_eos=last)
    options = {**SMALL, "vocab_size": vocab_size, "tie_word_embeddings": False, "special_tokens": special, **changes}
    return randomized(kind(Config(**options)), seed)


def tiny_translator(*arguments, **options):
    """The same with an encoder; a function with a name, for it stands in the names of tests."""
    return tiny(*arguments, kind=EncoderDecoder, **options)


def every_text(vocab_size, limit, stop=()):
    """All texts that a search may find: up to their first stop token, or to the limit."""
    going_on = [token for token in range(vocab_size) if token not in stop]
    for length in range(1, limit + 1):
        for begin in product(going_on, repeat=length - 1):
            for token in stop if length < limit else range(vocab_size):
                yield [*begin, token]


def scores_of(model, prompt, texts, length_penalty=1):
    """The score of each text after a prompt, by one forward pass over all texts of one length."""
    scores = {}
    for length in {len(text) for text in texts}:
        group = [text for text in texts if len(text) == length]
        ids = torch.tensor([[*prompt, *text] for text in group])
        with torch.no_grad():
            log_probs = model(ids)[:, len(prompt) - 1 : -1].float().log_softmax(dim=-1).double()
        sums = log_probs.gather(-1, ids[:, len(prompt) :, None])[..., 0].sum(dim=-1)
        scores |= zip(map(tuple, group), (sums / length**length_penalty).tolist(), strict=True)
    return [scores[tuple(text)] for text in texts]


def best_of(model, prompt, texts, length_penalty=1):
    """Texts by their scores, the best first, as (score, text)."""
    return sorted(zip(scores_of(model, prompt, texts, length_penalty), texts, strict=True), reverse=True)


def contains(text, phrase):
    """Whether a text contains a phrase."""
    return any(list(text[i : i + len(phrase)]) == list(phrase) for i in range(len(text) - len(phrase) + 1))
