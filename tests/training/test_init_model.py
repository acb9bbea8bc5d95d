"""The models that training starts from."""

import json
import math

import pytest
import torch
from runs import build_task, same_weights, weights, write

import regard
from regard import InputError
from regard.pretrained.initialize import initialize_model
from regard.training.data import images
from regard.training.loss import IGNORE_INDEX, linear_cross_entropy
from regard.training.loss_module import LossModule
from regard.training.tasks import TASKS
from regard.training.tokenizers import train_bpe

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 257,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(["a text"], vocab_size=257, special_tokens=("<|end|>",))


def test_the_seed_decides_the_weights(tokenizer, tmp_path):
    before = torch.random.get_rng_state()
    made = initialize_model(tmp_path / "a", LLAMA, tokenizer, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(5)
    initialize_model(tmp_path / "b", LLAMA, tokenizer, seed=3)
    initialize_model(tmp_path / "c", LLAMA, tokenizer, seed=4)
    assert same_weights(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same_weights(weights(tmp_path / "a"), weights(tmp_path / "c"))
    loaded, ids = regard.load(tmp_path / "a"), torch.randint(257, (1, 9))
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids), made.model(ids))
    assert loaded.ignored_weights == []
    assert loaded.tokenizer.to_str() == tokenizer.to_str()


def test_the_config_and_side_files_are_written(tokenizer, tmp_path):
    initialize_model(tmp_path, LLAMA, tokenizer, seed=0, side_files={"generation_config.json": {"do_sample": True}})
    assert json.loads((tmp_path / "config.json").read_text()) == LLAMA
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"do_sample": True}


def test_a_config_that_no_model_has_is_refused(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"config\.json: .*rotary.*d_key=3"):
        initialize_model(tmp_path / "odd", {**LLAMA, "hidden_size": 12}, tokenizer, seed=0)
    assert not (tmp_path / "odd").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file cannot be written: File exists"):
        initialize_model(tmp_path / "file", LLAMA, tokenizer, seed=0)


@pytest.mark.parametrize("name", TASKS)
def test_the_first_loss_is_that_of_a_guess(name, tmp_path):
    """It is at most a little more: no initial weight is too large."""
    task, path = build_task(name, d_model=64, num_layers=2), write(name, tmp_path)
    data = images([path]) if name == "caption" else task.load_data([path], None)
    pretrained = task.init_model(tmp_path / "model", data)
    assert pretrained.kind == task.kind
    examples = [example for row in data.eval_rows for example in task.encode_eval(row, pretrained)]
    with torch.inference_mode():
        logits, targets = task.predict(pretrained.model, task.batch(examples).tensors)
        loss = float(linear_cross_entropy(logits, targets)) / int((targets != IGNORE_INDEX).sum())
    size = (pretrained.config.decoder or pretrained.config).vocab_size
    assert math.log(size) - 0.3 < loss < math.log(size) + 1.5


def test_dropout_of_a_format_without_a_field_for_it(tmp_path):
    task = build_task("lm", dropout=0.3, vocab_size=300)
    model = task.init_model(tmp_path, task.load_data([], None)).model

    def shares(module):
        return {part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)}

    assert shares(model) == {0.0}, "Llama's"
    assert shares(LossModule(model, task, dropout=task.config.dropout)) == {0.3}
