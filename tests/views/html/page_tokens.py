"""Texts for the page's tokenizer, and what Python makes of them in the page's units."""

import random
import unicodedata

from weights import sentences

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
EMOJI = f"\U0001f600 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e8\U0001f1ed \U0001f1ea {FAMILY} 1\ufe0f\u20e3"
LATIN = "caf\u00e9 cafe\u0301 \u1ead a\u0302\u0323 \u212b \u0130 \u0131 \u1e9e \u03a3\u03a3 \ufb01"
CHINESE_JAPANESE_KOREAN = (
    "\u4e2d\u6587 \u65e5\u672c\u8a9e \u304c\u304b\u3099 \ud55c\uae00 \u1112\u1161\u11ab \uf900 \U00020000"
)
THAI_ARABIC_HEBREW_HINDI = (
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0651\u064e "
    "\u05e9\u05c1\u05bc \u0939\u093f\u0928\u094d\u0926\u0940"
)
CONTROLS = ["\x00", "\x07", "\x1b[31m", "\x7f", "\u200b", "\u200f", "\ufeff", "\u00ad", "\U000e0041"]
SPACES = ["\x85", "\u00a0", "\u2028", "\u3000", "\t\r\n", "\x0b\x0c", "\x1c"]
PRIVATE_AND_UNASSIGNED = ["\ue000", "\U000f0000", "\U0010ffff", "\ufffd", "\u0378"]
MUSIC = "\U0001d165\u302e\U0001d16d"  # marks that are no accents, and that NFD sorts
TYPED_OUT = "[CLS] [SEP] [MASK] [PAD] [UNK] [sep] [SEP [[SEP]] ##ing [unused1]"
SIGNS = "don't e.g. x=y**2 \u00ab\u00bb \u2014 \u20ac5 \u2122 <b>&amp;</b> \u00bd\u00b2"
WRITTEN = [EMOJI, LATIN, CHINESE_JAPANESE_KOREAN, THAI_ARABIC_HEBREW_HINDI, MUSIC, TYPED_OUT, SIGNS]
PIECES = [piece for text in WRITTEN for piece in text.split(" ")] + CONTROLS + SPACES + PRIVATE_AND_UNASSIGNED


def made_texts(count, seed=0):
    """Texts of real sentences, into which pieces, single characters, marks and very long words are set."""
    draw = random.Random(seed)
    assigned = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")]
    composed = [c for c in assigned if (d := unicodedata.decomposition(c)) and d[0] != "<"]
    marks = [c for c in assigned if unicodedata.combining(c)]
    makers = [
        lambda: draw.choice(PIECES),
        lambda: draw.choice(assigned),
        lambda: draw.choice(composed) + "".join(draw.choices(marks, k=draw.randrange(4))),
        lambda: draw.choice("x\u00e9\u4e2d\U0001f600") * draw.choice([3, 99, 100, 101, 300]),
    ]
    texts = []
    for sentence in draw.choices(sentences(500), k=count):
        words = sentence.split(" ")
        for _ in range(draw.randrange(1, 8)):
            words.insert(draw.randrange(len(words) + 1), draw.choices(makers, [6, 3, 2, 1])[0]())
        texts.append("".join(word + draw.choice(["", " ", " ", " "]) for word in words))
    return texts


def utf16_places(text):
    """For each index of a string, and for its end, the place in JavaScript's."""
    places = [0]
    for character in text:
        places.append(places[-1] + (2 if ord(character) > 0xFFFF else 1))
    return places


def page_encoding(encoding, text):
    """`Encoding` of static/model/tokenizer.js."""
    places = utf16_places(text)
    return {
        "ids": encoding.ids,
        "tokens": encoding.tokens,
        "offsets": [[places[start], places[end]] for start, end in encoding.offsets],
        "words": encoding.word_ids,
    }
