"""llama.cpp's HTTP server for one GGUF file on the loopback address, until stdin closes.

Run by the Python of llama.cpp's environment: ``python -I llamacpp_serve.py SETTINGS``, settings as
JSON: model, port, threads, context (of one sequence), sequences.
"""

import json
import sys

import xllamacpp


def parameters(settings: dict) -> xllamacpp.CommonParams:
    """Float32 throughout, and no reuse between requests: every request does all of its own work."""
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]
    params.n_parallel = settings["sequences"]
    params.n_ctx = settings["context"] * settings["sequences"]
    params.n_batch = max(2048, settings["sequences"])
    params.n_threads_http = settings["sequences"] + 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_prompt = params.cache_idle_slots = params.ctx_shift = params.fit_params = False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    params.ui = False
    # On a CPU it computes in half precision: log-probabilities were off by up to 0.1, now by 3e-5.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def main() -> None:
    """Serve; the parent process ends it by closing stdin, or by ending itself."""
    server = xllamacpp.Server(parameters(json.loads(sys.argv[1])))
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
