# Every target sets up what it needs: the environment is made from uv.lock on first use and reused after that.
# An activated conda environment named framehaul (environment.yml) is used as it is.

ROWS ?= 100000
PASSES ?= 3
WARMUP ?= 1
SEED ?= 20260407
HOLD ?= 120
CONNECTIONS ?= 8
DURATION ?= 1
WARMUP_DURATION ?= 0.25
RATE ?= 0
PRESET ?= scaled
SERVERS ?=
SCHEDULER ?=
OUT ?=
NOTEBOOKS ?=
# Of compare, and only as given to make: names as short as these may stand in an environment for something else.
A :=
B :=
TECHNIQUES :=
BY := raw
FORMAT := text
DATA ?=
KEY ?=
SORT ?=

KNOWN := ROWS PASSES WARMUP SEED HOLD CONNECTIONS DURATION WARMUP_DURATION RATE PRESET SERVERS SCHEDULER OUT NOTEBOOKS DATA KEY SORT A B TECHNIQUES BY FORMAT
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name)))
UNKNOWN := $(filter-out $(KNOWN),$(GIVEN))
ifneq ($(strip $(UNKNOWN)),)
$(error unknown variable $(UNKNOWN); known: $(KNOWN))
endif

ifeq ($(CONDA_DEFAULT_ENV),framehaul)
PYTHON := python
ENVIRONMENT :=
else
PYTHON := .venv/bin/python
ENVIRONMENT := .venv/.complete
endif

# Values reach the program as they are, whatever characters they hold.
export $(KNOWN)
FRAMEHAUL = $(PYTHON) -m framehaul
WHERE = --servers="$$SERVERS" --out="$$OUT"

.PHONY: help setup all mine test lint lab explore compare servers stop report clean
.DEFAULT_GOAL := help

help: ## list the targets and variables
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18
	@echo "variables: ROWS=$(ROWS) PASSES=$(PASSES) WARMUP=$(WARMUP) SEED=$(SEED) HOLD=$(HOLD) CONNECTIONS=$(CONNECTIONS) DURATION=$(DURATION) WARMUP_DURATION=$(WARMUP_DURATION) RATE=$(RATE) PRESET=scaled|published|smoke SERVERS=embedded|docker|external SCHEDULER=tcp://host:port OUT=. NOTEBOOKS='01 02'"
	@echo "of compare: A=before B=after TECHNIQUES='driver=psycopg' BY=raw|relative FORMAT=text|markdown|csv"

setup: $(ENVIRONMENT) ## make the environment; the other targets do it by themselves

.venv/.complete: pyproject.toml uv.lock setup.sh
	@sh setup.sh

all: $(ENVIRONMENT) ## run the notebooks (NOTEBOOKS), write results, figures, reports and the README's blocks
	@$(FRAMEHAUL) run $(WHERE) --notebooks="$$NOTEBOOKS" --rows="$$ROWS" --passes="$$PASSES" --warmup="$$WARMUP" --seed="$$SEED" --hold="$$HOLD" \
		--connections="$$CONNECTIONS" --duration="$$DURATION" --warmup-duration="$$WARMUP_DURATION" --rate="$$RATE" --preset="$$PRESET" --scheduler="$$SCHEDULER"

# All rows, unless ROWS is given.
mine: ROWS = 0
mine: $(ENVIRONMENT) ## measure a dataframe of your own: DATA=file KEY='a b' SORT='b a' ROWS=first
	@$(FRAMEHAUL) mine $(WHERE) --data="$$DATA" --key="$$KEY" --sort="$$SORT" --rows="$$ROWS" --passes="$$PASSES" --warmup="$$WARMUP" --seed="$$SEED"

report: $(ENVIRONMENT) ## make figures, reports and README blocks of the summary again from the results there are
	@$(FRAMEHAUL) run $(WHERE) --notebooks="05 07"

test: $(ENVIRONMENT) lint ## lint, types and all tests, on servers of their own
	@unset $(KNOWN); $(PYTHON) -m pytest

lint: $(ENVIRONMENT)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

lab: $(ENVIRONMENT) ## JupyterLab with the servers running
	@$(FRAMEHAUL) lab $(WHERE)

explore: $(ENVIRONMENT) ## JupyterLab with the explorer of results; needs no server
	@$(FRAMEHAUL) explore $(WHERE)

compare: $(ENVIRONMENT) ## two runs, A=before B=after: what became slower or wrong (TECHNIQUES, BY, FORMAT)
	@$(FRAMEHAUL) compare "$$A" "$$B" --techniques="$$TECHNIQUES" --by="$$BY" --format="$$FORMAT"

servers: $(ENVIRONMENT) ## start the servers and leave them running
	@$(FRAMEHAUL) servers $(WHERE)

stop: $(ENVIRONMENT) ## stop them
	@$(FRAMEHAUL) stop $(WHERE)

clean: $(ENVIRONMENT) ## remove servers' data, reports and unfinished results; results and figures stay
	@$(FRAMEHAUL) clean $(WHERE)
