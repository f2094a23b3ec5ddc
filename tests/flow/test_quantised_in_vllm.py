"""vLLM's own reading of a quantised folder: the algorithm of every module is the one planned.

Kernels for FP8 and NVFP4 need a GPU; the configuration, its mapping to vLLM's modules and the
matching of ignored ones do not. `benchmarks/quantised_on_gpu.py` runs the rest where there is one.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import preset
from fretsaw.errors import RunError
from fretsaw.quant.export import ExportSettings, write_quantized
from fretsaw.quant.plan import plan_export
from fretsaw.serving.engines.base import EngineSettings, engine_python
from fretsaw.serving.engines.vllm import INSTALL
from tests.pico import write_pico_checkpoint
from tests.unit.quant.test_export import all_peaks

pytestmark = [pytest.mark.engines, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from pathlib import Path
from vllm.model_executor.layers.quantization import modelopt
from vllm.model_executor.models.nemotron_h import NemotronHForCausalLM as model
config = json.loads((Path(sys.argv[1]) / "config.json").read_text())["quantization_config"]
kinds = (modelopt.ModelOptMixedPrecisionConfig, modelopt.ModelOptFp8Config)
kind = next(k for k in kinds if k.override_quantization_method(config, None))
said = kind.from_config(config)
said.packed_modules_mapping = model.packed_modules_mapping
said.apply_vllm_mapper(model.hf_to_vllm_mapper)
found = {}
for module in sys.argv[2:]:
    if said.is_layer_excluded(module):
        found[module] = None
    elif hasattr(said, "quantized_layers"):
        found[module] = said._resolve_quant_algo(module)
    else:
        found[module] = said.quant_method
print("FOUND " + json.dumps(found))
"""

EIGHTH = {
    "model.layers.0.mixer.in_proj": "FP8",
    "model.layers.0.mixer.out_proj": "FP8",
    "model.layers.0.mixer.conv1d": None,
    "model.layers.1.mixer.gate": None,
    "model.layers.1.mixer.experts": "FP8",
    "model.layers.1.mixer.shared_experts.up_proj": "FP8",
    "model.layers.1.mixer.fc1_latent_proj": None,
    "model.layers.2.mixer.qkv_proj": None,
    "model.layers.2.mixer.o_proj": None,
    "model.embed_tokens": None,
    "lm_head": None,
}
FOURTH = {**EIGHTH, "model.layers.1.mixer.experts": "NVFP4"}
WEIGHTS = {
    **EIGHTH,
    "model.layers.1.mixer.experts": "W4A16_NVFP4",
    "model.layers.1.mixer.shared_experts.up_proj": "W4A16_NVFP4",
}


@pytest.mark.parametrize(
    ("name", "expected"), [("fp8", EIGHTH), ("nvfp4", FOURTH), ("nvfp4-w4a16", WEIGHTS)]
)
def test_every_module_has_the_planned_algorithm(
    tmp_path: Path, name: str, expected: dict[str, str | None]
) -> None:
    """R49, R52, R63."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        settings = EngineSettings(context=64, sequences=1, scratch=tmp_path)
        try:
            python = engine_python("vllm", module="vllm", settings=settings, install=INSTALL)
        except RunError as error:
            pytest.skip(str(error))
    write_pico_checkpoint(tmp_path / "source", seed=1)
    source = Checkpoint(tmp_path / "source")
    (tmp_path / "out").mkdir()
    write_quantized(
        source,
        plan_export(source, preset(name)),
        folder=tmp_path / "out",
        activations=all_peaks(source),
        settings=ExportSettings(),
    )
    answer = subprocess.run(
        [python, "-c", SCRIPT, tmp_path / "out", *expected],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = [line for line in answer.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, answer.stderr[-2000:]
    assert json.loads(lines[0].removeprefix("FOUND ")) == expected
