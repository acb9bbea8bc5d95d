"""The models that training starts from."""

import math

import pytest
import torch
from runs import build_task, write

from regard import InputError
from regard.training.data import images
from regard.training.loss import IGNORE_INDEX, linear_cross_entropy
from regard.training.loss_module import LossModule
from regard.training.tasks import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_the_first_loss_is_that_of_a_guess(name, tmp_path):
    """It is at most a little more: no initial weight is too large."""
    task, path = build_task(name, d_model=64, num_layers=2), write(name, tmp_path)
    data = images([path]) if name == "caption" else task.load_data([path], None)
    pretrained = task.init_model(tmp_path / "model", data)
    assert pretrained.kind == task.kind
    assert pretrained.ignored_weights == []
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


def test_a_folder_that_cannot_be_written(tmp_path):
    task = build_task("lm")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file cannot be written: File exists"):
        task.init_model(tmp_path / "file", task.load_data([write("lm", tmp_path)], None))
