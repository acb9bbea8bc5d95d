"""Mistakes of tables of positions (Attention Is All You Need, section 3.5)."""

from __future__ import annotations

from regard.check.mistakes.mistake import Mistake
from regard.check.mistakes.sinusoids import grid_example, one_row_example, table_example

__all__ = ["POSITIONS"]


POSITIONS = (
    Mistake(
        "pe-exponent",
        "positions",
        "angle = pos / 10000 ** (2 * i / d)  # i: the channel",
        "the exponent is 2i/d with i the channel; in the paper 2i is the channel, so that wavelengths rise "
        "half as fast",
        "The last half of the channels does not change over any text: their wavelengths exceed 10,000 x 2 pi.",
        "angle = pos / 10000 ** ((i - i % 2) / d)  # i: the channel",
        references=("Kyubyong/transformer#38", "jadore801120/attention-is-all-you-need-pytorch#32"),
        worked_example=table_example("pe-exponent"),
    ),
    Mistake(
        "pe-angle",
        "positions",
        "angle = pos / 10000 ** (i / d)  # also for odd i",
        "a sine and its cosine have different frequencies: the exponent of an odd channel i is i/d, in the "
        "paper (i - 1)/d",
        "A shift of position is no longer a rotation of each pair of channels.",
        "angle = pos / 10000 ** ((i - i % 2) / d)",
        references=("SamLynnEvans/Transformer#7",),
        worked_example=table_example("pe-angle"),
    ),
    Mistake(
        "pe-multiplied",
        "positions",
        "angle = pos / 10000 ** (-(i - i % 2) / d)",
        "positions are multiplied by {number:g}^(2i/d), and the paper divides by it: frequencies grow from pair to "
        "pair, and should fall",
        "All channels but the first pair turn many times for each token, and look random.",
        "angle = pos / 10000 ** ((i - i % 2) / d)",
        references=("harvardnlp/annotated-transformer#131",),
        worked_example=table_example("pe-multiplied"),
    ),
    Mistake(
        "pe-base",
        "positions",
        "angle = pos / 1000 ** (i / d)",
        "wavelengths rise to {number:g} x 2 pi; the paper's rise to 10000 x 2 pi",
        "Positions that are further apart than the longest wavelength cannot be told apart.",
        "angle = pos / 10000 ** ((i - i % 2) / d)",
        worked_example=table_example(base=1000.0),
    ),
    Mistake(
        "pe-swapped",
        "positions",
        "pe[:, 0::2] = cos; pe[:, 1::2] = sin",
        "even channels are cosines and odd channels are sines; in the paper it is the other way round",
        "Training from scratch works as well; trained weights give wrong numbers.",
        "pe[:, 0::2] = sin; pe[:, 1::2] = cos",
        worked_example=table_example("pe-swapped"),
    ),
    Mistake(
        "pe-one-row",
        "positions",
        "x = x + self.pe[x.shape[1]]  # one row of the table",
        "one row is added to every token: the same position for all",
        "Attention cannot tell the order of the tokens.",
        "x = x + self.pe[: x.shape[1]]  # a row for each token",
        worked_example=one_row_example,
    ),
    Mistake(
        "pe-frequencies",
        "positions",
        "rates = torch.exp(torch.arange(0, d // 2, 2) * -math.log(10000.0) / d // 2)  # // takes the whole quotient",
        "the frequencies of its rows and columns fall by {number:.4g} from pair to pair; with 10000 and as many "
        "channels they fall by {wanted:.4g}",
        "Most channels hardly change over a map: far places cannot be told apart.",
        "rates = torch.exp(torch.arange(0, d // 2, 2) * (-math.log(10000.0) / (d // 2)))",
        references=("zju3dv/LoFTR#41",),
        worked_example=grid_example,
    ),
)
