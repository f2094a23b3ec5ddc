"""Engines that serve a checkpoint: vLLM, llama.cpp, and transformers as the reference."""
