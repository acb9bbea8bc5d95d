"""A recording: its table, its tokens, its parts, rollout, and its summaries."""

import pytest
import torch

import regard
from grids import grid
from lens.recordings import make_recording, random_map, refuse
from regard import mask
from regard.lens import AttentionSummary, Recording

CAUSAL = mask.causal()


@pytest.fixture
def translator():
    """An encoder of 5 tokens, a decoder of 4 that attends to it."""
    encoder = [(f"encoder.layers.{n}.self_attn", random_map(5, 5, seed=n), "self", n) for n in (0, 1)]
    decoder = [
        (f"decoder.layers.{n}.{name}", random_map(4, keys, seed=n, mask=allowed), kind, n)
        for n in (0, 1)
        for name, keys, allowed, kind in (("self_attn", 4, CAUSAL, "self"), ("multihead_attn", 5, None, "cross"))
    ]
    return make_recording(*encoder, *decoder)


def test_it_is_a_mapping_in_the_order_in_which_they_ran(translator):
    assert list(translator)[2:4] == ["decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    assert translator["decoder.layers.0.multihead_attn"].shape == (1, 2, 4, 5)
    assert (len(translator), "nowhere" in translator, translator.get("nowhere")) == (6, False, None)
    # By layer, the first layers of all stacks come first.
    assert [path.split(".")[2] for path in translator.layers] == ["0", "0", "0", "1", "1", "1"]
    assert set(translator.layers) == set(translator)


def test_a_path_that_is_not_there_is_refused_with_those_that_are(translator):
    with pytest.raises(
        KeyError, match=r"no attention was recorded at 'encoder'; there is encoder\.layers\.0\.self_att"
    ):
        translator["encoder"]
    with pytest.raises(KeyError, match="there is nothing: the model was not run while it was watched"):
        Recording()["encoder"]


def test_a_map_is_made_once_when_it_is_first_read_and_a_path_comes_once():
    made, recording = [], Recording()
    facts = {"shape": (1, 2, 6, 6), "mask": None, "kernel": "", "kind": "", "layer": 0}
    recording.add("a", lambda: made.append(random_map()) or made[-1], **facts)
    recording.label(list("abcdef"))
    assert ("a" in recording, len(recording), recording.layers, made) == (True, 1, ("a",), [])
    assert recording["a"] is recording["a"] is made[0]
    assert len(made) == 1
    assert recording["a"].tokens == (list("abcdef"), list("abcdef"))
    with pytest.raises(ValueError, match=r"'a' is in this recording already"):
        recording.add("a", random_map(), **facts)


def test_the_table_names_every_attention_with_its_error_and_the_notes(translator):
    translator.add_note("decoder.bridge computes attention by hand")
    lines = str(translator).splitlines()
    assert lines[0].split() == ["path", "kind", "heads", "queries", "x", "keys", "mask", "kernel", "error"]
    assert lines[4].split()[:7] == ["decoder.layers.0.multihead_attn", "cross", "2", "4", "x", "5", "none"]
    assert "causal()" in lines[3]
    assert float(lines[3].split()[-1]) < 1e-6
    assert translator.notes == (lines[-1],) == ("decoder.bridge computes attention by hand",)
    assert repr(translator) == "Recording(6 attentions)"


def test_the_table_names_what_is_unverified():
    wrong = random_map()
    wrong.v.add_(1.0)
    recording = make_recording(wrong, random_map(sampled=False), random_map(ensure_unchanged=refuse))
    ends = ["UNVERIFIED", "unknown, unverified", "changed since: cannot be read"]
    assert all(line.endswith(end) for line, end in zip(str(recording).splitlines()[1:], ends, strict=True))


def test_parts_by_kind_and_by_module(translator):
    assert list(translator.subset("cross")) == [f"decoder.layers.{n}.multihead_attn" for n in (0, 1)]
    assert len(translator.subset("self")) == 4
    assert list(translator.subset("decoder").subset("self")) == [f"decoder.layers.{n}.self_attn" for n in (0, 1)]
    assert len(translator.subset("layers.1")) == 3
    assert translator.subset("encoder")["encoder.layers.0.self_attn"] is translator["encoder.layers.0.self_attn"]
    with pytest.raises(KeyError, match="no attention here is 'bridge'; there is cross, self, and the paths are enc"):
        translator.subset("bridge")


# Tokens.


def test_one_text_labels_the_maps_that_it_fits(translator):
    translator.label(list("abcde"))
    assert [m.tokens for m in translator.values()] == [(list("abcde"), list("abcde"))] * 2 + [None] * 4


@pytest.mark.parametrize("target", ["wxyz", "vwxyz"])
def test_two_texts_label_all_three_kinds_of_attention(target):
    n, source, target = len(target), list("abcde"), list(target)
    kinds = ("encoder.0", 5, 5, "self"), ("decoder.0.attn", n, n, "self"), ("decoder.0.cross", n, 5, "cross")
    recording = make_recording(*((path, random_map(*size), kind, 0) for path, *size, kind in kinds))
    recording.label(target, source)
    assert [m.tokens for m in recording.values()] == [(source, source), (target, target), (target, source)]


def test_with_fewer_queries_than_keys_the_queries_are_the_last_tokens():
    recording = make_recording(random_map(2, 5, mask=CAUSAL), tokens=[list("abcde")])
    assert recording["h.0.attn"].tokens == (list("de"), list("abcde"))


def test_a_batch_takes_a_list_for_each_text():
    recording = make_recording(random_map(2, 2, batch=2), tokens=[[["a", "b"], ["c", "d"]]])
    assert recording["h.0.attn"].tokens == ([["a", "b"], ["c", "d"]],) * 2
    message = r"2 tokens fit no map here: h\.0\.attn has 2 queries x 2 keys in each of 2 texts, which"
    with pytest.raises(ValueError, match=message):
        recording.label(["a", "b"])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            ["abcdefg"],
            r"7 tokens fit no map here: encoder\.layers\.0\.self_attn and 1 more have 5 queries x 5 keys; "
            r"decoder\.layers\.0\.self_attn and 1 more have 4 queries x 4 keys; .* have 4 queries x 5 keys$",
        ),
        (["abc", "ab"], r"^3 tokens and 2 tokens fit no map"),
        ([["ab", "cde"]], r"\[2, 3\] tokens of 2 texts fit no map"),
    ],
)
def test_tokens_that_fit_nothing_are_refused_with_what_would(translator, tokens, message):
    with pytest.raises(ValueError, match=message):
        translator.label(*(list(text) if isinstance(text, str) else [*map(list, text)] for text in tokens))


