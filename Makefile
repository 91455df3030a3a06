# Everything starts here: the first target that needs it makes the environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: demo test lint docs check bench clean

demo: .venv/ready  ## the whole method on 4,000 real images, in about five minutes
	$(BIN)/polyphony study demo

test: .venv/ready  ## every test; one thread for each process, because tensors are tiny
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --maxprocesses 4 --dist worksteal

lint: .venv/ready  ## format, lint, types
	$(BIN)/ruff format --check src tests tools benchmarks examples
	$(BIN)/ruff check src tests tools benchmarks examples
	$(BIN)/mypy

docs: .venv/ready  ## the documentation site in build/site; a broken link is an error; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint docs test  ## all that continuous integration asks

bench: .venv/ready  ## speed, side by side with a textbook implementation; a few minutes
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/augmentation.py
	$(BIN)/python benchmarks/scoring.py

clean:  ## the environment and caches; runs stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch first, pinned, so that pip keeps the CPU build of an index that has one. timm without its dependency
# torchvision, whose CPU build is not on PyPI; the tests use a stand-in.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps timm
	touch $@
