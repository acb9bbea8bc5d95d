"""Explanations of every family, against the attention maps that transformers itself gives out."""

import copy
import itertools
import json
import math
import re
from dataclasses import replace

import pytest
import sentencepiece
import torch

import regard
from grids import grid
from lens.explained import (
    CASES,
    DECODERS,
    ENCODER_DECODERS,
    TARGET,
    TEXT,
    checkpoint,
    explain,
    pretrained,
    transformers_maps,
)
from regard import InputError
from regard.attention import multihead
from regard.generation import generate
from regard.transformer import Config, Decoder
from weights import minilm, random_checkpoint

each_case = pytest.mark.parametrize(("family", "attention"), CASES)


@pytest.mark.parametrize("heads", ["one of each layer", pytest.param("all", marks=pytest.mark.slow)])
@each_case
def test_the_row_is_that_of_the_map_that_transformers_gives(family, attention, heads):
    maps, rows, columns = transformers_maps(family, attention)
    num_heads = len(maps[0])
    for layer, head in itertools.product(range(len(maps)), range(num_heads)):
        if heads != "all" and head != (layer + 1) % num_heads:
            continue
        e = explain(family, "bank", attention, layer=layer, head=head)
        assert (e.layer, e.head, e.model.num_layers, e.model.num_heads) == (layer, head, len(maps), num_heads)
        assert e.queries.ids == rows[: len(e.queries.ids)]
        assert e.keys.ids == columns[: len(e.keys.tokens)]
        row = maps[layer][head, e.word.token_index, : len(e.keys.tokens)]
        torch.testing.assert_close(e.row.weights.float(), row, atol=1e-5, rtol=0)
        assert e.proof.verified
        assert e.proof.max_error < 1e-5 * max(1.0, e.row.v.abs().max().item())
        difference = (torch.tensor(e.proof.model_output).double() - e.row.output).abs()
        assert e.proof.max_error == pytest.approx(difference.max().item(), abs=1e-12)
        assert e.proof.num_values == difference.numel()
        assert e.proof.tolerance == pytest.approx(1e-4 * e.row.v.abs().max().item())


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_the_top_keys_are_the_words_of_the_source_by_their_mean_share(family):
    e, maps = explain(family, "man"), transformers_maps(family, "cross")[0]
    shares = torch.stack([m[:, e.word.token_index].mean(dim=1) for m in maps])  # (layers, heads, source tokens)
    in_order = sorted(e.top_keys, key=lambda top: top.index)
    assert [top.token for top in in_order] == re.findall(r"\w+|\S", TEXT)
    ends = [*(top.index for top in in_order[1:]), len(e.keys.tokens) - (e.keys.tokens[-1] == "</s>")]
    for top, end in zip(in_order, ends, strict=True):
        of_word = shares[:, :, top.index : end].sum(-1)
        assert top.mean == pytest.approx(of_word.mean().item(), abs=1e-5)
        assert top.weight == pytest.approx(of_word.max().item(), abs=1e-5)
        assert of_word[top.layer, top.head].item() == pytest.approx(top.weight, abs=1e-5)
    assert e.top_keys == sorted(e.top_keys, key=lambda top: -top.mean)
    assert (e.layer, e.head) == (e.top_keys[0].layer, e.top_keys[0].head)


def test_a_decoder_lists_the_tokens_before_the_word_only():
    e = explain("gpt2", "bank")
    (place,) = e.word.token_index
    assert {top.index for top in e.top_keys} == set(range(place))
    assert not e.row.weights[0, place + 1 :].any()
    assert e.row.allowed[0].tolist() == [i <= place for i in range(len(e.queries.tokens))]
    assert (e.model.kind, e.attention, e.target, e.model.stack) == ("decoder", "self", None, "decoder")
    first = explain("gpt2", 0)
    assert (first.top_keys, first.row.weights[0, 0].item()) == ([], pytest.approx(1.0))


