"""FP8 and NVFP4 folders where vLLM has no kernels for them: dequantised while they are read."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from fretsaw_vllm.modeling_nemotron_h_puzzle import read_weights

LOAD_FORMAT = "dequantized"


class DequantizingLoader(DefaultModelLoader):
    """The default loader, but for where tensors come from."""

    def get_all_weights(
        self,
        model_config: ModelConfig,
        model: nn.Module,  # noqa: ARG002 - vLLM gives it by name
    ) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of a folder by name, packed matrices in the model's dtype."""
        folder = Path(model_config.model)
        if not folder.is_dir():
            raise ValueError(f"--load-format {LOAD_FORMAT} reads local folders; got {folder}")
        dtype = model_config.dtype
        assert isinstance(dtype, torch.dtype)
        yield from read_weights(folder, dtype=dtype).items()


def add_dequantizing_loader() -> None:
    """Make ``--load-format dequantized`` known."""
    register_model_loader(LOAD_FORMAT)(DequantizingLoader)
