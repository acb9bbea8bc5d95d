"""Measure, print, and write the tables of BENCHMARKS.md. With names, only the sections named."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from bench.attention import attending, multihead, packing, predicates, windows
from bench.check import verdicts
from bench.embedding import embedding
from bench.generation import beams, greedy, prefill
from bench.integrations import full_attention, mask_memory, sliding_windows, soft_cap
from bench.interventions import effects, knockout
from bench.live import model_page, server
from bench.live_numbers import model_page_numbers
from bench.live_server_numbers import server_numbers
from bench.loading import loading
from bench.maps import long_maps, statistics
from bench.page import pages
from bench.replace import replaced_layers
from bench.reproductions import induction, ioi
from bench.reproductions import knockout as capitals
from bench.smollm2 import agreement, decoding
from bench.table import PAGE, Row, write
from bench.timing import medians
from bench.trained import dates, digits, lm
from bench.training import updates
from bench.watch import against_eager, forward


def importing() -> Iterator[Row]:
    """A whole process each, which has imported all of regard's mechanism, or torch alone."""

    def start(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    ours, theirs = medians(lambda: start("import regard; regard.attend"), lambda: start("import torch"), rounds=5)
    yield Row("import regard and its mechanism", "import torch", f"{theirs / ours:.2f}x", "0.87x (15 % longer at most)")


SECTIONS = {
    "attend": [attending],
    "multihead": [multihead],
    "masks": [windows, packing, predicates],
    "replace": [replaced_layers],
    "watch": [forward, against_eager],
    "maps": [statistics],
    "long_maps": [long_maps],
    "interventions": [knockout, effects],
    "ioi": [ioi],
    "capitals": [capitals],
    "induction": [induction],
    "page": [pages],
    "live": [model_page, server],
    "live_numbers": [model_page_numbers, server_numbers],
    "generation": [greedy, beams, prefill],
    "load": [loading],
    "smollm2": [decoding, agreement],
    "embed": [embedding],
    "training": [updates],
    "dates": [dates],
    "lm": [lm],
    "digits": [digits],
    "transformers": [sliding_windows, full_attention, soft_cap, mask_memory],
    "library": [importing],
    "check": [verdicts],
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    named = parser.parse_args().sections
    if unknown := sorted(set(named) - set(SECTIONS)):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    for name in named or SECTIONS:
        rows = []
        for measure in SECTIONS[name]:
            for row in measure():
                print(
                    f"{row.case:60} {row.speed:>18}  {row.against}  [{row.at_least}]  {row.over_the_floor}", flush=True
                )
                rows.append(row)
        machine = (
            f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads, "
            f"torch {torch.__version__}, Python {platform.python_version()}."
        )
        write(name, machine, rows)
    print(f"written to {PAGE.name}")


main()