# Rollout.


def assert_rollout(row, maps, token, batch=0):
    """It is Abnar & Zuidema's product, every matrix written out, in float64."""
    eye = product = torch.eye(maps[0].shape[2], dtype=torch.float64)
    for m in maps:
        sinks = None if m.sinks is None else m.sinks.double()
        weights = regard.steps(m.q.double(), m.k.double(), m.k.double(), m.mask, sinks=sinks).weights
        product = (0.5 * weights[batch].mean(0) + 0.5 * eye) @ product
    torch.testing.assert_close(row.double(), product[token], atol=1e-6, rtol=1e-5)


PADDED_WINDOW = mask.padding([9, 5]) & mask.window(3, 2)


@grid(options=[{}, {"mask": PADDED_WINDOW}, {"sinks": torch.tensor([0.3, -1.0])}], at=[(0, 0), (4, 1), (8, 0)])
def test_rollout_is_a_row_of_the_product_of_all_layers(options, at):
    recording = make_recording(*(random_map(9, 9, batch=2, seed=n, **options) for n in range(4)))
    assert_rollout(recording.rollout(*at), list(recording.values()), *at)


def test_rollout_follows_one_stack(translator):
    with pytest.raises(ValueError, match=r"there are 2: say stack='encoder\.layers' or stack='decoder\.layers'"):
        translator.rollout(0)
    encoder = [translator[f"encoder.layers.{n}.self_attn"] for n in (0, 1)]
    for name in ("encoder", "encoder.layers"):
        assert_rollout(translator.rollout(2, stack=name), encoder, 2)
    with pytest.raises(KeyError, match="no attention here is 'bridge'"):
        translator.rollout(0, stack="bridge")
    with pytest.raises(ValueError, match="rollout follows self-attention, and there is none here"):
        translator.rollout(0, stack="cross")


def test_rollout_keeps_two_forward_passes_apart():
    maps = [random_map(4, 4, seed=n) for n in range(4)]
    recording = make_recording(*maps[:2], *((f"h.{n}.attn#1", m, "self", n) for n, m in enumerate(maps[2:])))
    with pytest.raises(ValueError, match="say stack='h' or stack='h#1'"):
        recording.rollout(0)
    assert_rollout(recording.rollout(1, stack="h#1"), maps[2:], 1)


