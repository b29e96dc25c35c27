# Everyday commands on a bare Debian 12 or Ubuntu 24.04; each installs what it lacks (scripts/packages.txt).
# The build itself is CMake's: CMakePresets.json.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CMAKE_BUILD = cmake --build --preset

.PHONY: help
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1|/' | while IFS='|' read -r name text; do \
	  printf '  make %-8s %s\n' "$$name" "$$text"; done

.PHONY: build
build:  ## build/release/sluice, optimised
	@scripts/setup.sh build
	@cmake --preset release >/dev/null
	@$(CMAKE_BUILD) release

.PHONY: demo
demo: build  ## fine-tune a real model and score it before and after, in under 8 minutes after the build
	@scripts/demo.sh

.PHONY: test
test:  ## build and run all tests
	@scripts/setup.sh build test
	@cmake --preset cpu >/dev/null
	@$(CMAKE_BUILD) cpu
	@ctest --preset cpu

.PHONY: fast
fast:  ## build and run the tests that take under a minute
	@scripts/setup.sh build test
	@cmake --preset cpu >/dev/null
	@$(CMAKE_BUILD) cpu
	@ctest --preset cpu -L fast

.PHONY: bench
bench:  ## a training step beside PyTorch + PEFT, and decoding beside llama.cpp (about an hour)
	@scripts/setup.sh build bench
	@bench/train_step.sh

.PHONY: format
format:  ## lay out the sources with clang-format
	@scripts/setup.sh format
	@scripts/format.sh

.PHONY: tidy
tidy:  ## run clang-tidy over the sources
	@scripts/setup.sh build test tidy
	@cmake --preset cpu >/dev/null
	@scripts/tidy.sh

.PHONY: install
install: build  ## install the program and the library to PREFIX (/usr/local)
	@cmake --install build/release --prefix $(or $(PREFIX),/usr/local)

.PHONY: clean
clean:  ## remove what was built
	@rm -rf build
