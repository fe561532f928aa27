# Thin front of CMake: every target is a few commands that you could type yourself.
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
HOURS  ?= 1

FORMATTED = git ls-files 'include/*.h' 'src/*.[ch]' 'src/*.inc' 'src/*.cu' 'src/*.cuh' \
            'cli/*.[ch]' 'predict/*.[ch]' 'libexec/*.c' 'tests/*.[ch]' 'bench/*.[ch]' 'examples/*.[ch]'

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := build
.PHONY: build build-cuda demo check check-python check-long fuzz bench format format-check lint install wheel docs clean help

build: ## build/bin/tgrad and both libraries, optimised
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS)

build-cuda: ## the same with the CUDA backend, in build-cuda/; TG_CUDA_ARCHS=90 for one GPU only
	@cmake --preset cuda $(if $(TG_CUDA_ARCHS),'-DTG_CUDA_ARCHS=$(TG_CUDA_ARCHS)') >/dev/null
	@cmake --build --preset cuda -j $(JOBS)

demo: ## install what is missing, build, and show the program at work
	@scripts/setup
	@$(MAKE) build
	@scripts/demo build/bin/tgrad

check: ## install what is missing, build, run every test and a short fuzz run
	@scripts/setup
	@scripts/setup --fortran || echo "going on without the test of the Fortran module"
	@scripts/setup --python || echo "going on without the tests of the Python package"
	@scripts/setup --mpi || echo "going on without the tests of several processes"
	@$(MAKE) build
	@ctest --preset release -j $(JOBS)
	@scripts/fuzz

check-python: build ## the tests of the Python package with torch and neuraloperator, which it gets into .cache/
	@scripts/check_python

check-long: build ## hours: 20,000 damaged HDF5 files in every command that reads them, every fault, every experiment
	@TG_LONG=1 bash tests/cli/test_fault_walk.sh build/bin/tgrad $(CURDIR) $(CURDIR)/build
	@bash tests/io/test_damaged_hdf5.sh build/bin/tgrad . build 20000
	@TG_LONG=1 bash tests/dist/test_mpi_train.sh build/bin/tgrad . build
	@TG_LONG=1 bash tests/cli/sweep/test_experiments.sh build/bin/tgrad . build

fuzz: ## run every fuzz target, HOURS (default 1) for all of them together
	@scripts/setup --lint
	@scripts/fuzz $(HOURS)

bench: build ## run the benchmarks
	@set -e; for program in build/bin/bench_*; do echo "== $${program##*/}"; $$program; done

format: ## rewrite the sources as .clang-format says
	@scripts/setup --lint
	@$(FORMATTED) | xargs clang-format -i

format-check: ## fail if `make format` would change anything
	@$(FORMATTED) | xargs clang-format --dry-run --Werror

lint: format-check ## format, include directions and clang-tidy
	@scripts/check_includes
	@scripts/tidy

install: build ## install to PREFIX (default /usr/local); DESTDIR is respected
	@cmake --install build --prefix $(PREFIX)

wheel: ## dist/libtgrad-*.whl, the Python package for pip; TG_CUDA=ON: with the CUDA backend
	@scripts/wheel

docs: ## build/site: these pages and the C interface as a site (mkdocs, Doxygen)
	@scripts/setup --docs
	@scripts/docs

clean: ## remove every build folder
	@rm -rf build build-*

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