@pytest.mark.parametrize(
    ("sizes", "arguments", "error", "message"),
    [
        ([(4, 4), (5, 5)], [0], ValueError, r"all of one size: h\.0\.attn has 4 queries x 4 keys; h\.1\.attn has 5"),
        ([(1, 4)], [0], ValueError, r"as many queries as keys.* 1 queries x 4 keys"),
        ([(4, 4)], [4], IndexError, "there is no token 4: there are 4, counted from 0"),
        ([(4, 4)], [-1], IndexError, "there is no token -1"),
        ([(4, 4)], [0, 1], IndexError, "there is no batch row 1: there are 1"),
    ],
)
def test_what_rollout_cannot_follow_is_refused(sizes, arguments, error, message):
    with pytest.raises(error, match=message):
        make_recording(*(random_map(*size) for size in sizes)).rollout(*arguments)


def test_rollout_needs_all_heads():
    recording = Recording()
    recording.add("a.0", random_map(4, 4), shape=(1, 2, 4, 4), mask=None, kernel="", kind="self", layer=0, heads=[0, 3])
    with pytest.raises(ValueError, match=r"all heads of a layer, and a\.0 was watched with heads= alone"):
        recording.rollout(0)


@pytest.mark.parametrize("layers", [[0, 2], [1], [1, 0]])
def test_rollout_needs_every_layer_in_order(layers):
    recording = make_recording(*((f"h.{n}.attn", random_map(4, 4), "self", n) for n in layers))
    with pytest.raises(ValueError, match=rf"rollout needs every layer of the stack, and there are \[{layers[0]}"):
        recording.rollout(0)


# Summaries.


def test_a_summary_answers_as_its_map_did():
    m = random_map(70, 70, mask=CAUSAL)
    m.label([f"t{n % 9}" for n in range(70)])
    summary = AttentionSummary.from_map(m)
    ours, of_map = ((s.entropy(), s.received(), *s.distance(), *s.top(3)) for s in (summary, m))
    torch.testing.assert_close(ours, of_map)
    assert (summary.shape, summary.error, summary.verified, summary.tokens) == (m.shape, m.error, m.verified, m.tokens)
    types = make_recording(m).head_types()["h.0.attn"]
    assert summary.head_types().names == types.names
    torch.testing.assert_close(dict(summary.head_types().scores), dict(types.scores), equal_nan=True)
    assert summary.pooled().shape == (1, 2, 64, 64)
    assert "causal()" in repr(summary)


@pytest.mark.parametrize(
    ("size", "all_cells"),
    [((24, 24), [(1, 1), (7, 3), (24, 24), (2, 24)]), ((150, 90), [(64, 64), (32, 16), (1, 64)])],
)
def test_a_summary_has_all_cells_of_a_small_map_and_of_a_large_one_those_made_of_the_ones_kept(size, all_cells):
    m = random_map(*size, mask=mask.window(20, 30))
    for cells in all_cells:
        torch.testing.assert_close(AttentionSummary.from_map(m).pooled(*cells), m.pooled(*cells), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(65, 64), (64, 63), (0, 1)])
def test_other_cells_of_a_large_map_are_refused(rows, columns):
    summary = AttentionSummary.from_map(random_map(150, 90))
    with pytest.raises(ValueError, match=rf"pooled\({rows}, {columns}\), but pooled\(64, 64\): this recording keeps"):
        summary.pooled(rows, columns)


def test_what_a_summary_does_not_keep_is_refused_with_the_way_out():
    summary = AttentionSummary.from_map(random_map(12, 12))
    way_out = r'this recording keeps summaries; watch with keep="maps"'
    questions = (summary.top, 9), (summary.received, torch.ones(1, 12)), (make_recording(summary).rollout, 0)
    for ask, question in [(summary.__getitem__, 0), *questions]:
        with pytest.raises(ValueError, match=way_out):
            ask(question)
    needs_values = "output", "attribution", "edge_attribution", "without_key", "value_weighted", "group_outputs"
    for name in ("q", "mass", "dense", "lse", *needs_values):
        with pytest.raises(AttributeError, match=f"{name}: {way_out}"):
            getattr(summary, name)
    with pytest.raises(ValueError, match="5 tokens"):
        summary.label(list("abcde"))


def test_a_recording_of_summaries_prints_and_takes_tokens():
    recording = make_recording(AttentionSummary.from_map(random_map(mask=CAUSAL)), tokens=[list("abcdef")])
    assert "causal()" in str(recording).splitlines()[1]
    assert recording["h.0.attn"].tokens[0] == list("abcdef")