@pytest.mark.parametrize("family", DECODERS)
def test_of_a_decoder_the_likeliest_tokens_after_the_word_are_transformers_own(family):
    e = explain(family, "bank")
    with torch.no_grad():
        logits = checkpoint(family)[1](torch.tensor([e.queries.ids])).logits[0, e.word.token_index[-1]]
    likeliest = logits.softmax(-1).topk(5)
    assert [each.id for each in e.next_tokens] == likeliest.indices.tolist()
    assert [each.probability for each in e.next_tokens] == pytest.approx(likeliest.values.tolist(), rel=1e-4)


@pytest.mark.parametrize(("family", "attention"), [("bert", "encoder"), ("bart", "cross"), ("t5", "decoder")])
def test_other_models_have_no_next_token(family, attention):
    assert explain(family, "bank", attention).next_tokens == []


def test_a_window_hides_what_lies_before_it():
    e = explain("mistral", "by", layer=0, head=0)
    last = e.word.token_index[-1]
    assert (e.variant.window, explain("gemma2", "by", layer=1, head=0).variant.window) == (4, None)
    assert e.row.allowed[-1].tolist() == [last - 4 < i <= last for i in range(len(e.queries.tokens))]


def assert_steps_follow(e):
    """The row from q, k, v and the facts of the attention, with the bias as it is given."""
    row, variant = e.row, e.variant
    expected = {"scores": row.q @ row.k.T}
    last = expected["scaled"] = expected["scores"] * row.scale
    if variant.softcap is not None:
        last = expected["capped"] = variant.softcap * torch.tanh(last / variant.softcap)
    last = last if variant.bias is None else row.biased
    powers = last.exp() if row.allowed is None else last.exp() * row.allowed
    sink = 0.0 if variant.sink is None else math.exp(variant.sink)
    expected["weights"] = powers / (powers.sum(-1, keepdim=True) + sink)
    expected["output"] = expected["weights"] @ row.v
    torch.testing.assert_close({name: getattr(row, name) for name in expected}, expected, rtol=1e-9, atol=1e-12)


@each_case
def test_the_numbers_follow_from_one_another(family, attention):
    e = explain(family, "bank", attention)
    assert_steps_follow(e)
    scale = {"gemma2": 7**-0.5, "t5": 1.0}.get(family, e.row.q.shape[-1] ** -0.5)
    assert e.row.scale == pytest.approx(scale, rel=1e-12)
    assert (e.row.capped is not None) == (family == "gemma2")
    assert (e.row.biased is not None) == (family == "t5" and attention != "cross")
    assert (e.variant.rotary, e.variant.kv_head is not None) == (family in DECODERS and family != "gpt2",) * 2
    assert e.variant.qk_norm == (family == "qwen3")
    assert e.variant.pre_norm == (family in DECODERS or family == "t5")


