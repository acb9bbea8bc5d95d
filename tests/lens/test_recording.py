"""A recording: its table, its tokens, its parts, and rollout."""

import pytest
import torch

import regard
from regard import mask
from regard.lens import AttentionMap, AttentionSummary, OutputSample, Recording


def a_map(queries=6, keys=6, *, batch=1, heads=2, seed=0, sampled=True, **options):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, heads, n, 8, generator=g) for n in (queries, keys, keys))
    output = regard.attend(q, k, v, options.get("mask"), sinks=options.get("sinks"))
    b, i = torch.zeros(2, dtype=torch.long), torch.tensor([0, queries - 1])
    sample = OutputSample(b, i, output[b, :, i]) if sampled else None
    return AttentionMap(q, k, v, sample=sample, kernel="fused", **options)


def recorded(maps):
    """A recording of (path, map, kind, layer)."""
    recording = Recording()
    for path, m, kind, layer in maps:
        recording.add(path, m, shape=tuple(m.shape), mask=m.mask, kernel=m.kernel, kind=kind, layer=layer)
    return recording


@pytest.fixture
def translator():
    """An encoder of 5 tokens, a decoder of 4 that looks at it."""
    return recorded(
        [
            ("encoder.layers.0.self_attn", a_map(5, 5), "self", 0),
            ("encoder.layers.1.self_attn", a_map(5, 5, seed=1), "self", 1),
            ("decoder.layers.0.self_attn", a_map(4, 4, mask=mask.causal()), "self", 0),
            ("decoder.layers.0.multihead_attn", a_map(4, 5), "cross", 0),
            ("decoder.layers.1.self_attn", a_map(4, 4, mask=mask.causal(), seed=2), "self", 1),
            ("decoder.layers.1.multihead_attn", a_map(4, 5, seed=3), "cross", 1),
        ]
    )


