"""Which head is shown first: planted heads are found, and habits are passed over."""

import pytest
import torch

import regard
from cases import OperatorTrace
from lens.recordings import make_recording, planted_map, to
from regard import mask
from regard.lens import AttentionMap, AttentionSummary, Recording
from regard.lens.recording.head_selection import most_informative_head, resolve_heads
from regard.lens.text.run import run
from weights import RIVER, minilm


def chosen(*maps, kind="self", tokens=None):
    return most_informative_head(make_recording(*maps, kind=kind, tokens=tokens))


FIRST, OWN, BEFORE, AFTER, END = to(*[0] * 8), to(*range(8)), to(0, *range(7)), to(*range(1, 8), 7), to(*[7] * 8)
FAR = to(3, 4, 5, 6, 1, 2, 3, 4, share=0.5)
FAINT = to(3, 4, 5, 6, 1, 2, 3, 4, share=0.4)
TEXT = ["[CLS]", "a", "b", "c", "d", "e", "f", "[SEP]"]


@pytest.mark.parametrize("summarized", [False, True])
def test_words_that_attend_to_words_come_before_patterns(summarized):
    maps = [planted_map(FIRST, OWN, BEFORE), planted_map(AFTER, FAINT, END), planted_map(END, FIRST, FAR)]
    for m in maps:
        m.label(TEXT)
    maps = [AttentionSummary.from_map(m) for m in maps] if summarized else maps
    assert chosen(*maps) == ("h.2.attn", 2)
    assert chosen(*maps[:2]) == ("h.1.attn", 1)


@pytest.mark.parametrize(
    ("heads", "options", "head"),
    [
        pytest.param((FIRST, FAINT, END), {}, 2, id="without tokens an end that many attend to counts"),
        pytest.param((OWN, FAR), {"kind": "cross", "tokens": (TEXT, TEXT)}, 0, id="between texts any place is as good"),
        pytest.param((OWN, FAR), {"tokens": (TEXT, TEXT)}, 1, id="in one text the own place is a pattern"),
        pytest.param((to(0, 0), to(1, 0)), {}, 1, id="a text of two words"),
        pytest.param((to(0, share=0.5),), {}, 0, id="a text of one word"),
    ],
)
def test_the_head_that_is_chosen_among(heads, options, head):
    assert chosen(planted_map(*heads), **options) == ("h.0.attn", head)


def test_padding_is_no_word():
    """Three places on the left: the first word is the fourth token, and what padding attends to is nothing."""
    padding = mask.allowed((torch.arange(8) >= 3)[None, None, None, :])
    assert chosen(planted_map(to(6, 6, 6, 3, 3, 3, 3, 3), FAINT, mask=padding)) == ("h.0.attn", 1)


def test_after_a_cache_the_last_tokens_may_be_padding():
    """The queries are the tokens 3 to 7; the head that only 7 makes stand out, which is padding, is passed over."""
    whole = planted_map(to(*range(7), 1), to(*range(5), 1, 6, 7, share=0.4), mask=mask.padding([7]))
    after_cache = AttentionMap(whole.q[:, :, 3:], whole.k, None, whole.mask, scale=1.0)
    assert chosen(after_cache) == ("h.0.attn", 1)


def test_the_first_text_of_a_batch_decides():
    one, two = planted_map(FIRST, FAR), planted_map(FAR, FIRST)
    both = AttentionMap(torch.cat([one.q, two.q]), torch.cat([one.k, two.k]), None, scale=1.0)
    assert chosen(both, tokens=([TEXT, TEXT], [TEXT, TEXT])) == ("h.0.attn", 1)


def test_heads_are_those_that_the_map_has():
    with regard.watch(minilm().model, heads=[3, 6]) as recording:
        minilm().embed([RIVER])
    path, head = most_informative_head(recording)
    assert head in (0, 1)
    assert recording.entry(path).heads == (3, 6)


def test_not_a_number_is_never_chosen():
    broken = planted_map(FAR, FAINT)
    broken.q[0, 0] = torch.nan
    assert chosen(broken, planted_map(FIRST, FAINT)) == ("h.0.attn", 1)


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


def test_at_length_it_makes_no_map():
    q, k = (torch.randn(1, 4, 2048, 32) for _ in range(2))
    recording = make_recording(AttentionMap(q, k, None, mask.causal()))
    with OperatorTrace() as trace:
        most_informative_head(recording)
    assert trace.max_bytes < 2**22  # the dense map has 2**26


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        ("0.1", TypeError, "a list of .layer or path, head."),
        ([(1.5, 0)], TypeError, r"\(1.5, 0\) in heads: \(layer or path, head\), such as"),
        ([(0, "1")], TypeError, "in heads"),
        ([(True, 0)], TypeError, "in heads"),
        ([(0, 0, 0)], TypeError, "in heads"),
        ([(7, 0)], KeyError, "there is no layer 7 here; there is 0"),
        ([(0, 9)], IndexError, "9"),
        ([9], IndexError, "no head 9; it has 0, 1"),
        ([True], TypeError, "in heads"),
    ],
)
def test_heads_that_are_not_there_are_refused(heads, error, message):
    recording = make_recording(planted_map(FIRST, OWN))
    assert resolve_heads(recording, [(0, 1), ("h.0.attn", 0)]) == [("h.0.attn", 1), ("h.0.attn", 0)]
    assert resolve_heads(recording, [1]) == [("h.0.attn", 1)]
    with pytest.raises(error, match=message):
        resolve_heads(recording, heads)
