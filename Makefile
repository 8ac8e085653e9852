# Every target sets up what it needs: the environment is made from uv.lock on first use and reused after that.
# An activated conda environment named framehaul (environment.yml) is used as it is.

ifeq ($(CONDA_DEFAULT_ENV),framehaul)
PYTHON := python
ENVIRONMENT :=
else
PYTHON := .venv/bin/python
ENVIRONMENT := .venv/.complete
endif

# What is given to make goes to the program as it is, whatever characters it holds. The program knows its variables, for
# studies register their own, and refuses others.
NOT_ITS_OWN := TEST_WORKERS
GIVEN := $(filter-out $(NOT_ITS_OWN),$(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name))))
ifneq ($(GIVEN),)
ifneq ($(filter help setup tools test test-all lint,$(or $(MAKECMDGOALS),help)),)
$(error make $(or $(MAKECMDGOALS),help) takes no $(GIVEN))
endif
endif
# These may stand in the environment as well; names as short as A and B may stand there for something else.
LASTING := ROWS ROUNDS WARMUP SEED HOLD CONNECTIONS DURATION WARMUP_DURATION WORKLOAD PRESET SERVERS SCHEDULER OUT FRESH NOTEBOOKS DATA KEY SORT MODE CSV RACE
GIVEN += $(foreach name,$(LASTING),$(if $(filter environment,$(origin $(name))),$(name)))
$(foreach name,$(GIVEN),$(eval override $(name) := $$(value $(name))))
export $(GIVEN)
# Some systems tell Python to write no bytecode: every kernel would compile again all that it imports, for seconds.
unexport PYTHONDONTWRITEBYTECODE
FRAMEHAUL = $(PYTHON) -m framehaul
VARIABLES = $(foreach name,$(GIVEN),--$(name)="$$$(name)")

# Processes for the tests, each with servers of its own; 0: one after the other.
TEST_WORKERS = 2

.PHONY: help variables setup all mine report tools test test-all lint lab explore compare submit servers stop clean
.DEFAULT_GOAL := help

help:
	@echo 'In order of use; how long each takes is for two cores:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: $(ENVIRONMENT) ## make the environment; the other targets do it by themselves (1/2 min)

.venv/.complete: pyproject.toml uv.lock setup.sh
	@sh setup.sh

all: $(ENVIRONMENT) ## run the notebooks (NOTEBOOKS): results, figures, reports and the pages of docs (12 min)
	@$(FRAMEHAUL) run $(VARIABLES)

mine: $(ENVIRONMENT) ## measure a dataframe of your own: DATA=file KEY='a b' SORT='b a' ROWS=first MODE=append|replace|upsert (minutes, by its size)
	@$(FRAMEHAUL) mine $(VARIABLES)

variables: $(ENVIRONMENT) ## list what can be given to them, as in: make all ROWS=1000 NOTEBOOKS='01 02' (1 s)
	@$(FRAMEHAUL) variables $(VARIABLES)

explore: $(ENVIRONMENT) ## JupyterLab with the explorer of results; needs no server (until Ctrl-C)
	@$(FRAMEHAUL) explore $(VARIABLES)

lab: $(ENVIRONMENT) ## JupyterLab with the servers running (until Ctrl-C)
	@$(FRAMEHAUL) lab $(VARIABLES)

compare: $(ENVIRONMENT) ## two runs, A=before B=after: what became slower or wrong (TECHNIQUES; 2 s)
	@$(FRAMEHAUL) compare $(VARIABLES)

report: $(ENVIRONMENT) ## make pages and figures again from the results there are, without measuring (2 min)
	@FRAMEHAUL_REUSE=1 $(FRAMEHAUL) run $(VARIABLES)

tools: $(ENVIRONMENT) ## build what no run waits for: drivers in Go and Node; with cargo json2parquet (6 min)
	@$(FRAMEHAUL) tools

submit: $(ENVIRONMENT) ## take a run of yours into machines/, for a pull request: OUT=where MACHINE=name (2 s)
	@$(FRAMEHAUL) submit $(VARIABLES)

servers: $(ENVIRONMENT) ## start the servers and leave them running (10 s)
	@$(FRAMEHAUL) servers $(VARIABLES)

stop: $(ENVIRONMENT) ## stop them (2 s)
	@$(FRAMEHAUL) stop $(VARIABLES)

test: $(ENVIRONMENT) lint ## lint, types and tests, on servers of their own (5 min)
	@$(if $(GIVEN),unset $(GIVEN);) $(PYTHON) -m pytest -n $(TEST_WORKERS) -m "not slow"

test-all: $(ENVIRONMENT) ## beside make test: what is exhaustive or slow (10 min)
	@$(if $(GIVEN),unset $(GIVEN);) $(PYTHON) -m pytest -n $(TEST_WORKERS) -m slow

lint: $(ENVIRONMENT)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@$(PYTHON) -m codespell_lib *.md docs/[a-zA-Z]*.md docs/how_to drivers lib notebooks tests
	@$(PYTHON) -m codespell_lib -D docs/words.txt *.md docs/[a-zA-Z]*.md docs/how_to notebooks

clean: $(ENVIRONMENT) ## remove servers' data, reports and unfinished results; results and figures stay (2 s)
	@$(FRAMEHAUL) clean $(VARIABLES)
