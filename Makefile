# The FlashAttention course. `make` lists what you can do; everything happens inside .venv.

PYTHON    ?=
TORCH     ?=
LAB_ARGS  ?=
SLIDES_ARGS ?=
TEST_ARGS ?=
NB        ?=
# Not ?=: a shell may have a LANGUAGE of its own, which is a list.
LANGUAGE   =
REVISION   ?=

export SITE_URL SITE_REPO

py    = .venv/bin/python
stamp = .venv/.ready
site  = .venv-site/.ready
bench = attention_demo softmax_rates accuracy blocks_sweep tuned windows varlen decode decode_splits \
        counters l2_rate matmul_steps loop_order launch_overhead gluon_ablation gluon_short backward_order \
        left_out timeline stalls clock grouped
# The tests of a file share what they compile; tests/conftest.py puts the long files first.
spread = -n 2 --dist loadfile --no-loadscope-reorder

help: ## list these targets
	@echo "usage: make TARGET [NAME=value]"
	@echo
	@awk -F ' *:.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@awk '/^## / { print "  " substr($$0, 4) }' $(MAKEFILE_LIST)

## TORCH=...      PyTorch's build on Linux: cpu or cuda (default: cpu if no NVIDIA GPU is found)
## PYTHON=...     the Python to build .venv with, 3.11 or newer (default: the newest that works)
## LAB_ARGS=...   for JupyterLab (make lab LAB_ARGS="--no-browser --port 8890")
## LANGUAGE=zh    the Chinese notebooks, with your copy in work/zh (make lab LANGUAGE=zh)
## TEST_ARGS=...  for pytest (make test TEST_ARGS="-k softmax")
## SITE_URL=...   the site's address, and SITE_REPO=owner/name its repository on GitHub: for links to both
## NB=...         chapters for make notebooks (make notebooks NB="00 06")

lab: $(stamp) ## set up, then open JupyterLab on work/, your own copy of the notebooks
	@$(py) scripts/open_lab.py --language=$(LANGUAGE) $(LAB_ARGS)

test: $(stamp) ## set up, then run the tests
	OMP_NUM_THREADS=1 $(py) -m pytest $(spread) $(TEST_ARGS)

test-lens: $(stamp) ## compile the kernels for every other generation, dtype and setting
	OMP_NUM_THREADS=1 $(py) -m pytest $(spread) -m matrix $(TEST_ARGS)

test-more: $(stamp) ## plant bugs in the kernels, and try more dtypes and settings than make test does
	OMP_NUM_THREADS=1 $(py) -m pytest $(spread) -m more $(TEST_ARGS)

test-browser: $(stamp) ## move every control of every lab in JupyterLab, in Chromium
	@$(py) -c "import playwright" 2>/dev/null || { echo "Installing playwright (165 MB) into .venv ..."; \
	    $(py) -m pip install -q -r tests/browser/requirements.txt -c requirements.lock; }
	@$(py) -m pytest -m browser tests/browser $(TEST_ARGS)

test-transformers: $(stamp) ## let models of Hugging Face's transformers run on our attention, offline
	@$(py) -c "import transformers" 2>/dev/null || { echo "Installing transformers (170 MB) into .venv ..."; \
	    $(py) -m pip install -q -r tests/integrations/requirements.txt -c requirements.lock; }
	OMP_NUM_THREADS=1 $(py) -m pytest tests/integrations $(TEST_ARGS)

setup: $(stamp) ## set up only: create .venv, install the pinned requirements and flashlib

notebooks: $(stamp) ## execute the notebooks and keep their outputs
	@$(py) scripts/render_notebooks.py $(NB)

zh: $(stamp) ## write the Chinese notebooks into notebooks_zh, from the catalogues of i18n/zh
	@$(py) i18n/notebooks.py zh

lint: $(stamp) ## check the code's style, and that no notebook's outputs are stale
	$(py) -m ruff check .
	@$(py) scripts/render_notebooks.py --stale

explorer: $(stamp) ## build the site's explorers anew, after a change (needs node and npm)
	@$(py) scripts/explorer_data.py
	@OMP_NUM_THREADS=1 $(py) scripts/lab_tables.py  # last digits follow the number of threads
	cd site/explorer && npm install --no-package-lock --no-audit --no-fund && npm run types && npm run build

