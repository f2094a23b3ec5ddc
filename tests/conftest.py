"""One thread per process, no way to a model hub, no terminal: set before anything else loads."""

from __future__ import annotations

import os

os.environ |= {
    "OMP_NUM_THREADS": "1",  # torch takes its number of threads from it
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)  # what a shell says of its terminal changes what is printed
