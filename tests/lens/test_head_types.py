"""Types of heads: planted heads are told by name, and every score is the definition's, row by row."""

import math
from functools import partial
from itertools import product

import pytest
import torch

import regard
from lens.recordings import random_map
from regard import mask
from regard.lens import AttentionMap, detect_heads
from regard.lens.maps.head_types import is_delimiter

HEAD_TYPES = ("previous token", "attention sink", "same token", "induction", "delimiter", "uniform")


def scores_by_definition(m, tokens=None, *, cross=False):
    """Every score from the dense map in float64, by loops over rows and keys."""
    batch, heads, queries, keys = m.shape
    double = {name: t if t is None else t.double() for name, t in (("bias", m.bias), ("sinks", m.sinks))}
    q, k = m.q.double(), m.k.double()
    weights = regard.steps(q, k, k, m.mask, scale=m.scale, softcap=m.softcap, **double).weights
    allowed = (mask.causal(offset=keys) if m.mask is None else m.mask).dense(queries, keys).expand(m.shape)
    offset = keys - queries
    texts = None if tokens is None else tokens if isinstance(tokens[0], list) else [tokens]
    rows = {kind: [[] for _ in range(heads)] for kind in HEAD_TYPES}
    at = [] if cross else list(product(range(batch), range(heads), range(queries)))
    diagonal = any(allowed[b, h, i, i + offset] for b, h, i in at)
    for b in range(batch):
        real = [[not diagonal or bool(allowed[b, h, i, i + offset]) for i in range(queries)] for h in range(heads)]
        first = 0
        if not cross and offset == 0:
            first = next((i for i in range(queries) if any(real[h][i] for h in range(heads))), 0)
        for h, i in product(range(heads), range(queries)):
            open_keys = [j for j in range(keys) if allowed[b, h, i, j]]
            if not real[h][i] or len(open_keys) < 2:
                continue
            w, p = weights[b, h, i], i + offset
            wanted = {"attention sink": [first] if cross or p != first else []}
            if not cross:
                wanted["previous token"] = [p - 1] if p else []
            if texts is not None:
                text = texts[b]
                wanted["delimiter"] = [j for j in range(keys) if is_delimiter(text[j]) and j != first]
                if not cross:
                    wanted["same token"] = [j for j in range(keys) if text[j] == text[p]]
                    wanted["induction"] = [j for j in range(1, p) if text[j - 1] == text[p]]
            for kind, of_kind in wanted.items():
                if in_reach := [j for j in of_kind if j in open_keys]:
                    rows[kind][h].append(float(w[in_reach].sum()))
            rows["uniform"][h].append(float(-torch.xlogy(w, w).sum()) / math.log(len(open_keys)))
    return {kind: [min(1.0, sum(row) / len(row)) if row else math.nan for row in rows[kind]] for kind in HEAD_TYPES}