def decoder_with_sinks(**choices):
    """A decoder with sinks: no checkpoint of a family that regard loads has any."""
    sizes = {"vocab_size": 61, "d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 30}
    config = Config(**{**sizes, "sinks": True, **choices})
    model = Decoder(config).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.sinks[:4] = torch.tensor([0.3, -0.7, 1.1, 0.0])
    return replace(pretrained("gpt2"), model=model, config=config)


def test_a_sink_takes_its_share_and_carries_nothing_and_alibi_is_a_bias():
    e = regard.explain(TEXT, "bank", decoder_with_sinks(positions="alibi"), layer=1, head=2)
    assert (e.variant.sink, e.variant.bias) == (pytest.approx(1.1), "ALiBi")
    assert e.row.weights.sum().item() < 0.95
    assert e.proof.verified
    assert_steps_follow(e)
    slope = (e.row.biased - e.row.scaled)[0].diff()[: e.word.token_index[0]]
    torch.testing.assert_close(slope, slope[:1].expand_as(slope))


@pytest.mark.parametrize(("family", "attention"), [("bert", "encoder"), ("bart", "cross"), ("llama", "decoder")])
def test_the_proof_fails_when_the_kernel_computes_something_else(monkeypatch, family, attention):
    """The proof is of the model's own output: a kernel that is slightly off must show."""
    right = multihead.attend
    monkeypatch.setattr(multihead, "attend", lambda q, k, v, mask=None, **kw: right(q, k, v, mask, **kw) * 1.001)
    proof = explain(family, "bank", attention).proof
    assert proof.max_error > proof.tolerance
    assert not proof.verified


@pytest.mark.parametrize("family", DECODERS)
def test_decoders_are_compared_by_the_vectors_that_transformers_computes(family):
    ours, model, other = pretrained(family), checkpoint(family)[1], "a man in the bank."
    e = regard.explain(TEXT, "bank", ours, other)
    (comparison,) = e.comparisons
    states = []
    for text, places in ((TEXT, e.word.token_index), (other, comparison.token_index)):
        with torch.no_grad():
            out = model(torch.tensor([ours.encode(text).ids]), output_hidden_states=True)
        states.append(torch.stack(out.hidden_states)[:, 0, places].mean(1))
    assert comparison.cosine == pytest.approx(torch.cosine_similarity(*states, dim=1).tolist(), abs=1e-4)


@each_case
def test_the_input_is_what_the_first_layer_reads(family, attention):
    e, model = explain(family, "bank", attention), pretrained(family).model
    stack = getattr(model, "encoder" if attention == "encoder" else "decoder") if family in ENCODER_DECODERS else model
    reads, context = e.queries.ids, None
    if attention == "cross":
        reads = [stack.config.special_tokens.decoder_start, *reads[:-1]]
    if family in ENCODER_DECODERS and attention != "encoder":
        context = model.encoder(torch.tensor(pretrained(family).encode(TEXT).ids))
    state = next(stack.hidden_states(torch.tensor(reads), context=context))
    vectors = e.input
    assert vectors.shape == [len(e.queries.ids), stack.config.d_model]
    torch.testing.assert_close(vectors.sum if vectors.normed is None else vectors.normed, state[e.word.token_index])
    parts = [part for part in (vectors.token, vectors.position, vectors.token_type) if part is not None]
    torch.testing.assert_close(vectors.sum, sum(parts))
    assert (vectors.position is None) == (family == "t5" or (family in DECODERS and family != "gpt2"))
    assert (vectors.normed is not None) == (family in ("bart", "bert"))
    assert (vectors.token_type is not None) == (family == "bert")


@grid(case=[("gpt2", None), ("gemma2", None), ("t5", "decoder"), ("bart", None), ("bert", None)], word=["bank", "man"])
def test_what_was_saved_can_be_reopened(tmp_path, case, word):
    before = explain(case[0], word, case[1])
    before.save(tmp_path / "facts.json")
    after = regard.Explanation.load(tmp_path / "facts.json")
    assert after.to_dict() == before.to_dict() == json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    assert str(after) == str(before)
    for field in ("variant", "keys", "model", "top_keys", "proof", "comparisons"):
        assert getattr(after, field) == getattr(before, field)
    for name in ("weights", "capped", "biased", "allowed"):
        torch.testing.assert_close(getattr(after.row, name), getattr(before.row, name), rtol=0, atol=0)


def test_optional_facts_may_be_absent_from_the_file(tmp_path):
    before = regard.explain("the river bank", "bank", minilm())
    facts = before.to_dict()
    for name in ("attention", "target", "decoder_inputs", "variant"):
        del facts[name]
    for name in ("capped", "biased", "allowed"):
        del facts["row"][name]
    for top_key in facts["top_keys"]:
        del top_key["mean"]
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    after = regard.Explanation.load(tmp_path / "facts.json")
    assert (after.model, after.attention, after.target, after.keys) == (before.model, "self", None, before.queries)


def test_without_a_target_the_model_writes_one():
    ours, text = pretrained("marian"), "the man is in the bank"
    e = regard.explain(text, model=ours)
    assert e.target == generate(ours, text, max_new_tokens=2 * len(e.keys.ids) + 20)
    assert e.word.text in e.target


def test_each_language_of_marian_has_its_own_tokens(tmp_path):
    """Marian as it is published: two SentencePiece models, one for each language, and one vocabulary."""
    vocab = {"</s>": 0, "<unk>": 1}
    languages = {"source": "das haus am fluss ist sehr alt und schön", "target": "the old house on river is so nice"}
    for side, words in languages.items():
        sentences = [" ".join(order) for order in itertools.permutations(words.split(), 4)]
        options = {"bos_id": -1, "eos_id": -1, "minloglevel": 2, "hard_vocab_limit": False, "vocab_size": 60}
        with (tmp_path / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=file, **options)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f"{side}.spm"))
        for i in range(processor.vocab_size()):
            vocab.setdefault(processor.id_to_piece(i), len(vocab))
    pad = vocab["<pad>"] = len(vocab)
    random_checkpoint(tmp_path, "marian", vocab_size=len(vocab), pad_token_id=pad, decoder_start_token_id=pad)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    marian = regard.load(tmp_path)
    e = regard.explain("das haus ist schön", "house", marian, target="the house is nice")
    assert e.keys.tokens == ["▁das", "▁haus", "▁ist", "▁schön", "</s>"]
    assert e.keys.surface_forms == ["das", "haus", "ist", "schön", ""]
    assert e.queries.tokens == ["▁the", "▁house", "▁is", "▁nice", "</s>"]
    assert e.decoder_inputs == ["<pad>", *e.queries.tokens[:-1]]
    assert e.word.token_index == [1]
    assert e.proof.verified
    assert regard.explain("das haus", "haus", marian, attention="encoder").word.text == "haus"


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("gpt2", {"attention": "cross"}, "there is no attention 'cross' in .*: as a decoder it has decoder$"),
        ("gpt2", {"attention": "encoder"}, "there is no attention 'encoder'"),
        ("bart", {"attention": "x"}, "no attention 'x' .* an encoder-decoder it has cross, decoder, enc"),
        ("gpt2", {"target": "a bank"}, "is a decoder and reads one text: leave the target out"),
        ("bart", {"attention": "encoder", "target": "x"}, "the attention encoder reads the source only"),
        ("marian", {"target": TARGET, "compare": "a bank"}, "an encoder-decoder's source choose the attention encoder"),
        ("bart", {"target": ""}, "the text is empty"),
        ("bart", {"target": TARGET, "token": "loan"}, "the word 'loan' is not in the text .*the river is a bank"),
        (
            "bart",
            {"target": "a", "token": "bank"},
            "'bank' is not in .* a word of the source; .* choose the attention encoder",
        ),
        ("bart", {"target": TARGET, "layer": 2}, "there is no layer 2: this model has layers 0 to 1"),
        ("bart", {"target": "a b " * 40, "token": "b"}, "the (text|target) has .* tokens"),
        ("gpt2", {"text": "bank " * 70}, "has .* tokens"),
        ("bert", {"attention": "cross"}, r"there is no attention 'cross' in .*: as an encoder it has encoder"),
        ("bert", {"target": TARGET}, "is an encoder and reads one text: leave the target out"),
        ("t5", {"text": "the man is in the bank"}, "writes nothing for 'the man is in the bank': give a target"),
    ],
)
def test_what_cannot_be_explained_is_named(family, arguments, message):
    with pytest.raises(InputError, match=message):
        regard.explain(**{"text": TEXT, "model": pretrained(family), **arguments})


