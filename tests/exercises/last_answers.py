"""Answers to the exercises 16 to 20."""

from answers import Answers, Wrong

DECODER = """past = 0 if cache is None else cache[0].shape[0]
positions = torch.arange(past, past + len(ids))
h = self.token_embedding(ids) + self.position_embedding(positions)
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
new_k, new_v = k, v
if cache is not None:
    k = torch.cat([cache[0], k])
    v = torch.cat([cache[1], v])
scores = q @ k.T / math.sqrt(q.shape[-1])
allowed = torch.ones(len(q), len(k), dtype=torch.bool).tril(past)
weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
y = h + self.W_o(weights @ v)
return self.lm_head(y), (k, v)"""

DECODER_OF_INPUTS = """old = None if cache is None else cache["h"]
first = 0 if old is None else len(old)
h = self.token_embedding(ids) + self.position_embedding(first + torch.arange(len(ids)))
everything = h if old is None else torch.cat((old, h))
outputs = []
for n, row in enumerate(h):
    seen = everything[: first + n + 1]
    weights = (self.W_k(seen) @ self.W_q(row) / h.shape[1] ** 0.5).softmax(0)
    outputs.append(row + self.W_o(weights @ self.W_v(seen)))
return self.lm_head(torch.stack(outputs)), {"h": everything}"""