def test_it_is_a_mapping_in_the_order_in_which_they_ran(translator):
    assert len(translator) == 6
    assert list(translator)[2:4] == ["decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    assert translator["decoder.layers.0.multihead_attn"].shape == (1, 2, 4, 5)
    assert "nowhere" not in translator
    assert translator.get("nowhere") is None


def test_by_layer_the_first_layers_of_all_stacks_come_first(translator):
    assert [path.split(".")[2] for path in translator.layers] == ["0", "0", "0", "1", "1", "1"]
    assert set(translator.layers) == set(translator)


def test_a_path_that_is_not_there_is_refused_with_those_that_are(translator):
    with pytest.raises(
        KeyError, match=r"no attention was recorded at 'encoder'; there is encoder\.layers\.0\.self_att"
    ):
        _ = translator["encoder"]
    with pytest.raises(KeyError, match="there is nothing: the model was not run while it was watched"):
        _ = Recording()["encoder"]


def test_a_path_comes_once():
    recording = recorded([("a", a_map(), "self", 0)])
    with pytest.raises(ValueError, match="'a' is in this recording already"):
        recording.add("a", a_map(), shape=(1, 2, 6, 6), mask=None, kernel="", kind="", layer=None)


def test_a_map_is_made_once_when_it_is_asked_for():
    made = []

    def make():
        made.append(a_map())
        return made[-1]

    recording = Recording()
    recording.add("a", make, shape=(1, 2, 6, 6), mask=None, kernel="fused", kind="self", layer=0)
    recording.label(list("abcdef"))
    assert ("a" in recording, len(recording), recording.layers, made) == (True, 1, ("a",), [])
    assert recording["a"] is recording["a"]
    assert len(made) == 1
    assert recording["a"].tokens == (list("abcdef"), list("abcdef"))


def test_the_table_says_it_all(translator):
    translator.add_note("decoder.bridge computes attention by hand")
    lines = str(translator).splitlines()
    assert lines[0].split() == ["path", "kind", "heads", "queries", "x", "keys", "mask", "kernel", "error"]
    assert lines[4].split()[:7] == ["decoder.layers.0.multihead_attn", "cross", "2", "4", "x", "5", "none"]
    assert "causal()" in lines[3]
    assert float(lines[3].split()[-1]) < 1e-6
    assert lines[-1] == "decoder.bridge computes attention by hand"
    assert translator.notes == ("decoder.bridge computes attention by hand",)
    assert repr(translator) == "Recording(6 attentions)"


def test_the_table_says_what_is_unverified():
    wrong, unknown = a_map(), a_map(sampled=False)
    wrong.v.add_(1.0)

    def gone():
        raise RuntimeError("changed in place")

    changed = a_map(ensure_unchanged=gone)
    lines = str(recorded([(n, m, "self", 0) for n, m in (("w", wrong), ("u", unknown), ("c", changed))])).splitlines()
    assert lines[1].endswith("UNVERIFIED")
    assert lines[2].endswith("unknown, unverified")
    assert lines[3].endswith("changed since: cannot be read")


def test_parts_by_kind_and_by_module(translator):
    assert list(translator.subset("cross")) == [f"decoder.layers.{n}.multihead_attn" for n in (0, 1)]
    assert len(translator.subset("self")) == 4
    assert list(translator.subset("decoder").subset("self")) == [f"decoder.layers.{n}.self_attn" for n in (0, 1)]
    assert len(translator.subset("layers.1")) == 3
    assert translator.subset("encoder")["encoder.layers.0.self_attn"] is translator["encoder.layers.0.self_attn"]
    with pytest.raises(KeyError, match="no attention here is 'bridge'; there is cross, self, and the paths are enc"):
        translator.subset("bridge")


# Tokens.


def test_one_text_labels_what_it_fits(translator):
    translator.label(list("abcde"))
    assert translator["encoder.layers.1.self_attn"].tokens == (list("abcde"), list("abcde"))
    assert translator["decoder.layers.0.self_attn"].tokens is None
    assert translator["decoder.layers.0.multihead_attn"].tokens is None


def test_two_texts_label_all_three_attentions(translator):
    source, target = list("abcde"), list("wxyz")
    translator.label(target, source)
    assert translator["encoder.layers.0.self_attn"].tokens == (source, source)
    assert translator["decoder.layers.1.self_attn"].tokens == (target, target)
    assert translator["decoder.layers.1.multihead_attn"].tokens == (target, source)


def test_texts_of_one_length_are_not_mixed_up():
    translator = recorded(
        [
            ("encoder.block.0.attn", a_map(3, 3), "self", 0),
            ("decoder.block.0.attn", a_map(3, 3), "self", 0),
            ("decoder.block.0.cross", a_map(3, 3), "cross", 0),
        ]
    )
    source, target = list("abc"), list("xyz")
    translator.label(target, source)
    assert [m.tokens for m in translator.values()] == [(source, source), (target, target), (target, source)]


def test_with_fewer_queries_than_keys_the_queries_are_the_last_tokens():
    recording = recorded([("a", a_map(2, 5, mask=mask.causal()), "self", 0)])
    recording.label(list("abcde"))
    assert recording["a"].tokens == (list("de"), list("abcde"))


def test_a_batch_takes_a_list_for_each_text():
    recording = recorded([("a", a_map(2, 2, batch=2), "self", 0)])
    recording.label([["a", "b"], ["c", "d"]])
    assert recording["a"].tokens == ([["a", "b"], ["c", "d"]],) * 2
    with pytest.raises(
        ValueError, match="2 tokens fit no map here: a has 2 queries x 2 keys in each of 2 texts, which"
    ):
        recording.label(["a", "b"])


def test_tokens_that_fit_nothing_are_refused_with_what_would(translator):
    with pytest.raises(
        ValueError,
        match=r"7 tokens fit no map here: encoder\.layers\.0\.self_attn and 1 more have 5 queries x 5 keys; "
        r"decoder\.layers\.0\.self_attn and 1 more have 4 queries x 4 keys; .* have 4 queries x 5 keys$",
    ):
        translator.label(list("abcdefg"))
    with pytest.raises(ValueError, match=r"^3 tokens and 2 tokens fit no map"):
        translator.label(list("abc"), list("ab"))
    with pytest.raises(ValueError, match=r"\[2, 3\] tokens of 2 texts fit no map"):
        translator.label([["a", "b"], ["c", "d", "e"]])


# Rollout.


def rolled(maps, token, batch):
    """Abnar & Zuidema's product, every matrix written out, in float64."""
    eye = torch.eye(maps[0].shape[2], dtype=torch.float64)
    product = eye
    for m in maps:
        every = regard.steps(
            m.q.double(), m.k.double(), m.k.double(), m.mask, sinks=None if m.sinks is None else m.sinks.double()
        )
        product = (0.5 * every.weights[batch].mean(0) + 0.5 * eye) @ product
    return product[token]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": mask.causal()},
        {"mask": mask.padding([9, 5]) & mask.window(3, 2)},
        {"sinks": torch.tensor([0.3, -1.0])},
    ],
    ids=["full", "causal", "ragged", "sinks"],
)
@pytest.mark.parametrize(("token", "batch"), [(0, 0), (4, 1), (8, 0)])
def test_rollout_is_a_row_of_the_product_of_all_layers(options, token, batch):
    recording = recorded([(f"h.{n}.attn", a_map(9, 9, batch=2, seed=n, **options), "self", n) for n in range(4)])
    row = recording.rollout(token, batch)
    assert row.shape == (9,)
    torch.testing.assert_close(row.double(), rolled(list(recording.values()), token, batch), atol=1e-6, rtol=1e-5)


