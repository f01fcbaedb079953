# Everything is set up in .venv from a bare Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto
SEED ?= 31
# JAX 0.11 and later need Python 3.12.
CONSTRAINTS = constraints-python$(shell $(PYTHON) -c 'import sys; print("3.11" if sys.version_info < (3, 12) else "3.12")').txt
QUICK = $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal --quiet -m "not slow and not long and not full"

.PHONY: help demo test gpu gpu-host gpu-programs proof quick lint docs next-defaults newest package benchmark abroad ports \
  peers mutants clean

help:
	@echo "make demo       train in jaxpar and PyTorch side by side"
	@echo "make test       each law once, in its smallest form"
	@echo "make gpu-programs  steps as XLA compiles them for GPUs, without one; downloads 280 MB"
	@echo "make gpu        tests and benchmarks on this host's GPUs, into benchmarks/gpu.md; ON=cpu tries them without"
	@echo "make proof      the same laws in more sizes and processes, jobs that are killed, a ResNet"
	@echo "make quick      the tests of everyday work, about three minutes"
	@echo "make lint       ruff and mypy"
	@echo "make docs       the site, in docs/_build/html; a broken link fails"
	@echo "make next-defaults  the everyday tests with what Flax and JAX will soon do by default"
	@echo "make newest     the newest releases of everything: do the tests pass, which bounds can be lifted"
	@echo "make package    build the wheel and try it in an empty environment"
	@echo "make benchmark  what DataParallel costs against a step written by hand"
	@echo "make abroad     compare models of transformers and diffusers, an hour or two"
	@echo "make ports      port models of torchvision, transformers, timm and others, and prove them: hours, and it goes on where it was stopped"
	@echo "make peers      the same training with accelerate, Fabric, Keras and JAX by hand"
	@echo "make mutants    plants small mistakes, by hand and 100 drawn by SEED=31, and runs their tests; RESUME=--resume goes on where it was stopped"

$(READY): pyproject.toml constraints-python3.11.txt constraints-python3.12.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "jaxpar needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[torch,demo,test]'
	@touch $@

demo: $(READY)
	$(BIN)/jaxpar demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal --quiet --durations=20 --durations-min=1 -m "not long"

# XLA's compiler for GPUs, beside the environment: all other tests run without it.
GPU_COMPILER := .cache/gpu-compiler

gpu-programs: $(READY) $(GPU_COMPILER)/.ready
	PYTHONPATH=$(GPU_COMPILER) $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --quiet \
	  --confcutdir=tests/gpu_programs tests/gpu_programs

$(GPU_COMPILER)/.ready: constraints-python3.11.txt constraints-python3.12.txt
	rm -rf $(GPU_COMPILER)
	$(BIN)/python -m pip install --quiet --target $(GPU_COMPILER) --no-deps --constraint $(CONSTRAINTS) \
	  jax-cuda12-pjrt jax-cuda12-plugin nvidia-cuda-nvcc-cu12 nvidia-cuda-runtime-cu12
	@touch $@

# GPU_PYTHON is the Python of an environment that is there already; otherwise one is set up. torch from PyPI is built
# for CUDA 13, and JAX's libraries for CUDA 12 would lie in the same folders: so both have 13.
ON ?= gpu
GPU_EXTRA ?= cuda13
GPU_VENV := .venv-gpu
ifeq ($(ON),cpu)
GPU_PYTHON ?= $(BIN)/python
GPU_READY := $(READY)
GPU_OPTIONS := --cpu $(or $(DEVICES),2)
else
GPU_READY := $(if $(GPU_PYTHON),,$(GPU_VENV)/.ready)
GPU_PYTHON ?= $(GPU_VENV)/bin/python
GPU_OPTIONS := $(if $(DEVICES),--devices $(DEVICES))
endif

gpu: gpu-host $(GPU_READY)
	@$(GPU_PYTHON) benchmarks/gpu/run.py $(GPU_OPTIONS) $(OPTIONS)

gpu-host:
	@$(PYTHON) benchmarks/gpu/host.py $(ON)

