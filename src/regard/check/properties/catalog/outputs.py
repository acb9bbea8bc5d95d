"""What properties say of the output: how heads are joined and projected."""

from __future__ import annotations

from regard.check.properties.catalog.property import Property

__all__ = ["OUTPUTS"]

OUTPUTS = (
    Property(
        "variance-of-the-weights",
        "output",
        "the variance of weighted tokens is taken from the mean by the same weights",
        "It is no variance: it can be negative, and grows with what all tokens have in common.",
        "variance = (weights * x**2).sum(-1) - mean**2  # mean: (weights * x).sum(-1)",
    ),
    Property(
        "function-as-documented",
        "output",
        "the functions in the formulas of a documentation are computed",
        "Something else is learned than is written: a gate without its sigmoid has no bounds.",
        "out = out * self.gate(x).sigmoid()",
    ),
    Property(
        "output-of-the-token",
        "heads",
        "what a query reads goes to the output of its token",
        "Positions are shuffled.",
        "out = out.transpose(1, 2).reshape(B, T, H * D)",
    ),
    Property(
        "output-of-the-head",
        "heads",
        "heads are returned in their order",
        "Heads are exchanged.",
        "out = out.transpose(1, 2).reshape(B, T, H * D)",
    ),
    Property(
        "projected-once",
        "projected",
        "the output is projected once",
        "It is not what was trained.",
        "return self.out_proj(heads)",
    ),
    Property(
        "norm-of-each-head",
        "heads",
        "what each head has read is normalized by itself, where the documentation says so",
        "A head with large numbers makes those of the others small.",
        "y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)  # of one head, before heads are joined",
    ),
    Property(
        "factor-as-documented",
        "heads",
        "what was read is multiplied by the number that the documentation says, which is not learned",
        "The scale of the output moves with lambda in training.",
        "y = y * (1 - self.lambda_init)  # and not by 1 - lambda",
    ),
    Property(
        "heads-in-output",
        "heads",
        "every head reaches the output",
        "Heads are computed in vain.",
        "out = torch.cat(heads, dim=-1)  # or out.transpose(1, 2).reshape(B, T, H * D)",
    ),
    Property(
        "output-axes",
        "heads",
        "the output has the samples and the tokens of the input, along the same axes",
        "What comes next takes heads for samples or for tokens, or tokens for channels.",
        "return self.out_proj(torch.cat(heads, dim=-1))  # (batch, tokens, width), as x",
    ),
    Property(
        "probabilities-of-classes",
        "output",
        "log-probabilities of a token sum to one over its classes",
        "A loss compares tokens with one another where it should compare classes.",
        "return self.head(x).log_softmax(dim=-1)",
    ),
    Property(
        "read-at-the-end",
        "output",
        "where a text is said to be read at the token that closes it, the state at that token is returned",
        "What is returned is the state of some word, which has seen nothing of what comes behind it.",
        "at = (ids == eos).int().argmax(-1)  # the largest id need not be that of the end",
    ),
    Property(
        "padding-behind-unread",
        "output",
        "what is returned for a text that padding follows is what is returned for it alone",
        "What a text means depends on how long the others of its batch are.",
        "last = x[torch.arange(B), (ids != pad).sum(1) - 1]  # not x[:, -1]",
    ),
    Property(
        "channels-apart",
        "output",
        "where each channel of a series is said to be predicted from its own past, no other one changes it",
        "Time steps of several channels stand in one row: what is learned of a channel is noise of the others.",
        "u = z.permute(0, 2, 1).reshape(B * C, T)  # not z.reshape(B * C, T)",
    ),
    Property(
        "patches-put-back",
        "output",
        "what a token gives to a picture is a patch of it, where the picture was cut into patches",
        "A patch lands as a line: the picture is torn, and neighbouring places are made of tokens far apart.",
        'x = torch.einsum("nhwpqc->nchpwq", x).reshape(N, C, H * p, W * p)  # not "nhwpqc->nchwpq"',
    ),
    Property(
        "order-restored",
        "output",
        "tokens that are put into another order are put back by its inverse",
        "Tokens stand in the places of others, and a loss compares them with what is in these.",
        "ids_restore = torch.argsort(ids_shuffle, dim=1)",
    ),
    Property(
        "labels-of-the-next",
        "output",
        "a causal model's own loss compares the logits at a token with the token that comes next",
        "The model learns to tell what it has seen.",
        "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())",
    ),
    Property(
        "loss-of-logits",
        "output",
        "the cross-entropy of a model's own loss is that of the softmax of its logits, taken once",
        "The loss hardly falls, or is no cross-entropy at all, and its gradients are wrong.",
        "loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())  # of logits, not of their softmax",
    ),
    Property(
        "labels-of-what-stood-there",
        "output",
        "the labels of a masked language model are the tokens that were hidden",
        "The model learns to repeat what it reads, and nothing of what was hidden.",
        "inputs = ids.clone()  # what is written into ids is read by labels = torch.where(chosen, ids, -100)",
    ),
    Property(
        "read-at-the-mask",
        "output",
        "where a method puts a mask token into a text, the state that it reads is the one at the mask",
        "What is told is not what was asked: the state of another token stands for something that it has seen.",
        "state = states[rows, lengths]  # not lengths - 1, where ids[rows, lengths] = self.mask_token",
    ),
    Property(
        "action-to-come",
        "output",
        "in a decision transformer an action is predicted from what comes before it, and not from itself",
        "Training copies the action that it was given; who acts has none to give.",
        "actions = self.predict_action(h[:, 1])  # the token of the state, behind which that of the action stands",
    ),
    Property(
        "samples-of-their-item",
        "output",
        "of several samples of an item in one batch, each is given what is of its own item",
        "All but a few samples are made from what is of another item.",
        "z = z.repeat(count, 1, 1, 1)  # where s = torch.cat([s] * count); else z.repeat_interleave(count, 0)",
    ),
    Property(
        "axes-transposed",
        "block",
        "the axes of tokens and channels are exchanged by a transposition, not by a reshape",
        "Channels and tokens are scrambled: what follows learns from mixed numbers.",
        "x = self.conv(x.transpose(1, 2)).transpose(1, 2)  # not .reshape(B, T, C)",
    ),
)
