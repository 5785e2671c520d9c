# Everything the course is run with. Needed beforehand: git, make, and Python 3.11 or newer.

# `python3` first, so that the system's own Python is taken wherever it is new enough.
PYTHON ?=
pythons = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
TORCH_INDEX ?=
# From the command line alone: in the environment of many a cluster CUDA is a folder.
cuda := $(if $(findstring command,$(origin CUDA)),$(CUDA))
LAB_ARGS ?=
ARGS ?=

python := .venv/bin/python
first_notebook := notebooks/00_start_here.ipynb
as_root := $(if $(filter 0,$(shell id -u)),--allow-root)
.PHONY: help lab test gpu browser elsewhere record bench lock install clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "PYTHON=python3.12      the Python to make .venv with, anew where it was another"
	@echo "TORCH_INDEX=URL        another pip index for torch and torchvision, for example one of CPU builds;"
	@echo "                       it is remembered until \`make clean\`"
	@echo "CUDA=12                for an NVIDIA driver older than 580 or a GPU older than Turing; remembered, too"
	@echo "LAB_ARGS=--no-browser  further arguments for JupyterLab"

lab: install ## install, and open JupyterLab on the first chapter
	@echo "Opening JupyterLab on notebooks/00_start_here.ipynb, for this machine alone; Ctrl-C twice stops it."
	@$(python) -m jupyterlab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
	    --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(as_root) $(LAB_ARGS)

# Two at a time, but not the notebooks, which measure. One of them runs as it is, too. The browser gets it and one with
# sliders; `make browser` gives it all.
test: install ## install, and run everything that CI runs
	@status=0; \
	echo "Running the tests, two at a time."; \
	$(python) -m pytest -n 2 tests || status=1; \
	echo "Running the first notebook as it is."; \
	$(python) -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=200 $(first_notebook) || status=1; \
	echo "Running every notebook with its solutions."; \
	$(python) -m tools.solved || status=1; \
	echo "Running two notebooks in a browser."; \
	$(python) -m tools.browser --if-available 00 02 || status=1; \
	exit $$status

# Without a GPU that is an error, since nothing was tested. COURSE_DEVICE might keep the course off the GPU.
gpu: install ## run what needs a GPU: the tests marked gpu, and every notebook with its solutions
	@unset COURSE_DEVICE; \
	$(python) -c 'import sys; from course_utils.hardware import gpus, nvml; \
	    sys.exit(not gpus() and "make gpu: " + (nvml.problem() or "no NVIDIA GPU was found") + ", so nothing was tested")' \
	    || exit 1; \
	status=0; \
	$(python) -m pytest -m gpu tests || status=1; \
	$(python) -m tools.solved || status=1; \
	exit $$status

elsewhere: install ## install TensorFlow and build Horovod in build/elsewhere, and run chapter 15 with them
	@$(python) -m tools.elsewhere

browser: install ## run every notebook in JupyterLab in chromium; screenshots in build/
	@$(python) -m tools.browser $(ARGS)

record: install ## run every notebook from top to bottom and keep its outputs
	@$(python) -m tools.record $(ARGS)

bench: install ## measure launch against spawn, torchrun and loky, and the ring against the library
	@$(python) -m tools.bench $(ARGS)

lock: install ## make requirements.lock again, from the ranges in pyproject.toml
	@build/uv/bin/uv pip compile pyproject.toml --extra test --universal --upgrade --quiet \
	    --annotation-style line --custom-compile-command "make lock" --output-file requirements.lock
	@build/uv/bin/uv pip compile requirements-elsewhere.in --universal --upgrade --quiet \
	    --annotation-style line --custom-compile-command "make lock" --output-file requirements-elsewhere.lock

install: ## make .venv, or bring it up to date
	@found=; for python in $(pythons); do \
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	    case "$$version" in \
	        "") ;; \
	        2.*|3.[0-9]|3.10) found="$${found:+$$found, }$$python is $$version" ;; \
	        *) exec "$$python" tools/bootstrap.py "$(TORCH_INDEX)" "$(cuda)" ;; \
	    esac; \
	done; \
	echo "The course needs Python 3.11 or newer, and here $${found:-there is no $(firstword $(pythons))}:" \
	    "install a newer one, or name one with PYTHON=/path/to/python." >&2; \
	exit 1

clean: ## remove what make made: .venv, build/ and caches
	rm -rf .venv build .pytest_cache *.egg-info
	find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
