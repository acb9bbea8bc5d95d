"""The properties that define attention: what each says, the step that it is of, and what its violation does."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROPERTIES", "Property"]


@dataclass(frozen=True)
class Property:
    """Something that holds of every attention, unless another design is meant."""

    id: str
    step: str
    """Of the definition, by the names that mistakes have."""
    definition: str
    """What holds, in a sentence."""
    impact: str
    """What it does to a model where it does not hold."""
    fix: str
    """What to write instead, in one line."""


PROPERTIES = {
    each.id: each
    for each in (
        Property(
            "query-of-one-token",
            "q",
            "a query is made of one token",
            "A position's question holds other positions: masks no longer hide them.",
            "q = self.w_q(x)  # one matrix for every token: nothing that runs over tokens",
        ),
        Property(
            "key-of-one-token",
            "k",
            "a key is made of one token",
            "What is attended to is a mixture of positions: masks no longer hide them.",
            "k = self.w_k(x)  # one matrix for every token: nothing that runs over tokens",
        ),
        Property(
            "value-of-one-token",
            "v",
            "a value is made of one token",
            "What is read is a mixture of positions: masks no longer hide them.",
            "v = self.w_v(x)  # one matrix for every token: nothing that runs over tokens",
        ),
        Property(
            "samples-alike",
            "positions",
            "a sample's output does not depend on its place in the batch",
            "The model learns the order of the batch; positions are counted over the wrong axis.",
            "positions = torch.arange(x.size(1))",
        ),
        Property(
            "positions-without-effect",
            "positions",
            "positions that are computed have an effect",
            "The same words in another order give the same output.",
            "x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))",
        ),
        Property(
            "projection-used",
            "projected",
            "every projection of the module is used",
            "Its weights never learn, and what they should do is not done.",
            "return self.out(heads)",
        ),
        Property(
            "gradient",
            "output",
            "every parameter that changes the output has a gradient",
            "It keeps the numbers that it began with.",
            "v = self.v(x)  # without .detach(), .data or torch.no_grad()",
        ),
        Property(
            "residual-once",
            "block",
            "the input of a block is added to its output once",
            "The input outweighs what the block computes, more in each layer.",
            "x = x + self.attention(self.norm(x))",
        ),
        Property(
            "output-at-its-place",
            "output",
            "what is computed at a place of a picture is returned at this place",
            "Windows that are not put back leave each place with the content of another.",
            "x = windows.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)  # as they were cut, backwards",
        ),
        Property(
            "patches-whole",
            "projected",
            "a token of a picture holds all channels of one patch",
            "Tokens are mixtures of patches, and positions mean nothing.",
            "x = self.patches(images).flatten(2).transpose(1, 2)",
        ),
        Property(
            "samples-apart",
            "scores",
            "each sample is computed by itself",
            "Samples of a batch change one another.",
            "scores = q @ k.transpose(-2, -1)  # with the batch as an axis of its own in front",
        ),
        Property(
            "queries-from-their-input",
            "q",
            "queries are made of the first argument",
            "The wrong sequence asks.",
            "q = self.w_q(query)",
        ),
        Property(
            "keys-from-their-input",
            "k",
            "keys are made of the second argument",
            "The wrong sequence is searched.",
            "k = self.w_k(key)",
        ),
        Property(
            "values-from-their-input",
            "v",
            "values are made of the third argument",
            "The wrong sequence is read.",
            "v = self.w_v(value)",
        ),
        Property(
            "values-from-the-keys-input",
            "v",
            "keys and values are made of the same sequence",
            "What is read is not what was found.",
            "k, v = self.w_k(context), self.w_v(context)",
        ),
        Property(
            "queries-from-x",
            "q",
            "queries are made of x, keys and values of the context",
            "The decoder is read.",
            "q, k, v = self.w_q(x), self.w_k(context), self.w_v(context)",
        ),
        Property(
            "attends-to-tokens",
            "scores",
            "a query is compared with the keys of all tokens",
            "Tokens never meet.",
            "q = q.view(B, T, H, D).transpose(1, 2)  # (B, H, T, D) before q @ k.transpose(-2, -1)",
        ),
        Property(
            "heads-apart",
            "scores",
            "each head is computed by itself",
            "Heads change one another.",
            "q = q.view(B, T, H, D).transpose(1, 2)  # the heads as an axis of their own",
        ),
        Property(
            "heads-paired",
            "scores",
            "a query head reads the key head of its group",
            "Heads read others' keys.",
            "k = k.repeat_interleave(H // H_kv, dim=1)  # query head h reads key head h // (H // H_kv)",
        ),
        Property(
            "value-heads-paired",
            "output",
            "weights go to the values of their head",
            "Heads read others' values.",
            "v = v.repeat_interleave(H // H_kv, dim=1)  # as the keys",
        ),
        Property(
            "value-of-the-key",
            "output",
            "the weight of a key goes to the value of the same token",
            "What is read stands elsewhere than what was found.",
            "out = weights @ v  # the keys' axis of weights, the tokens' axis of v, in the same order",
        ),
        Property(
            "value-of-the-sample",
            "output",
            "weights go to values of their sample",
            "Samples change one another.",
            "out = weights @ v  # with the batch as the first axis of both",
        ),
        Property(
            "sum-of-one-of-queries",
            "output",
            "a weighted sum has the weights of one query",
            "Queries are mixed.",
            "out = weights @ v  # summed over the last axis of weights, the keys",
        ),
        Property(
            "sum-of-one-of-heads",
            "output",
            "a weighted sum has the weights of one head",
            "Heads are mixed.",
            "out = weights @ v  # summed over the last axis of weights, the keys",
        ),
        Property(
            "scale",
            "scaled",
            "q . k is divided by the square root of the width",
            "The softmax is too sharp or too flat.",
            "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        ),
        Property(
            "softcap-of-scaled",
            "scaled",
            "scores are scaled, then capped",
            "The cap is another than it says.",
            "scores = cap * torch.tanh(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) / cap)",
        ),
        Property(
            "softcap-restored",
            "scaled",
            "scores that are capped are multiplied by the cap again: small ones stay as they are",
            "All scores lie between -1 and 1: the weights of a query hardly differ.",
            "scores = cap * torch.tanh(scores / cap)",
        ),
        Property(
            "bias-by-key",
            "biased",
            "what is added to the scores differs among the keys of a query",
            "It has no effect: the model has no positions.",
            "scores = scores + slopes[:, None, None] * (j - i)",
        ),
        Property(
            "bias-by-distance",
            "biased",
            "a bias by relative positions depends on their distance, j - i",
            "Tokens that move together change their weights.",
            "bias = table[bucket(j - i)]",
        ),
        Property(
            "bias-after-scale",
            "biased",
            "a bias is added to scaled scores",
            "The bias is smaller than it says, and changes with the width of a head.",
            "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + bias",
        ),
        Property(
            "alibi-sign",
            "biased",
            "ALiBi lowers the scores of far keys",
            "Far tokens are preferred to near ones.",
            "scores = scores - slope * (i - j)  # i: the query's position, j: the key's",
        ),
        Property(
            "alibi-slopes",
            "biased",
            "each head has a slope of its own",
            "All heads look equally far.",
            "slopes = 2 ** (-8 * torch.arange(1, H + 1) / H)  # one for each head",
        ),
        Property(
            "mask-pattern",
            "masked",
            "a causal mask hides what comes later",
            "The model sees what it shall predict.",
            "scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)",
        ),
        Property(
            "blocked-scores",
            "masked",
            "a key whose score is blocked has weight zero",
            "Queries attend to keys that the mask hides.",
            "scores = scores.masked_fill(~mask, -torch.inf)  # last before the softmax",
        ),
        Property(
            "mask-argument",
            "masked",
            "a mask that is handed over hides keys",
            "Hidden keys are attended to.",
            "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
        ),
        Property(
            "masks-of-both-softmaxes",
            "masked",
            "what one softmax of differential attention blocks, the other blocks as well",
            "What is hidden is read through the softmax that is subtracted.",
            "s1, s2 = (s.masked_fill(~mask, -torch.inf) for s in (s1, s2))  # before either softmax",
        ),
        Property(
            "mask-same-for-heads",
            "masked",
            "a mask holds for every head",
            "Some heads see what is hidden.",
            "scores = scores.masked_fill(~mask, -torch.inf)  # mask: (batch, 1, queries, keys)",
        ),
        Property(
            "mask-same-for-samples",
            "masked",
            "a mask holds for every sample",
            "Some samples see what is hidden.",
            "scores = scores.masked_fill(~mask, -torch.inf)  # mask: (batch, 1, queries, keys)",
        ),
        Property(
            "keys-seen",
            "scores",
            "every key is seen by some query",
            "The end of the text is never read.",
            "for start in range(0, T, block):  # the last block may be shorter",
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
            "weights-kept",
            "weights",
            "the softmax is the last step before the values",
            "The output is scaled.",
            "out = scores.softmax(dim=-1) @ v  # masks and scale come before the softmax",
        ),
        Property(
            "sink-score",
            "weights",
            "the score of a sink is a number of its own",
            "A query whose scores are all low reads as much as any other: the sink takes nothing away from it.",
            "p = e / (e.sum(-1, keepdim=True) + (-m).exp())  # m: the maximum that was taken out of e = (s - m).exp()",
        ),
        Property(
            "values-without-positions",
            "positions",
            "values hold no position",
            "What is read depends on where it stands.",
            "q, k = rotate(q, positions), rotate(k, positions)  # and not v",
        ),
        Property(
            "positions-relative",
            "positions",
            "rotary positions leave a score that depends on the distance alone",
            "The same two words score differently elsewhere in the text.",
            "q, k = rotate(q, positions), rotate(k, positions)  # both by the same angles",
        ),
        Property(
            "rotation-keeps-lengths",
            "positions",
            "rotary positions keep the lengths of queries and keys",
            "Scores grow and shrink with the position.",
            "q * cos + rotate_half(q) * sin  # rotate_half: torch.cat((-q2, q1), -1)",
        ),
        Property(
            "positions-by-token",
            "positions",
            "the angle of a rotation is its token's",
            "The model has no positions.",
            "angles = positions[:, None] * frequencies  # along the tokens, not along the heads",
        ),
        Property(
            "output-of-the-token",
            "heads",
            "what a query reads goes to the output of its token",
            "Positions are shuffled.",
            "out = out.transpose(1, 2).reshape(B, T, H * D)",
        ),
        Property(
            "output-of-the-head",
            "heads",
            "heads are returned in their order",
            "Heads are exchanged.",
            "out = out.transpose(1, 2).reshape(B, T, H * D)",
        ),
        Property(
            "projected-once",
            "projected",
            "the output is projected once",
            "It is not what was trained.",
            "return self.out_proj(heads)",
        ),
        Property(
            "heads-in-output",
            "heads",
            "every head reaches the output",
            "Heads are computed in vain.",
            "out = torch.cat(heads, dim=-1)  # or out.transpose(1, 2).reshape(B, T, H * D)",
        ),
        Property(
            "cache-equals-whole",
            "output",
            "token by token through a cache gives what all tokens at once give",
            "What is generated is not what was trained.",
            "k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)  # positions and mask go on behind them",
        ),
        Property(
            "cache-positions",
            "positions",
            "positions go on where the cache ends",
            "Every new token stands at the beginning of the text.",
            "positions = torch.arange(n, n + T)  # n = past_k.size(-2): the tokens in the cache",
        ),
        Property(
            "cache-rotation",
            "positions",
            "a cached key keeps the position of its token",
            "Cached tokens stand elsewhere than they did.",
            "k = torch.cat((past_k, rotate(k, positions)), -2)  # rotated once, before it is cached",
        ),
        Property(
            "cache-mask",
            "masked",
            "a new token sees the cached keys that it sees all at once",
            "What was read before is forgotten, or what comes later is seen.",
            "mask = torch.ones(T, n + T).triu(n + 1).bool()  # n = past_k.size(-2): the diagonal moves with the cache",
        ),
        Property(
            "cache-order",
            "k",
            "cached keys and values come before the new ones, in the order of their tokens",
            "Keys get the positions, the masks or the values of others.",
            "k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)  # past first, in both",
        ),
        Property(
            "cache-values",
            "v",
            "a cached key has the value of its token",
            "What is read is not what was found.",
            "k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)  # both are cached",
        ),
        Property(
            "cache-unasked",
            "call",
            "a call that is not given a cache does not depend on the call before",
            "Texts are mixed.",
            "past = None if not use_cache else past  # what is kept is read and written only where it is asked for",
        ),
    )
}
