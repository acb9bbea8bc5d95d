"""Answers to the exercises 01 to 08."""

from answers import Answers, Wrong

COSINES = "unit = x / x.norm(dim=-1, keepdim=True)\nreturn unit @ unit.T"
FIRST = (
    Answers(
        "dot-product",
        (
            "products = a * b\nreturn products.sum()",
            "return a @ b",
            "total = 0.0\nfor i in range(len(a)):\n    total += a[i].item() * b[i].item()\nreturn total",
            "return torch.einsum('i,i->', a, b)",
        ),
        (
            Wrong("sum-missing", "products.sum()", "products", "products = a * b"),
            Wrong("added-not-multiplied", "a * b", "a + b"),
            Wrong("mean-of-products", "products.sum()", "products.mean()"),
            Wrong("cosine-instead", "products.sum()", "products.sum() / (a.norm() * b.norm())"),
            Wrong("sums-multiplied", "products = a * b\nreturn products.sum()", "return a.sum() * b.sum()"),
            Wrong("absolute-values", "a * b", "(a * b).abs()"),
            Wrong("last-left-out", "products.sum()", "sum(products[i] for i in range(len(a) - 1))"),
            Wrong("nothing-returned", "return products.sum()", "products.sum()"),
        ),
    ),
    Answers(
        "lookup",
        (
            "rows = table[ids]\nreturn rows",
            "return torch.stack([table[i] for i in ids.tolist()])",
            "return F.one_hot(ids, len(table)).to(table.dtype) @ table",
        ),
        (
            Wrong("ids-from-one", "table[ids]", "table[ids - 1]"),
            Wrong("columns-for-rows", "table[ids]", "table.T[ids]"),
            Wrong("places-for-ids", "table[ids]", "table[: len(ids)]"),
            Wrong("each-id-once", "table[ids]", "table[ids.unique()]"),
            Wrong("vectors-summed", "return rows", "return rows.sum(0)"),
            Wrong("result-transposed", "return rows", "return rows.T"),
        ),
    ),
    Answers(
        "cosine-similarity",
        (
            COSINES,
            "return F.cosine_similarity(x[:, None], x[None], dim=-1)",
            "rows = []\nfor a in x:\n    rows.append([torch.dot(a, b) / (a.norm() * b.norm()) for b in x])\nreturn "
            "rows",
        ),
        (
            Wrong("not-normalized", "unit @ unit.T", "x @ x.T"),
            Wrong("one-length-only", "unit @ unit.T", "unit @ x.T"),
            Wrong("lengths-of-channels", "dim=-1, keepdim", "dim=0, keepdim"),
            *(
                Wrong("lengths-of-channels", COSINES, f"{line}\n{rest}\nreturn unit @ unit.T", line)
                for line, rest in (
                    ("lengths = x.norm(dim=0)", "unit = x / lengths"),
                    ("squares = (x * x).sum(0)", "unit = x / squares.sqrt()"),
                    ("unit = torch.stack([channel / torch.dot(channel, channel) ** 0.5 for channel in x.T], 1)", ""),
                )
            ),
            Wrong("squared-lengths", "x.norm(dim=-1, keepdim=True)", "x.pow(2).sum(-1, keepdim=True)"),
            Wrong(
                "squared-lengths",
                COSINES,
                "squares = (x * x).sum(-1)\nreturn x @ x.T / (squares[:, None] * squares)",
                "squares = (x * x).sum(-1)",
            ),
            Wrong("one-length-for-all", "x.norm(dim=-1, keepdim=True)", "x.norm()"),
            Wrong("distance-of-cosine", "unit @ unit.T", "1 - unit @ unit.T"),
            Wrong(
                "channels-compared",
                "unit = x / x.norm(dim=-1, keepdim=True)",
                "x = x.T\nunit = x / x.norm(dim=-1, keepdim=True)",
                "return unit @ unit.T",
            ),
        ),
    ),
    Answers(
        "attention-without-weights",
        (
            "scores = x @ x.T / x.shape[-1] ** 0.5\nweights = scores.softmax(dim=-1)\nreturn weights @ x",
            "s = torch.einsum('id,jd->ij', x, x) / math.sqrt(x.size(1))\nreturn torch.einsum('ij,jd->id', "
            "s.softmax(1), x)",
            "out = torch.zeros_like(x)\nfor i in range(len(x)):\n    s = torch.tensor([float(x[i] @ y) for y in x]) "
            "/ x.shape[1] ** 0.5\n"
            "    w = s.exp() / s.exp().sum()\n    for j in range(len(x)):\n        out[i] += w[j] * x[j]\nreturn out",
        ),
        (
            Wrong("no-scale", " / x.shape[-1] ** 0.5", ""),
            Wrong("scale-d", "x.shape[-1] ** 0.5", "x.shape[-1]"),
            Wrong("scale-tokens", "x.shape[-1] ** 0.5", "x.shape[0] ** 0.5"),
            Wrong("softmax-queries", "dim=-1", "dim=0"),
            Wrong("softmax-missing", "scores.softmax(dim=-1)", "scores", "scores = x @ x.T / x.shape[-1] ** 0.5"),
            Wrong("softmax-queries", "weights @ x", "weights.T @ x"),
            Wrong("values-missing", "return weights @ x", "return weights", "weights = scores.softmax(dim=-1)"),
        ),
    ),
    Answers(
        "projections",
        (
            "q = x @ w_q.T\nk = x @ w_k.T\nv = x @ w_v.T\nreturn q, k, v",
            "return [F.linear(x, w) for w in (w_q, w_k, w_v)]",
            "return torch.einsum('td,nkd->ntk', x, torch.stack([w_q, w_k, w_v]))",
        ),
        (
            Wrong("untransposed", "x @ w_k.T", "x @ w_k"),
            Wrong("untransposed", ".T", ""),
            Wrong("results-exchanged", "return q, k, v", "return k, q, v"),
            Wrong("shared-projection", "x @ w_k.T", "x @ w_q.T"),
            Wrong("not-projected", "v = x @ w_v.T", "v = x"),
            Wrong("wrong-result", "return q, k, v", "return q"),
            Wrong("results-transposed", "return q, k, v", "return q.T, k.T, v.T"),
        ),
    ),
    Answers(
        "scores",
        (
            "products = q @ k.T\nreturn products",
            "return torch.einsum('id,jd->ij', q, k)",
            "return torch.stack([torch.stack([(a * b).sum() for b in k]) for a in q])",
        ),
        (
            Wrong("scores-transposed", "q @ k.T", "k @ q.T"),
            Wrong("key-reshaped", "k.T", "k.reshape(k.shape[1], k.shape[0])"),
            Wrong("channels-compared", "q @ k.T", "q.T @ k"),
            Wrong("q-as-k", "q @ k.T", "q @ q.T"),
            Wrong("same-place-only", "q @ k.T", "(q * k).sum(-1)"),
            Wrong("scaled-already", "return products", "return products / q.shape[-1] ** 0.5"),
        ),
    ),
    Answers(
        "scale",
        (
            "products = q @ k.T\nreturn products / q.shape[-1] ** 0.5",
            "return torch.matmul(q, k.transpose(0, 1)) / torch.tensor(k.size(1) ** 0.5)",
            "d = q.shape[-1] ** -0.25\nreturn (q * d) @ (k * d).T",
        ),
        (
            Wrong("no-scale", " / q.shape[-1] ** 0.5", "", "products = q @ k.T"),
            Wrong("scale-d", " ** 0.5", ""),
            Wrong("scale-multiplied", "products / ", "products * "),
            Wrong("scale-tokens", "q.shape[-1]", "k.shape[0]"),
            Wrong("scale-constant", "q.shape[-1] ** 0.5", "2**0.5"),
            Wrong("scale-floor", "products / ", "products // "),
        ),
    ),
    Answers(
        "softmax",
        (
            "top = scores.max(dim=-1, keepdim=True).values\npowers = (scores - top).exp()\n"
            "return powers / powers.sum(dim=-1, keepdim=True)",
            "return (scores - scores.logsumexp(-1, keepdim=True)).exp()",
            "rows = []\nfor row in scores:\n    e = [math.exp(float(s - row.max())) for s in row]\n"
            "    rows.append([p / sum(e) for p in e])\nreturn torch.tensor(rows)",
        ),
        (
            Wrong("softmax-overflow", "(scores - top).exp()", "scores.exp()"),
            Wrong("softmax-maximum", "scores.max(dim=-1, keepdim=True).values", "scores.max()"),
            Wrong("softmax-queries", "powers / powers.sum(dim=-1, keepdim=True)", "scores.softmax(0)"),
            Wrong(
                "softmax-unnormalised",
                "powers / powers.sum(dim=-1, keepdim=True)",
                "powers",
                "powers = (scores - top).exp()",
            ),
            Wrong("softmax-l1", "powers / powers.sum(dim=-1, keepdim=True)", "scores / scores.sum(-1, keepdim=True)"),
            Wrong("softmax-base", "(scores - top).exp()", "2 ** (scores - top)"),
            Wrong("softmax-denominator", "powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=0)"),
        ),
    ),
)
