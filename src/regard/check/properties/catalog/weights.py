"""The properties of weights: those of a softmax over the keys of a query."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["WEIGHTS"]

WEIGHTS = (
    Property(
        "weights-cumulated",
        "weights",
        "what is called the sum of the weights of all steps so far is added to in each step",
        "A step knows only what the one before it read: what was read earlier is read again, or left out.",
        "cumulative = cumulative + weights",
    ),
    Property(
        "gradient-of-the-choice",
        "weights",
        "the gradient of hard weights is given to their softmax as it is (straight-through)",
        "Training moves the choice away from what lowers the loss.",
        "weights = hard - soft.detach() + soft",
    ),
    Property(
        "delta-rule",
        "weights",
        "by the delta rule a token writes its share of the difference of its value and what its key returns",
        "What was written for a key before stays, or is taken away where nothing is written.",
        "S = S + k[..., None] * (beta * (v - (k[..., None, :] @ S).squeeze(-2)))[..., None, :]",
    ),
    Property(
        "weights-are-numbers",
        "weights",
        "weights are numbers",
        "The output is NaN.",
        "scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)  # each query sees itself",
    ),
    Property(
        "weights-not-negative",
        "weights",
        "weights are not negative",
        "Values are subtracted.",
        "weights = scores.softmax(dim=-1)",
    ),
    Property(
        "weights-sum-to-one",
        "weights",
        "the weights of a query sum to 1",
        "The output grows with the length.",
        "weights = scores.softmax(dim=-1)  # masked before it, not after",
    ),
    Property(
        "softmax-over-keys",
        "weights",
        "the softmax runs over the keys of a query",
        "Queries compete for keys, and a later token changes an earlier one.",
        "weights = scores.softmax(dim=-1)",
    ),
    Property(
        "slots-compete",
        "weights",
        "in slot attention the softmax runs over the slots, and the weights of each are divided by their sum",
        "Several slots explain the same part of the input: none of them has an object of its own.",
        "weights = scores.softmax(dim=1)\nweights = weights / weights.sum(dim=-1, keepdim=True)",
    ),
    Property(
        "softmax-of-scores",
        "weights",
        "a softmax is taken of scores, not of weights that a softmax has made of them",
        "All keys have almost the same weight, and hidden ones have some.",
        "weights = scores.softmax(dim=-1)  # once",
    ),
    Property(
        "weights-kept",
        "weights",
        "the softmax is the last step before the values",
        "The output is scaled.",
        "out = scores.softmax(dim=-1) @ v  # masks and scale come before the softmax",
    ),
    Property(
        "softmax-maximum",
        "weights",
        "the maximum that is subtracted in a softmax is that of the query's scores",
        "It does not cancel: keys that any query looks for lose weight with all queries.",
        "scores = scores - scores.max(axis=-1, keepdims=True)  # over the keys, as the sum",
    ),
    Property(
        "retention-decay",
        "weights",
        "heads of retention keep 1 - 1/32, 1 - 1/64, ... of what they read, from token to token",
        "All but the last token is forgotten at once.",
        "gamma = 1 - 2.0 ** (-5 - torch.arange(heads))",
    ),
    Property(
        "softmaxes-subtracted",
        "weights",
        "differential attention subtracts weights, each of a softmax of its own",
        "It is one softmax of other scores: noise that both have in common does not cancel.",
        "weights = s1.softmax(dim=-1) - lam * s2.softmax(dim=-1)",
    ),
    Property(
        "keys-over-the-tokens",
        "weights",
        "in linear attention whose queries are a softmax over their channels, keys are one over the tokens",
        "The output grows with the number of tokens.",
        "q, k = q.softmax(dim=-1), k.softmax(dim=-2)  # (..., tokens, channels): so the weights of a query sum to 1",
    ),
    Property(
        "parts-merged",
        "weights",
        "parts of the keys that have a softmax each are merged by the sums of their exponentials",
        "What is read depends on where the keys were cut.",
        "out = torch.lerp(out, part, torch.sigmoid(part_lse - lse))  # lse: the logarithm of the sum of exponentials",
    ),
    Property(
        "sink-score",
        "weights",
        "the score of a sink is a number of its own",
        "A query whose scores are all low reads as much as any other: the sink takes nothing away from it.",
        "p = e / (e.sum(-1, keepdim=True) + (-m).exp())  # m: the maximum that was taken out of e = (s - m).exp()",
    ),
    Property(
        "weights-dropped",
        "weights",
        "dropout is of weights, after the softmax",
        "A dropped score is 0 and its key keeps a weight: nothing is dropped, and blocked scores become NaN.",
        "weights = self.dropout(scores.softmax(dim=-1))",
    ),
    Property(
        "dropped-share",
        "weights",
        "dropout leaves as much of the weights in training, on average, as there is in eval()",
        "What is trained reads less than what is used: all that comes after sees numbers of another size.",
        "weights = weights * (torch.rand_like(weights) >= p) / (1 - p)  # kept with a probability of 1 - p",
    ),
    Property(
        "random-features-estimate",
        "weights",
        "the product of random features of a query and a key is e^(q . k) on average",
        "Keys have a weight by their lengths, and more features come no closer to a softmax.",
        "phi = (k @ w.mT - k.square().sum(-1, keepdim=True) / 2).exp() / m**0.5",
    ),
    Property(
        "weights-returned-as-told",
        "weights",
        "weights that are returned have the axes that are told, or a usual order of them",
        "Who looks at them sees keys, queries and heads in one another's places.",
        'return out, rearrange(weights, "b h q k -> b q k h")  # the letters in the order that weights have them',
    ),
)
