"""Makes quantised_configs.json: what NVIDIA Model Optimizer turns `hf_quant_config.json` into.

Run where nvidia-modelopt is installed (it is no dependency of the project):
    python tests/oracle/golden/make_quantised_configs.py     (made with 0.47.0)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format

FILE = Path(__file__).with_name("quantised_configs.json")
PRODUCER = {"name": "modelopt", "version": "0.47.0"}
IGNORED = ["backbone.embeddings", "lm_head", "mtp*"]


def files() -> dict[str, dict[str, Any]]:
    common = {"kv_cache_quant_algo": "FP8", "exclude_modules": IGNORED}
    fourth = {"group_size": 16}
    mixed = {
        "a.in_proj": {"quant_algo": "FP8"},
        "b.experts.1.up_proj": {"quant_algo": "NVFP4", **fourth},
        "b.experts.0.up_proj": {"quant_algo": "NVFP4", **fourth},
        "c.up_proj": {"quant_algo": "W4A16_NVFP4", **fourth},
    }
    return {
        "fp8": {"quant_algo": "FP8", **common},
        "nvfp4": {"quant_algo": "NVFP4", **fourth, **common},
        "w4a16": {"quant_algo": "W4A16_NVFP4", **fourth, **common, "kv_cache_quant_algo": None},
        "mixed": {"quant_algo": "MIXED_PRECISION", **fourth, **common, "quantized_layers": mixed},
    }


if __name__ == "__main__":
    pairs = {}
    for name, inside in files().items():
        file = {"producer": PRODUCER, "quantization": inside}
        pairs[name] = {"file": file, "config": convert_hf_quant_config_format(file)}
    FILE.write_text(json.dumps(pairs, indent=1) + "\n")
