# One verb per job. PYTHON chooses the interpreter, VENV the environment, OUT the folder of `make demo`.
#   make demo   make test   make test-all   make check   make docs   make build   make bench   make results
#   make zoo   make sb3-suite   make rllib   make constraints   make clean

PYTHON ?= $(firstword $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p; done) python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT := $(or $(OUT),runs/$(shell date +%Y%m%d-%H%M%S))
WORKERS ?= 2
TORCH_VERSION := 2.13.0
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Two test workers share the cores: each computes on one thread instead of fighting for all of them.
# They and the processes that they start share what JAX has compiled.
TEST_ENVIRONMENT := JAX_COMPILATION_CACHE_DIR=$(abspath $(VENV))/.jax-cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
	PJRT_NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 JAX_PLATFORMS=$(or $(JAX_PLATFORMS),cpu) MPLBACKEND=agg
PYTEST := $(TEST_ENVIRONMENT) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=12 $(PYTEST_FLAGS)

.PHONY: demo test test-all all-but-rllib check docs lint types build bench results constraints zoo sb3-suite rllib clean
.DELETE_ON_ERROR:

# What TD(Δ) is for, in three steps: errors of values on the ring, one game, what its critic believes.
demo: GAME := Breakout-MinAtar
demo: RUN = $(OUT)/game/$(GAME)/ppo-delta/seed-0
demo: $(VENV)/.ready
	$(BIN)/tddelta reproduce ring --quick --out $(OUT)/ring
	$(BIN)/tddelta compare $(GAME) --agents ppo ppo-multi ppo-delta --seeds 3 --steps 300_000 --out $(OUT)/game
	$(BIN)/tddelta inspect $(RUN)
	@printf '\n%s\n' "$(OUT)/ring/figures/headline.png" && sed -n '1,2s/^- /    /p' $(OUT)/ring/tables/ring-statements.md
	@printf '%s\n    %s\n' \
		"$(OUT)/game/report.html" "Returns and critics of three agents with three seeds, and which differences are clear." \
		"$(RUN)/inspect.html" "One game of ppo-delta: its value at every horizon, step by step, beside the return that came."

# test leaves out what is marked as slow: real clusters and browsers, long learning, every agent on every probe.
test: MARKS := -m "not slow"
test all-but-rllib: $(VENV)/.test $(VENV)/.torch
	$(PYTEST) $(MARKS)

test-all: all-but-rllib rllib

# The pages and the types take a core each: make -j2 check.
check: docs lint types

lint: $(VENV)/.check
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.check
	$(BIN)/mypy

# A page that has not changed would keep its warnings to itself the second time, hence the fresh environment.
docs: $(VENV)/.check
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# The wheel is tried in an environment that has nothing else, and then what pip makes of the sdist.
build: .venv-build/.ready
	rm -rf dist && .venv-build/bin/python -m build --outdir dist
	.venv-build/bin/python -m twine check --strict dist/*
	rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd dist && ../.venv-wheel/bin/tddelta --version && ../.venv-wheel/bin/tddelta scales >/dev/null
	.venv-wheel/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --force-reinstall --no-deps dist/*.tar.gz
	cd dist && ../.venv-wheel/bin/tddelta scales >/dev/null
	rm -rf .venv-wheel

.venv-build/.ready:
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6'
	@touch $@

# Leave the machine idle meanwhile; BENCH_FLAGS=--quick is a smoke test.
bench: $(VENV)/.ready .venv-rejax/.ready .venv-sb3/.ready
	$(BIN)/python benchmarks/run_all.py $(BENCH_FLAGS)

# Hours; what is finished is kept, so that it can be interrupted. RESULTS_FLAGS=minatar runs one study.
results: $(VENV)/.ready
	$(BIN)/python benchmarks/results.py $(RESULTS_FLAGS)
	$(BIN)/python benchmarks/results_tables.py

# The rivals need other versions than we do.
.venv-%/.ready: benchmarks/requirements-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# The RL Zoo asks for other versions of its libraries than the tests have.
zoo: .venv-zoo/.ready
	.venv-zoo/bin/python -m pytest tests/adapters/sb3/test_zoo.py

# What Stable-Baselines3's own tests ask, with the versions that a user of that extra gets.
sb3-suite: .venv-sb3-suite/.ready
	$(TEST_ENVIRONMENT) .venv-sb3-suite/bin/python -m pytest -n $(WORKERS) $(wildcard tests/adapters/sb3/test_suite*.py) \
		tests/adapters/sb3/test_models.py $(wildcard tests/adapters/sb3/test_o*_policy.py)

.venv-sb3-suite/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-sb3-suite
	.venv-sb3-suite/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION)
	.venv-sb3-suite/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[sb3,track,test]" tqdm
	@touch $@

.venv-zoo/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-zoo
	.venv-zoo/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION)
	.venv-zoo/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[sb3,test]" rl_zoo3==2.9.2
	@touch $@

# RLlib asks for another version of gymnasium than other extras. One test at a time: Ray starts processes of its own.
rllib: .venv-rllib/.ready
	$(TEST_ENVIRONMENT) .venv-rllib/bin/python -m pytest --durations=5 $(PYTEST_FLAGS) tests/adapters/rllib src/tddelta/adapters/rllib
	$(TEST_ENVIRONMENT) .venv-rllib/bin/python -m pytest $(PYTEST_FLAGS) tests/test_programs.py -k rllib

.venv-rllib/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-rllib
	.venv-rllib/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION)
	.venv-rllib/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[rllib,test]" "ray[rllib]==2.60.*"
	@touch $@

# Installs everything anew in an empty environment and writes down what came.
constraints:
	rm -rf .venv-constraints && $(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION)
	.venv-constraints/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[train,tabular,atari,gym,ray,track,tune,video,sb3,torchrl,rsl-rl,test,check,docs]"
	{ echo "# The versions that tests, docs and \`make demo\` use, for all extras together; \`make constraints\` renews the list."; \
	  .venv-constraints/bin/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools --exclude wheel | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt && rm -rf .venv-constraints

clean:
	rm -rf $(VENV) .venv-* docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "tddelta needs Python 3.11 or newer; '$(PYTHON)' is not. Name one that is: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Stamp files: an extra is installed again only after the project file or the pinned versions change.
$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing tddelta[train,tabular] into $(VENV) ..."
	$(INSTALL) --editable ".[train,tabular]"
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing every extra for tests into $(VENV) ..."
	$(INSTALL) --editable ".[train,tabular,atari,gym,ray,track,tune,video,test]"
	@touch $@ $(VENV)/.ready

$(VENV)/.check: pyproject.toml constraints.txt | $(VENV)/.torch
	@echo "Installing every extra into $(VENV) ..."
	$(INSTALL) --editable ".[train,tabular,atari,gym,ray,track,tune,video,test,check,docs]"
	@touch $@ $(VENV)/.ready $(VENV)/.test

# The tests with PyTorch tensors, of Stable-Baselines3, TorchRL and rsl_rl run where PyTorch is installed: on Python 3.11, and
# elsewhere with TORCH=1.
$(VENV)/.torch: Makefile | $(VENV)/.test
	@if [ -n "$(TORCH)" ] || $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
		echo "Installing torch==$(TORCH_VERSION) into $(VENV) ..."; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION) && \
		$(INSTALL) --editable ".[sb3,torchrl,rsl-rl]" && touch $@; \
	fi