def test_rollout_sums_to_one():
    recording = recorded([(f"h.{n}.attn", a_map(7, 7, seed=n, mask=mask.causal()), "self", n) for n in range(3)])
    row = recording.rollout(3)
    assert row.sum().item() == pytest.approx(1.0)
    assert not row[4:].any()


def test_rollout_follows_one_stack(translator):
    with pytest.raises(ValueError, match=r"there are 2: say stack='encoder\.layers' or stack='decoder\.layers'"):
        translator.rollout(0)
    encoder = [translator[f"encoder.layers.{n}.self_attn"] for n in (0, 1)]
    for name in ("encoder", "encoder.layers"):
        row = translator.rollout(2, stack=name)
        torch.testing.assert_close(row.double(), rolled(encoder, 2, 0), atol=1e-6, rtol=1e-5)
    with pytest.raises(KeyError, match="no attention here is 'bridge'"):
        translator.rollout(0, stack="bridge")
    with pytest.raises(ValueError, match="rollout follows self-attention, and there is none here"):
        translator.rollout(0, stack="cross")


def test_rollout_keeps_two_forward_passes_apart():
    maps = [a_map(4, 4, seed=n) for n in range(4)]
    paths = ["h.0.attn", "h.1.attn", "h.0.attn#1", "h.1.attn#1"]
    recording = recorded([(path, m, "self", n % 2) for n, (path, m) in enumerate(zip(paths, maps, strict=True))])
    with pytest.raises(ValueError, match="say stack='h' or stack='h#1'"):
        recording.rollout(0)
    torch.testing.assert_close(recording.rollout(1, stack="h#1").double(), rolled(maps[2:], 1, 0), atol=1e-6, rtol=1e-5)


