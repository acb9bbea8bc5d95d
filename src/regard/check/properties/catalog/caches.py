"""What properties say of caches."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["CACHES"]

CACHES = (
    Property(
        "cache-equals-whole",
        "output",
        "token by token through a cache gives what all tokens at once give",
        "What is generated is not what was trained.",
        "k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)  # positions and mask go on behind them",
    ),
    Property(
        "cache-places",
        "k",
        "cached keys and values are read from the places that they were written to",
        "Some tokens are never read, or places are read that hold none.",
        "k = self.cache_k[:B, : n + T]  # after self.cache_k[:B, n : n + T] = k; n: the tokens in the cache",
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
        "cache-of-new-tokens",
        "k",
        "a new token's key and value are put beside the cached ones before it attends",
        "A token does not see itself, and nothing that came after the first call is ever read.",
        "k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)  # cross-attention alone reads what is cached",
    ),
    Property(
        "cache-values",
        "v",
        "a cached key has the value of its token",
        "What is read is not what was found.",
        "k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)  # both are cached",
    ),
    Property(
        "cache-beams",
        "k",
        "the beams that go on take the keys and the values of the beams that they come from",
        "A beam reads what another one wrote.",
        "keys, values = keys.index_select(0, beam_idx), values.index_select(0, beam_idx)  # both, in every layer",
    ),
    Property(
        "memory-detached-alone",
        "k",
        "the gradient stops at the memory of the text before, and at nothing else",
        "Keys and values of the text itself are not trained.",
        "h = torch.cat([mem.detach(), x], 1)  # and not torch.cat([mem, x], 1).detach()",
    ),
    Property(
        "state-goes-on",
        "output",
        "from the state that the first part of a text returned, the rest gives what it gives in the whole",
        "A text that comes in parts is read otherwise than at once.",
        "z = z[..., None, :] + k.cumsum(-2)  # what was summed before, and not the new keys alone",
    ),
    Property(
        "steps-equal-whole",
        "output",
        "token by token through a method for one token, and its state, a text gives what it gives in one call",
        "What is generated is not what was trained.",
        "k = torch.cat((k, new), 2)[:, :, -self.span :]  # the new token is one of those that a window holds",
    ),
    Property(
        "kept-steps-equal-whole",
        "output",
        "token by token through a method for one token, and what the module keeps, a text gives what it gives in one "
        "call",
        "What is generated is not what was trained.",
        "self.keys[:, :, n], self.values[:, :, n] = k, v  # each in its own place, behind those of the tokens before",
    ),
    Property(
        "written-from-its-logits",
        "output",
        "each token that a text is written on with is drawn from the logits behind the last one, as is said",
        "What is generated is not what the model predicts.",
        "probabilities = (logits[:, -1] / temperature).softmax(-1)  # behind the last token, over the ids",
    ),
    Property(
        "cache-unasked",
        "call",
        "a call that is not given a cache does not depend on the call before",
        "Texts are mixed.",
        "past = None if not use_cache else past  # what is kept is read and written only where it is asked for",
    ),
    Property(
        "rows-of-their-beams",
        "k",
        "a method that reorders what is kept gives each new row the old row that it continues",
        "A beam goes on from what another one wrote.",
        "state[name] = tensor.index_select(0, parents)  # index_copy_ puts rows where the order is inverted",
    ),
    Property(
        "caches-follow-beams",
        "k",
        "where hypotheses of a beam search change their rows, cached keys and values do so too",
        "A hypothesis goes on from the keys of another one: the text that is returned has another probability.",
        "ids, cache = ids[parent], [each.index_select(0, parent) for each in cache]",
    ),
    Property(
        "memory-renewed",
        "k",
        "once a memory of the newest states is full, a segment takes the place of the oldest ones",
        "What is read is the beginning of the text for ever, or nothing of it.",
        "memory = torch.cat([memory, x], dim=1)[:, -self.mem_len :].detach()",
    ),
    Property(
        "memory-before-tokens",
        "positions",
        "a memory of the text before stands before the tokens, as their positions and masks count it",
        "What was said long ago is scored as near, or as what comes later.",
        "states = torch.cat([memory, x], dim=1)  # queries: the last x.size(1)",
    ),
    Property(
        "memory-beside-tokens",
        "masked",
        "beside a memory of the text before, a token sees the tokens of its own segment that it sees without one",
        "All segments but the first one are read as if their tokens stood alone, behind the text before.",
        "mask = torch.ones(T, n + T).triu(n + 1).bool()  # n: the states in the memory, which stand in front",
    ),
    Property(
        "memory-is-asked",
        "projections",
        "beside a memory of the text before, queries are those of the new tokens",
        "A token reads what one of the memory asked: what it says itself changes keys and values alone.",
        "states = torch.cat([memory, x], dim=1)\nq = self.q(states)[:, -x.size(1) :]  # and not [:, : x.size(1)]",
    ),
)
