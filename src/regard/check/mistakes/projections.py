"""Mistakes of queries, keys and values: of which sequence, by which weights, in which heads, in which place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regard.check.mistakes.mistake import Mistake, slot

__all__ = ["PROJECTIONS"]

UNTRANSPOSED = ("QKV", "Qkv", "qKv", "qkV", "QKv", "qKV", "QkV")
NOT_PROJECTED = ("---", "-kv", "q-v", "qk-", "--v", "-k-", "q--")
SHARED = ("qqv", "kkv", "qkq", "qkk", "qqq", "kkk", "vvv", "vkv", "qvv", "qqk", "kkq", "vvq", "qvq", "vkk")
ROLES = {"q": "queries", "k": "keys", "v": "values"}


def are(recipe: Sequence[str], is_made: Callable[[str, str], bool]) -> dict[str, str]:
    """For each choice of weights the roles with the mistake: "queries and keys are"."""
    words = {}
    for choice in recipe:
        names = [name for letter, (role, name) in zip(choice, ROLES.items(), strict=True) if is_made(letter, role)]
        words[choice] = " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) + " are"
    return words


PROJECTIONS = (
    Mistake(
        "k-from-x",
        "k",
        "k, v = self.k(x), self.v(context)",
        "the {what} of cross-attention are computed from x; the definition computes them from the context",
        "The weights compare x with one sequence and are applied to the values of another.",
        "k, v = self.k(context), self.v(context)",
        recipe=({"sources": "k-x"}, {"sources": "v-x"}),
        what={"k-x": "keys", "v-x": "values"},
    ),
    Mistake(
        "context-ignored",
        "k",
        "k, v = self.k(x), self.v(x)",
        "the context has no effect: keys and values are computed from x",
        "The decoder gets nothing from the encoder: it is a language model.",
        "k, v = self.k(context), self.v(context)",
        recipe=({"sources": "kv-x"},),
    ),
    Mistake(
        "q-from-context",
        "q",
        "q = self.q(context)",
        "queries are computed from the context{what}; the definition computes them from x",
        "What the decoder attends to does not depend on its own tokens.",
        "q = self.q(x)",
        recipe=({"sources": "q-context"}, {"sources": "swapped"}),
        what={"swapped": ", and keys and values from x"},
    ),
    Mistake(
        "untransposed",
        "q",
        "q = x @ self.wq.weight",
        "{what} multiplied by the weight as torch.nn.Linear stores it, (out, in); the definition multiplies by "
        "its transpose",
        "It runs and trains as long as the weight is square; with trained weights its numbers are wrong.",
        "q = self.wq(x)  # or x @ self.wq.weight.T",
        recipe=slot("linear", *UNTRANSPOSED),
        what=are(UNTRANSPOSED, lambda letter, _: letter.isupper()),
        references=("pytorch/pytorch#139598", "pytorch/pytorch#129834"),
    ),
    Mistake(
        "not-projected",
        "q",
        "v = x  # self.v exists",
        "{what} not projected: their weights exist and have no effect",
        "These parameters are never trained, and heads cannot choose what to read.",
        "v = self.v(x)",
        recipe=slot("linear", *NOT_PROJECTED),
        what=are(NOT_PROJECTED, lambda letter, _: letter == "-"),
    ),
    Mistake(
        "q-as-k",
        "scores",
        "scores = q @ q.transpose(-2, -1)",
        "scores are q qT: keys have no effect",
        "Every token matches itself best; the key projection is never trained.",
        "scores = q @ k.transpose(-2, -1)",
        recipe=slot("roles", "qqv", "qqq"),
    ),
    Mistake(
        "k-as-q",
        "scores",
        "scores = k @ k.transpose(-2, -1)",
        "scores are k kT: queries have no effect",
        "Every token matches itself best; the query projection is never trained.",
        "scores = q @ k.transpose(-2, -1)",
        recipe=slot("roles", "kkv", "kkk"),
    ),
    Mistake(
        "v-as-k",
        "scores",
        "scores = q @ v.transpose(-2, -1)",
        "scores are q vT: keys have no effect",
        "One vector serves as key and as value; the key projection is never trained.",
        "scores = q @ k.transpose(-2, -1)",
        recipe=slot("roles", "qvv"),
    ),
    Mistake(
        "k-as-v",
        "output",
        "out = weights @ k",
        "the output is weights @ k: values have no effect",
        "One vector serves as key and as value; the value projection is never trained.",
        "out = weights @ v",
        recipe=slot("roles", "qkk"),
    ),
    Mistake(
        "q-as-v",
        "output",
        "out = weights @ q",
        "the output is weights @ q: values have no effect",
        "One vector serves as query and as value; the value projection is never trained.",
        "out = weights @ v",
        recipe=slot("roles", "qkq"),
    ),
    Mistake(
        "shared-projection",
        "q",
        "k = self.q(x)",
        "{what} computed with the weights of another role; their own weights have no effect",
        "Those weights are never trained; if queries equal keys, every token matches itself best.",
        "k = self.k(x)",
        recipe=slot("linear", *SHARED),
        what=are(SHARED, lambda letter, role: letter != role),
    ),
    Mistake(
        "bias-dropped",
        "q",
        "q, k, v = F.linear(x, self.qkv.weight).chunk(3, -1)",
        "the biases of the projections exist and have no effect",
        "Trained weights with biases give wrong numbers; the biases are never trained.",
        "q, k, v = self.qkv(x).chunk(3, -1)",
        recipe=slot("linear", "qkv no-bias"),
    ),
    Mistake(
        "split-by-view",
        "q",
        "q = q.view(B, H, T, D)",
        "heads are split by view({batch}, {heads}, {tokens}, {d}), which mixes the channels of different "
        "tokens; the definition splits into (batch, tokens, heads, width) and transposes",
        "A row of a head holds channels of other tokens: masks block the wrong tokens, and the future leaks.",
        "q = q.view(B, T, H, D).transpose(1, 2)",
        recipe=(
            {"split": "view"},
            {"split": "columns"},
        ),
        references=(
            "ajhalthor/Transformer-Neural-Network#4",
            "jsbaan/transformer-from-scratch#6",
            "649453932/Chinese-Text-Classification-Pytorch#10",
        ),
    ),
    Mistake(
        "heads-attend-heads",
        "q",
        "q = q.view(B, T, H, D)  # and no transpose",
        "scores are {heads} x {heads}, between the heads of one token; the definition's are {tokens} x {tokens}, "
        "between tokens",
        "No token attends to another token: the model is a bag of tokens.",
        "q = q.view(B, T, H, D).transpose(1, 2)",
        recipe=(
            {"split": "tokens", "merge": "tokens"},
            {"split": "tokens", "merge": "no-transpose"},
            {"split": "tokens"},
        ),
    ),
    Mistake(
        "one-head-only",
        "output",
        "out = torch.cat([head_0] * H, -1)",
        "{what} is used in the place of all {heads} heads",
        "The other heads have no effect: there is one subspace instead of {heads}.",
        "out = torch.cat([head(x) for head in self.heads], -1)",
        recipe=(
            {"groups": "first-head"},
            {"groups": "last-head"},
            {"merge": "first"},
            {"merge": "last"},
        ),
        what={
            "first-head": "the first head",
            "last-head": "the last head",
            "first": "the first head",
            "last": "the last head",
        },
    ),
    Mistake(
        "kv-first-head",
        "k",
        "k = k[:, :1].expand(-1, H, -1, -1)",
        "the first key and value head serves all {heads} query heads; the others have no effect",
        "Grouped-query attention becomes multi-query attention, and the other key and value heads are never trained.",
        "k = k.repeat_interleave(H // k.size(1), 1)",
        recipe=slot("groups", "first"),
    ),
    Mistake(
        "kv-swapped",
        "scores",
        "scores = q @ v.mT; out = weights @ k",
        "keys and values are exchanged",
        "Queries are compared with values, and the output is made of keys.",
        "scores = q @ k.mT; out = weights @ v",
        recipe=({"roles": "qvk"}, {"linear": "qvk"}),
    ),
)
