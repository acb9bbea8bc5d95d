"""The properties of a block: of the sums around its attention."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["BLOCKS"]

BLOCKS = (
    Property(
        "gate-as-documented",
        "block",
        "a network that is said to be SwiGLU multiplies swish of one matrix by another one",
        "It is another network than was meant: trained weights of that one do not fit.",
        "return self.w2(F.silu(self.w1(x)) * self.w3(x))",
    ),
    Property(
        "carried-to-the-next-layer",
        "block",
        "where layers take what the layer before returned, as its scores, each of them gets it",
        "Each layer begins as the first one: what should be carried through the network is lost.",
        "x, scores = layer(x, prev=scores)  # not x, _ = layer(x, prev=scores)",
    ),
    Property(
        "class-token-read",
        "block",
        "where a class token stands beside the tokens, it is what is read in the end; a distillation token as well",
        "What was trained to gather the others is thrown away.",
        "return self.head(self.norm(x)[:, 0])",
    ),
    Property(
        "drop-path-of-samples",
        "block",
        "stochastic depth leaves out a branch for whole samples",
        "Tokens lose the branch at the same places of every sample, and no sample goes around it.",
        "keep = x.new_empty(1, x.size(1), 1).bernoulli_(1 - p)  # of (tokens, batch, width): one number a sample",
    ),
    Property(
        "residual-once",
        "block",
        "the input of a block is added to its output once",
        "The input outweighs what the block computes, more in each layer.",
        "x = x + self.attention(self.norm(x))",
    ),
    Property(
        "residual-added",
        "block",
        "the input of a block is added to what the block computes, not subtracted from it",
        "A token's own vector changes its sign in each layer: no identity leads through the network.",
        "x = x + self.attention(self.norm(x))",
    ),
    Property(
        "residual-of-the-input",
        "block",
        "what a block computes is added to its input",
        "A token loses its own vector, and gradients have no way around the block.",
        "x = x + self.attention(self.norm(x))",
    ),
    Property(
        "residual-of-the-sum",
        "block",
        "the output of a feed-forward network, or of a second attention, is added to the sum that it reads",
        "The attention's output goes into what follows alone: the stream forgets what was attended to.",
        "return y + self.mlp(self.norm(y))  # where y = x + self.attention(x)",
    ),
    Property(
        "residual-before-norm",
        "block",
        "the residual of a pre-norm block is the vector before the norm",
        "The stream is normalized in every block, which pre-norm avoids.",
        "h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)  # not x.mul_(...): the residual is x",
    ),
    Property(
        "norm-as-documented",
        "block",
        "a norm that is said to take the sum of a sublayer's input and its output takes that sum",
        "The stream is never normalized and grows from layer to layer; weights of a post-norm model do not fit.",
        "x = self.norm(x + self.attention(x))  # not x + self.norm(self.attention(x))",
    ),
    Property(
        "norms-apart",
        "block",
        "between two norms of a block something is computed: none takes what the other returned",
        "The second norm does next to nothing, and what was to go into it is passed over.",
        "x = x + self.mlp(self.norm2(x))  # x is the sum with the attention's output, not self.norm1(x)",
    ),
    Property(
        "norms-alike",
        "block",
        "the norms of a block stand at the same place of each of its sublayers: before, behind the sum, or behind it",
        "The stream is normalized at one sum and grows at the other; weights of either kind do not fit.",
        "x = x + self.attention(self.norm1(x))\nx = x + self.mlp(self.norm2(x))",
    ),
    Property(
        "norm-of-both-branches",
        "block",
        "an attention and a feed-forward network side by side both read normalized vectors, or both do not",
        "One branch grows with the stream, and the other does not.",
        "return x + self.attention(normed) + self.mlp(normed)  # normed = self.norm(x)",
    ),
    Property(
        "scale-counted-from-one",
        "block",
        "a scale of a condition that begins as zero is added to 1 before it multiplies a norm",
        "The layer behind it is given zeros for all tokens, and what stands before it learns nothing or late.",
        "x = norm(x) * (1 + scale) + shift",
    ),
    Property(
        "modulations-used",
        "block",
        "of the shifts, scales and gates that a projection makes of a condition each is used at its own place",
        "Two sublayers are steered by the same numbers, and a part of the projection is never trained.",
        "x = x + gate_mlp * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))  # not gate_msa, shift_msa",
    ),
    Property(
        "experts-by-their-weights",
        "block",
        "what an expert returns for a token is multiplied by the weight by which the token chose it",
        "Experts that are chosen second count too much, and the router learns nothing about them.",
        "out[token] += expert(x[token]) * weights[token, slot, None]  # token, slot = torch.where(chosen == i)",
    ),
    Property(
        "norm-of-one-token",
        "block",
        "a norm of layers normalizes each token by itself",
        "Every token sees all others, later ones and padding as well.",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)  # over the channels, not over the tokens",
    ),
    Property(
        "norm-normalizes",
        "block",
        "a norm returns the same for a vector and its multiples, and grows with no vector's mean",
        "The stream grows or vanishes from layer to layer.",
        "return gain * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) + bias",
    ),
    Property(
        "ends-as-documented",
        "block",
        "a network that is said to be linear + ReLU + linear ends with a matrix",
        "It can only add to the stream, which grows from layer to layer.",
        "return self.w_2(torch.relu(self.w_1(x)))  # nothing bends after the last matrix",
    ),
    Property(
        "feed-forward-bends",
        "block",
        "between the two matrices of a feed-forward network stands an activation",
        "Two matrices in a row are one: the network is wide in vain.",
        "return self.w_2(torch.relu(self.w_1(x)))",
    ),
    Property(
        "state-handed-on",
        "block",
        "a recurrent layer that is called token by token goes on from the state that it left",
        "The layer is not recurrent: half of its matrices have no effect.",
        "output, state = self.gru(x, state)  # not self.gru(x), which begins with zeros",
    ),
    Property(
        "layers-apart",
        "block",
        "each layer of a stack has parameters of its own",
        "All layers are one and the same: the model has the parameters of one layer, whatever its depth.",
        "self.layers = nn.ModuleList([Layer(d_model) for _ in range(num_layers)])  # not [layer] * num_layers",
    ),
)
