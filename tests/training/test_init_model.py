"""The models that training starts from."""

import json
import math

import pytest
import torch
from runs import TINY, same_weights, weights, write

import regard
from regard import InputError
from regard.pretrained.initialize import initialize_model
from regard.training.data import images
from regard.training.loss import IGNORE_INDEX, linear_cross_entropy
from regard.training.loss_module import LossModule
from regard.training.tasks import TASKS
from regard.training.tokenizers import train_bpe
from regard.training.train import build_config

SETTINGS = {
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


def test_the_same_seed_gives_the_same_weights(tokenizer, tmp_path):
    before = torch.random.get_rng_state()
    made = initialize_model(tmp_path / "a", SETTINGS, tokenizer, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(5)
    initialize_model(tmp_path / "b", SETTINGS, tokenizer, seed=3)
    initialize_model(tmp_path / "c", SETTINGS, tokenizer, seed=4)
    assert same_weights(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same_weights(weights(tmp_path / "a"), weights(tmp_path / "c"))
    loaded = regard.load(tmp_path / "a")
    ids = torch.randint(257, (1, 9))
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids), made.model(ids))
    assert loaded.ignored_weights == []
    assert json.loads((tmp_path / "a" / "config.json").read_text()) == SETTINGS
    assert loaded.tokenizer.to_str() == tokenizer.to_str()


def test_side_files(tokenizer, tmp_path):
    initialize_model(tmp_path, SETTINGS, tokenizer, seed=0, side_files={"generation_config.json": {"do_sample": True}})
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"do_sample": True}


def test_a_config_that_no_model_has(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"config\.json: .*rotary.*d_key=3"):
        initialize_model(tmp_path / "odd", {**SETTINGS, "hidden_size": 12}, tokenizer, seed=0)
    assert not (tmp_path / "odd").exists()


def test_a_folder_that_cannot_be_written(tokenizer, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file cannot be written: File exists"):
        initialize_model(tmp_path / "file", SETTINGS, tokenizer, seed=0)


@pytest.mark.parametrize("task", TASKS)
def test_the_first_loss_is_that_of_a_guess(task, tmp_path):
    """It is at most a little more: no initial weight is too large."""
    trained_task = TASKS[task](build_config(TASKS[task], {**TINY, "d_model": 64, "num_layers": 2}))
    data = (
        images([write(task, tmp_path)]) if task == "caption" else trained_task.load_data([write(task, tmp_path)], None)
    )
    pretrained = trained_task.init_model(tmp_path / "model", data)
    assert pretrained.kind == trained_task.kind
    examples = [example for row in data.eval_rows for example in trained_task.encode_eval(row, pretrained)]
    with torch.inference_mode():
        logits, targets = trained_task.predict(pretrained.model, trained_task.batch(examples).tensors)
        loss = float(linear_cross_entropy(logits, targets)) / int((targets != IGNORE_INDEX).sum())
    size = (pretrained.config.decoder or pretrained.config).vocab_size
    print(task, loss, math.log(size))
    assert math.log(size) - 0.3 < loss < math.log(size) + 1.5


def test_dropout_of_a_format_without_a_field_for_it(tmp_path):
    task = TASKS["lm"](build_config(TASKS["lm"], {"dropout": 0.3, "d_model": 16, "num_layers": 1, "vocab_size": 300}))
    model = task.init_model(tmp_path, task.load_data([], None)).model
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}, "Llama's"
    loss_module = LossModule(model, task, dropout=task.config.dropout)
    assert {module.p for module in loss_module.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