def test_what_rollout_cannot_follow_is_refused():
    sizes = recorded([("h.0.attn", a_map(4, 4), "self", 0), ("h.1.attn", a_map(5, 5), "self", 1)])
    with pytest.raises(ValueError, match=r"all of one size: h\.0\.attn has 4 queries x 4 keys; h\.1\.attn has 5"):
        sizes.rollout(0)
    step = recorded([("h.0.attn", a_map(1, 4), "self", 0)])
    with pytest.raises(ValueError, match=r"as many queries as keys.* 1 queries x 4 keys"):
        step.rollout(0)
    recording = recorded([("h.0.attn", a_map(4, 4), "self", 0)])
    with pytest.raises(IndexError, match="there is no token 4: there are 4, counted from 0"):
        recording.rollout(4)
    with pytest.raises(IndexError, match="there is no batch row 1: there are 1"):
        recording.rollout(0, 1)
    some = Recording()
    some.add("h.0.attn", a_map(4, 4), shape=(1, 2, 4, 4), mask=None, kernel="", kind="self", layer=0, heads=[0, 3])
    with pytest.raises(ValueError, match=r"all heads of a layer, and h\.0\.attn was watched with heads= alone"):
        some.rollout(0)


# Summaries.


def test_a_summary_answers_as_its_map_did():
    m = a_map(70, 70, mask=mask.causal())
    m.label([f"t{n % 9}" for n in range(70)])
    summary = AttentionSummary.from_map(m)
    assert torch.equal(summary.entropy(), m.entropy())
    assert torch.equal(summary.received(), m.received())
    for ours, theirs in zip((*summary.distance(), *summary.top(3)), (*m.distance(), *m.top(3)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert (summary.shape, summary.error, summary.verified, summary.tokens) == (m.shape, m.error, m.verified, m.tokens)
    kinds = recorded([("a", m, "self", 0)]).head_types()["a"]
    assert summary.head_types().names == kinds.names
    for name, score in kinds.scores.items():
        torch.testing.assert_close(summary.head_types().scores[name], score, equal_nan=True)
    assert summary.pooled().shape == (1, 2, 64, 64)
    assert "causal()" in repr(summary)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 3), (24, 24), (2, 24)])
def test_a_small_map_s_picture_has_any_cells(rows, columns):
    m = a_map(24, 24, mask=mask.causal())
    torch.testing.assert_close(
        AttentionSummary.from_map(m).pooled(rows, columns), m.pooled(rows, columns), atol=1e-6, rtol=1e-5
    )


def test_a_large_map_s_picture_has_the_cells_that_are_made_of_those_kept():
    m = a_map(150, 90, mask=mask.window(20, 30))
    summary = AttentionSummary.from_map(m)
    for rows, columns in ((64, 64), (32, 16), (1, 64)):
        torch.testing.assert_close(summary.pooled(rows, columns), m.pooled(rows, columns), atol=1e-6, rtol=1e-5)
    for rows, columns in ((65, 64), (64, 63), (0, 1)):
        with pytest.raises(
            ValueError, match=rf"pooled\({rows}, {columns}\), but pooled\(64, 64\): this recording keeps"
        ):
            summary.pooled(rows, columns)


def test_what_a_summary_does_not_keep_is_refused_with_the_way_out():
    summary = AttentionSummary.from_map(a_map(12, 12))
    out = r'this recording keeps summaries; watch with keep="maps"'
    for statistic in (
        lambda: summary[0, 0],
        lambda: summary.top(9),
        lambda: summary.received(torch.ones(1, 12)),
        lambda: recorded([("h.0.attn", summary, "self", 0)]).rollout(0),
    ):
        with pytest.raises(ValueError, match=out):
            statistic()
    for name in ("q", "mass", "dense", "lse"):
        with pytest.raises(AttributeError, match=f"{name}: {out}"):
            getattr(summary, name)
    with pytest.raises(ValueError, match="5 tokens"):
        summary.label(list("abcde"))


def test_a_recording_of_summaries_prints_and_takes_tokens():
    recording = Recording()
    summary = AttentionSummary.from_map(a_map(6, 6, mask=mask.causal()))
    recording.add("h.0.attn", summary, shape=(1, 2, 6, 6), mask="", kernel="fused", kind="self", layer=0)
    assert "causal()" in str(recording).splitlines()[1]
    recording.label(list("abcdef"))
    assert recording["h.0.attn"].tokens[0] == list("abcdef")
