"""Runs graphs.py in a process of its own: the shape checks of this test run are code that no graph can hold."""

import subprocess
import sys
from pathlib import Path


def test_graphs():
    file = Path(__file__).with_name("graphs.py")
    options = ["-q", "--override-ini=addopts=", "-p", "no:cacheprovider", "--show-capture=no"]
    ran = subprocess.run([sys.executable, "-m", "pytest", *options, str(file)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
