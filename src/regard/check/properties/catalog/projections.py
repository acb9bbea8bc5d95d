"""The properties of queries, keys and values: what each is made of."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["PROJECTIONS"]

PROJECTIONS = (
    Property(
        "query-of-one-token",
        "q",
        "a query is made of one token",
        "A position's question holds other positions: masks no longer hide them.",
        "q = self.w_q(x)  # one matrix for every token: nothing that runs over tokens",
    ),
    Property(
        "rows-of-each-field",
        "projections",
        "in a table of several fields each field's ids are looked up in rows of its own",
        "The same number means the same in every field, and most of the table never learns.",
        "x = self.embedding(ids + self.offsets)  # offsets: where the rows of each field begin",
    ),
    Property(
        "heads-of-their-own",
        "projections",
        "each head has matrices of its own, which read all channels of the input",
        "A head sees a part of each token alone, and all heads ask it the same question.",
        "q = nn.Linear(d_model, d_model)(x).view(B, T, H, D).transpose(1, 2)  # projected first, then split",
    ),
    Property(
        "projected-from-the-input",
        "projections",
        "queries, keys and values are each projected from the input, not from one another",
        "What is read is only what the other projection left of a token, and one matrix learns for two purposes.",
        "k, v = self.w_k(x), self.w_v(x)  # both of x: k is no input by another name",
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
        "values-summed",
        "output",
        "the values of all keys are summed, each times its weight",
        "Nothing is read from another token.",
        'torch.einsum("bhqk,bhkd->bhqd", weights, v)  # two letters: queries and keys are two axes',
    ),
    Property(
        "key-in-the-weights",
        "scores",
        "the weights of a query depend on the keys",
        "Every query reads the mean of the values, and no key is looked for.",
        "scores = self.v(torch.tanh(self.w_q(q) + self.w_k(k)))  # of both",
    ),
    Property(
        "query-in-the-weights",
        "scores",
        "the weights of a query depend on the query",
        "Every query reads the same: whatever it asks, the keys alone decide.",
        "scores = self.v(torch.tanh(self.w_q(q) + self.w_k(k)))  # the tanh around the sum",
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
        "parameters-registered",
        "projections",
        "what a module constructs and computes with is among its parameters",
        "Its weights are not trained, not saved and not moved to the GPU.",
        "self.heads = nn.ModuleList([Head(d_model) for _ in range(num_heads)])  # not a plain list",
    ),
    Property(
        "packed-as-documented",
        "v",
        "one matrix holds the weights of queries, keys and values in the order that is told",
        "Weights that are loaded are taken for those of something else.",
        "q, k, v = (x @ in_proj_weight.T).chunk(3, dim=-1)  # as in torch.nn.MultiheadAttention",
    ),
    Property(
        "context-read",
        "k",
        "a second sequence that has to be handed over is read",
        "The decoder gets nothing from the encoder: it is a language model.",
        "k, v = self.k(memory), self.v(memory)",
    ),
    Property(
        "norm-used",
        "k",
        "queries and keys, or the parts of a block, each have the norm that was made for them",
        "What has no norm, or shares one, is not what the other norm was made for, and that one never learns.",
        "q, k = self.q_norm(q), self.k_norm(k)",
    ),
    Property(
        "norm-over-channels",
        "q",
        "the norm of a query or key runs over the channels of its head, or of all heads",
        "Heads change one another, and queries and keys keep lengths of their own.",
        "q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)  # by default it runs over axis 1",
    ),
    Property(
        "norms-over-one-axis",
        "k",
        "queries and keys that are both normalized are so over the axis that their product sums",
        "Scores are no cosines: they are large where a key is long, whatever asks.",
        "q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)\nscores = q @ k.mT",
    ),
    Property(
        "gradient",
        "output",
        "every parameter that changes the output has a gradient",
        "It keeps the numbers that it began with.",
        "v = self.v(x)  # without .detach(), .data or torch.no_grad()",
    ),
    Property(
        "begins-to-learn",
        "projections",
        "of parameters whose gradients are times one another, one at most begins as zeros",
        "They stay zero for ever, whatever is trained.",
        "nn.init.kaiming_uniform_(self.lora_A)\nnn.init.zeros_(self.lora_B)  # the update is zero, and learns",
    ),
    Property(
        "gradient-of-the-whole",
        "output",
        "the gradient of queries, keys and values is the slope of the output",
        "Training follows another slope than the loss has.",
        "total = (q * k.cumsum(1)).sum(-1, keepdim=True)  # without torch.no_grad()",
    ),
    Property(
        "weights-stay-tied",
        "projections",
        "weights that a constructor makes one are one when it has returned",
        "Two matrices learn where one was meant, as those of the embedding and of the logits.",
        "nn.init.normal_(module.weight, std=0.02)  # not module.weight = nn.Parameter(...), which is another one",
    ),
)
