"""Files of rows, as users have them."""

import gzip
import json

import pyarrow
import pyarrow.parquet

PAIRS = [(f"source {i} é", f"target {i}") for i in range(30)]


def tsv(path, rows=PAIRS, end="\n"):
    path.write_bytes("".join(f"{a}\t{b}{end}" for a, b in rows).encode())
    return path


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path, columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def zipped(path):
    zipped_path = path.with_name(path.name + ".gz")
    zipped_path.write_bytes(gzip.compress(path.read_bytes()))
    return zipped_path
