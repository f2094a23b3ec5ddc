"""One thread per process, and no way to a model hub: set before torch and transformers load."""

from __future__ import annotations

import os

os.environ |= {
    "OMP_NUM_THREADS": "1",  # torch takes its number of threads from it
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
