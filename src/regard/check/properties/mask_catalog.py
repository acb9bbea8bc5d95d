"""The properties of masks, by a function or an argument."""

from __future__ import annotations

from regard.check.properties.property import Property

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
        "target-causal",
        "masked",
        "of two sequences of ids, the predicted one does not see its later tokens",
        "It learns to copy; when it generates, what it copied is not there.",
        "allowed = causal & (target != pad)[:, None, None, :]",
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
        "window-as-documented",
        "masked",
        "a window that is documented to have the token itself has as many tokens as it is told",
        "One token more or fewer than somebody expects who reads the documentation, or loads other weights.",
        "mask = torch.ones(T, T).tril() * torch.ones(T, T).triu(1 - window)  # window tokens, itself included",
    ),
)
