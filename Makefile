# esker: `make` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
# Many tests wait for real processes rather than compute.
TEST_PROCESSES ?= 3

.PHONY: help venv demo test sim failover lint format clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

.venv/installed: pyproject.toml
	@echo "Installing esker into .venv"
	@.ci/venv

venv: .venv/installed ## Makes the virtual environment .venv, unless it is there

demo: .venv/installed ## A cluster in a temporary directory: replays a trace, measures a read, shows both
	@$(BIN)/esker demo

test: lint ## Everything that must hold: lint, types, tests
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile

sim: .venv/installed ## Many seeds of the simulation of chains: make sim SEEDS=2000
	ESKER_TEST_SEEDS=$(or $(SEEDS),2000) $(BIN)/pytest tests/sim -q --timeout 1200 -n $(TEST_PROCESSES)

failover: .venv/installed ## Kills a worker again and again under load; what clients notice: make failover TIMES=20
	$(BIN)/esker failover --times $(or $(TIMES),20)

lint: .venv/installed ## Style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/installed ## Formats the code and mends what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Removes .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
