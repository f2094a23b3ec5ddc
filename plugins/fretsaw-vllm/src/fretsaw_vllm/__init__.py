"""A vLLM plug-in: the config of unequal Nemotron-H blocks, and what it lacks on a CPU."""


def register() -> None:
    """Entry point of group ``vllm.general_plugins``; vLLM may call it in each of its processes."""
    from vllm.platforms import current_platform
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    from fretsaw_vllm.configuration_nemotron_h_puzzle import NemotronHPuzzleConfig

    _CONFIG_REGISTRY["nemotron_h_puzzle"] = NemotronHPuzzleConfig
    if current_platform.is_cpu():
        from fretsaw_vllm.experts import add_cpu_experts
        from fretsaw_vllm.loader import add_dequantizing_loader

        add_cpu_experts()
        add_dequantizing_loader()
