"""vLLM's OpenAI-style server until stdin closes.

Run by the Python of vLLM's environment: ``python -I vllm_serve.py SETTINGS``, settings as JSON:
environment (set before vLLM is loaded) and arguments (of the server).
"""

import json
import os
import runpy
import signal
import sys
import threading

SERVER = "vllm.entrypoints.openai.api_server"


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
    runpy.run_module(SERVER, run_name="__main__")


if __name__ == "__main__":
    main()
