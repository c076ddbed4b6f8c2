# Onefold's front door. `make demo` and `make test` work on a bare Debian 12 with git, a C++ compiler and apt.
.DEFAULT_GOAL := help
.PHONY: help setup build program demo test test-slow sanitizers asan tsan layers fuzz bench format check-format tidy install bundle clean

PRESET ?= release
BIN := build/$(PRESET)/onefold
JOBS := $(shell nproc)
# The demo trains on the King James Bible (Debian's bible-kjv), or on any text: make demo TEXT=my.txt
TEXT ?=
SOURCES = $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install the packages that building needs (Debian, apt)
	@scripts/setup.sh

build: setup  ## Build the library, the program and the tests
	@scripts/cuda.sh
	@cmake --preset $(PRESET) > build/configure-$(PRESET).log 2>&1 || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build --preset $(PRESET) -j $(JOBS)

demo: program  ## Train a small GPT on the King James Bible for about a minute, and read what it writes
	@scripts/demo.sh $(BIN) "$(TEXT)"

# Without the tests, which take longer to compile than the program.
program: setup
	@scripts/cuda.sh
	@cmake --preset $(PRESET) > build/configure-$(PRESET).log 2>&1 || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build --preset $(PRESET) -j $(JOBS) --target program

test: build  ## Run the test suite (minutes on two cores)
	@ctest --preset $(PRESET)

test-slow: build  ## Run all tests, the slow ones too
	@ctest --preset slow

# make asan LAYERS="base io.shard0" takes the tests of these folders alone, and of io every eighth.
LAYERS ?=
asan: sanitizers  ## Build and run the unit tests under the address and undefined-behaviour sanitizers (LAYERS="io data": of these)
ifeq ($(LAYERS),)
	@$(MAKE) --no-print-directory test PRESET=asan
else
	@$(MAKE) --no-print-directory layers PRESET=asan
endif

# The layers that start threads or run on several: the others have nothing for the thread sanitizer to see.
tsan: sanitizers  ## Build and run the tests of base, device, comm and engine under the thread sanitizer
	@$(MAKE) --no-print-directory layers PRESET=tsan LAYERS="$(or $(LAYERS),base device comm engine)"

empty :=
layers:
	@cmake --preset $(PRESET) > build/configure-$(PRESET).log 2>&1 || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build --preset $(PRESET) -j $(JOBS) --target $(addsuffix _tests,$(basename $(LAYERS)))
	@ctest --preset $(PRESET) -R '^($(subst $(empty) $(empty),|,$(strip $(LAYERS))))([.]|$$)'

# clang compiles code with these checks in half the time of GCC.
sanitizers:
	@scripts/setup.sh clang libclang-rt-dev

# Seconds for each target.
FUZZ_SECONDS ?= 20
fuzz:  ## Run every reader under libFuzzer, FUZZ_SECONDS=20 each
	@scripts/setup.sh clang libclang-rt-dev
	@scripts/fuzz.sh $(FUZZ_SECONDS)

bench: build  ## Measure this machine and a GPT-2 training step against its ceilings
	@$(BIN) info
	@$(BIN) bench step --model gpt2 --batch 4 --sequence 256
	@$(BIN) bench step --model gpt2 --batch 1 --sequence 1024

format:  ## Format all sources
	@clang-format -i $(SOURCES)

check-format:  ## Fail if a source is not formatted
	@clang-format --dry-run -Werror $(SOURCES)

tidy: build  ## Run clang-tidy over the library and the program
	@scripts/setup.sh clang-tidy
	@clang-tidy -quiet -p build/$(PRESET) $(filter src/%.cpp,$(SOURCES))

install: build  ## Install the program, completions, manual page and library (DESTDIR and PREFIX apply)
	@cmake --install build/$(PRESET) $(if $(PREFIX),--prefix $(PREFIX))

# In a build of its own: for every card, and without the tests.
bundle: setup  ## Pack the program, plugins and libraries into build/bundle/onefold-VERSION-linux-ARCH.tar.gz
	@scripts/cuda.sh
	@cmake --preset dist > build/configure-dist.log 2>&1 || { cat build/configure-dist.log; exit 1; }
	@cmake --build --preset dist -j $(JOBS)
	@scripts/bundle.sh build/dist build/bundle

clean:  ## Remove what was built
	@rm -rf build
