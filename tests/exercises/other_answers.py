"""Wrong answers in other styles: whole code of an exercise, each with the causes that have to be named."""

OTHERS = (
    (
        "dot-product",
        "outer-product",
        """
return torch.outer(a, b)
""",
    ),
    (
        "dot-product",
        "added-not-multiplied",
        """
return sum(x + y for x, y in zip(a, b))
""",
    ),
    (
        "dot-product",
        "first-left-out",
        """
t = 0
for i in range(1, len(a)):
    t = t + a[i] * b[i]
return t
""",
    ),
    (
        "dot-product",
        "sum-overwritten",
        """
s = 0
for x, y in zip(a, b):
    s = x * y
return s
""",
    ),
    (
        "dot-product",
        "distance-instead",
        """
return (a - b).norm()
""",
    ),
    (
        "dot-product",
        "sum-ends-early",
        """
for x, y in zip(a, b):
    return x * y
""",
    ),
    (
        "lookup",
        "one-hot-returned",
        """
return F.one_hot(ids, len(table))
""",
    ),
    (
        "lookup",
        "next-row",
        """
return table[ids + 1]
""",
    ),
    (
        "lookup",
        "columns-for-rows",
        """
return table.index_select(1, ids)
""",
    ),
    (
        "lookup",
        "places-for-ids",
        """
return torch.stack([table[i] for i in range(len(ids))])
""",
    ),
    (
        "cosine-similarity",
        "one-length-only",
        """
return (x @ x.T) / x.norm(dim=1)
""",
    ),
    (
        "cosine-similarity",
        "squared-lengths",
        """
return x @ x.T / x.norm(dim=1).outer(x.norm(dim=1)) ** 2
""",
    ),
    (
        "cosine-similarity",
        "distance-instead",
        """
return torch.cdist(x, x)
""",
    ),
    (
        "cosine-similarity",
        "squared-lengths",
        """
d = x @ x.T
return d / d.diag()
""",
    ),
    (
        "cosine-similarity",
        "sums-for-lengths",
        """
u = x / x.sum(-1, keepdim=True)
return u @ u.T
""",
    ),
    (
        "attention-without-weights",
        "no-scale",
        """
w = (x @ x.T).softmax(-1)
return w @ x
""",
    ),
    (
        "attention-without-weights",
        "scale-multiplied",
        """
s = x @ x.T * x.shape[-1] ** 0.5
return s.softmax(-1) @ x
""",
    ),
    (
        "attention-without-weights",
        "softmax-l1",
        """
s = x @ x.T / x.shape[-1] ** 0.5
w = s / s.sum(-1, keepdim=True)
return w @ x
""",
    ),
    (
        "attention-without-weights",
        "output-mean",
        """
return x.mean(0).expand_as(x)
""",
    ),
    (
        "attention-without-weights",
        "channels-attend",
        """
s = x.T @ x / x.shape[-1] ** 0.5
return x @ s.softmax(-1)
""",
    ),
    (
        "attention-without-weights",
        "cosine-instead",
        """
u = x / x.norm(dim=-1, keepdim=True)
return (u @ u.T).softmax(-1) @ x
""",
    ),
    (
        "attention-without-weights",
        "scale-constant",
        """
return (x @ x.T / 2**0.5).softmax(-1) @ x
""",
    ),
    (
        "projections",
        "results-exchanged",
        """
return x @ w_q.T, x @ w_v.T, x @ w_k.T
""",
    ),
    (
        "projections",
        "results-transposed",
        """
return w_q @ x.T, w_k @ x.T, w_v @ x.T
""",
    ),
    (
        "scores",
        "softmax-already",
        """
return (q @ k.T).softmax(-1)
""",
    ),
    (
        "scores",
        "k-as-q",
        """
return k @ k.T
""",
    ),
    (
        "scores",
        "distance-instead",
        """
return torch.cdist(q, k)
""",
    ),
    (
        "scores",
        "scores-negated",
        """
return -(q @ k.T)
""",
    ),
    (
        "scale",
        "scale-constant",
        """
return (q @ k.T) / 2 ** 0.5
""",
    ),
    (
        "scale",
        "scale-fourth-root",
        """
return q @ k.T / k.shape[1] ** 0.25
""",
    ),
    (
        "scale",
        "softmax-already",
        """
return (q @ k.T / q.shape[-1] ** 0.5).softmax(-1)
""",
    ),
    (
        "scale",
        "scale-constant",
        """
return q @ k.T / 8
""",
    ),
    (
        "scale",
        "scores-transposed",
        """
return k @ q.T / q.shape[-1] ** 0.5
""",
    ),
    (
        "scale",
        "scale-d",
        """
return q / q.shape[-1]**0.5 @ (k / k.shape[-1]**0.5).T
""",
    ),
    (
        "softmax",
        "softmax-l1",
        """
return scores / scores.sum(-1, keepdim=True)
""",
    ),
    (
        "softmax",
        "softmax-all",
        """
e = torch.exp(scores)
return e / e.sum()
""",
    ),
    (
        "softmax",
        "softmax-maximum",
        """
m = scores - scores.max(dim=0).values
e = m.exp()
return e / e.sum(-1, keepdim=True)
""",
    ),
    (
        "softmax",
        "softmax-overflow",
        """
e = (scores - scores.mean(-1, keepdim=True)).exp()
return e / e.sum(-1, keepdim=True)
""",
    ),
    (
        "softmax",
        "softmax-sigmoid",
        """
return scores.sigmoid()
""",
    ),
    (
        "softmax",
        "softmax-all",
        """
e = torch.exp(scores - scores.max())
return e / e.sum()
""",
    ),
    (
        "softmax",
        "softmax-queries",
        """
return scores.softmax(0)
""",
    ),
    (
        "softmax",
        "softmax-denominator",
        """
e = torch.exp(scores)
return e / e.sum(0)
""",
    ),
    (
        "attention",
        "softmax-missing",
        """
s = q @ k.T / q.shape[1]**0.5
return s @ v
""",
    ),
    (
        "attention",
        "weights-transposed",
        """
s = q @ k.T / q.shape[1]**0.5
return s.softmax(-1).T @ v
""",
    ),
    (
        "attention",
        "scores-transposed",
        """
s = k @ q.T / q.shape[1]**0.5
return s.softmax(-1) @ v
""",
    ),
    (
        "attention",
        "no-scale softmax-queries",
        """
s = q @ k.T
return s.softmax(0) @ v
""",
    ),
    (
        "attention",
        "softmax-unnormalised",
        """
s = q @ k.T / q.shape[1]**0.5
w = s.exp()
return w @ v
""",
    ),
    (
        "attention",
        "kv-swapped",
        """
s = q @ v.T / q.shape[1]**0.5
return s.softmax(-1) @ k
""",
    ),
    (
        "attention",
        "scale-constant",
        """
s = q @ k.T / math.sqrt(2)
return s.softmax(-1) @ v
""",
    ),
    (
        "attention",
        "values-missing",
        """
s = q @ k.T / q.shape[1]**0.5
return s.softmax(-1)
""",
    ),
    (
        "sinusoidal-positions",
        "pe-exponent",
        """
pe = torch.zeros(tokens, d_model)
for p in range(tokens):
    for i in range(0, d_model, 2):
        pe[p, i] = math.sin(p / 10000 ** (2 * i / d_model))
        pe[p, i + 1] = math.cos(p / 10000 ** (2 * (i + 1) / d_model))
return pe
""",
    ),
    (
        "sinusoidal-positions",
        "pe-angle",
        """
pe = torch.zeros(tokens, d_model)
for p in range(tokens):
    for i in range(d_model):
        pe[p, i] = math.sin(p / 10000 ** (i / d_model)) if i % 2 == 0 else math.cos(p / 10000 ** (i / d_model))
return pe
""",
    ),
    (
        "sinusoidal-positions",
        "pe-sines-only",
        """
a = torch.arange(tokens)[:, None] / 10000 ** (torch.arange(d_model) / d_model)
return a.sin()
""",
    ),
    (
        "sinusoidal-positions",
        "pe-exponent",
        """
a = torch.arange(tokens)[:, None] / 10000 ** (torch.arange(d_model // 2) / d_model)
return torch.stack((a.sin(), a.cos()), -1).flatten(1)
""",
    ),
    (
        "sinusoidal-positions",
        "pe-power-missing",
        """
a = torch.arange(tokens)[:, None] / 10000 * (torch.arange(0, d_model, 2) / d_model)
return torch.stack((a.sin(), a.cos()), -1).flatten(1)
""",
    ),
    (
        "rotary",
        "rotary-halves",
        """
d = x.shape[1]
t = 10000 ** (-torch.arange(0, d, 2) / d)
a = (torch.arange(len(x))[:, None] * t).repeat(1, 2)
x1, x2 = x.chunk(2, -1)
return x * a.cos() + torch.cat((-x2, x1), -1) * a.sin()
""",
    ),
    (
        "rotary",
        "rotary-mixed-pairs",
        """
d = x.shape[1]
t = 10000 ** (-torch.arange(0, d, 2) / d)
a = (torch.arange(len(x))[:, None] * t).repeat_interleave(2, 1)
x1, x2 = x.chunk(2, -1)
return x * a.cos() + torch.cat((-x2, x1), -1) * a.sin()
""",
    ),
    (
        "rotary",
        "rotary-mixed-pairs",
        """
d = x.shape[1]
t = 10000 ** (-torch.arange(0, d, 2) / d)
a = (torch.arange(len(x))[:, None] * t).repeat(1, 2)
r = torch.stack((-x[:, 1::2], x[:, 0::2]), -1).flatten(1)
return x * a.cos() + r * a.sin()
""",
    ),
    (
        "rotary",
        "rotary-base",
        """
d = x.shape[1]
t = 1000 ** (-torch.arange(0, d, 2) / d)
a = torch.arange(len(x))[:, None] * t
return torch.stack((x[:, ::2] * a.cos() - x[:, 1::2] * a.sin(), x[:, ::2] * a.sin() + x[:, 1::2] * a.cos()), -1).flatten(1)
""",
    ),
    (
        "rotary",
        "rotary-missing",
        """
return x
""",
    ),
    (
        "causal-mask",
        "mask-inverted",
        """
s = q @ k.T / q.shape[-1]**0.5
m = torch.ones(len(q), len(q)).triu(1)
return s.masked_fill(m == 0, -1e9).softmax(-1) @ v
""",
    ),
    (
        "causal-mask",
        "mask-zero-fill",
        """
s = q @ k.T / q.shape[-1]**0.5
m = torch.tril(torch.ones(len(q), len(q)))
return (s * m).softmax(-1) @ v
""",
    ),
    (
        "causal-mask",
        "mask-added-01",
        """
s = q @ k.T / q.shape[-1]**0.5
m = torch.tril(torch.ones(len(q), len(q)))
return (s + m).softmax(-1) @ v
""",
    ),
    (
        "causal-mask",
        "mask-zero-fill",
        """
s = q @ k.T / q.shape[-1]**0.5
m = torch.tril(torch.ones(len(q), len(q)))
return s.masked_fill(m == 0, 1e-9).softmax(-1) @ v
""",
    ),
    (
        "causal-mask",
        "mask-after-softmax",
        """
s = q @ k.T / q.shape[-1]**0.5
w = s.softmax(-1).tril()
return w @ v
""",
    ),
    (
        "causal-mask",
        "no-scale",
        """
s = q @ k.T
m = torch.tril(torch.ones(len(q), len(q)))
return s.masked_fill(m == 0, float('-inf')).softmax(-1) @ v
""",
    ),
    (
        "padding-mask",
        "mask-inverted",
        """
s = q @ k.mT / q.shape[-1]**0.5
return s.masked_fill(keep[:, None], -1e9).softmax(-1) @ v
""",
    ),
    (
        "padding-mask",
        "mask-zero-fill",
        """
s = q @ k.mT / q.shape[-1]**0.5
return (s * keep[:, None]).softmax(-1) @ v
""",
    ),
    (
        "padding-mask",
        "mask-after-softmax",
        """
s = q @ k.mT / q.shape[-1]**0.5
return (s.softmax(-1) * keep[:, None]) @ v
""",
    ),
    (
        "padding-mask",
        "mask-rows",
        """
return F.scaled_dot_product_attention(q, k, v) * keep[..., None]
""",
    ),
    (
        "padding-mask",
        "mask-rows",
        """
s = q @ k.mT / q.shape[-1]**0.5
m = keep[:, None] & keep[:, :, None]
return s.masked_fill(~m, float('-inf')).softmax(-1) @ v
""",
    ),
    (
        "padding-mask",
        "softmax-queries",
        """
s = q @ k.mT / q.shape[-1]**0.5
return s.masked_fill(~keep[:, None], -1e9).softmax(1) @ v
""",
    ),
    (
        "split-heads",
        "split-by-view",
        """
return x.reshape(x.shape[0], num_heads, -1, x.shape[1])
""",
    ),
    (
        "split-heads",
        "tokens-last",
        """
b, t, d = x.shape
return x.view(b, t, num_heads, d // num_heads).permute(0, 2, 3, 1)
""",
    ),
    (
        "split-heads",
        "heads-attend-heads",
        """
return torch.stack(x.chunk(num_heads, -1), -2)
""",
    ),
    (
        "multi-head",
        "no-scale",
        """
b, t, d = x.shape
s = lambda y: y.view(b, t, num_heads, -1).transpose(1, 2)
q, k, v = s(x @ w_q.T), s(x @ w_k.T), s(x @ w_v.T)
o = (q @ k.mT).softmax(-1) @ v
return o.transpose(1, 2).reshape(b, t, d) @ w_o.T
""",
    ),
    (
        "multi-head",
        "heads-not-split",
        """
b, t, d = x.shape
q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
return (q @ k.mT / d ** 0.5).softmax(-1) @ v @ w_o.T
""",
    ),
    (
        "multi-head",
        "untransposed out-projection-untransposed",
        """
b, t, d = x.shape
s = lambda y: y.view(b, t, num_heads, -1).transpose(1, 2)
q, k, v = s(x @ w_q), s(x @ w_k), s(x @ w_v)
o = (q @ k.mT / q.shape[-1] ** .5).softmax(-1) @ v
return o.transpose(1, 2).reshape(b, t, d) @ w_o
""",
    ),
    (
        "multi-head",
        "heads-added out-projection-skipped",
        """
b, t, d = x.shape
s = lambda y: y.view(b, t, num_heads, -1).transpose(1, 2)
q, k, v = s(x @ w_q.T), s(x @ w_k.T), s(x @ w_v.T)
o = (q @ k.mT / q.shape[-1] ** .5).softmax(-1) @ v
return o.mean(1)
""",
    ),
    (
        "multi-head",
        "scale-heads merge-without-transpose",
        """
b, t, d = x.shape
s = lambda y: y.view(b, t, num_heads, -1).transpose(1, 2)
q, k, v = s(x @ w_q.T), s(x @ w_k.T), s(x @ w_v.T)
o = (q @ k.mT / num_heads ** .5).softmax(-1) @ v
return o.reshape(b, t, d) @ w_o.T
""",
    ),
    (
        "self-attention",
        "scale-tokens",
        """
q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
s = q @ k.mT / x.shape[1] ** .5
if mask is not None:
    s = s.masked_fill(~mask, -1e9)
return s.softmax(-1) @ v
""",
    ),
    (
        "self-attention",
        "mask-added-01",
        """
q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
s = q @ k.mT / x.shape[2] ** .5
if mask is not None:
    s = s + mask
return s.softmax(-1) @ v
""",
    ),
    (
        "self-attention",
        "mask-transposed",
        """
q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
s = q @ k.mT / x.shape[2] ** .5
if mask is not None:
    s = s.masked_fill(~mask.T, -1e9)
return s.softmax(-1) @ v
""",
    ),
    (
        "self-attention",
        "not-projected",
        """
q, k, v = self.W_q(x), self.W_k(x), x
s = q @ k.mT / x.shape[2] ** .5
if mask is not None:
    s = s.masked_fill(~mask, -1e9)
return s.softmax(-1) @ v
""",
    ),
    (
        "cross-attention",
        "q-from-context",
        """
q, k, v = context @ w_q.T, x @ w_k.T, x @ w_v.T
return (q @ k.T / q.shape[1] ** .5).softmax(-1) @ v
""",
    ),
    (
        "cross-attention",
        "not-projected",
        """
q, k, v = x @ w_q.T, context @ w_k.T, context
return (q @ k.T / q.shape[1] ** .5).softmax(-1) @ v
""",
    ),
    (
        "cross-attention",
        "scores-transposed",
        """
q, k, v = x @ w_q.T, context @ w_k.T, context @ w_v.T
return (k @ q.T / q.shape[1] ** .5).softmax(-1) @ v
""",
    ),
    (
        "cross-attention",
        "softmax-queries",
        """
q, k, v = x @ w_q.T, context @ w_k.T, context @ w_v.T
return (q @ k.T / q.shape[1] ** .5).softmax(0) @ v
""",
    ),
    (
        "cross-attention",
        "k-from-x",
        """
q, k, v = x @ w_q.T, context @ w_k.T, x @ w_v.T
return (q @ k.T / q.shape[1] ** .5).softmax(-1) @ v
""",
    ),
    (
        "transformer-block",
        "residual-of-norm",
        """
x = self.norm_1(x)
x = x + self.attention(x)
x = self.norm_2(x)
return x + self.feed_forward(x)
""",
    ),
    (
        "transformer-block",
        "norm-of-the-part",
        """
x = x + self.norm_1(self.attention(x))
return x + self.norm_2(self.feed_forward(x))
""",
    ),
    (
        "transformer-block",
        "residual-missing",
        """
return self.feed_forward(self.norm_2(self.attention(self.norm_1(x))))
""",
    ),
    (
        "transformer-block",
        "residual-of-the-sum",
        """
y = self.attention(self.norm_1(x))
return x + y + self.feed_forward(self.norm_2(x))
""",
    ),
    (
        "transformer-block",
        "parts-exchanged",
        """
y = x + self.feed_forward(self.norm_1(x))
return y + self.attention(self.norm_2(y))
""",
    ),
    (
        "transformer-block",
        "residual-of-norm",
        """
y = x + self.attention(self.norm_1(x))
return self.norm_2(y) + self.feed_forward(self.norm_2(y))
""",
    ),
    (
        "beam-step",
        "best-of-each-beam",
        """
s = scores[:, None] + log_probs
b, i = s.topk(1, -1)
return torch.arange(len(scores)), i[:, 0], b[:, 0]
""",
    ),
    (
        "beam-step",
        "probabilities-returned",
        """
s = scores.exp()[:, None] * log_probs.exp()
b, i = s.flatten().topk(len(scores))
return i // log_probs.shape[1], i % log_probs.shape[1], b
""",
    ),
    (
        "beam-step",
        "flat-index-exchanged",
        """
s = scores[:, None] + log_probs
b, i = s.flatten().topk(len(scores))
return i % log_probs.shape[1], i // log_probs.shape[1], b
""",
    ),
    (
        "beam-step",
        "scores-subtracted",
        """
s = scores[:, None] - log_probs
b, i = s.flatten().topk(len(scores))
return i // log_probs.shape[1], i % log_probs.shape[1], b
""",
    ),
    (
        "beam-step",
        "lowest-kept",
        """
s = (scores[:, None] + log_probs).flatten()
i = s.argsort()[: len(scores)]
return i // log_probs.shape[1], i % log_probs.shape[1], s[i]
""",
    ),
    (
        "decoder-with-cache",
        "cache-mask",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n, n + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
if cache is None:
    s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "cache-mask",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n, n + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "cache-position",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(n + 1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "cache-position",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n + 1, n + 1 + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(n + 1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "cache-ignored",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    pass
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "cache-not-appended",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n, n + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(n + 1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), cache or (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "mask-inverted",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n, n + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).tril(n), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "mask-strict",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n, n + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / h.shape[-1] ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(n), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
    (
        "decoder-with-cache",
        "scale-tokens",
        """
n = 0 if cache is None else len(cache[0])
h = self.token_embedding(ids) + self.position_embedding(torch.arange(n, n + len(ids)))
q, k, v = self.W_q(h), self.W_k(h), self.W_v(h)
if cache is not None:
    k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
s = q @ k.T / len(k) ** 0.5
s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool).triu(n + 1), -1e9)
y = h + self.W_o(s.softmax(-1) @ v)
return self.lm_head(y), (k, v)
""",
    ),
)
