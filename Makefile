# `make demo` on a fresh clone makes the environment, then runs the whole loop in miniature.

PY := .venv/bin/python
STAMP := .venv/.ready

.PHONY: demo test check format clean

demo: $(STAMP)
	$(PY) recipes/demo/corpus.py --out runs/demo-text
	.venv/bin/fretsaw compress recipes/demo.yaml --out runs/demo

# One thread per process on two cores; a file stays with one process, and so do its finished runs.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist loadfile

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
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -c 'import fretsaw.api, transformers.trainer'
	@touch $@
