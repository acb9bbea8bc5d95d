"""Answers to the exercises 09 to 15."""

from answers import Answers, Wrong

QKV_LOOP = """out = torch.zeros(q.shape[0], v.shape[1])
for i in range(len(q)):
    s = torch.stack([q[i] @ k[j] for j in {keys}]) / math.sqrt(q.shape[1])
    w = s.exp() / s.exp().sum()
    out[i] = sum(w[n] * v[j] for n, j in enumerate({keys}))
return out"""

MIDDLE = (
    Answers(
        "attention",
        (
            "scores = q @ k.T\nscaled = scores / math.sqrt(q.shape[-1])\nweights = scaled.softmax(dim=-1)\nreturn "
            "weights @ v",
            "return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]",
            "w = torch.einsum('id,jd->ij', q, k) * q.size(1) ** -0.5\nreturn torch.einsum('ij,jd->id', "
            "w.softmax(-1), v)",
            QKV_LOOP.format(keys="range(len(k))"),
        ),
        (
            Wrong("no-scale", "scores / math.sqrt(q.shape[-1])", "scores", "scores = q @ k.T"),
            Wrong("scale-tokens", "q.shape[-1]", "k.shape[0]"),
            Wrong("scale-d-value", "q.shape[-1]", "v.shape[-1]"),
            Wrong("softmax-queries", "dim=-1", "dim=0"),
            Wrong("softmax-twice", "scaled.softmax(dim=-1)", "scaled.softmax(-1).softmax(-1)"),
            Wrong("k-as-v", "weights @ v", "weights @ k"),
            Wrong(
                "scale-after-softmax",
                "weights = scaled.softmax(dim=-1)",
                "weights = scores.softmax(-1) / q.shape[-1] ** 0.5",
            ),
        ),
    ),
    Answers(
        "sinusoidal-positions",
        (
            "position = torch.arange(tokens)[:, None]\nchannel = torch.arange(0, d_model, 2)\n"
            "angle = position / 10000 ** (channel / d_model)\npe = torch.zeros(tokens, d_model)\n"
            "pe[:, 0::2] = angle.sin()\npe[:, 1::2] = angle.cos()\nreturn pe",
            "return torch.tensor([[(math.cos if c % 2 else math.sin)(p / 10000 ** ((c - c % 2) / d_model)) "
            "for c in range(d_model)] for p in range(tokens)])",
            "rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))\n"
            "angle = torch.outer(torch.arange(tokens).to(rate), rate)\n"
            "return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)",
        ),
        (
            Wrong("pe-exponent", "channel / d_model", "2 * channel / d_model"),
            Wrong(
                "pe-swapped",
                "pe[:, 0::2] = angle.sin()\npe[:, 1::2] = angle.cos()",
                "pe[:, 0::2] = angle.cos()\npe[:, 1::2] = angle.sin()",
            ),
            Wrong("pe-base", "10000", "1000"),
            Wrong("pe-from-one", "torch.arange(tokens)[:, None]", "torch.arange(1, tokens + 1)[:, None]"),
            Wrong("pe-halves", "return pe", "return torch.cat((angle.sin(), angle.cos()), -1)"),
            Wrong("pe-multiplied", "position / 10000", "position * 10000"),
            Wrong(
                "pe-angle",
                "pe[:, 1::2] = angle.cos()",
                "pe[:, 1::2] = (position / 10000 ** ((channel + 1) / d_model)).cos()",
                "angle = position / 10000 ** (channel / d_model)",
            ),
        ),
    ),
    Answers(
        "rotary",
        (
            "tokens, d = x.shape\ntheta = 10000 ** (-torch.arange(0, d, 2) / d)\n"
            "angle = torch.arange(tokens)[:, None] * theta\na, b = x[:, 0::2], x[:, 1::2]\nout = torch.zeros_like(x)\n"
            "out[:, 0::2] = a * angle.cos() - b * angle.sin()\nout[:, 1::2] = a * angle.sin() + b * "
            "angle.cos()\nreturn out",
            "tokens, d = x.shape\ntheta = 10000 ** (-torch.arange(0, d, 2) / d)\n"
            "turn = torch.polar(torch.ones(tokens, d // 2), torch.arange(tokens)[:, None] * theta)\n"
            "pairs = torch.view_as_complex(x.reshape(tokens, d // 2, 2).contiguous())\n"
            "return torch.view_as_real(pairs * turn).flatten(1)",
            "out = x.clone()\nfor p in range(x.shape[0]):\n    for i in range(0, x.shape[1], 2):\n"
            "        t = p * 10000 ** (-i / x.shape[1])\n"
            "        out[p, i] = x[p, i] * math.cos(t) - x[p, i + 1] * math.sin(t)\n"
            "        out[p, i + 1] = x[p, i] * math.sin(t) + x[p, i + 1] * math.cos(t)\nreturn out",
        ),
        (
            Wrong(
                "rotary-backward",
                "a * angle.cos() - b * angle.sin()\nout[:, 1::2] = a * angle.sin() + b",
                "a * angle.cos() + b * angle.sin()\nout[:, 1::2] = -a * angle.sin() + b",
            ),
            Wrong("rotary-no-minus", "a * angle.cos() - b", "a * angle.cos() + b"),
            Wrong("rotary-exponent", "-torch.arange(0, d, 2) / d", "-torch.arange(0, d // 2) / d"),
            Wrong("rotary-from-one", "torch.arange(tokens)[:, None]", "torch.arange(1, tokens + 1)[:, None]"),
            Wrong(
                "rotary-halves",
                (
                    "a, b = x[:, 0::2], x[:, 1::2]\nout = torch.zeros_like(x)\n"
                    "out[:, 0::2] = a * angle.cos() - b * angle.sin()\nout[:, 1::2] = a * angle.sin() + b * "
                    "angle.cos()\nreturn out"
                ),
                (
                    "a, b = x.chunk(2, -1)\nreturn torch.cat((a * angle.cos() - b * "
                    "angle.sin(), a * angle.sin() + b * "
                    "angle.cos()), -1)"
                ),
            ),
            Wrong("rotary-cosine-only", " - b * angle.sin()\nout[:, 1::2] = a * angle.sin() + b", "\nout[:, 1::2] = b"),
            Wrong(
                "rotary-overwritten",
                "out = torch.zeros_like(x)",
                "out = x.clone()\na, b = out[:, 0::2], out[:, 1::2]",
                "a, b = x[:, 0::2], x[:, 1::2]",
            ),
        ),
    ),
    Answers(
        "causal-mask",
        (
            "scores = q @ k.T / math.sqrt(q.shape[-1])\nallowed = torch.ones(len(q), len(k), dtype=torch.bool).tril()\n"
            "masked = scores.masked_fill(~allowed, -torch.inf)\nreturn masked.softmax(dim=-1) @ v",
            "return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]",
            "m = torch.full((len(q), len(k)), -1e9).triu(1)\nreturn (q @ k.T / q.shape[-1] ** 0.5 + m).softmax(-1) @ v",
            QKV_LOOP.format(keys="range(i + 1)"),
        ),
        (
            Wrong(
                "mask-dropped",
                "masked.softmax",
                "scores.softmax",
                "masked = scores.masked_fill(~allowed, -torch.inf)",
            ),
            Wrong("mask-one-ahead", "tril()", "tril(1)"),
            Wrong("mask-strict", "tril()", "tril(-1)"),
            Wrong("mask-inverted", "~allowed", "allowed"),
            Wrong("mask-zero-fill", "scores.masked_fill(~allowed, -torch.inf)", "scores * allowed"),
            Wrong("mask-after-softmax", "masked.softmax(dim=-1)", "(scores.softmax(dim=-1) * allowed)"),
            Wrong("softmax-queries", "dim=-1", "dim=0"),
        ),
    ),
    Answers(
        "padding-mask",
        (
            "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n"
            "masked = scores.masked_fill(~keep[:, None, :], -torch.inf)\nreturn masked.softmax(dim=-1) @ v",
            "return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, :])",
            "s = torch.einsum('bid,bjd->bij', q, k) / q.size(-1) ** 0.5 - 1e9 * (~keep)[:, None]\n"
            "return torch.einsum('bij,bjd->bid', torch.softmax(s, -1), v)",
        ),
        (
            Wrong(
                "mask-dropped",
                "masked.softmax",
                "scores.softmax",
                "masked = scores.masked_fill(~keep[:, None, :], -torch.inf)",
            ),
            Wrong("mask-inverted", "~keep[:, None, :]", "keep[:, None, :]"),
            Wrong("mask-inverted", "~keep[:, None, :], -torch.inf", "keep[:, None, :], -1e9"),
            Wrong("mask-rows", "~keep[:, None, :]", "~keep[:, :, None]"),
            Wrong("mask-zero-fill", "-torch.inf", "0.0"),
            Wrong("mask-first-only", "~keep[:, None, :]", "~keep[0]"),
            Wrong("mask-weak-fill", "-torch.inf", "-10.0"),
            Wrong(
                "padding-as-zeros",
                "scores = q",
                (
                    "k, v = k * keep[..., None], v * keep[..., None]\nreturn (q @ k.mT / "
                    "math.sqrt(q.shape[-1])).softmax(-1) @ v\nscores = q"
                ),
            ),
        ),
    ),
    Answers(
        "split-heads",
        (
            "batch, tokens, width = x.shape\nparts = x.reshape(batch, tokens, num_heads, width // num_heads)\n"
            "return parts.transpose(1, 2)",
            "return torch.stack(torch.split(x, x.shape[-1] // num_heads, dim=-1), dim=1)",
            "d = x.shape[2] // num_heads\nreturn torch.stack([x[:, :, h * d : (h + 1) * d] for h in "
            "range(num_heads)], 1)",
        ),
        (
            Wrong("split-by-view", "return parts.transpose(1, 2)", "return x.view(batch, num_heads, tokens, -1)"),
            Wrong(
                "heads-attend-heads",
                "return parts.transpose(1, 2)",
                "return parts",
                "parts = x.reshape(batch, tokens, num_heads, width // num_heads)",
            ),
            Wrong(
                "channels-interleaved",
                "num_heads, width // num_heads)\nreturn parts.transpose(1, 2)",
                "width // num_heads, num_heads)\nreturn parts.permute(0, 3, 1, 2)",
            ),
            Wrong("tokens-last", "parts.transpose(1, 2)", "parts.permute(0, 2, 3, 1)"),
            Wrong("batch-behind-heads", "parts.transpose(1, 2)", "parts.permute(2, 0, 1, 3)"),
            Wrong("heads-copied", "return parts.transpose(1, 2)", "return x[:, None].repeat(1, num_heads, 1, 1)"),
        ),
    ),
    Answers(
        "multi-head",
        (
            "batch, tokens, width = x.shape\n\ndef split(y):\n    return y.view(batch, tokens, num_heads, "
            "-1).transpose(1, 2)\n\n"
            "q, k, v = split(x @ w_q.T), split(x @ w_k.T), split(x @ w_v.T)\n"
            "weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)\nheads = weights @ v\n"
            "joined = heads.transpose(1, 2).reshape(batch, tokens, width)\nreturn joined @ w_o.T",
            "outputs = []\nd = x.shape[-1] // num_heads\nfor h in range(num_heads):\n    rows = slice(h * d, (h + 1) "
            "* d)\n"
            "    q, k, v = x @ w_q[rows].T, x @ w_k[rows].T, x @ w_v[rows].T\n"
            "    outputs.append((q @ k.mT / d**0.5).softmax(-1) @ v)\nreturn torch.cat(outputs, -1) @ w_o.T",
        ),
        (
            Wrong(
                "split-by-view",
                "y.view(batch, tokens, num_heads, -1).transpose(1, 2)",
                "y.view(batch, num_heads, tokens, -1)",
            ),
            Wrong("merge-without-transpose", "heads.transpose(1, 2).reshape", "heads.reshape"),
            Wrong("scale-d-model", "q.shape[-1]", "width"),
            Wrong("out-projection-skipped", "return joined @ w_o.T", "return joined"),
            Wrong("out-projection-untransposed", "joined @ w_o.T", "joined @ w_o"),
            Wrong("softmax-heads", "softmax(-1)", "softmax(1)"),
            Wrong("heads-attend-heads", "num_heads, -1).transpose(1, 2)", "num_heads, -1)"),
        ),
    ),
)