$(GPU_VENV)/.ready: pyproject.toml constraints-python3.11.txt constraints-python3.12.txt | gpu-host
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(GPU_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[$(GPU_EXTRA),gpu,torch,test]'
	@touch $@

proof: $(READY)
	$(BIN)/python -m pytest --quiet -m long

quick: $(READY)
	$(QUICK)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs-ready
	$(BIN)/python -m sphinx -b html -W --keep-going --quiet docs docs/_build/html

$(VENV)/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'
	@touch $@

next-defaults: $(READY)
	NNX_GRAPH_MODE=false NNX_GRAPH_UPDATES=false $(QUICK)
	JAX_REMAT3=true JAX_CUSTOM_JVP3=true JAX_CUSTOM_VJP3=true $(QUICK)

newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet packaging
	.venv-newest/bin/python .ci/newest .venv-newest/bin/python

package:
	.ci/package $(PYTHON)

benchmark: $(READY)
	$(BIN)/python benchmarks/data_parallel.py

# transformers 4.57 is the last release with Flax models. It is no extra of jaxpar: nothing else here needs it.
abroad: .venv-abroad/.ready
	.venv-abroad/bin/python benchmarks/abroad/run.py --again --out docs/tables/abroad.md

.venv-abroad/.ready: pyproject.toml constraints-python3.11.txt constraints-python3.12.txt benchmarks/abroad/requirements.txt
	$(PYTHON) -m venv .venv-abroad
	.venv-abroad/bin/python -m pip install --quiet --upgrade pip
	.venv-abroad/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) 'torch==2.13.0'
	.venv-abroad/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[torch]' \
	  --requirement benchmarks/abroad/requirements.txt
	@touch $@

# torchvision is built for the torch of PyPI: its operators do not load here, and its models do without.
ports: .venv-ports/.ready
	.venv-ports/bin/python benchmarks/ports/run.py --out docs/tables/ports.md

peers: .venv-peers/.ready
	.venv-peers/bin/python benchmarks/peers/run.py

.venv-peers/.ready: pyproject.toml constraints-python3.11.txt constraints-python3.12.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --upgrade pip
	.venv-peers/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) 'torch==2.13.0'
	.venv-peers/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[torch,demo]' \
	  --requirement benchmarks/peers/requirements.txt
	@touch $@

.venv-ports/.ready: pyproject.toml constraints-python3.11.txt constraints-python3.12.txt benchmarks/ports/requirements.txt
	$(PYTHON) -m venv .venv-ports
	.venv-ports/bin/python -m pip install --quiet --upgrade pip
	.venv-ports/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) 'torch==2.13.0'
	.venv-ports/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[torch,parity]' \
	  --requirement benchmarks/ports/requirements.txt
	.venv-ports/bin/python -m pip install --quiet --no-deps 'torchvision==0.28.0' 'timm==1.0.31' \
	  'segmentation-models-pytorch==0.6.0' 'vit-pytorch==1.26.11' 'denoising-diffusion-pytorch==2.3.4' \
	  'labml-nn==0.5.1' 'labml==0.4.168' 'labml-helpers==0.4.89' 'ema-pytorch==0.8.3' 'accelerate==1.15.0' \
	  'pytorch-fid==0.3.0' 'gitpython==3.2.1' 'gitdb==4.0.12' 'smmap==5.0.3' \
	  'monai==1.6.1' 'diffusers==0.35.2'
	@touch $@

mutants: $(READY)
	$(BIN)/python -m benchmarks.mutants.run --jobs 2 $(RESUME) --out docs/tables/mutants.md
	$(BIN)/python -m benchmarks.mutants.covered
	$(BIN)/python -m benchmarks.mutants.run --drawn 100 --seed $(SEED) --jobs 2 $(RESUME) --out docs/tables/mutants.md

clean:
	rm -rf $(VENV) $(GPU_VENV) .venv-newest .venv-abroad .venv-ports .venv-peers .cache docs/_build docs/api
