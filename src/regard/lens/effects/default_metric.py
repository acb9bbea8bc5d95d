"""The metric that `regard effect` takes where none is named: it follows from the model."""

from __future__ import annotations

import torch

from regard.lens.effects.metrics import Metric, cosine, log_prob, loss, read_tensor, token_id
from regard.lens.effects.subject import pretrained_subject
from regard.pretrained import Pretrained
from regard.transformer import Encoder, EncoderDecoder


def default_metric(pretrained: Pretrained, text: str) -> Metric:
    """What a model does with a text, as one number.

    Args:
        pretrained: the model.
        text: what it reads.

    Returns:
        Of a decoder `log_prob` of its own likeliest next token; of an encoder-decoder the `loss` of the translation
        that it writes; of an encoder `cosine`, how far the text's vector moves.

    Raises:
        InputError: a text that it cannot read.
    """
    if isinstance(pretrained.model, Encoder):
        return cosine()
    if isinstance(pretrained.model, EncoderDecoder):
        return loss()
    return log_prob(likeliest_token(pretrained, text))


@torch.no_grad()
def likeliest_token(pretrained: Pretrained, text: str) -> int | str:
    """The token that a decoder finds likeliest behind a text: as a string where that names it, else its id.

    Raises:
        InputError: a text that it cannot read.
    """
    subject = pretrained_subject(pretrained, text, log_prob(0))
    id_ = int(read_tensor(subject.run(subject.texts[0]), "logits")[0, -1].argmax())
    assert pretrained.tokenizer is not None  # it has read the text
    token = str(pretrained.tokenizer.decode([id_], skip_special_tokens=False))
    try:
        return token if token_id(token, pretrained.encode_continuation) == id_ else id_
    except ValueError:  # a piece of a character, and other tokens that no text is cut into
        return id_
