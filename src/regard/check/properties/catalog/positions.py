"""The properties of positions that are rotated or looked up."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["POSITIONS"]

POSITIONS = (
    Property(
        "positions-unrounded",
        "positions",
        "in code that says that it works in low precision, the angles of positions are computed in float32",
        "In bfloat16 tokens behind the first 256 stand at the same positions as their neighbours.",
        "angles = torch.outer(torch.arange(T).float(), inv_freq.float())  # .cos().to(x.dtype)",
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
        "logits-of-the-query",
        "positions",
        "the learned vector of a distance is multiplied by the score's own query or key",
        "A score takes what another token asks: what is near counts as far.",
        "x = F.pad(x, (1, 0)).view(B, H, S + 1, T)[:, :, 1:].view(B, H, T, S)  # less the first row, not the last",
    ),
    Property(
        "vector-of-each-distance",
        "positions",
        "where there are as many learned vectors as distances, each distance has its own",
        "A distance scores as if it had no position, and all others take the vector of the one beside them.",
        "x = F.pad(x, (1, 0)).view(B, H, T + 1, T)[:, :, 1:]  # padded in front: hidden keys take the zeros",
    ),
    Property(
        "vectors-of-values",
        "positions",
        "beside vectors of two tokens for the keys, those for the values are read",
        "What is read holds positions that were learned for the scores.",
        "out = w @ v + torch.bmm(w.transpose(0, 1), a_value).transpose(0, 1)  # Shaw et al. (2018), equation 3",
    ),
    Property(
        "vectors-scaled-as-keys",
        "scale",
        "learned vectors of distances that are added to keys are scaled as the keys are",
        "The distance of a key outweighs what it says, the more, the wider the heads.",
        "scores = (q @ k.mT + shifted(q @ vectors.mT)) / math.sqrt(d_head)  # or q scaled before both",
    ),
    Property(
        "distances-on-both-sides",
        "positions",
        "where tokens on both sides are seen, learned vectors tell distances apart on both",
        "All tokens on one side look as if they stood where the query does.",
        "idx = (j - i).clamp(-reach, reach) + reach  # not (j - i + reach).clamp(-reach, reach)",
    ),
    Property(
        "rotation-keeps-lengths",
        "positions",
        "rotary positions keep the lengths of queries and keys",
        "Scores grow and shrink with the position.",
        "q * cos + rotate_half(q) * sin  # rotate_half: torch.cat((-q2, q1), -1)",
    ),
    Property(
        "positions-as-given",
        "positions",
        "positions that are handed over with the tokens are where these stand",
        "Texts that are packed into one row, or padded, are read as if they were one text from the first place on.",
        "cos, sin = cos[position_ids], sin[position_ids]  # and not cos[:T]",
    ),
    Property(
        "rotary-axes",
        "positions",
        "rotary positions of a grid are of its rows and of its columns, as many as there are",
        "What stands above one another, or side by side, is not told apart.",
        "angles = torch.cat([row[:, None] * freqs, column[:, None] * freqs], dim=-1)  # row, column: i // W, i % W",
    ),
    Property(
        "positions-behind-padding",
        "positions",
        "where a batch may be padded on the left, positions count the tokens that are no padding",
        "What a text means depends on how long the others of its batch are.",
        "position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)",
    ),
    Property(
        "positions-by-token",
        "positions",
        "the angle of a rotation is its token's",
        "The model has no positions.",
        "angles = positions[:, None] * frequencies  # along the tokens, not along the heads",
    ),
    Property(
        "rotary-frequencies",
        "positions",
        "the pair i of d channels turns by base^(-2i/d) from token to token",
        "The slowest pairs, which tell far positions apart, turn as fast as those of another base; weights of other "
        "code do not fit.",
        "inv_freq = base ** (-torch.arange(0, d, 2) / d)",
    ),
    Property(
        "sinusoid-frequencies",
        "positions",
        "the frequencies of a sinusoidal table fall from 1, by powers of 10000",
        "Neighbouring positions have vectors that are as unlike as those of far ones: no channel tells places roughly.",
        "div_term = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))",
    ),
    Property(
        "calls-apart",
        "positions",
        "what a call keeps for later ones is a table that is theirs as well",
        "The first call decides the positions of all that come after it.",
        "table = self.tables.get((length, offset))  # all that the table depends on",
    ),
    Property(
        "positions-once",
        "positions",
        "a table of positions is added to the tokens once",
        "Positions outweigh what the tokens say.",
        "x = x + self.positions[: x.size(1)]  # here, or in what calls it",
    ),
    Property(
        "embeddings-scaled",
        "positions",
        "embeddings are multiplied by sqrt(d_model) where they are scaled, those of both texts",
        "Beside positions, what a token says is the less, the wider the model.",
        "x = self.embedding(ids) * math.sqrt(self.d_model) + self.positions[: ids.size(1)]",
    ),
    Property(
        "positions-apart",
        "positions",
        "a class token and each of the tokens that it stands beside have a row of their own in a table of positions",
        "Two tokens stand at one place; the last row is never learned.",
        "x = x + self.positions[:, 1:]\ncls = self.cls + self.positions[:, :1]",
    ),
    Property(
        "positions-added",
        "positions",
        "a learned table of positions is added to the tokens",
        "A position scales what a token says, and can take it away.",
        "x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))",
    ),
    Property(
        "positions-from-the-start",
        "positions",
        "of causal attention the position of a token hangs on no token that comes later",
        "While text is generated, every token moves at each step: keys of a cache stand elsewhere.",
        "x = x + self.positions[: x.size(1)]  # and not the last rows",
    ),
)
