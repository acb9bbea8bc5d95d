"""The header of a GGUF file: against the reader of the package gguf, and what a damaged one is refused for."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_files import write_file, write_gguf
from regard import InputError
from regard.pretrained.gguf.header import read_header
from regard.pretrained.offline import SMOLLM2, SMOLLM2_FILE
from weights import random_checkpoint

BLOCK = 64
"""Values of a row in the random files: whole blocks of every type that is drawn."""


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A small file of a Llama, to change copies of it."""
    folder = tmp_path_factory.mktemp("llama")
    random_checkpoint(folder, "llama")
    return write_gguf(folder / "model.gguf", folder)


def equals_the_packages_reader(path):
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        assert ours.metadata[name] == field.contents(), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert (info.shape, info.type) == (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type)
        assert (info.start, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert np.array_equal(ours.data(info), tensor.data.view(np.uint8).reshape(-1))


def test_a_file_of_a_model_is_read_as_the_package_reads_it(llama):
    equals_the_packages_reader(llama)


@pytest.mark.more
def test_smollm2_is_read_as_the_package_reads_it():
    equals_the_packages_reader(SMOLLM2.path / SMOLLM2_FILE)


NUMBERS = st.integers(0, 2**31 - 1) | st.booleans() | st.floats(width=32, allow_nan=False) | st.integers(-(2**31), -1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
LISTS = st.lists(TEXTS, min_size=1) | st.lists(st.integers(-9, 9), min_size=1) | st.lists(st.booleans(), min_size=1)
LISTS |= st.lists(st.floats(width=32, allow_nan=False), min_size=1)
SHAPES = st.lists(st.integers(1, 4), max_size=2).map(lambda lead: (*lead, BLOCK))
TYPES = st.sampled_from(["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])


@given(
    entries=st.dictionaries(TEXTS.filter(lambda key: not key.startswith("GGUF")), NUMBERS | TEXTS | LISTS),
    tensors=st.dictionaries(TEXTS, st.tuples(SHAPES.map(np.ones), TYPES)),
    alignment=st.sampled_from([8, 32, 64]),
)
def test_any_file_is_read_as_the_package_reads_it(tmp_path_factory, entries, tensors, alignment):
    entries |= {"general.architecture": "llama", "general.alignment": alignment}
    path = tmp_path_factory.mktemp("any") / "model.gguf"
    equals_the_packages_reader(write_file(path, entries, tensors))


def refused(path, message):
    """Whether reading the file is refused in one line, and takes no more memory than a few copies of the file."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"(?s){message}") as raised:
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    assert peak < 8 * path.stat().st_size + 100_000


@pytest.fixture
def changed(llama, tmp_path):
    """A function that replaces bytes of the file, which are there once, and returns the changed file."""

    def change(old, new):
        content = llama.read_bytes()
        assert content.count(old) == 1
        path = tmp_path / "changed.gguf"
        path.write_bytes(content.replace(old, new))
        return path

    return change


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key, form, value):
    """The bytes of a number in the metadata; I is a whole number of 32 bits."""
    return text(key) + struct.pack(f"<I{form}", {"I": 4, "f": 6}[form], value)


def tensor_info(name, shape, kind=0):
    """The bytes that describe a tensor, but for its offset."""
    return text(name) + struct.pack(f"<I{len(shape)}QI", len(shape), *reversed(shape), kind)


START = b"GGUF" + struct.pack("<I", 3)
BLOCKS = text("llama.block_count")
NORM = tensor_info("output_norm.weight", (36,))
HEADS = ("llama.attention.head_count", "I", 6)


DAMAGED = {
    "magic": (START, b"GGML" + START[4:], r"is no GGUF file: it begins with b'GGML', not with b'GGUF'"),
    "version 1": (START, b"GGUF" + struct.pack("<I", 1), "is of version 1, .* does not read; it reads .* GGUF 2 and 3"),
    "version 99": (START, b"GGUF" + struct.pack("<I", 99), "is of version 99, "),
    "byte order": (START, b"GGUF" + struct.pack(">I", 3), "is big-endian, which regard does not read"),
    "type of a value": (entry(*HEADS), entry(*HEADS)[:-8] + struct.pack("<II", 77, 6), "has a value of type 77"),
    "length of a name": (BLOCKS, struct.pack("<Q", 2**62) + BLOCKS[8:], f"takes {2**62 + 8} bytes"),
    "text": (BLOCKS, BLOCKS[:-1] + b"\xff", "a text that is no UTF-8"),
    "setting twice": (BLOCKS, text("general.file_type"), "has the setting 'general.file_type' twice"),
    "alignment": (text("general.file_type"), text("general.alignment"), "is 0; it must be a multiple of 8"),
    "unknown type": (NORM, tensor_info("output_norm.weight", (36,), 99), "has type 99, which the installed gguf does"),
    "half a block": (NORM, tensor_info("output_norm.weight", (36,), 2), "rows of 36, and Q4_0 stores blocks of 32"),
    "absurd shape": (
        NORM,
        tensor_info("output_norm.weight", (2**60,)),
        r"is truncated: 'output_norm\.weight' of shape",
    ),
    "shape of nothing": (NORM, tensor_info("output_norm.weight", (0,)), r"has the shape \(0,\), which holds nothing"),
    "nine axes": (NORM, text("output_norm.weight") + struct.pack("<IQI", 9, 36, 0), "has 9 axes, not 1 to 4"),
    "no axes": (NORM, text("output_norm.weight") + struct.pack("<IQI", 0, 36, 0), "has 0 axes, not 1 to 4"),
    "tensor twice": (
        text("blk.1.ffn_up.weight"),
        text("blk.0.ffn_up.weight"),
        r"tensor 'blk\.0\.ffn_up\.weight' twice",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_header_is_refused_in_one_line(changed, damage):
    old, new, message = DAMAGED[damage]
    refused(changed(old, new), message)


@pytest.mark.parametrize("count", [2**32 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("place", [8, 16])
def test_absurd_counts_of_tensors_and_settings_are_refused(llama, tmp_path, place, count):
    content = bytearray(llama.read_bytes())
    content[place : place + 8] = struct.pack("<Q", count)
    path = tmp_path / "counts.gguf"
    path.write_bytes(content)
    refused(path, "is truncated or damaged: its header takes")


@pytest.mark.parametrize("kind", [0, 8])
def test_an_absurd_length_of_a_list_is_refused(changed, kind):
    key = text("tokenizer.ggml.merges") + struct.pack("<I", 9)
    lie = key + struct.pack("<IQ", kind, 2**61)
    path = changed(key + struct.pack("<IQ", 8, 14), lie)
    refused(path, r"is truncated or damaged: 'tokenizer\.ggml\.merges' takes \d+ bytes")


def test_a_list_of_lists_is_refused(changed):
    key = text("tokenizer.ggml.merges") + struct.pack("<I", 9)
    refused(changed(key + struct.pack("<I", 8), key + struct.pack("<I", 9)), "is a list of lists")


@pytest.mark.parametrize(
    ("offset", "message"),
    [(7, "does not begin at a multiple of 32"), (2**62, "is truncated: "), (0, "share bytes")],
)
def test_a_tensor_at_a_wrong_place_is_refused(llama, changed, offset, message):
    header = read_header(llama)
    start = min(tensor.start for tensor in header.tensors.values())
    true_offset = header.tensors["output_norm.weight"].start - start
    refused(changed(NORM + struct.pack("<Q", true_offset), NORM + struct.pack("<Q", offset)), message)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_anywhere_is_refused(llama, tmp_path_factory, share):
    content = llama.read_bytes()
    end = max(tensor.start + tensor.num_bytes for tensor in read_header(llama).tensors.values())
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(content[: int(share * end)])
    refused(path, "is truncated|is no GGUF file")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"a text that somebody called model.gguf"])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refused(path, "is no GGUF file: it begins with|is truncated or damaged: its header takes 4 bytes")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.gguf cannot be read: No such file"):
        read_header(tmp_path / "nowhere.gguf")