types: $(stamp) ## check the types of all that is neither course nor device code
	@$(py) -c "import basedpyright" 2>/dev/null || { \
	    echo "Installing basedpyright (280 MB, with the Node that it runs on) into .venv ..."; \
	    $(py) -m pip install -q -r tests/types/requirements.txt -c requirements.lock; }
	@$(py) -m basedpyright

bench-course: $(stamp) ## measure notebooks, widgets, import and counting
	@$(py) -m flashlib.course.bench.course

bench: $(stamp) ## on a GPU: time attention against its peers, then measure all that the chapters show
	@$(py) -m flashlib.course.bench.attention --out assets/measurements
	@$(py) -m flashlib.course.bench.readme --csv assets/measurements/attention_this_gpu.csv
	@for name in $(bench); do $(py) -m flashlib.course.bench.$$name --out assets/measurements \
	    || failed="$$failed $$name"; done; \
	    if [ "$$failed" ]; then echo "Not measured here:$$failed"; exit 1; fi

bench-ring: $(stamp) ## on several GPUs: time links, a ring of attention and its rivals
	@$(py) -m torch.distributed.run --nproc-per-node gpu -m flashlib.course.bench.ring --out assets/measurements

lock: ## solve requirements.txt anew into requirements.lock (needs uv)
	@sh scripts/lock.sh

site: $(site) ## build the course's web site into _site: open _site/index.html
	@.venv-site/bin/python site/build.py _site

test-site: $(site) $(stamp) ## build the site, then test it: links, weights, every page and explorer in Chromium
	@.venv-site/bin/python site/build.py _site
	@.venv-site/bin/python -m pytest -m site --confcutdir=tests/site tests/site \
	    --ignore=tests/site/explorer $(TEST_ARGS)
	@cd site/explorer && npm install --no-package-lock --no-audit --no-fund --silent
	@$(py) -m pytest -m site tests/site/explorer $(TEST_ARGS)

colab: ## write the chapters with a cell that installs the course, for Colab, into _colab (wants SITE_REPO)
	@$(or $(PYTHON),python3) scripts/colab.py _colab --repository "$(SITE_REPO)" --revision "$(REVISION)"

book: $(site) ## build the site, then print it as one PDF, _book/flashattention.pdf (needs Chromium)
	@.venv-site/bin/python site/build.py _site
	@.venv-site/bin/python site/book.py _site _book/flashattention.pdf

slides: slides/node_modules/.ready $(stamp) ## build a deck for each chapter into _slides, HTML and PDF
	@$(py) slides/build.py _slides $(SLIDES_ARGS)

test-slides: slides ## build the slides, then look at every one of them in Chromium
	@$(py) -c "import playwright" 2>/dev/null || \
	    $(py) -m pip install -q -r tests/browser/requirements.txt -c requirements.lock
	@$(py) -m pytest -m slides tests/slides $(TEST_ARGS)

slides/node_modules/.ready: slides/package.json
	@command -v npm >/dev/null || { echo "Slides are made by Marp: install node 18 or newer with npm."; exit 1; }
	cd slides && npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

clean: ## remove .venv and caches; work/ is yours and stays
	rm -rf .venv .venv-site .venv.lock notebooks_zh _site _slides _book _colab build dist site/node_modules \
	    slides/node_modules site/explorer/node_modules \
	    .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(site): site/requirements.txt site/requirements.lock site/package.json site/setup.sh
	@PYTHON="$(PYTHON)" sh site/setup.sh

-include scripts/teach.mk

# The stamp holds the folder it was made in and the build of torch that was wanted, and the
# environment's Python must start: a course that was moved, that wants another build, or whose Python
# was upgraded away, is set up again.
here := $(shell $(py) -c "import os; folder, torch = open('$(stamp)').read().split('\n'); \
    print(folder == os.getcwd() and '$(TORCH)' in ('', torch))" 2>/dev/null)
ifneq ($(here),True)
$(stamp): FORCE
endif
$(stamp): requirements.txt requirements.lock pyproject.toml scripts/setup_env.py
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh scripts/setup.sh

FORCE:
.PHONY: help lab test test-lens test-more test-browser test-transformers setup notebooks lint explorer types bench \
        bench-course lock zh colab site test-site book slides test-slides clean FORCE
