"""A chat as a prompt: the answer is what the model writes after the ids of its chat template."""

from __future__ import annotations

import pytest
from tiny_models import tiny

import regard
from chats import chat_checkpoint, turns
from regard import Beam, InputError, Sample
from regard.generation import max_new_tokens_left

CHAT, OTHER = turns("Hi", "Hello!", "and now?"), turns("crème", system="Be brief.")
OPTIONS = {"max_new_tokens": 9, "stop": ()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small random Llama with a chat template."""
    return regard.load(chat_checkpoint(tmp_path_factory.mktemp("chat")))


@pytest.mark.parametrize("strategy", [regard.Greedy(), Sample(seed=1), Beam(num_beams=3)])
def test_the_text_is_that_after_the_ids_of_the_template(model, strategy):
    read = model.apply_chat_template(CHAT)
    ids = regard.generate(model, read, strategy=strategy, **OPTIONS)
    text = regard.generate(model, CHAT, strategy=strategy, **OPTIONS)
    assert text == model.decode(ids)[len(model.decode(read)) :]


def test_several_chats_are_each_alone(model):
    alone = [regard.generate(model, chat, **OPTIONS) for chat in (CHAT, OTHER)]
    assert regard.generate(model, [CHAT, OTHER], **OPTIONS) == alone
    assert regard.generate(model, (tuple(CHAT),), **OPTIONS) == alone[:1]


def test_a_stream_has_the_same_text_and_its_tokens(model):
    stream = regard.stream(model, CHAT, **OPTIONS)
    assert "".join(stream) == regard.generate(model, CHAT, **OPTIONS)
    assert stream.ids == regard.generate(model, CHAT, return_hypotheses=True, **OPTIONS).ids


def test_the_tokens_of_a_stream_are_those_so_far(model):
    stream = regard.stream(model, "a", max_new_tokens=60, strategy=Sample(seed=1), stop=())
    assert stream.ids == []
    first = next(stream)
    assert model.decode(stream.ids).startswith(first)
    assert len(stream.ids) < 20
    assert len([first, *stream]) > 20
    assert len(stream.ids) == 60


def test_as_many_tokens_as_the_messages_leave(model):
    assert max_new_tokens_left(model, CHAT) == 512 - len(model.apply_chat_template(CHAT)) + 1


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("chat", "kind", "message"),
    [
        ([{"role": "human", "content": "a"}], InputError, "message 0 has the role 'human'"),
        ([*CHAT, "a"], TypeError, "message 3 must be {.*; got"),
        (["a", *CHAT], TypeError, "message 0 must be {"),
        ([CHAT, "a"], TypeError, "prompt 1 of several chats is no list of messages .*; got 'a'"),
        ([[1, 2], CHAT], TypeError, r"prompt 0 of several chats is no list of messages .*; got \[1, 2\]"),
        ([CHAT, [{"role": "user"}]], InputError, "prompt 1: message 0 has no 'content'"),
        (CHAT[0], TypeError, "ids must be a tensor, .* or a list of messages .*; got dict"),
        ([CHAT, []], TypeError, r"prompt 1 of several chats is no list of messages .*; got \[\]"),
    ],
)
def test_messages_of_another_form_are_refused(model, chat, kind, message):
    for use in (regard.generate, regard.stream):
        with pytest.raises(kind, match=message):
            use(model, chat, **OPTIONS)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_stream_is_of_one_chat(model):
    with pytest.raises(ValueError, match="stream writes one text; got 2 prompts"):
        regard.stream(model, [CHAT, OTHER], **OPTIONS)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_bare_model_takes_no_messages():
    with pytest.raises(
        TypeError, match=r"a bare model reads token ids; for messages hand over what regard.load return"
    ):
        regard.generate(tiny(9), CHAT, **OPTIONS)


def test_a_model_without_a_chat_template_takes_no_messages(tmp_path):
    plain = regard.load(chat_checkpoint(tmp_path, None))
    for chat in (CHAT, [CHAT, OTHER]):
        with pytest.raises(InputError, match="has no chat template, so it was not trained with messages: hand over a"):
            regard.generate(plain, chat, **OPTIONS)


def test_more_tokens_than_positions_are_refused(model):
    with pytest.raises(InputError, match=r"the prompt has .* with 500 more .* max_new_tokens=\d+ at the most"):
        regard.generate(model, CHAT, max_new_tokens=500)
