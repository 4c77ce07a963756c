# gradwire: `make demo` and `make test` are all a newcomer needs; both create .venv on their own.
# Stamp files inside .venv remember what is installed, so a second run goes straight to work.
#
#   make demo                      replay the bundled trace under three policies (no torch, no compiler, no root)
#   make test                      lint, types and tests, in minutes (installs torch and the test tools first)
#   make test-full                 the tests that `make test` leaves out: slow ones, more random cases, the wall clock
#   make test-ray                  tests of sweeps on a Ray cluster (installs Ray, 230 MB, for them)
#   make quick                     lint, types, and the unit tests that take no kernel and no patience
#   make docs                      the docs site, in site/
#   make lint | make bench | make clean
#   make release-check             build, check and install what a release uploads; docs in CONTRIBUTING.md
#   make image                     the container image gradwire:VERSION, with podman, docker or buildah
#
# Real sockets (docs/testbed.md), on Debian or Ubuntu:
#   make packages                  what the testbed needs of the system (asks for sudo unless run as root)
#   make packages-tests            what only tests need of the system: a program of ssh's, of which no service is started
#   make uml                       the kernel for virtual time, built once and kept outside of this directory
#   make demo-emu                  kernel TCP and DLCP through a real switch (asks for sudo)
#
# PYTHONS="/a/python3.12 /b/python3.13" make release-check   also installs for these, besides those on PATH
# PYTHON=/path/to/python3.12 make demo   picks the interpreter for a new .venv
# TORCH_INDEX=URL make test            takes torch from another package index, such as the one with CPU-only builds

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := torch==2.13.0
TORCH_INDEX ?=
# The first interpreter on PATH that is new enough; empty if there is none.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

VERSION = $(shell sed -n 's/^VERSION = "\(.*\)"$$/\1/p' scenarios/version.py)
BUILDER ?= $(firstword $(foreach b,podman docker buildah,$(shell command -v $(b))))

BASE_STAMP := $(VENV)/.installed-base
TEST_STAMP := $(VENV)/.installed-test

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends
TEST_PACKAGES := openssh-client openssh-server
# While a package is installed: Debian asks this program whether its services may be started (101: no).
POLICY := /usr/sbin/policy-rc.d
PACKAGES := iproute2 nftables clang libbpf-dev ethtool kmod iputils-ping tcpdump util-linux
# A tarball of the source of Linux 6.1 or 6.12, where there is no such package.
SOURCE ?=
UML_SOURCE := $(if $(SOURCE),--source $(SOURCE))
UML_PACKAGES := gcc make flex bison bc xz-utils bzip2
# The kernel's source as the distribution has it: Debian 12, Debian 13, Ubuntu.
KERNEL_SOURCES := linux-source-6.1 linux-source-6.12 linux-source

.PHONY: demo demo-emu docs test test-full test-ray quick lint bench clean packages packages-tests uml release-check image

demo: $(BASE_STAMP)
	$(BIN)/gradwire demo

demo-emu: $(BASE_STAMP)
	$(SUDO) $(BIN)/gradwire emulate testbed-wall --all

packages:
	$(SUDO) apt-get -q update
	$(SUDO) env $(APT) install $(PACKAGES)

packages-tests:
	@[ -x /usr/sbin/sshd ] || { \
		made=; [ -e $(POLICY) ] || { printf '#!/bin/sh\nexit 101\n' | $(SUDO) install -m 755 /dev/stdin $(POLICY); made=yes; }; \
		$(SUDO) apt-get -q update; $(SUDO) env $(APT) install $(TEST_PACKAGES); failed=$$?; \
		[ -z "$$made" ] || $(SUDO) rm -f $(POLICY); exit $$failed; }

