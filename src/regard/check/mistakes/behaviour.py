"""Mistakes that show in how code behaves: in a second call, in train(), in its gradients, in a batch."""

from __future__ import annotations

from regard.check.mistakes import behaviour_examples
from regard.check.mistakes.mistake import Mistake, slot

__all__ = ["BEHAVIOUR"]


BEHAVIOUR = (
    Mistake(
        "batch-as-tokens",
        "scores",
        "q = q.reshape(B * T, D)",
        "attention runs over all {batch} x {tokens} tokens of the batch together",
        "A sample's result depends on the other samples in its batch: at inference, on other people's texts.",
        "q = q.reshape(B, T, D)",
        recipe=slot("groups", "one-sequence"),
    ),
    Mistake(
        "absolute-axes",
        "scores",
        "k.transpose(0, 1); scores.softmax(dim=1)  # right without a batch",
        "axes are counted from the front{named}: a batch of {batch} x {batch} x {batch} runs without an error"
        " and attends along the wrong axis",
        "Other batches raise an error; a batch with as many samples as tokens and channels is wrong without one.",
        "k.transpose(-2, -1); scores.softmax(dim=-1)",
        worked_example=behaviour_examples.absolute_axes,
    ),
    Mistake(
        "dropout-in-eval",
        "weights",
        "F.dropout(weights, 0.1)  # training=True by default",
        "dropout stays on in eval(): two calls with the same input differ by up to {number:.2g}",
        "Predictions are random, and worse than without dropout.",
        "F.dropout(weights, 0.1, training=self.training)",
        references=("karpathy/nanoGPT#240",),
        worked_example=behaviour_examples.dropout_in_eval,
    ),
    Mistake(
        "dropout-before-softmax",
        "masked",
        "scores = self.dropout(scores).softmax(-1)",
        "in train(), dropout is applied to the scores, before the softmax: a dropped score becomes 0, and exp(0) = 1",
        "Dropped keys gain weight instead of losing it, and blocked scores become NaN: -inf * 0.",
        "weights = self.dropout(scores.softmax(-1))",
        references=("karpathy/ng-video-lecture#30",),
        worked_example=behaviour_examples.dropout_before_softmax,
    ),
    Mistake(
        "detached",
        "weights",
        "weights = scores.softmax(-1).detach()",
        "no gradient reaches {what}",
        "They are never trained, while the rest of the model still learns.",
        "weights = scores.softmax(-1)",
        worked_example=behaviour_examples.detached,
    ),
    Mistake(
        "inputs-changed",
        "call",
        "q /= math.sqrt(d_k)",
        "the call changes {what} in place, which belongs to its caller",
        "What uses it next, such as a residual or a second call, gets other numbers.",
        "q = q / math.sqrt(d_k)",
        worked_example=behaviour_examples.inputs_changed,
    ),
    Mistake(
        "stateful",
        "call",
        "self.cache = k  # and it is never cleared",
        "a second call with the same input returns an output that differs by up to {number:.2g}, though "
        "nothing is random",
        "Results depend on earlier calls.",
        "k = self.k(x)  # what is kept is handed over, and belongs to one sequence",
        worked_example=behaviour_examples.stateful,
    ),
    Mistake(
        "batch-mixed",
        "weights",
        "scores.softmax(dim=0)",
        "a sample's output changes by up to {number:.2g} with the other samples of its batch",
        "A text's result depends on the other texts in its batch.",
        "weights = scores.softmax(dim=-1)",
        worked_example=behaviour_examples.batch_mixed,
    ),
    Mistake(
        "future-leak",
        "masked",
        "mask = None",
        "it is causal by {named}, but its output at position {query} changes by up to {number:.2g} with the "
        "token at position {key}",
        "In training it reads the answer; when it generates, there is no answer to read.",
        "mask = torch.ones(T, T, dtype=torch.bool).tril()",
        worked_example=behaviour_examples.future_leak,
    ),
)
