"""The properties of masks, by a function or an argument."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["MASKS"]

MASKS = (
    Property(
        "mask-pattern",
        "masked",
        "a causal mask hides what comes later",
        "The model sees what it shall predict.",
        "scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)",
    ),
    Property(
        "later-tokens-hidden",
        "masked",
        "where every attention is causal, nothing else leads from a later token to an earlier output",
        "The model sees what it shall predict.",
        "x = self.norm(x)  # over the channels of a token: no mean, norm or convolution over later tokens",
    ),
    Property(
        "blocked-scores",
        "masked",
        "a key whose score is blocked has weight zero",
        "Queries attend to keys that the mask hides.",
        "scores = scores.masked_fill(~mask, -torch.inf)  # last before the softmax",
    ),
    Property(
        "largest-kept",
        "masked",
        "where a query keeps some keys by their scores, they are as many as it is told, and have the largest",
        "What a query looks for is hidden from it, or far more is seen than was meant.",
        "least = scores.topk(k, dim=-1).values[..., -1:]  # kthvalue counts from the smallest",
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
        "padding-hidden",
        "masked",
        "what is padded in, to fill a window, a cache or a sequence, has no weight",
        "Weights go to what no token says, the more the more is padded in.",
        "scores = scores.masked_fill(is_padding, -torch.inf)  # before the softmax",
    ),
    Property(
        "mask-read",
        "masked",
        "a mask that a module makes for itself is read",
        "What the mask would hide is attended to.",
        "windows = self.attention(windows, mask=self.mask)",
    ),
    Property(
        "sequences-apart",
        "masked",
        "tokens of sequences that are packed into one row see those of their own sequence",
        "Texts that have nothing to do with one another are read as one.",
        "sequence = torch.searchsorted(cu_seqlens, places, right=True)  # right: a boundary begins the next one",
    ),
    Property(
        "shifted-windows",
        "masked",
        "where windows are cut of a rolled picture, and a mask is made for them, no token sees the picture's other end",
        "What is far apart is attended to as if it were near.",
        "regions[:, rows, columns, :] = count  # of (1, H, W, 1): one region for each part of both axes",
    ),
    Property(
        "masks-joined",
        "masked",
        "a mask of padding that is handed over hides keys beside those that the code's own mask hides",
        "In batches with padding the model sees what it shall predict.",
        "mask = causal & keep[:, None, None, :]  # what both allow",
    ),
    Property(
        "mask-of-its-call",
        "masked",
        "a mask holds for the call that it is handed to",
        "Later batches are masked as the first one was.",
        "mask = torch.arange(T)[None] < lengths[:, None]  # made in every call, not kept",
    ),
    Property(
        "mask-as-documented",
        "masked",
        "a mask means what its documentation says",
        "Who hands over a mask as it is documented hides what shall be seen, and shows what shall be hidden.",
        "scores = scores.masked_fill(mask == 1, -torch.inf)  # mask: 1 = hidden",
    ),
    Property(
        "padding-by-ids",
        "masked",
        "padding that is known by its ids is hidden in every attention",
        "What a text means depends on how long the others of its batch are.",
        "allowed = (ids != pad)[:, None, None, :]  # for every layer",
    ),
    Property(
        "mean-of-the-kept",
        "output",
        "a mean of the tokens that are no padding is their sum, divided by their number",
        "What a text means depends on how long the others of its batch are, or grows with its own length.",
        "x = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)  # keep: (batch, tokens), True for real ones",
    ),
    Property(
        "target-causal",
        "masked",
        "of two sequences of ids, the predicted one does not see its later tokens",
        "It learns to copy; when it generates, what it copied is not there.",
        "allowed = causal & (target != pad)[:, None, None, :]",
    ),
    Property(
        "mask-of-the-source",
        "masked",
        "a mask that hides tokens of the source from the target hides them from the source's other tokens as well",
        "Padding reaches the target through the encoder: what is computed hangs on how far a batch is padded.",
        "memory = self.encode(src, src_mask)  # not src_mask=None",
    ),
    Property(
        "mask-of-one-sequence",
        "masked",
        "a causal mask holds among the tokens of one sequence, not between a target and its encoded source",
        "The first tokens of a translation are made of the first tokens of its source alone.",
        "x = x + self.cross(x, memory, memory)  # no causal mask: the whole source was there before the first token",
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
        "mask-shape-as-documented",
        "masked",
        "a mask is taken in the shape that the documentation writes",
        "It runs only where there are as many samples as heads, and hides keys of other samples there.",
        "scores = scores.masked_fill(mask[:, None, None, :] == 0, -torch.inf)  # mask: (batch, keys)",
    ),
    Property(
        "window-as-documented",
        "masked",
        "a window reaches as far as its documentation says: with the token itself, or as far ahead as back",
        "Other tokens are read than somebody expects who reads the documentation, or loads other weights.",
        "mask = torch.ones(T, T).tril() * torch.ones(T, T).triu(1 - window)  # window tokens, itself included",
    ),
)
