"""Text token by token over HTTP: what `regard.generate` writes, with the row of the shown head."""

import pytest
import torch

import regard
from regard.lens.text.generation import display_token
from server.live_client import ask, generate_question, post

TEXT = "the river"


def written(answered):
    return [data for name, data in answered.events if name == "token"]


@pytest.mark.parametrize("strategy", [regard.Greedy(), regard.Sample(temperature=1.3, seed=7)])
def test_the_text_is_that_of_generate(decoder_server, small_decoder, strategy):
    settings = {"temperature": 1.3, "seed": 7} if isinstance(strategy, regard.Sample) else {}
    answered = post(decoder_server, "generate", generate_question(TEXT, 9, **settings))
    text = "".join(token["text"] for token in written(answered))
    assert text == regard.generate(small_decoder, TEXT, max_new_tokens=9, strategy=strategy)
    assert answered.answer["texts"] == ask(decoder_server, TEXT + text)["texts"]


@pytest.mark.parametrize(("attention", "head"), [(0, 0), (2, 5)])
def test_each_token_has_the_row_of_the_map_that_wrote_it(decoder_server, small_decoder, attention, head):
    show = {"attention": attention, "head": head}
    tokens = written(post(decoder_server, "generate", generate_question(TEXT, 5, show=show)))
    ids = small_decoder.encode(TEXT).ids + [token["token"]["id"] for token in tokens]
    with torch.no_grad(), regard.watch(small_decoder.model) as recording:
        small_decoder.model(torch.tensor([ids]))
    m = recording[list(recording)[attention]]
    for n, token in enumerate(tokens):
        query = len(ids) - len(tokens) + n - 1
        assert token["weights"] == pytest.approx(m[0, head, query, : query + 1].tolist(), abs=1e-5)


def test_each_token_has_its_query_and_the_candidates_with_the_logits_of_its_place(decoder_server, small_decoder):
    ids = small_decoder.encode(TEXT).ids
    for token in written(post(decoder_server, "generate", generate_question(TEXT, 3))):
        with torch.no_grad():
            logits = small_decoder.model(torch.tensor([ids]))[0, -1]
        assert token["query"] == display_token(small_decoder, ids[-1])
        assert token["candidates"][0] == token["token"]
        found = [candidate["logit"] for candidate in token["candidates"]]
        assert found == pytest.approx(logits.topk(20).values.tolist(), abs=1e-4)
        ids.append(token["token"]["id"])


@pytest.mark.more
def test_a_stop_token_ends_the_text_and_is_none_of_it(smollm2_server):
    prompt = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    tokens = written(post(smollm2_server, "generate", generate_question(prompt, 60)))
    assert tokens[-1]["token"]["token"] == "<|im_end|>"
    assert tokens[-1]["text"] == ""
    assert len(tokens) < 60


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (generate_question(TEXT, 64), "max_new_tokens"),
        (generate_question(TEXT, 1, show={"attention": 3, "head": 0}), "show.attention"),
        (generate_question(TEXT, 1, show={"attention": 0, "head": 6}), "show.head"),
        (generate_question("  ", 1), "text"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(decoder_server, question, name):
    assert post(decoder_server, "generate", question).error["name"] == name


def test_an_encoder_writes_no_text(encoder_server):
    refused = post(encoder_server, "generate", generate_question(TEXT, 1)).error
    assert "decoder that continues a text" in refused["message"]


@pytest.mark.more
def test_characters_of_several_tokens_come_whole(smollm2_server):
    prompt = "<|im_start|>user\nRepeat: 😀 é 漢<|im_end|>\n<|im_start|>assistant\n😀 é"
    tokens = written(post(smollm2_server, "generate", generate_question(prompt, 12)))
    assert not [token for token in tokens if "\N{REPLACEMENT CHARACTER}" in token["text"]]
