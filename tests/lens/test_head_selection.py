"""Which head is shown first: planted heads are found, and habits are passed over."""

import time

import pytest
import torch

import regard
from regard import mask
from regard.lens import AttentionMap, AttentionSummary, Recording
from regard.lens.recording.head_selection import most_informative_head
from regard.lens.text.run import run
from weights import RIVER, minilm

WIDTH = 32


def looking(*heads, **options):
    """A map whose heads look as they are told: for each query the key, and how much of its weight goes there."""
    count = len(heads[0])
    k = torch.eye(count, WIDTH)[None, None].expand(1, len(heads), -1, -1)
    q = torch.zeros(1, len(heads), count, WIDTH)
    for head, row in enumerate(heads):
        for query, (key, share) in enumerate(row):
            # exp(score) / (exp(score) + the others) = share
            q[0, head, query, key] = torch.tensor(share * max(count - 1, 1) / (1 - share)).log()
    return AttentionMap(q, k, None, scale=1.0, **options)


def to(*keys, share=0.9):
    return [(key, share) for key in keys]


def recorded(*maps, kind="self", tokens=None):
    recording = Recording()
    for layer, m in enumerate(maps):
        if tokens is not None:
            m.label(*tokens)
        recording.add(
            f"layers.{layer}", m, shape=tuple(m.shape), mask=None, kernel="", kind=kind, layer=layer, heads=None
        )
    return recording


FIRST = to(0, 0, 0, 0, 0, 0, 0, 0)
OWN = to(*range(8))
BEFORE = to(0, *range(7))
AFTER = to(*range(1, 8), 7)
END = to(7, 7, 7, 7, 7, 7, 7, 7)
FAR = to(3, 4, 5, 6, 1, 2, 3, 4, share=0.5)
FAINT = to(3, 4, 5, 6, 1, 2, 3, 4, share=0.4)
TEXT = ["[CLS]", "a", "b", "c", "d", "e", "f", "[SEP]"]


@pytest.mark.parametrize("summarized", [False, True])
def test_words_that_look_at_words_come_before_habits(summarized):
    maps = [looking(FIRST, OWN, BEFORE), looking(AFTER, FAINT, END), looking(END, FIRST, FAR)]
    for m in maps:
        m.label(TEXT)
    if summarized:
        maps = [AttentionSummary.from_map(m) for m in maps]
    assert most_informative_head(recorded(*maps)) == ("layers.2", 2)
    assert most_informative_head(recorded(*maps[:2])) == ("layers.1", 1)


def test_without_tokens_an_end_that_many_look_at_counts():
    assert most_informative_head(recorded(looking(FIRST, FAINT, END))) == ("layers.0", 2)


def test_between_two_texts_the_same_place_is_as_good_as_any():
    assert most_informative_head(recorded(looking(OWN, FAR), kind="cross", tokens=(TEXT, TEXT))) == ("layers.0", 0)
    assert most_informative_head(recorded(looking(OWN, FAR), kind="self", tokens=(TEXT, TEXT))) == ("layers.0", 1)


def test_padding_is_no_word():
    """Three places of padding on the left: the first word is the fourth token, and what padding looks at is nothing."""
    padding = mask.allowed((torch.arange(8) >= 3)[None, None, None, :])
    rests = to(6, 6, 6, 3, 3, 3, 3, 3)
    assert most_informative_head(recorded(looking(rests, FAINT, mask=padding))) == ("layers.0", 1)


def test_a_text_too_short_for_that_gets_what_there_is():
    assert most_informative_head(recorded(looking(to(0, 0), to(1, 0)))) == ("layers.0", 1)
    assert most_informative_head(recorded(looking(to(0, share=0.5)))) == ("layers.0", 0)


def test_the_first_text_of_a_batch_decides():
    one, two = looking(FIRST, FAR), looking(FAR, FIRST)
    both = AttentionMap(torch.cat([one.q, two.q]), torch.cat([one.k, two.k]), None, scale=1.0)
    assert most_informative_head(recorded(both, tokens=([TEXT, TEXT], [TEXT, TEXT]))) == ("layers.0", 1)


def test_heads_are_those_that_the_map_has():
    with regard.watch(minilm().model, heads=[3, 6]) as seen:
        minilm().embed([RIVER])
    path, head = most_informative_head(seen)
    assert head in (0, 1)
    assert seen.entry(path).heads == (3, 6)


def test_not_a_number_is_never_chosen():
    broken = looking(FAR, FAINT)
    broken.q[0, 0] = torch.nan
    whole = looking(FIRST, FAINT)
    assert most_informative_head(recorded(broken, whole)) == ("layers.0", 1)


def test_nothing_to_choose_is_said():
    with pytest.raises(ValueError, match="there is no head to choose"):
        most_informative_head(Recording())


def test_a_trained_head_that_relates_words():
    """Of the dense maps of the real model, by the definition: the largest weight of each row on a word farther away."""
    recording = run(RIVER, minilm()).recording
    tokens = recording["blocks.0.attention"].tokens[0]
    words = torch.tensor([token not in ("[CLS]", "[SEP]", ".") for token in tokens])
    place = torch.arange(len(tokens))
    far = (place[:, None] - place).abs() > 1
    shares = torch.stack([(recording[p].dense()[0] * (far & words)).amax(-1)[:, words].mean(-1) for p in recording])
    layer, head = divmod(int(shares.argmax()), shares.shape[1])
    assert most_informative_head(recording) == (f"blocks.{layer}.attention", head)
    kinds = recording.entry(f"blocks.{layer}.attention").head_types()
    assert kinds.names[head] == "mixed"


def test_at_length_it_costs_little():
    q, k = (torch.randn(1, 4, 8192, 32) for _ in range(2))
    m = AttentionMap(q, k, None, mask.causal())
    start = time.perf_counter()
    m.entropy()
    once = time.perf_counter() - start
    start = time.perf_counter()
    most_informative_head(recorded(m))
    assert time.perf_counter() - start < once
