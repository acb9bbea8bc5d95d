"""The same numbers as the libraries that the checkpoints were written for."""

import pytest
import torch
import transformers

import regard
from regard import mask
from weights import minilm, minilm_folder, random_bert, sentences


@pytest.fixture(scope="module")
def theirs():
    return transformers.AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()


def padded(pretrained, texts, side="right"):
    """The ids of texts in one batch, and which of them are real."""
    encoded = [torch.tensor(pretrained.encode(text).ids) for text in texts]
    assert len({len(ids) for ids in encoded}) > 1, "the batch must be ragged to test padding"
    rows = [encoded, [torch.ones_like(ids, dtype=torch.bool) for ids in encoded]]
    return [torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_side=side) for each in rows]


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.more)])
@torch.inference_mode()
def test_hidden_states_and_sentence_vectors_equal_transformers(theirs, count):
    """The vectors by their definition: the mean of the last states, of length 1."""
    pretrained, texts = minilm(), sentences(count)
    assert len(set(texts)) == count
    for start in range(0, count, 20):
        ids, real = padded(pretrained, texts[start : start + 20])
        expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True).hidden_states
        states = list(pretrained.model.hidden_states(ids, mask=mask.padding(real.sum(-1))))
        assert len(states) == 7
        for ours, their in zip(states, expected, strict=True):
            assert (ours - their)[real].abs().max() < 1e-4
        mean = (expected[-1] * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        vectors = pretrained.embed(texts[start : start + 20])
        torch.testing.assert_close(vectors, torch.nn.functional.normalize(mean), atol=1e-5, rtol=0)


@pytest.mark.more  # its import alone takes seconds; the fast tier has the definition, above
def test_every_sentence_vector_equals_sentence_transformers():
    from sentence_transformers import SentenceTransformer

    texts = sentences(200)
    expected = SentenceTransformer(str(minilm_folder()), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(minilm().embed(texts), expected, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_left_padding_by_a_mask_equals_transformers(theirs):
    ids, real = padded(minilm(), sentences(200)[:8], "left")
    expected = theirs(ids, attention_mask=real.long()).last_hidden_state
    ours = minilm().model(ids, mask=mask.allowed(real[:, None, None, :]))
    assert (ours - expected)[real].abs().max() < 1e-4


@torch.inference_mode()
def test_a_model_of_random_weights_and_both_token_types_equals_transformers(tmp_path):
    theirs, model = random_bert(tmp_path, hidden_act="gelu_new"), regard.load(tmp_path).model
    ids, token_type_ids = torch.randint(40, (4, 11)), torch.randint(2, (4, 11))
    lengths = torch.tensor([11, 7, 2, 1])
    real = torch.arange(11) < lengths[:, None]
    expected = theirs(ids, attention_mask=real.long(), token_type_ids=token_type_ids, output_hidden_states=True)
    states = model.hidden_states(ids, token_type_ids, mask.padding(lengths))
    for mine, their in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], their[real], atol=1e-5, rtol=0)
