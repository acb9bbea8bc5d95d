"""The tokenizer of a GGUF file, as one of the library `tokenizers`.

A file has the tokens and, of byte-level BPE, the merges; of SentencePiece's BPE the scores, from which the merges
follow. How a text is cut before that is no part of it: the file names it (``tokenizer.ggml.pre``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import InputError, short_repr
from regard.pretrained.gguf.header import Header, shown

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""The types of tokens in ``tokenizer.ggml.token_type`` that matter here; 2 is unknown, 5 unused, 6 a byte."""

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS_AND_NUMBERS = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut into the pieces that are merged each for itself."""

    pattern: str | None = None
    """Of a piece; None for GPT-2's."""
    single_digits: bool = False
    """Whether each digit is first cut off."""
    nfc: bool = False
    """Whether characters are first composed (Unicode's NFC)."""
    ignore_merges: bool = False
    """Whether a piece that is a token is that token, whatever the merges give."""
    add_bos: bool = False
    """Whether a text begins with the BOS token, where the file does not say it."""


LLAMA_3 = PreTokenizer(WORDS_AND_NUMBERS % 3, ignore_merges=True, add_bos=True)
QWEN_2 = PreTokenizer(WORDS_AND_NUMBERS.replace("{1,%d}", ""), nfc=True)
DIGITS = PreTokenizer(single_digits=True)

PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "llama-bpe": LLAMA_3,
    "llama3": LLAMA_3,
    "llama-v3": LLAMA_3,
    "qwen2": QWEN_2,
    "deepseek-r1-qwen": QWEN_2,
    "tekken": PreTokenizer(TEKKEN, ignore_merges=True, add_bos=True),
}
"""By ``tokenizer.ggml.pre``."""