LAST = (
    Answers(
        "self-attention",
        (
            "q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)\nscores = q @ k.transpose(-2, -1) / "
            "math.sqrt(q.shape[-1])\n"
            "if mask is not None:\n    scores = scores.masked_fill(~mask, -torch.inf)\n"
            "weights = scores.softmax(dim=-1)\nreturn weights @ v",
            "return F.scaled_dot_product_attention(self.W_q(x), self.W_k(x), self.W_v(x), attn_mask=mask)",
            "s = torch.einsum('bid,bjd->bij', self.W_q(x), self.W_k(x)) / x.shape[-1] ** 0.5\n"
            "s = s if mask is None else torch.where(mask, s, torch.tensor(-1e30))\n"
            "return torch.einsum('bij,bjd->bid', s.softmax(-1), self.W_v(x))",
        ),
        (
            Wrong("absolute-axes", "k.transpose(-2, -1)", "k.transpose(0, 1)"),
            Wrong("mask-inverted", "~mask", "mask"),
            Wrong("mask-dropped", "scores = scores.masked_fill(~mask, -torch.inf)", "pass", "if mask is not None:"),
            Wrong("softmax-queries", "softmax(dim=-1)", "softmax(dim=1)"),
            Wrong("no-scale", " / math.sqrt(q.shape[-1])", ""),
            Wrong("mask-zero-fill", "scores.masked_fill(~mask, -torch.inf)", "scores * mask"),
            Wrong("softmax-batch", "softmax(dim=-1)", "softmax(dim=0)"),
        ),
    ),
    Answers(
        "cross-attention",
        (
            "q = x @ w_q.T\nk = context @ w_k.T\nv = context @ w_v.T\nscaled = q @ k.T / math.sqrt(q.shape[-1])\n"
            "return scaled.softmax(-1) @ v",
            "q, k, v = F.linear(x, w_q), F.linear(context, w_k), F.linear(context, w_v)\n"
            "return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]",
        ),
        (
            Wrong("q-from-context", "q = x @ w_q.T", "q = context @ w_q.T"),
            Wrong("context-ignored", "k = context @ w_k.T\nv = context @ w_v.T", "k = x @ w_k.T\nv = x @ w_v.T"),
            Wrong(
                "kv-swapped",
                "k = context @ w_k.T\nv = context @ w_v.T",
                "k = context @ w_v.T\nv = context @ w_k.T",
                "scaled = q @ k.T / math.sqrt(q.shape[-1])",
            ),
            Wrong("scale-tokens", "q.shape[-1]", "len(context)"),
            Wrong("no-scale", " / math.sqrt(q.shape[-1])", ""),
            Wrong("k-from-x", "v = context @", "v = x @"),
            Wrong("untransposed", "x @ w_q.T", "x @ w_q"),
        ),
    ),
    Answers(
        "transformer-block",
        (
            "y = x + self.attention(self.norm_1(x))\nreturn y + self.feed_forward(self.norm_2(y))",
            "skip = x\nx = self.norm_1(x)\nx = skip + self.attention(x)\nskip = x\nx = "
            "self.feed_forward(self.norm_2(x))\nreturn skip + x",
        ),
        (
            Wrong("residual-missing", "x + self.attention", "self.attention"),
            Wrong(
                "residual-of-norm",
                "y = x + self.attention(self.norm_1(x))",
                "x = self.norm_1(x)\ny = x + self.attention(x)",
            ),
            Wrong(
                "post-norm",
                "y = x + self.attention(self.norm_1(x))\nreturn y + self.feed_forward(self.norm_2(y))",
                "y = self.norm_1(x + self.attention(x))\nreturn self.norm_2(y + self.feed_forward(y))",
            ),
            Wrong("norm-used-twice", "self.norm_2(y)", "self.norm_1(y)"),
            Wrong("residual-of-the-sum", "return y +", "return x +"),
            Wrong("ffn-skipped", "return y + self.feed_forward(self.norm_2(y))", "return y"),
            Wrong("norm-missing", "self.feed_forward(self.norm_2(y))", "self.feed_forward(y)"),
        ),
    ),
    Answers(
        "beam-step",
        (
            "sums = scores[:, None] + log_probs\nbest, flat = sums.flatten().topk(len(scores))\n"
            "beams = flat // log_probs.shape[1]\ntokens = flat % log_probs.shape[1]\nreturn beams, tokens, best",
            "pairs = [(float(scores[b] + log_probs[b, t]), b, t) for b in range(len(scores)) for t in "
            "range(log_probs.shape[1])]\n"
            "pairs.sort(reverse=True)\npairs = pairs[: len(scores)]\n"
            "return [p[1] for p in pairs], [p[2] for p in pairs], [p[0] for p in pairs]",
        ),
        (
            Wrong(
                "beam-score-forgotten",
                "scores[:, None] + log_probs",
                "log_probs",
                "best, flat = sums.flatten().topk(len(scores))",
            ),
            Wrong("scores-multiplied", "scores[:, None] + log_probs", "scores[:, None] * log_probs"),
            Wrong(
                "best-of-each-beam",
                "best, flat = sums.flatten().topk(len(scores))",
                (
                    "top = sums.max(-1)\nreturn torch.arange(len(scores)), top.indices, top.values\nbest, flat = "
                    "sums.flatten().topk(len(scores))"
                ),
            ),
            Wrong("lowest-kept", "topk(len(scores))", "topk(len(scores), largest=False)"),
            Wrong(
                "flat-index-divided",
                "flat // log_probs.shape[1]\ntokens = flat % log_probs.shape[1]",
                "flat // len(scores)\ntokens = flat % len(scores)",
            ),
            Wrong("probabilities-added", "+ log_probs", "+ log_probs.exp()"),
            Wrong("flat-index-exchanged", "return beams, tokens", "return tokens, beams"),
        ),
    ),
    Answers(
        "decoder-with-cache",
        (DECODER, DECODER_OF_INPUTS),
        (
            Wrong("cache-position", "torch.arange(past, past + len(ids))", "torch.arange(len(ids))"),
            Wrong("cache-not-appended", "(k, v)", "(new_k, new_v)"),
            Wrong("cache-mask", "tril(past)", "tril()"),
            Wrong(
                "cache-order",
                "torch.cat([cache[0], k])\n    v = torch.cat([cache[1], v])",
                "torch.cat([k, cache[0]])\n    v = torch.cat([v, cache[1]])",
            ),
            Wrong("future-leak", "scores.masked_fill(~allowed, -torch.inf)", "scores"),
            Wrong("cache-swapped", "(k, v)", "(v, k)"),
            Wrong(
                "cache-ignored",
                "torch.cat([cache[0], k])\n    v = torch.cat([cache[1], v])",
                "k\n    v = v",
                "past = 0 if cache is None else cache[0].shape[0]",
            ),
            Wrong("out-projection-skipped", "self.W_o(weights @ v)", "weights @ v"),
        ),
    ),
)
