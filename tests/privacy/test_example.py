"""Ten processes that talk over files, two of which vanish."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "secure.py"


def test_the_example_runs_and_calibrates():
    said = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=500).stdout
    assert said.startswith("clients [0, 1, 2, 4, 5, 6, 7, 8, 9]: ")
    before, after = map(float, re.search(r"([\d.]+) % before, ([\d.]+) % after", said).groups())
    assert after > 90 > before
    assert len(EXAMPLE.read_text().splitlines()) <= 60