# Nothing is installed where everything is there; nothing is built where a kernel of this recipe is kept already.
uml: $(BASE_STAMP)
	@$(BIN)/python -m gradwire.emu.virtual_time.kernel_build $(UML_SOURCE) --check || { \
		$(SUDO) apt-get -q update && $(SUDO) env $(APT) install $(UML_PACKAGES) $(if $(SOURCE),,$$(for p in $(KERNEL_SOURCES); \
			do apt-cache show $$p >/dev/null 2>&1 && { echo $$p; break; }; done)); }
	$(BIN)/python -m gradwire.emu.virtual_time.kernel_build $(UML_SOURCE)

# Tests that measure time on the wall clock run by themselves: beside others they would measure those. What fails there
# is run once more, because a machine with other work to do can disturb any of them. Workers take tests from each other
# when they have none left (worksteal), and share compiled engines through the cache. Three of them keep two processors
# busy: some tests wait, for time limits or for what another one compiles.
# Beside mypy, on the other processor, pytest reads all tests once: in a fresh checkout it rewrites each of them, 15 s of
# work that every worker would do for itself. What is wrong with them the workers say.
# Tests start hundreds of processes, some in virtual machines: what Python has compiled once it need not compile in each,
# whatever the shell says about that.
test test-full quick: export PYTHONDONTWRITEBYTECODE :=
test: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --collect-only -q -p no:cacheprovider -m 'not wall' >/dev/null 2>&1 & $(BIN)/mypy; typed=$$?; wait; exit $$typed
	$(BIN)/python -m pytest -n 3 --dist worksteal --hypothesis-profile quick --durations 10 --durations-min 5 -m 'not wall and not slow'

test-full: $(TEST_STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations 30 --durations-min 10 -m '(slow or property) and not wall'
	$(BIN)/python -m pytest --durations 15 --durations-min 5 -m wall || { \
		echo "SECOND TRY of the tests on the wall clock that have just failed: their first try stands above." >&2; \
		$(BIN)/python -m pytest -m wall --last-failed --last-failed-no-failures none; }

# While you write: lint, types, and the unit tests that are neither slow nor need kernels and sockets.
quick: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not wall and not slow' tests/unit --ignore tests/unit/emu --ignore tests/unit/benchmarks

# Two nodes on this machine, of which one is killed or knows nothing. Apart from the others: Ray wants 230 MB and minutes.
test-ray: $(TEST_STAMP)
	$(PIP) install --quiet --editable '.[ray]'
	$(BIN)/python -m pytest -rs tests/end_to_end/test_sweep_ray.py

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(BASE_STAMP)
	$(PIP) install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

bench: $(BASE_STAMP)
	$(BIN)/gradwire bench fabric

# What is checked lies in dist/ afterwards, if every check succeeds.
release-check: $(TEST_STAMP)
	$(BIN)/python -m tests.release_check $(foreach p,$(PYTHONS),--python $(p))

# Its labels name the repository if setup.py knows the address.
image:
	@[ -n "$(BUILDER)" ] || { echo "make image needs podman, docker or buildah on the PATH." >&2; exit 2; }
	$(BUILDER) build -f Containerfile -t gradwire:$(VERSION) --build-arg VERSION=$(VERSION) \
		--build-arg REPOSITORY=$(shell $(PYTHON) -c "import runpy; print(runpy.run_path('setup.py')['REPOSITORY'])") .

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "gradwire needs Python 3.11 or newer; the python3 on your PATH is" \
			"$$(python3 --version 2>/dev/null || echo missing)." >&2; \
		echo "On Debian or Ubuntu: sudo apt install python3 python3-venv, or name one:" \
			"make demo PYTHON=/path/to/python3.12" >&2; \
		exit 2; \
	fi
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "gradwire needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; exit 2; \
	fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
		echo "$(PYTHON) cannot create virtual environments; on Debian or Ubuntu:" \
			"sudo apt install python3-venv" >&2; \
		exit 2; \
	fi
	"$(PYTHON)" -m venv $(VENV)

$(BASE_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable .
	@touch $@

# torch goes first and alone: it is by far the largest download, and it is where a CPU-only index applies.
$(TEST_STAMP): $(BASE_STAMP)
	$(PIP) install --quiet $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@
