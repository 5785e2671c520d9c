# Everything the course is run with. Needed beforehand: git, make, and Python 3.11 or newer.

# The one that .venv was made with, then `python3`, so that the system's own Python is taken wherever it is new enough.
PYTHON ?=
pythons = $(if $(filter-out auto,$(PYTHON)),$(PYTHON),.venv $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11)
TORCH_INDEX ?=
# From the command line alone: in the environment of many a cluster CUDA is a folder. So is SLURM.
cuda := $(if $(findstring command,$(origin CUDA)),$(CUDA))
slurm := $(if $(findstring command,$(origin SLURM)),$(SLURM))
LAB_ARGS ?=
ARGS ?=
DIR ?=
COLAB ?=
FULL ?=

python := .venv/bin/python
.PHONY: help lab kernel doctor student site slides test gpu browser elsewhere record bench lock install clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "PYTHON=python3.12      the Python to make .venv with, anew where it was another; PYTHON=auto brings one into build/"
	@echo "TORCH_INDEX=URL        another pip index for torch and torchvision, for example one of CPU builds;"
	@echo "                       it is remembered until \`make clean\`"
	@echo "CUDA=12.6              the build of torch for another machine's driver and GPUs: 13, 12.8 or 12.6; remembered, too"
	@echo "MY_COURSE=FOLDER       where your copy of the notebooks is; my_course by default"
	@echo "COLAB=ADDRESS          with \`make student\`: a cell in each notebook that fetches the course from there"
	@echo 'SLURM="--gpus=1"       open JupyterLab on a node of the cluster, as a job; goes to sbatch'
	@echo "LAB_ARGS=--no-browser  further arguments for JupyterLab"

lab: install ## install, and open JupyterLab on the first chapter, in a copy of the notebooks that is yours
	@$(python) -m tools.lab $(if $(slurm),--slurm='$(slurm)') $(LAB_ARGS)

kernel: install ## register the course's Python where Jupyter already runs: JupyterHub, Open OnDemand, VS Code
	@$(python) -m tools.lab.register_kernel

doctor: install ## check this machine before class
	@$(python) -m course_utils.doctor $(ARGS)

student: install ## write the course without answers, outputs and history into a folder, or update it: make student DIR=../handed_out
	@$(python) -m tools.student_tree "$(DIR)" $(if $(COLAB),--colab "$(COLAB)") $(ARGS)

site: install ## render the course with its outputs to pages in build/site; ARGS=--without-solutions makes it for students
	@$(python) -m tools.site $(ARGS)

slides: install ## render questions, figures and key points to slides in build/slides; ARGS=09 those of a chapter
	@$(python) -m tools.site slides $(ARGS)

test: install ## install, and run everything that CI runs; FULL=1 lets the notebooks measure at full length
	@$(python) -m tools.suite $(if $(FULL),--full)

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

elsewhere: install ## install chapter 15's other frameworks in build/elsewhere*, and run the chapter with them
	@$(python) -m tools.install.elsewhere

browser: install ## run every notebook in JupyterLab in chromium; screenshots in build/
	@$(python) -m tools.browser $(ARGS)

record: install ## run every notebook from top to bottom and keep its outputs
	@$(python) -m tools.record $(ARGS)

bench: install ## measure launch against spawn, torchrun and loky, and the ring against the library
	@$(python) -m tools.bench $(ARGS)

# Of torch's builds for older CUDA versions, torch's own index knows what else they need, and names exact versions of it.
lock: install ## make requirements/*.lock again, from the ranges in pyproject.toml and requirements/*.in
	@build/uv/bin/uv pip compile pyproject.toml --extra lab --extra test --extra site --universal --upgrade --quiet \
	    --annotation-style line --custom-compile-command "make lock" --output-file requirements/course.lock
	@build/uv/bin/uv pip compile requirements/elsewhere.in --universal --upgrade --quiet \
	    --annotation-style line --custom-compile-command "make lock" --output-file requirements/elsewhere.lock
	@build/uv/bin/uv pip compile requirements/trainers.in --constraints requirements/course.lock --universal --upgrade \
	    --quiet --annotation-style line --custom-compile-command "make lock" --output-file requirements/trainers.lock
	@for cuda in 12.6 12.8; do \
	    build/uv/bin/uv pip compile requirements/cuda$$cuda.in --no-deps --universal --upgrade --quiet \
	        --annotation-style line --custom-compile-command "make lock" --output-file requirements/cuda$$cuda.lock || exit 1; \
	done

install: ## make .venv, or bring it up to date
	@python=$$(sh tools/install/find_python.sh $(pythons)) && "$$python" -m tools.install.bootstrap "$(TORCH_INDEX)" "$(cuda)"

clean: ## remove what make made: .venv, build/ and caches
	rm -rf .venv build .pytest_cache *.egg-info
	find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
