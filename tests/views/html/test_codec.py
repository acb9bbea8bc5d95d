"""BinaryPack on their way into a page and out of it: written by Python, read by the page's own module."""

import json
import random

import torch

from regard.views.html.codec import MAX_INT16, BinaryPack, encode_seven_bits, gzip_bytes


def read(node, *pages):
    """What the page's module reads of (data, num_int16, refs)."""
    said = [
        {
            "text": encode_seven_bits(zipped := gzip_bytes(data)),
            "length": len(zipped),
            "numInt16": num_int16,
            "refs": refs,
        }
        for data, num_int16, refs in pages
    ]
    return [
        (bytes.fromhex(page["bytes"]), page["arrays"]) for page in json.loads(node("read.js", said=json.dumps(said)))
    ]


def test_every_kind_of_number_comes_back(node):
    made = {
        "short": torch.randn(5, 3),
        "flat": torch.linspace(-2, 2, 9),
        "extreme": torch.tensor([[-1.0, 1.0], [0.0, 1.0]]) * MAX_INT16 * 0.01,
        "far": torch.tensor([1e9, -1e9]),
        "fine": torch.randn(4, 4),
        "whole": torch.tensor([-70000, 0, 2**20]),
        "shares": torch.rand(7),
        "bits": torch.rand(3, 5) < 0.5,
    }
    numbers = BinaryPack()
    # Added in turns, so that no array stands where it would stand alone.
    refs = {
        "bits": numbers.bits(made["bits"]),
        "short": numbers.int16(made["short"], 0.001),
        "fine": numbers.int32_scaled(made["fine"]),
        "flat": numbers.int16(made["flat"], 0.01),
        "shares": numbers.uint8(made["shares"]),
        "extreme": numbers.int16(made["extreme"], 0.01),
        "whole": numbers.int32(made["whole"]),
        "far": numbers.int16(made["far"], 0.01),
    }
    ((data, arrays),) = read(node, (numbers.bytes(), numbers.num_int16, list(refs.values())))
    assert data == numbers.bytes()
    found = dict(zip(refs, map(torch.tensor, arrays), strict=True))
    within = {"short": 0.000501, "flat": 0.00501, "extreme": 1e-4, "fine": 1e-6, "shares": 0.5001 / 255}
    for name, most in within.items():
        assert (found[name].view(made[name].shape) - made[name]).abs().max() <= most, name
    assert found["whole"].tolist() == made["whole"].tolist()
    assert found["bits"].view(3, 5).tolist() == made["bits"].tolist()
    # What no short can say is the nearest that it can.
    torch.testing.assert_close(found["far"], torch.tensor([MAX_INT16, -MAX_INT16]) * 0.01)


def test_no_numbers_come_back(node):
    numbers = BinaryPack()
    refs = [
        numbers.int16(torch.zeros(0, 4), 1.0),
        numbers.int32_scaled(torch.zeros(0)),
        numbers.bits(torch.zeros(0).bool()),
    ]
    assert read(node, (numbers.bytes(), numbers.num_int16, refs)) == [(b"", [[], [], []])]


def test_any_bytes_come_back(node):
    draw = random.Random(0)
    pages = [(draw.randbytes(length), 0, []) for length in [*range(40), 1000, 65537]]
    assert [data for data, _ in read(node, *pages)] == [data for data, _, _ in pages]


def test_seven_bits_are_text_that_a_script_element_may_hold():
    """Also where all that may not be written stands side by side, in runs of any length."""
    draw = random.Random(0)
    hard = [bytes(length) for length in range(20)]
    for seven in (0x00, 0x0A, 0x0D, 0x3C):
        hard += [seven_times(seven, count) for count in range(1, 18)]
    hard += [draw.randbytes(length) for length in range(300)]
    for data in hard:
        text = encode_seven_bits(data)
        assert not set(text) & set("\0\n\r<")
        assert all(ord(letter) < 0x80 or 0x100 <= ord(letter) < 0x300 for letter in text)
        assert len(text.encode()) <= len(data) * 8 / 7 + 2
        assert sevens(text)[: len(data) * 8] == "".join(f"{byte:08b}" for byte in data)


def seven_times(seven, count):
    """Bytes that begin with a character's seven bits, again and again."""
    bits = f"{seven:07b}" * count
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def sevens(text):
    """The bits that a text holds."""
    forbidden = (0x00, 0x0A, 0x0D, 0x3C)
    pairs = ((ord(letter) - 0x100) for letter in text)
    return "".join(
        f"{forbidden[pair >> 7]:07b}{pair & 0x7F:07b}" if pair >= 0 else f"{pair + 0x100:07b}" for pair in pairs
    )
