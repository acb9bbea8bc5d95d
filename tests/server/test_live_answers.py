"""`Answer`: the facts that today's page has, next tokens, similarity, and context, of models of every kind."""

import json
from base64 import b64decode

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from torch import nn

import regard
from lens.explained import checkpoint, pretrained
from regard import InputError
from regard.lens.text.contextual import contextual_vectors
from regard.lens.text.generation import display_token
from regard.lens.text.run import run
from regard.server import Limits, LiveServer
from regard.views.html.page import build_page
from server.live_client import ask, edit, effect_question, generate_question, post, request
from weights import LOAN, RIVER, minilm, smollm2

TEXT = "the river bank"
SENTENCE = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_facts_are_those_of_the_page_that_is_a_file(request, kind):
    server, pretrained = (request.getfixturevalue(name) for name in (f"{kind}_server", f"small_{kind}"))
    text_run = run(TEXT, pretrained)
    text_run.label_surface_forms()
    page = build_page(text_run.recording, title=TEXT, model=pretrained.name)
    assert ask(server, TEXT)["texts"][0]["facts"] == json.loads(json.dumps(page.facts))


def test_numbers_give_the_queries_of_every_head(decoder_server, small_decoder):
    answer = ask(decoder_server, TEXT)["texts"][0]
    facts, numbers = answer["facts"], b64decode(answer["numbers"])
    assert all(head["payload"] for attention in facts["attentions"] for head in attention["heads"])
    ref, count = facts["attentions"][2]["heads"][4]["payload"]["q"], facts["num_int16"]
    low, high = (np.frombuffer(numbers, np.int8, count, at).astype(int) for at in (0, count))
    tokens, width = ref["shape"]
    integers = (low + 256 * high)[ref["at"] : ref["at"] + tokens * width].reshape(width, tokens).T
    text_run = run(TEXT, small_decoder)
    q = text_run.recording[list(text_run.recording)[2]].q[0, 4]
    assert np.abs(integers * ref["step"] - q.numpy()).max() <= ref["step"] * 0.51


@pytest.mark.more
@torch.no_grad()
def test_next_tokens_have_the_models_own_logits_and_probabilities(smollm2_server):
    following = ask(smollm2_server, SENTENCE)["texts"][0]["next"]
    model = smollm2()
    logits = model.model(torch.tensor([model.encode(SENTENCE).ids]))[0, -1]
    assert [token["id"] for token in following] == logits.topk(20).indices.tolist()
    assert [token["logit"] for token in following] == pytest.approx(logits.topk(20).values.tolist(), abs=1e-4)
    expected = logits.double().softmax(-1).topk(20).values.tolist()
    assert [token["probability"] for token in following] == pytest.approx(expected, rel=1e-4)
    assert following[0]["token"] == " Mary"


@pytest.mark.more
def test_no_token_is_shown_with_the_tokenizers_signs_for_whitespace():
    """Tokens that are a part of a character are, too: the tokenizer spells them in the signs of its bytes."""
    model = smollm2()
    count = model.tokenizer.get_vocab_size()
    assert any("Ġâ" in model.tokenizer.id_to_token(i) for i in range(count))
    shown = [display_token(model, i) for i in range(count)]
    assert [token for token in shown if set(token) & set("ĠĊĉ")] == []


def test_similarity_is_the_cosine_of_embed(minilm_server):
    vectors = minilm().embed([RIVER, LOAN])
    answer = ask(minilm_server, RIVER, LOAN)
    assert answer["similarity"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)


def test_one_text_has_no_similarity_and_no_context(minilm_server):
    answer = ask(minilm_server, RIVER)
    assert (answer["similarity"], answer["movement"], answer["texts"][0]["facts"]["context"]) == (None, None, None)


def test_the_first_of_two_texts_has_the_context_of_both(minilm_server):
    first, second = ask(minilm_server, RIVER, LOAN)["texts"]
    assert first["facts"]["context"] == contextual_vectors([RIVER, LOAN], minilm()).to_dict()
    assert second["facts"]["context"] is None


def test_texts_that_share_no_word_have_no_context(encoder_server):
    assert ask(encoder_server, "river", "loan")["texts"][0]["facts"]["context"] is None


def test_an_encoder_has_no_next_tokens(encoder_server):
    assert ask(encoder_server, TEXT)["texts"][0]["next"] is None


@pytest.mark.more
def test_the_facts_of_the_model_say_what_it_can(minilm_server, smollm2_server):
    encoder = {"kind": "encoder", "has_vector": True, "generates": False, "max_tokens": 512}
    encoder |= {"metrics": ["cosine", "similarity"]}
    decoder = {"kind": "decoder", "has_vector": False, "generates": True, "max_tokens": 1024}
    decoder |= {"metrics": ["log_prob", "logit_difference", "kl"]}
    for server, expected, count in ((minilm_server, encoder, 2), (smollm2_server, decoder, 1)):
        facts = request(server, "GET", "model").json
        assert expected.items() <= facts.items()
        assert len(facts["texts"]) == count


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_decoder_shows_what_it_writes_and_an_edit_keeps_that(serve, family):
    answer = ask(serve(pretrained(family)), TEXT, edits=[edit(0, 0, off=True)])
    attentions = answer["texts"][0]["facts"]["attentions"]
    assert {attention["group"] for attention in attentions} == {"encoder", "decoder", "cross"}
    assert len(answer["movement"]["heads"]) == sum(len(attention["heads"]) for attention in attentions)


