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


def tiny(vocab_size=5, seed=0, *, stop=(), first=None, last=None, **changes):
    """A decoder with `vocab_size` tokens."""
    special = SpecialTokens(eos=stop, forced_bos=first, forced_eos=last)
    return randomized(
        Decoder(
            Config(
                **{
                    **SMALL,
                    "vocab_size": vocab_size,
                    "tie_word_embeddings": False,
                    "special_tokens": special,
                    **changes,
                }
            )
        ),
        seed,
    )


def tiny_translator(vocab_size=11, seed=0, *, start=1, stop=(), **changes):
    """An encoder-decoder with `vocab_size` tokens."""
    special = SpecialTokens(decoder_start=start, eos=stop)
    return randomized(
        EncoderDecoder(
            Config(
                **{
                    **SMALL,
                    "vocab_size": vocab_size,
                    "tie_word_embeddings": False,
                    "special_tokens": special,
                    **changes,
                }
            )
        ),
        seed,
    )


def log_probability(model, prompt, new):
    """The log-probability of new tokens after a prompt, from one forward pass over the text."""
    ids = torch.tensor([*prompt, *new])
    with torch.no_grad():
        log_probs = model(ids)[len(prompt) - 1 : -1].float().log_softmax(dim=-1).double()
    return float(log_probs.gather(-1, ids[len(prompt) :, None]).sum())


def every_text(vocab_size, limit, stop=()):
    """All texts that a search may find: up to their first stop token, or to the limit."""
    going_on = [token for token in range(vocab_size) if token not in stop]
    for length in range(1, limit + 1):
        for begin in product(going_on, repeat=length - 1):
            for token in stop if length < limit else range(vocab_size):
                yield [*begin, token]


def best_of(model, prompt, texts, length_penalty):
    """Texts by their scores, the best first, as (score, text); each forward pass is of all texts of one length."""
    scored = []
    by_length: dict[int, list[list[int]]] = {}
    for text in texts:
        by_length.setdefault(len(text), []).append(text)
    for length, group in by_length.items():
        ids = torch.tensor([[*prompt, *text] for text in group])
        with torch.no_grad():
            log_probs = model(ids)[:, len(prompt) - 1 : -1].float().log_softmax(dim=-1).double()
        sums = log_probs.gather(-1, ids[:, len(prompt) :, None])[..., 0].sum(dim=-1)
        scored += zip((sums / length**length_penalty).tolist(), group, strict=True)
    return sorted(scored, key=lambda pair: -pair[0])


def contains(text, phrase):
    """Whether a text contains a phrase."""
    return any(list(text[i : i + len(phrase)]) == list(phrase) for i in range(len(text) - len(phrase) + 1))
