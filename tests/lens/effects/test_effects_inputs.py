"""What `regard.effect` takes and refuses, what was looked at, and how it is stopped."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import regard
from lens.effects.toy_decoder import TOKENS, VOCABULARY, ToyDecoder, texts
from lens.model_cases import MODEL_CASES
from regard import InputError, metrics
from terminals import Stream
from weights import random_bert, random_checkpoint

METRIC = metrics.logit_difference(3, 5)


def recorded(model, ids):
    with torch.no_grad(), regard.watch(model) as recording:
        model(ids)
    return recording


class TestLookedAt:
    def test_a_head_looks_at_the_first_token_that_the_metric_names_and_the_text_has(self):
        ids = torch.tensor([[1, 3, 2, 3, 4]])
        m = recorded(ToyDecoder(), ids)
        for metric in (metrics.log_prob(3), metrics.logit_difference(3, 4), metrics.logit_difference(9, 3)):
            effects = regard.effect(ToyDecoder(), ids, metric)
            expected = torch.stack([m[path][0, :, -1, [1, 3]].sum(-1) for path in m.layers])
            torch.testing.assert_close(effects.looked_at[0], expected)
            assert effects.looked_at_name == "attention from the last token to '3'"

    def test_else_at_the_one_token_that_gets_most_but_the_first_and_itself(self):
        ids = torch.tensor([[1, 3, 2, 3, 4]])
        m = recorded(ToyDecoder(), ids)
        effects = regard.effect(ToyDecoder(), ids, metrics.log_prob(9, position=3))
        expected = torch.stack([m[path][0, :, 3, [1, 2, 4]].amax(-1) for path in m.layers])
        torch.testing.assert_close(effects.looked_at[0], expected)
        assert (
            effects.looked_at_name == "attention from position 3 to the token that gets most, but the first and itself"
        )

    def test_a_layer_is_the_mean_of_its_heads(self):
        heads, layers = (regard.effect(ToyDecoder(), texts(), METRIC, over) for over in ("heads", "layers"))
        torch.testing.assert_close(layers.looked_at, heads.looked_at.mean(-1))

    def test_a_token_gets_the_mean_of_all_heads(self):
        effects = regard.effect(ToyDecoder(), texts(1), METRIC, "tokens")
        m = recorded(ToyDecoder(), texts(1))
        expected = torch.stack([m[path][0, :, -1].mean(0) for path in m.layers]).mean(0)
        torch.testing.assert_close(effects.looked_at[0], expected)

    def test_an_edge_has_the_mean_of_its_heads_and_layers(self):
        options = {"queries": [2, -1], "keys": [[0, 1], 4], "window": 2}
        effects = regard.effect(ToyDecoder(), texts(1), METRIC, "edges", **options)
        m = recorded(ToyDecoder(), texts(1))
        rows = torch.stack([m[path][0, :, [2, -1]].mean(0) for path in m.layers])
        groups = torch.stack([rows[..., :2].sum(-1), rows[..., 4]], -1)
        torch.testing.assert_close(effects.looked_at[0], torch.stack([groups[0], groups.mean(0)]))

    def test_value_weighted_attention_counts_what_a_key_carries(self):
        ids = torch.tensor([[1, 3, 2, 6, 4]])
        m = recorded(ToyDecoder(), ids)
        effects = regard.effect(ToyDecoder(), ids, metrics.log_prob(3))
        expected = torch.stack([m[path][0, :, -1, 1] * m[path].v[0, :, 1].norm(dim=-1) for path in m.layers])
        torch.testing.assert_close(effects.value_weighted[0], expected)


class TestTokenizer:
    def test_strings_are_looked_up_and_tokens_are_shown(self):
        words = {word: n for n, word in enumerate(["a", "b", "c", "Mary", "d", "John", *"efghi"])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        ids = torch.tensor([[1, 3, 2, 5]])
        by_name = regard.effect(ToyDecoder(), ids, metrics.logit_difference("Mary", "John"), tokenizer=tokenizer)
        torch.testing.assert_close(by_name.values, regard.effect(ToyDecoder(), ids, METRIC).values)
        assert by_name.metric == "logit_difference('Mary', 'John')"
        assert by_name.tokens == (("b", "Mary", "c", "John"),)
        assert by_name.looked_at_name == "attention from the last token to 'Mary'"

    def test_without_one_ids_stand_for_tokens(self):
        assert regard.effect(ToyDecoder(), torch.tensor([1, 3, 2]), METRIC).tokens == (("1", "3", "2"),)


class TestPretrained:
    def test_a_decoder_reads_texts_of_several_lengths(self, tmp_path):
        random_checkpoint(tmp_path, "llama")
        model = regard.load(tmp_path)
        effects = regard.effect(model, ["abc", "abcde"], metrics.log_prob("b"), "tokens")
        counts = [len(model.encode(text).ids) for text in ("abc", "abcde")]
        assert effects.values.shape == (2, max(counts))
        assert effects.values[0, counts[0] :].isnan().all()
        assert not effects.values[1].isnan().any()
        assert [len(tokens) for tokens in effects.tokens] == counts
        alone = regard.effect(model, "abcde", metrics.log_prob("b"), "tokens")
        torch.testing.assert_close(alone.values[0], effects.values[1])

    def test_a_function_gets_the_logits_of_every_position(self, tmp_path):
        random_checkpoint(tmp_path, "llama")
        model = regard.load(tmp_path)
        count, shapes = len(model.encode("abc").ids), set()

        def metric(logits):
            shapes.add(tuple(logits.shape))
            return logits[0, -1, 5]

        effects = regard.effect(model, "abc", metric)
        assert shapes == {(1, count, 61)}
        own = model.model(torch.tensor([model.encode("abc").ids]))[0, -1, 5]
        torch.testing.assert_close(effects.baseline[0], own.detach().double())

    def test_an_encoder_moves_its_vector(self, tmp_path):
        random_bert(tmp_path)
        effects = regard.effect(regard.load(tmp_path), "the river bank", metrics.cosine("first"), "tokens")
        assert (effects.values < 1e-6).all()
        assert effects.values.min() < -1e-6
        assert effects.tokens[0][1:4] == ("the", "river", "bank")

    def test_an_encoder_s_language_model_head_has_logits(self, tmp_path):
        random_bert(tmp_path, "BertForMaskedLM")
        model = regard.load(tmp_path)
        effects = regard.effect(model, "the river [MASK]", metrics.log_prob("loan", position=3))
        ids = torch.tensor([model.encode("the river [MASK]").ids])
        logits = model.model.logits(model.model(ids))
        expected = logits[0, 3].log_softmax(-1)[model.encode_continuation("loan")[0]]
        torch.testing.assert_close(effects.baseline[0], expected.detach().double())

    def test_an_encoder_without_logits_says_what_to_use(self, tmp_path):
        random_bert(tmp_path)
        with pytest.raises(InputError, match=r"without a language-model head, .* use regard.metrics.cosine"):
            regard.effect(regard.load(tmp_path), "the river", metrics.log_prob("loan"))

    def test_an_encoder_decoder_reads_a_source_and_a_target(self, tmp_path):
        random_checkpoint(tmp_path, "bart")
        model = regard.load(tmp_path)
        effects = regard.effect(model, ("abc", "de"), metrics.loss(), "heads")
        names = {row.name.rpartition(" ")[0] for row in effects.top(100)}
        assert names == {"encoder", "decoder", "cross"}
        edges = regard.effect(model, ("abc", "de"), metrics.loss(), "edges", queries=0)
        assert edges.query_tokens[0][0] == "</s>"  # what a decoder reads first
        assert edges.top(1)[0].name.startswith("'</s>'@0 to ")


class TestStopping:
    def stopped(self, after, tokens=TOKENS):
        """The effects when Ctrl-C comes with that call of the metric."""
        calls = itertools.count(1)

        def metric(output):
            if next(calls) == after:
                raise KeyboardInterrupt
            return output["logits"][0, -1, 3]

        return regard.effect(ToyDecoder(positions=tokens), texts(2, tokens), metric)

    def test_what_is_known_so_far_is_given_out(self):
        # Of this length, three rows at once: two texts, an unedited row and two heads, three heads, one head.
        effects = self.stopped(2 + 3 + 3 + 1, tokens=341)
        known = ~effects.values.isnan()
        assert known[0].flatten().tolist() == [True] * 5 + [False]
        assert not known[1].any()
        assert effects.notes == ("stopped early: 5 effects of 2 texts are known, NaN stands for the others",)
        assert "stopped early" in str(effects)

    def test_without_anything_it_is_an_interrupt(self):
        with pytest.raises(KeyboardInterrupt):
            self.stopped(1)

    def test_a_text_that_was_read_alone_has_no_effects_yet(self):
        effects = self.stopped(2)
        assert effects.values.shape[0] == 1
        assert effects.values.isnan().all()
        assert "Nothing is known yet." in str(effects)


class TestProgress:
    @pytest.mark.parametrize(
        ("terminal", "progress", "drawn"), [(True, True, True), (False, True, False), (True, False, False)]
    )
    def test_a_bar_is_for_terminals(self, terminal, progress, drawn, monkeypatch):
        stream = Stream(terminal=terminal, encoding="utf-8")
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("time.monotonic", itertools.count(0.0, 2.0).__next__)
        regard.effect(ToyDecoder(), texts(), METRIC, progress=progress)
        stream.flush()
        assert ("effects over heads" in stream.buffer.getvalue().decode()) == drawn


class Attentionless(nn.Module):
    def forward(self, ids):
        return torch.zeros(len(ids), 3, VOCABULARY)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"over": "words"}, ValueError, "over='words': it is one of 'layers', 'heads', 'tokens', 'edges'"),
        ({"method": "fast"}, ValueError, "method='fast': it is one of 'exact', 'gradient', 'both'"),
        ({"ablation": "noise"}, ValueError, "ablation='noise': it is one of 'zero', 'mean', 'resample'"),
        ({"ablation": "zero", "source": []}, ValueError, 'ablation="zero" takes no source'),
        ({"ablation": "mean", "source": []}, ValueError, r"source=\[\] holds no recording"),
        ({"over": "tokens", "ablation": "mean"}, ValueError, "blocks attention and replaces nothing"),
        ({"queries": [1]}, ValueError, "over='heads' takes no queries, keys and window"),
        ({"over": "edges", "queries": []}, ValueError, r"queries: '\[\]' is no list of positions"),
        ({"over": "edges", "queries": [9]}, IndexError, "there is no query 9: the text has 6, counted from 0"),
        ({"over": "edges", "keys": [-7]}, IndexError, "there is no key -7: the text has 6, counted from 0"),
        ({"over": "edges", "keys": []}, ValueError, r"keys=\[\]: name one position at least"),
        ({"over": "edges", "window": 0}, ValueError, "window=0: a number of layers from 1 on"),
        ({"top": 0}, ValueError, "top=0: how many are computed exactly"),
        ({"model": "smollm2"}, TypeError, r"write regard.effect\(regard.load\('smollm2'\), ...\)"),
        ({"inputs": "a text"}, TypeError, "For a text give a model of regard.load"),
        ({"inputs": ["a text"]}, TypeError, "a tuple of its arguments or a dict"),
        ({"model": ToyDecoder().train()}, ValueError, r"is in training mode, .* call .eval\(\) first"),
        ({"model": Attentionless().eval()}, ValueError, "no attention was seen in Attentionless"),
        ({"metric": lambda out: out["logits"][0, -1]}, ValueError, "returned 11 numbers, of the shape"),
        ({"metric": lambda out: float("nan")}, ValueError, "is NaN: the model's output holds NaN or infinity"),
        ({"metric": metrics.loss}, TypeError, "call it, such as regard.metrics.loss"),
        ({"metric": metrics.log_prob("a")}, InputError, "there is no tokenizer to look it up: give tokenizer="),
        ({"tokenizer": 3}, TypeError, "tokenizer=int: a tokenizer of transformers or of tokenizers"),
        ({"inputs": texts(1), "ablation": "resample"}, ValueError, r"no other text of the inputs has the 6 tokens of"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_done_is_refused(change, error, says):
    arguments = {"model": ToyDecoder(), "inputs": texts(), "metric": METRIC} | change
    with pytest.raises(error, match=says):
        regard.effect(**arguments)


def test_a_source_of_other_lengths_cannot_be_resampled():
    source = recorded(ToyDecoder(), texts(2, 8))
    with pytest.raises(ValueError, match="no other text of the source has the 6 tokens of text 0: give source= with"):
        regard.effect(ToyDecoder(), texts(1), METRIC, ablation="resample", source=source)


def test_a_model_that_keeps_some_logits_computes_no_others():
    """By the argument that models of transformers have; here as many logits as positions would be 7."""
    model = MODEL_CASES["gpt2"].build("LMHeadModel")
    kept = []
    model.lm_head.register_forward_hook(lambda module, args, output: kept.append(output.shape[1]))
    regard.effect(model, torch.randint(5, 40, (1, 7)), metrics.log_prob(3))
    assert set(kept) == {1}
