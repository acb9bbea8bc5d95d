"""What properties say of calls of a module."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["CALLS"]

CALLS = (
    Property(
        "whole-sizes",
        "call",
        "the sizes of axes are whole numbers",
        "The method raises as soon as somebody calls it.",
        "d = self.num_hidden // heads  # / gives a float",
    ),
    Property(
        "unpacked-as-packed",
        "call",
        "what several names are put together of is taken apart into these names in the same order",
        "Two numbers change places: each is used for what the other one was set for.",
        "self.shares = (content, place)  # and then: content, place = self.shares",
    ),
    Property(
        "stays-in-eval",
        "call",
        "a call leaves train() and eval() as they are",
        "Dropout is on where a model is evaluated and used.",
        "x = F.dropout(x, self.p, training=self.training)  # read: only train() and eval() set it",
    ),
    Property(
        "average-kept-in-eval",
        "call",
        "weights that follow others in training stay as they are in eval()",
        "What is evaluated changes from call to call, and is not what is saved.",
        "self.slow.lerp_(self.weight, 1 - momentum)  # in training alone",
    ),
    Property(
        "average-moves-slowly",
        "call",
        "weights that follow others slowly keep most of themselves in a step",
        "They are the others, but for one step: nothing is averaged.",
        "slow.mul_(m).add_(fast, alpha=1 - m)  # m near 1",
    ),
    Property(
        "dropout-switched",
        "call",
        "train() turns dropout on and eval() turns it off, whatever was called before",
        "What is used or evaluated hangs on chance, or nothing is dropped in training any more.",
        "p = self.dropout_p if self.training else 0.0  # and not self.dropout_p = 0.0",
    ),
    Property(
        "dropout-handed-on",
        "call",
        "the share that is to be dropped is handed on to every part that drops some",
        "A part drops what its class does by default, where another share was asked for: 0 does not turn it off.",
        "self.attention = Attention(d_model, heads, dropout=dropout)  # and not Attention(d_model, heads)",
    ),
    Property(
        "dropout-applied",
        "call",
        "the share that is to be dropped is dropped in training",
        "The model is trained without the dropout that was asked for.",
        "weights = self.dropout(scores.softmax(-1))",
    ),
    Property(
        "inputs-kept",
        "call",
        "a call writes into no sequence that it is handed",
        "What uses it next, such as a residual or a second call, gets other numbers.",
        "q = k = x + positions  # a new tensor, and not x += positions",
    ),
    Property(
        "begun-anew",
        "call",
        "a sequence that is begun anew is computed as by a module that has read none",
        "Each sequence is answered by what was kept of the one before.",
        "self.memory, self.keys, self.past = memory, None, None  # all that was kept",
    ),
    Property(
        "kept-of-its-input",
        "call",
        "what a method keeps of an input, as keys and values of a source, is not read for another input",
        "Every recording, picture or text after the first is answered by what was kept of the first one.",
        "layer.cached = None  # for each layer that keeps keys and values, where another source begins",
    ),
    Property(
        "remembered-by-all",
        "call",
        "what a function remembers is kept by all that it hangs on, as a mask by queries and keys",
        "A call gets the mask or the table of an earlier one: later tokens are seen, or it raises.",
        "key = (rows, cols)  # and not cols alone",
    ),
    Property(
        "one-tensor-as-two",
        "call",
        "keys and values that are one tensor are projected as equal ones of two tensors are",
        "Attention to another sequence, whose keys and values are the same, reads it through other weights.",
        "k, v = F.linear(key, self.in_proj_weight[embed_dim:]).chunk(2, -1)  # the rows of keys and of values",
    ),
    Property(
        "arguments-read",
        "q",
        "of two methods of a class that take the same arguments, both read what one reads",
        "What is handed over, as positions, has an effect with one setting and none with the other.",
        "key = self.with_pos_embed(memory, pos)  # in forward_post as in forward_pre",
    ),
    Property(
        "default-runs",
        "call",
        "what is None by default may be left out: nothing reads it before, or elsewhere than, it is asked for",
        "Every call without it raises.",
        "if mask is not None:  # first, and not `if value is not None:`\n    mask = mask.to(x.device)",
    ),
    Property(
        "settings-read",
        "call",
        "a setting of which the documentation says what either value does is read",
        "Who chooses it gets the other model: weights that are loaded do not fit.",
        "if self.interleaved:  # and the other way to do it below",
    ),
    Property(
        "kernels-agree",
        "output",
        "a fused kernel, and the steps that are written out for where there is none, compute the same",
        "The same weights give another model on another machine or version of PyTorch.",
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # all that the other branch adds and hides",
    ),
    Property(
        "parameters-kept",
        "q",
        "the parameters of a module are made once, by its constructor",
        "Every call computes with other random numbers, and no optimizer learns them.",
        "self.w_q = nn.Linear(d_model, d_model)  # in __init__, not in forward",
    ),
    Property(
        "calls-alike",
        "output",
        "a number beside the output, as a penalty, is the same in a first call as in all that repeat it",
        "What is trained by it hangs on the call before, or on its batch size.",
        "penalty = penalty.sum() / weights.size(0)  # of this call, and not of what an earlier one kept",
    ),
    Property(
        "gradients-computed",
        "output",
        "nothing that the backward pass needs is written over",
        "backward() raises, and nothing is trained.",
        "s = s.relu().clone()  # relu keeps its output for backward: write into a copy",
    ),
    Property(
        "gradients-as-slopes",
        "output",
        "gradients that are returned are what the output changes by",
        "What is trained by them learns too fast, too slowly, or something else.",
        "ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])  # the scale as in the scores",
    ),
    Property(
        "parameters-used",
        "q",
        "every parameter that a module constructs is read",
        "What it should do is not done, and it never learns.",
        "q = self.q_norm(self.w_q(x))  # and not only in __init__",
    ),
)
