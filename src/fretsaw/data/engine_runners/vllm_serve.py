"""vLLM's OpenAI-style server until stdin closes.

Run by the Python of vLLM's environment: ``python -I vllm_serve.py SETTINGS``, settings as JSON:
environment (set before vLLM is loaded), arguments (of the server), and is_packed: whether weights
are quantised. On a CPU, where vLLM 0.32 has no FP8 or NVFP4 kernel for experts without a gate, the
plug-in fretsaw-vllm then dequantises them.
"""

import json
import os
import runpy
import signal
import sys
import threading

SERVER = "vllm.entrypoints.openai.api_server"
DEQUANTIZED = [
    "--load-format",
    "dequantized",
    "--hf-overrides",
    '{"quantization_config": null}',
]


def end_with_parent() -> None:
    """End this process and its workers once the parent process closes stdin, or is killed."""
    while os.read(sys.stdin.fileno(), 1):  # unlike sys.stdin, holds no lock that an exit waits for
        pass
    os.killpg(0, signal.SIGTERM)


def main() -> None:
    """Serve."""
    settings = json.loads(sys.argv[1])
    os.environ |= settings["environment"]
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.argv = [SERVER, *settings["arguments"]]
    if settings["is_packed"]:
        from vllm.platforms import current_platform

        sys.argv += DEQUANTIZED if current_platform.is_cpu() else []
    runpy.run_module(SERVER, run_name="__main__")


if __name__ == "__main__":
    main()