# A module of a user.


class Tiny(nn.Module):
    """A causal language model that somebody wrote."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.attention = nn.ModuleList([regard.MultiHeadAttention(16, 2) for _ in range(2)])
        self.head = nn.Linear(16, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for attention in self.attention:
            x = x + attention(x, mask=regard.mask.causal())
        return self.head(x)


def word_tokenizer() -> tokenizers.Tokenizer:
    words = "[UNK] the river bank a man When Mary and John went to store gave drink , ."
    vocabulary = {word: n for n, word in enumerate(words.split())}
    found = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return found


def test_a_module_of_a_user_is_read_as_watch_reads_it(serve):
    module, tokenizer = Tiny(17).eval(), word_tokenizer()
    server = serve(module, tokenizer, name="mine")
    answer = ask(server, TEXT)["texts"][0]
    ids = torch.tensor([tokenizer.encode(TEXT).ids])
    with torch.no_grad(), regard.watch(module) as recording:
        logits = module(ids)[0, -1]
    entropy = torch.stack([recording[path].entropy()[0].mean(-1) for path in recording])
    facts = answer["facts"]
    found = [[head["entropy"] for head in attention["heads"]] for attention in facts["attentions"]]
    torch.testing.assert_close(torch.tensor(found), entropy)
    assert facts["texts"] == [{"tokens": ["the", "river", "bank"]}]
    assert (facts["model"], answer["next"][0]["id"]) == ("mine", int(logits.argmax()))


def test_a_module_of_a_user_generates_and_has_effects(serve):
    server = serve(Tiny(17).eval(), word_tokenizer())
    assert request(server, "GET", "model").json["generates"]
    written = post(server, "generate", generate_question(TEXT, 4))
    assert written.names == ["queue", "token", "token", "token", "token", "answer"]
    effects = post(server, "effects", effect_question(TEXT, metric="log_prob", tokens=["bank"])).answer
    assert [part["name"] for part in effects["parts"]] == ["0.0", "0.1", "1.0", "1.1"]


@pytest.fixture
def served_llama(serve):
    """A server of a model of transformers, which computes attention by an implementation."""

    def call(implementation):
        folder, _ = checkpoint("llama")
        load = transformers.AutoModelForCausalLM.from_pretrained
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return serve(load(folder, attn_implementation=implementation).eval(), tokenizer)

    return call


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_model_of_transformers_is_served_with_its_tokenizer(decoder_server, served_llama, implementation):
    theirs, expected = (ask(each, TEXT)["texts"][0] for each in (served_llama(implementation), decoder_server))
    assert [t["id"] for t in theirs["next"][:5]] == [t["id"] for t in expected["next"][:5]]
    assert len(theirs["facts"]["attentions"]) == 3


def test_eager_attention_follows_what_needs_no_queries_and_names_the_rest(served_llama):
    eager, fused = served_llama("eager"), served_llama("sdpa")
    followed = [edit(1, 2, 3, temperature=2, mask={"1": False}), edit(0, 1, off=True)]
    after = [ask(server, TEXT, edits=followed)["movement"] for server in (eager, fused)]
    for one, other in zip(*(moved["next"]["after"][:5] for moved in after), strict=True):
        assert one["logit"] == pytest.approx(other["logit"], abs=1e-3)
    assert after[0]["notes"] == []
    (note,) = ask(eager, TEXT, edits=[edit(1, 2, 3, scores={"0": 1})])["movement"]["notes"]
    assert "scores and scale stay as they are" in note


def test_a_text_that_the_tokenizer_of_a_user_cannot_read_is_refused(serve):
    without_unknown = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0}, "[UNK]"))
    server = serve(Tiny(17).eval(), without_unknown, texts="the")
    error = post(server, "ask", {"texts": ["river"], "edits": []}).error
    assert "the tokenizer cannot read this text: WordLevel" in error["message"]


def test_a_module_that_went_back_to_training_is_refused(serve):
    module = Tiny(17).eval()
    server = serve(module, word_tokenizer())
    module.train()
    assert "training mode" in post(server, "ask", {"texts": [TEXT], "edits": []}).error["message"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("smollm2",), TypeError, "write regard.load"),
        ((nn.Linear(2, 2),), InputError, "needs its tokenizer"),
        ((Tiny(17).train(), word_tokenizer()), InputError, "training mode"),
        ((nn.Linear(2, 2).eval(), "words"), (TypeError, InputError), "tokenizer"),
    ],
)
def test_what_is_no_model_with_a_tokenizer_is_refused(as_a_user_runs_it, arguments, error, message):
    with pytest.raises(error, match=message):
        LiveServer(*arguments)


def test_a_tokenizer_for_a_model_that_has_one_is_refused(small_decoder):
    with pytest.raises(InputError, match="has its own"):
        LiveServer(small_decoder, word_tokenizer())


def test_heads_beyond_the_size_of_an_answer_are_pictures_and_a_note_says_so(small_decoder, serve):
    server = serve(small_decoder, limits=Limits(answer_bytes=6_000))
    facts = ask(server, f"{TEXT} " * 10)["texts"][0]["facts"]
    pictures = [head for attention in facts["attentions"] for head in attention["heads"] if head["payload"] is None]
    assert 0 < len(pictures) < 18
    assert "pictures only" in facts["omitted"][0]
