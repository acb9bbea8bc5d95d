"""The encoder-decoder transformer, as in the paper."""

from __future__ import annotations

from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.mask import Mask
from regard.transformer.config import Config
from regard.transformer.decoder import Decoder
from regard.transformer.encoder import Encoder
from regard.transformer.image_encoder import ImageEncoder
from regard.transformer.kv_caches import KVCaches


class EncoderDecoder(nn.Module):
    """The paper's figure 1 (Vaswani et al. 2017): an encoder reads the source, a decoder writes the target.

    Every block of the decoder attends to the decoder's own tokens so far, and then to the encoder's output (section
    3.2.3, "encoder-decoder attention"). ``Config`` with its defaults is the paper's architecture:

        base = Config(vocab_size=37_000, d_model=512, num_layers=6, num_heads=8, d_ff=2048)  # table 3, "base"
        model = EncoderDecoder(base)
        logits = model(source, target, source_mask=regard.mask.padding(lengths))

    With ``config.patches`` the source is an image, which an `ImageEncoder` reads, and the target a text about it.

    Args:
        config: of both stacks; of the encoder only if ``config.decoder`` is given.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.mlm_head:
            raise ValueError(
                "an EncoderDecoder has no masked-language-model head: config.mlm_head belongs to an Encoder"
            )
        decoder = config.decoder or config
        if config.patches is not None:
            # Projected to the decoder's width, so that cross-attention has the shapes of self-attention.
            self.encoder: Encoder | ImageEncoder = ImageEncoder(config, d_out=decoder.d_model)
            self.decoder = Decoder(decoder, d_context=decoder.d_model)
            return
        self.encoder = Encoder(config)
        shared = self.encoder.embeddings.token if config.shared_embedding else None
        if shared is not None and (decoder.vocab_size, decoder.d_model) != (config.vocab_size, config.d_model):
            raise ValueError(
                f"shared_embedding: the encoder has {config.vocab_size} tokens of width {config.d_model}, the decoder "
                f"{decoder.vocab_size} of {decoder.d_model}"
            )
        self.decoder = Decoder(decoder, d_context=config.d_model, token=shared)

    def forward(
        self,
        source: Int[Tensor, "*batch source_tokens"] | Float[Tensor, "*batch channels height width"],
        target: Int[Tensor, "*batch target_tokens"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        *,
        context_mask: Mask | None = None,
        source_positions: Int[Tensor, "*source_positions_batch source_tokens"] | None = None,
        target_positions: Int[Tensor, "*target_positions_batch target_tokens"] | None = None,
    ) -> Float[Tensor, "*batch target_tokens vocab_size"]:
        """For each token of the target, the logits of the next token.

        Args:
            source: token ids of the texts to read, or the pixels of images.
            target: token ids of the texts to write, the start token first.
            source_mask: which tokens of the source are real, ``regard.mask.padding(lengths)``.
            target_mask: the same for the target.
            context_mask: which tokens of the source each token of the target may attend to; source_mask by default.
                For packed pairs ``regard.mask.documents(target_ids, source_ids)``: targets attend to their own source.
            source_positions: the position of each token; 0, 1, 2, ... by default. Each packed text starts at 0.
            target_positions: the same for the target.

        Raises:
            ValueError: more tokens than the model has positions; masks or positions that do not fit; positions for
                the patches of an image.
            IndexError: an id outside the vocabulary.
        """
        if source_positions is None:
            context = self.encoder(source, mask=source_mask)
        elif isinstance(self.encoder, ImageEncoder):
            raise ValueError("source_positions are for texts: the patches of an image have learned positions")
        else:
            context = self.encoder(source, mask=source_mask, positions=source_positions)
        logits: Tensor = self.decoder(
            target,
            target_mask,
            positions=target_positions,
            context=context,
            context_mask=source_mask if context_mask is None else context_mask,
        )
        return logits

    def caches(self, *, length: int | None = None) -> KVCaches:
        """Empty caches of the decoder; its first call needs the context, which the caches then hold."""
        return self.decoder.caches(length=length)
