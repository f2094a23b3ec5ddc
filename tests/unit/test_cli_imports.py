from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "datasets", "accelerate", "scipy", "plotly")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from fretsaw.cli import main\n"
        "sys.argv = ['fretsaw', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "compress" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"