def test_a_model_that_does_not_say_what_its_decoder_reads_first_is_named():
    ours = pretrained("bart")
    config = ours.model.config
    special = replace(config.decoder.special_tokens, decoder_start=None)
    model = type(ours.model)(replace(config, decoder=replace(config.decoder, special_tokens=special))).eval()
    with pytest.raises(InputError, match="which token its decoder reads first"):
        regard.explain(TEXT, model=replace(ours, model=model), target=TARGET)


@grid(dtype=[torch.bfloat16, torch.float16], case=[("llama", "decoder"), ("bart", "cross"), ("t5", "encoder")])
def test_half_precision_is_proved_as_far_as_its_rounding_goes(dtype, case):
    family, attention = case
    half = replace(pretrained(family), model=copy.deepcopy(pretrained(family).model).to(dtype))
    e = regard.explain(TEXT, "bank", half, attention=attention, target=TARGET if attention == "cross" else None)
    assert e.proof.verified
    assert e.proof.tolerance > 1e-3 * e.row.v.abs().max().item()


def test_a_text_whose_maps_would_fill_the_memory_is_refused():
    wide = decoder_with_sinks(num_heads=512, d_model=512, num_layers=1)
    with pytest.raises(InputError, match=r"the text is too long to explain: .* attention weights in each layer"):
        regard.explain("bank " * 600, "bank", wide)
