# Everything a clone needs, on x86-64 Linux with Python 3.11, git and make. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Where nothing may be kept of what Python compiled, every process compiles torch and transformers again, ten seconds each.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
VENV_FULL ?= .venv-full
PYTEST_ARGS ?=
COMPILE = uv pip compile pyproject.toml --quiet --no-header --no-annotate --generate-hashes \
	--no-emit-index-url --no-emit-find-links $(UV_ARGS)
# Beside a CPU torch these break `import torch` or only weigh a gigabyte; vLLM on a CPU works without them.
UNWANTED = --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec --no-emit-package triton

.PHONY: help packages packages-full setup smoke families test lint engines locks clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

packages:
	@requirements/install.sh $(VENV) cpu

packages-full:
	@requirements/install.sh $(VENV_FULL) cpu-full

setup: packages  ## virtual environment from the lock, the default model and HotpotQA (once)
	@$(VENV)/bin/pimem models fetch smollm2-135m-pimem
	@$(VENV)/bin/pimem data fetch hotpotqa

smoke: setup  ## all four methods on a small real model; prints where the tables and figures are
	@$(VENV)/bin/pimem run smoke

families: setup  ## every evaluation notebook, family of tasks and method at its smallest; half an hour on two cores
	@$(VENV)/bin/pimem data fetch squad
	@$(VENV)/bin/pimem run families

test: setup  ## the tests of the package; no network, no GPU
	@HF_HUB_OFFLINE=1 $(VENV)/bin/python -m pytest -m "not gpu and not slow and not engine" $(PYTEST_ARGS)

lint: packages  ## style, format, types, layering, notebooks in step with their scripts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(VENV)/bin/python -m pytest -q tests/test_project.py $(PYTEST_ARGS)

engines: packages-full  ## vLLM on the CPU and a real server, in an environment of their own
	@$(VENV_FULL)/bin/pimem models fetch smollm2-135m
	@HF_HUB_OFFLINE=1 $(VENV_FULL)/bin/python -m pytest -m "engine and not slow" $(PYTEST_ARGS)

locks:  ## resolve the locks anew (needs uv, and an index or folder with the CPU build of torch in UV_ARGS)
	$(COMPILE) --extra cpu-full --extra notebook --extra dev --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		$(UNWANTED) -o requirements/cpu-full.txt
	$(COMPILE) --extra cpu --extra notebook --extra dev --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		-c requirements/cpu-full.txt -o requirements/cpu.txt
	$(COMPILE) --extra gpu --extra notebook --extra dev --python-version 3.12 --python-platform x86_64-manylinux_2_35 \
		-o requirements/gpu.txt

clean:  ## remove caches and build products; environments, the model, data and runs stay
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	@find pimem tests notebooks experiments -name __pycache__ -prune -exec rm -rf {} +
