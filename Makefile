# The two commands are `make demo` and `make test`; both do all their own set-up (tools/setup.sh).
VENV ?= .venv
BIN := $(VENV)/bin
DISTS := core envkit testkit reference $(wildcard plugins/*/*)
RUN_DIR ?= runs/quickstart
PYTEST_WORKERS ?= 2

.PHONY: demo test lint docs bench bench-quickstart findings soak wheels check-wheels clean setup

setup: $(VENV)/.ready

$(VENV)/.ready: constraints.txt tools/setup.sh $(addsuffix /pyproject.toml,$(DISTS))
	bash tools/setup.sh $(VENV) $(DISTS)

demo: setup
	$(BIN)/composer-run train examples/quickstart/run.toml --run-dir $(RUN_DIR) --or-resume
	$(BIN)/composer-run show $(RUN_DIR)

# In order of testpaths, which has the longest first. Threads of two workers that wait for each other by spinning take
# twice as long as one worker; asleep, half as long.
test: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard core/src/* envkit/src/* testkit/src/* reference/src/* plugins/*/*/src/* examples/plugins/*/src/*) examples/findings examples/long_horizon
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python tools/docs.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/python benchmarks/all.py $(BENCH_ARGS)

bench-quickstart: setup
	$(BIN)/python benchmarks/quickstart.py

findings: setup
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation ./examples/findings
	$(BIN)/python examples/findings/findings.py $(FINDINGS_ARGS)

soak: setup
	COMPOSER_SOAK=1 $(BIN)/python -m pytest --junitxml build/soak.xml $(PYTEST_ARGS)
	$(BIN)/python tools/soak.py build/soak.xml

wheels: setup
	rm -rf build/wheels && mkdir -p build/wheels
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels $(addprefix ./,$(DISTS))

check-wheels: wheels
	bash tools/check-wheels.sh

clean:
	rm -rf $(VENV) build
