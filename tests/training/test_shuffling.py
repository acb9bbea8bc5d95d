"""The order of examples: one for any number of processes, and the same from any point on."""

import pytest
from runs import upper_case_pairs, write_tsv

from regard.training.data import pairs
from regard.training.shuffling import epoch_examples


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = upper_case_pairs(200)
    # Files of very different lengths, whose number divides among 2 and 4 processes.
    cuts = [0, 5, 30, 60, len(rows)]
    paths = [write_tsv(folder / f"{i}.tsv", rows[cuts[i] : cuts[i + 1]]) for i in range(4)]
    return pairs(paths)


def encode(row, epoch):
    """No example of a row, one, or two."""
    return [{"location": row["location"], "part": part, "epoch": epoch} for part in range(len(row["source"]) % 3)]


def order(data, epoch=0, *, seed=0, rank=0, world_size=1, skip=0):
    return list(epoch_examples(data, encode, epoch, seed=seed, rank=rank, world_size=world_size, skip=skip))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_any_number_of_processes_has_the_order_of_one(data, world_size):
    single = order(data)
    for rank in range(world_size):
        assert order(data, rank=rank, world_size=world_size) == single[rank::world_size]


def test_every_row_once_in_random_order(data):
    found = [(one["location"], one["part"]) for one in order(data)]
    wanted = [(one["location"], one["part"]) for row in data.train for one in encode(row, 0)]
    assert len(wanted) > 150
    assert sorted(found) == sorted(wanted)
    assert sum(a == b for a, b in zip(found, wanted, strict=True)) < 10


def test_every_epoch_and_seed_has_its_own_order(data):
    first = order(data)
    assert order(data) == first
    assert {one["epoch"] for one in order(data, 1)} == {1}
    orders = [
        [one["location"] for one in each] for each in (first, order(data, 1), order(data, 2), order(data, seed=1))
    ]
    assert all(sorted(each) == sorted(orders[0]) for each in orders)
    assert len({tuple(each) for each in orders}) == 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_skipping_leaves_the_rest(data, world_size):
    for skip in (1, 17, 70, 10_000):
        assert (
            order(data, 3, rank=world_size - 1, world_size=world_size, skip=skip)
            == order(data, 3, rank=world_size - 1, world_size=world_size)[skip:]
        )
