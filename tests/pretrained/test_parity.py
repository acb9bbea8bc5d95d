"""The same numbers as the libraries that the checkpoints were written for."""

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

import regard
from regard import mask
from weights import minilm, minilm_folder, random_bert, sentences


@pytest.fixture(scope="module")
def theirs():
    return transformers.AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()


def padded(pretrained, texts):
    encoded = [torch.tensor(pretrained.encode(text).ids) for text in texts]
    lengths = torch.tensor([len(ids) for ids in encoded])
    return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True), lengths


@torch.inference_mode()
def test_every_hidden_state_of_200_sentences_equals_transformers(theirs):
    pretrained, worst = minilm(), 0.0
    texts = sentences(200)
    assert len(set(texts)) == 200
    for start in range(0, 200, 20):
        ids, lengths = padded(pretrained, texts[start : start + 20])
        assert lengths.min() < lengths.max(), "the batch must be ragged to test padding"
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True).hidden_states
        states = list(pretrained.model.hidden_states(ids, mask=mask.padding(lengths)))
        assert len(states) == len(expected) == 7
        for ours, their in zip(states, expected, strict=True):
            worst = max(worst, (ours - their)[real].abs().max().item())
    print(f"largest difference of a hidden state: {worst:.2e}")
    assert worst < 1e-4


def test_every_sentence_vector_equals_sentence_transformers():
    texts = sentences(200)
    expected = SentenceTransformer(str(minilm_folder()), device="cpu").encode(texts, convert_to_tensor=True)
    worst = (minilm().embed(texts) - expected).abs().max().item()
    print(f"largest difference of a sentence vector: {worst:.2e}")
    assert worst < 1e-5


@pytest.mark.parametrize(
    "name", ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"]
)
@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
@torch.inference_mode()
def test_random_checkpoints_of_the_family_equal_transformers(tmp_path, name, act):
    theirs = random_bert(tmp_path, name, hidden_act=act)
    encoder = theirs if name == "BertModel" else theirs.bert
    ours = regard.load(str(tmp_path))
    ids, token_type_ids = torch.randint(40, (4, 11)), torch.randint(2, (4, 11))
    lengths = torch.tensor([11, 7, 2, 1])
    real = torch.arange(11) < lengths[:, None]
    expected = encoder(ids, attention_mask=real.long(), token_type_ids=token_type_ids, output_hidden_states=True)
    for mine, their in zip(
        ours.model.hidden_states(ids, token_type_ids, mask.padding(lengths)), expected.hidden_states, strict=True
    ):
        torch.testing.assert_close(mine[real], their[real], atol=1e-5, rtol=0)
    assert all(weight.split(".")[0] in ("pooler", "cls", "classifier") for weight in ours.ignored_weights)


@torch.inference_mode()
def test_left_padding_by_a_mask_equals_transformers(theirs):
    pretrained = minilm()
    ids, lengths = padded(pretrained, sentences(200)[:8])
    width = ids.shape[1]
    real = torch.arange(width) >= width - lengths[:, None]
    ids = torch.stack([row.roll(width - int(n)) for row, n in zip(ids, lengths, strict=True)])
    expected = theirs(ids, attention_mask=real.long()).last_hidden_state
    ours = pretrained.model(ids, mask=mask.allowed(real[:, None, None, :]))
    assert (ours - expected)[real].abs().max() < 1e-4
