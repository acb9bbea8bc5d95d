"""The tasks, by their names on the command line.

- `task`: the interface of a task; what an evaluation generates
- `batch`: examples of different lengths packed into one row of tokens
- `seq2seq`: ``translate``, an encoder-decoder on pairs of texts
- `causal_lm`: ``lm``, a decoder that predicts the next token
- `masked_lm`: ``mlm``, an encoder that predicts masked tokens
- `captioning`: ``caption``, an image encoder and a text decoder
"""

from regard.training.tasks.batch import Batch, Example
from regard.training.tasks.captioning import CaptioningTask
from regard.training.tasks.causal_lm import CausalLMTask
from regard.training.tasks.masked_lm import MaskedLMTask
from regard.training.tasks.seq2seq import TranslationTask
from regard.training.tasks.task import EvalSample, Task

__all__ = ["TASKS", "Batch", "EvalSample", "Example", "Task"]

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (TranslationTask, CausalLMTask, MaskedLMTask, CaptioningTask)
}