DEFAULT_PRE_TOKENIZERS = {"gpt2": "gpt-2", "llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}
"""By architecture, for the files of before 2024, which do not name one."""

PREFIX = "tokenizer.ggml."
KINDS = {str: "texts", int: "whole numbers", float: "numbers"}
MAX_REASON = 200
"""The most characters of an error of the library `tokenizers`, which may quote a token of any length."""
FLAGS = frozenset({"add_bos_token", "add_eos_token", "add_space_prefix"})
"""Settings that are true or false."""


def read_gguf_tokenizer(header: Header) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a GGUF file, or the reason why there is none.

    Raises:
        InputError: tokens, merges or scores that make no tokenizer.
    """
    settings = {key.removeprefix(PREFIX): v for key, v in header.metadata.items() if key.startswith(PREFIX)}
    kind = settings.get("model", "no_vocab")
    if kind not in ("gpt2", "llama"):
        return None, f"{header.path} has a tokenizer of the kind {shown(kind)}; of GGUF, regard reads gpt2 and llama"
    tokens = _list(settings, "tokens", str, header.path)
    types = _list(settings, "token_type", int, header.path) if "token_type" in settings else [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise InputError(f"{header.path}: {len(tokens)} tokens have {len(types)} types")
    ids = {token: id_ for id_, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for id_, token in enumerate(tokens) if ids[token] != id_)
        raise InputError(f"{header.path}: the token {short_repr(twice)} is in the vocabulary twice")
    for flag in FLAGS & settings.keys():
        if not isinstance(settings[flag], bool):
            raise InputError(f"{header.path}: {PREFIX}{flag} is {shown(settings[flag])}; it must be true or false")
    try:
        if kind == "gpt2":
            name = settings.get("pre", "default")
            if name == "default":
                name = DEFAULT_PRE_TOKENIZERS.get(header.metadata.get("general.architecture", ""), name)
            if name not in PRE_TOKENIZERS:
                known = ", ".join(PRE_TOKENIZERS)
                return None, f"{header.path} cuts texts as {shown(name)} does; of GGUF, regard knows {known}"
            cut = PRE_TOKENIZERS[name]
            tokenizer, add_bos = _byte_level(ids, settings, cut, header.path), cut.add_bos
        else:
            tokenizer, add_bos = _sentencepiece(ids, types, settings, header.path), True
        _add_special_tokens(tokenizer, tokens, types)
        _add_template(tokenizer, tokens, {"add_bos_token": add_bos, **settings}, header.path)
    except (KeyboardInterrupt, SystemExit, InputError):
        raise
    except BaseException as error:  # tokenizers raises bare Exception, and PanicException, which is no Exception
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{header.path}: its tokenizer cannot be read: {reason[:MAX_REASON]}") from error
    return tokenizer, ""


def _byte_level(ids: Mapping[str, int], settings: Mapping[str, Any], cut: PreTokenizer, path: Path) -> Tokenizer:
    """Byte-level BPE (GPT-2, Radford et al. 2019, section 2.2)."""
    merges = []
    for merge in _list(settings, "merges", str, path):
        left, space, right = merge.partition(" ") if not merge.startswith(" ") else (merge, "", "")
        if not space or not right:
            raise InputError(f"{path}: a merge is two tokens with a space between; one is {short_repr(merge)}")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=dict(ids), merges=merges, ignore_merges=cut.ignore_merges))
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    digits = [pre_tokenizers.Digits(individual_digits=True)] if cut.single_digits else []
    if cut.pattern is None:
        pieces = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        pieces = [*digits, pre_tokenizers.Split(Regex(cut.pattern), "isolated")]
        pieces += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(ids: Mapping[str, int], types: Sequence[int], settings: Mapping[str, Any], path: Path) -> Tokenizer:
    """SentencePiece's BPE (Kudo and Richardson 2018), in which characters without a token are spelled in bytes."""
    scores = _list(settings, "scores", float, path)
    if len(scores) != len(ids):
        raise InputError(f"{path}: {len(ids)} tokens have {len(scores)} scores")
    unknown = settings.get("unknown_token_id", 0)
    tokens = list(ids)
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        raise InputError(f"{path}: {PREFIX}unknown_token_id is {shown(unknown)}; the tokens are 0 to {len(ids) - 1}")
    model = models.BPE(
        vocab=dict(ids),
        merges=_merges_of_scores(ids, types, scores),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    add_space = settings.get("add_space_prefix", True)
    prepend = [normalizers.Prepend("▁")] if add_space else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if add_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges_of_scores(ids: Mapping[str, int], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs of tokens in the order in which they are merged: those that make the token with the highest score first."""
    mergeable = {token for token, id_ in ids.items() if types[id_] in (NORMAL, USER_DEFINED)}
    merges = []
    for token in sorted(mergeable, key=lambda token: (-scores[ids[token]], ids[token])):
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [pair for pair in pairs if pair[0] in mergeable and pair[1] in mergeable]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _add_special_tokens(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tokens that are found in a text before anything is cut."""
    special = [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == CONTROL]
    whole = [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(whole)


def _add_template(tokenizer: Tokenizer, tokens: Sequence[str], settings: Mapping[str, Any], path: Path) -> None:
    """The BOS token before each text and the EOS token behind it, where the file asks for them."""
    parts: dict[str, list[str]] = {}
    for name in ("bos", "eos"):
        id_ = settings.get(f"{name}_token_id")
        parts[name] = []
        if id_ is not None and settings.get(f"add_{name}_token"):
            if type(id_) is not int or not 0 <= id_ < len(tokens):
                last = len(tokens) - 1
                raise InputError(f"{path}: {PREFIX}{name}_token_id is {shown(id_)}; the tokens are 0 to {last}")
            parts[name] = [tokens[id_]]
    added = [*parts["bos"], *parts["eos"]]
    if added:
        before, behind = parts["bos"], parts["eos"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *behind],
            pair=[*before, "$A", *behind, *(f"{each}:1" for each in before), "$B:1", *(f"{each}:1" for each in behind)],
            special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys(added)],
        )


def _list(settings: Mapping[str, Any], name: str, kind: type, path: Path) -> list[Any]:
    value = settings.get(name)
    if not isinstance(value, list) or not value or not isinstance(value[0], kind):
        raise InputError(f"{path}: {PREFIX}{name} is {shown(value)}; it must be a list of {KINDS[kind]}")
    return value