def assert_scores(m, tokens=None, *, cross=False):
    if tokens is not None:
        m.label(*tokens)
    found = detect_heads(m, cross=cross).scores
    expected = scores_by_definition(m, tokens and tokens[1], cross=cross)
    unknown = {"same token", "induction", "delimiter"} if tokens is None else set()
    unknown |= {"same token", "induction", "previous token"} if cross else set()
    assert {kind for kind, score in found.items() if score is None} == unknown
    for kind in set(HEAD_TYPES) - unknown:
        of_kind = torch.tensor(expected[kind], dtype=torch.float64)
        torch.testing.assert_close(found[kind], of_kind, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert tuple(found) == HEAD_TYPES


four_heads = partial(random_map, batch=2, heads=4, kv_heads=2, sampled=False)
TEXTS = [list("abcab.dabc,ab"), list("xyxyxyxyxyxyx")]

LEFT_PADDING = mask.allowed((torch.arange(13) >= torch.tensor([0, 4])[:, None])[:, None, None, :])
COINS = torch.Generator().manual_seed(1)
OPTIONS = {
    "full": {},
    "causal": {"mask": mask.causal()},
    "right": {"mask": mask.padding([13, 9])},
    "right causal": {"mask": mask.padding([13, 9]) & mask.causal()},
    "left causal": {"mask": mask.causal() & LEFT_PADDING},
    "window": {"mask": mask.window(3) & mask.padding([11, 13])},
    "not itself": {"mask": mask.causal() & ~mask.window(1)},
    "any": {"mask": mask.allowed(torch.rand(2, 4, 13, 13, generator=COINS) < 0.5)},
    "where": {"mask": mask.where(lambda i, j: (i - j) % 2 == 0)},
    "sinks": {"mask": mask.causal(), "sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])},
    "bias by row": {"bias": torch.randn(2, 1, 13, 13, generator=COINS)},
    "softcap": {"softcap": 2.0, "scale": 0.9, "bias": torch.randn(4, 13, 13, generator=COINS)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_score_is_the_definition_s(name):
    assert_scores(four_heads(13, 13, **OPTIONS[name]), (TEXTS, TEXTS))


def test_a_step_of_a_generation_and_two_texts():
    assert_scores(four_heads(4, 13, mask=mask.causal()), ([text[-4:] for text in TEXTS], TEXTS))
    assert_scores(four_heads(5, 13), ([list("vwxyz")] * 2, TEXTS), cross=True)
    assert_scores(four_heads(13, 5, mask=mask.padding([5, 3])), (TEXTS, [list("v.x.z")] * 2), cross=True)


def test_a_bias_that_blocks_counts_as_a_mask():
    closed = torch.zeros(13, 13).masked_fill(torch.rand(13, 13) < 0.3, -torch.inf).fill_diagonal_(0.0)
    biased, masked = four_heads(13, 13, bias=closed), four_heads(13, 13, mask=mask.allowed(closed == 0))
    for m in (biased, masked):
        m.label(TEXTS)
    torch.testing.assert_close(detect_heads(biased).scores, detect_heads(masked).scores, equal_nan=True)


def test_without_tokens_what_needs_them_is_not_told():
    assert_scores(four_heads(9, 9, mask=mask.causal()))
    assert_scores(four_heads(3, 9), cross=True)


def test_one_token_shows_nothing():
    m = four_heads(1, 1, batch=1)
    m.label(["a"])
    assert detect_heads(m).names == ("mixed",) * 4
    assert torch.stack(list(detect_heads(m).scores.values())).isnan().all()


def planted(patterns, tokens, allowed=None):
    """A map whose heads put nearly all weight where each pattern (queries x keys, bool) says, evenly where it is empty.

    A query is the row of its pattern, a key its own place.
    """
    q, k = 12 * torch.stack([*patterns])[None].float(), torch.eye(len(tokens)).expand(1, len(patterns), -1, -1)
    m = AttentionMap(q, k, None, allowed, scale=1.0)
    m.label(tokens)
    return m


@pytest.mark.parametrize("causal", [False, True])
def test_planted_heads_are_told_by_name(causal):
    words = [f"w{n % 11}" for n in range(1, 31)]
    tokens = ["[CLS]", *(token for n, word in enumerate(words) for token in ([word, "."] if n % 3 == 2 else [word]))]
    size = len(tokens)
    i, j = torch.arange(size)[:, None], torch.arange(size)[None, :]
    patterns = {
        "previous token": j == i - 1,
        "attention sink": (j == 0) & (i >= 0),
        "same token": torch.tensor([[a == b for b in tokens] for a in tokens]),
        "induction": torch.tensor([[0 < b < a and tokens[b - 1] == tokens[a] for b in j[0]] for a in i[:, 0]]),
        "delimiter": torch.tensor([token == "." for token in tokens]).expand(size, size),
        "uniform": torch.zeros(size, size),
        "mixed": j == i // 2,
    }
    m = planted(patterns.values(), tokens, mask.causal() if causal else None)
    assert detect_heads(m).names == tuple(patterns)


def test_of_two_patterns_the_one_with_more_of_the_attention_has_the_name():
    """Each token looks at the last delimiter before it, which for most is the token before."""
    words = [(".", ",", ";", f"w{n}") for n in range(6)]
    tokens = ["[CLS]", *(token for each in words for token in each)]
    pattern = torch.zeros(25, 25)
    for row in range(2, 25):
        pattern[row, row - 1 - (not is_delimiter(tokens[row - 1]))] = 1
    pattern[0, 1] = pattern[1, 2] = 1
    found = detect_heads(planted([pattern], tokens))
    assert 0.5 < float(found.scores["previous token"][0]) < 0.8 < float(found.scores["delimiter"][0])
    assert found.names == ("delimiter",)


def test_two_words_that_come_twice_are_no_induction():
    after = torch.zeros(23, 23)
    after[21, 5] = after[22, 6] = 1
    found = detect_heads(planted([after], ["[CLS]", *(f"w{n}" for n in range(20)), "w3", "w4"]))
    assert float(found.scores["induction"][0]) > 0.99
    assert found.names == ("uniform",)


@pytest.mark.parametrize("token", [".", "[SEP]", "</s>", "Ġ,", "▁!", "<|endoftext|>"])
def test_delimiters(token):
    assert is_delimiter(token)
    assert not is_delimiter(f"{token}a")
