# make demo   build, record examples/shop.py, print the trace
# make test   lint, types and the suite on one Python, in minutes
# make ci     everything: also the oldest and newest Python, every judge, long tests, a minute of the soak, fresh
# make coverage  the whole suite again, with branch coverage; before a release
# make soak   attack a daemon by machine: SECONDS=600, SOAK='--only chaos --seed X'
# make debug  the compiled modules for gdb, in place; EXT=module,module: only those. `make build` goes back
# make docs   the documentation as a site, in build/docs, with every link checked
# make screenshots  the pictures of the documentation
# make wheels  a source distribution and a wheel for every Python of this machine, in dist/, each tried
# make deb     packages for Debian, in build/deb, tried in a Debian of their own; needs root and the network
# make bench  the figures of docs/performance.md, as ratios in one run; NAMES='loops core': only those
# make fresh  README on machines that have nothing, made by debootstrap; STEPS='demo python': only those
#
# Everything is installed into .venv in this folder. Debian packages are installed only where they are
# missing and the user is root; otherwise one line names the package. Works offline after the first time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait more than they work.
WORKERS ?= $(shell expr 2 \* $$(nproc))
SOURCES := $(shell find protocol client daemon -path client/utracefs/c -prune -o -path 'client/c/build*' -prune -o \
	\( -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -name '*.hpp' -o -path 'client/c/*' -type f \) -print 2>/dev/null)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what it imports; to compile all that is installed takes as long as to install it.
export PIP_COMPILE := 0
# Without cached bytecode pytest rewrites 550 modules in each worker, for 15 s, and each daemon compiles ours.
unexport PYTHONDONTWRITEBYTECODE

# $(call need,TEST THAT SUCCEEDS WHERE IT IS THERE,DEBIAN PACKAGE)
need = @$(1) >/dev/null 2>&1 || { \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing the Debian package $(2)"; \
		{ apt-get install -y -q $(2) || { apt-get update -q && apt-get install -y -q $(2); }; } >/dev/null 2>&1; \
	fi; \
	$(1) >/dev/null 2>&1 || { echo "utracefs: please install the Debian package $(2): apt install $(2)" >&2; exit 1; }; }

.PHONY: all build debug demo test ci lint check coverage assertions others fresh soak simulate bench bpftrace-versions sanitize docs reference screenshots wheels deb clean tools test-tools ci-tools

all: build

tools:
	$(call need,$(PYTHON) -c 'import sys; assert sys.version_info >= (3$(comma) 11)',python3)
	$(call need,$(PYTHON) -c 'import venv$(comma) ensurepip',python3-venv)
	$(call need,command -v gcc,gcc)
	$(call need,$(PYTHON) -c 'import os$(comma) sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")',python3-dev)

comma := ,

# The table is in tests/judges.py; those of ci are large.
test-tools ci-tools: tools $(VENV)/.developer
	@$(BIN)/python -m tests.judges $(@:-tools=)

# ensurepip needs 4 s, most of it to compile pip; Debian's Python may have no pip.
BUILDERS := pip 'setuptools>=77' 'Cython>=3.1'
$(VENV)/.builder: | tools
	@echo "utracefs: making $(VENV)"
	@test -x $(BIN)/python || { find protocol client daemon -name '*.cpython-*.so' -delete; $(PYTHON) -m venv --without-pip $(VENV); }
	@$(PYTHON) -m pip --python $(BIN)/python install -qq $(BUILDERS) 2>/dev/null || \
		{ $(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m pip install -qq $(BUILDERS); }
	@touch $@

# A file that was moved keeps its time.
$(VENV)/.modules: $(VENV)/.builder FORCE
	@printf '%s\n' $(sort $(filter %.pyx,$(SOURCES))) | cmp -s - $@ || printf '%s\n' $(sort $(filter %.pyx,$(SOURCES))) >$@

FORCE:

$(VENV)/.built: $(VENV)/.builder $(VENV)/.modules setup.py stubs.py $(SOURCES)
	@echo "utracefs: compiling on all processors; the first time takes about a minute"
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# What is compiled already is not compiled again.
$(VENV)/.installed: pyproject.toml setup.py | $(VENV)/.built
	@echo "utracefs: installing utracefs and what it needs into $(VENV)"
	@$(BIN)/python -m pip install -qq --no-build-isolation -e '.[daemon]'
	@touch $@

$(VENV)/.developer: pyproject.toml | $(VENV)/.installed
	@echo "utracefs: installing the tools of developers into $(VENV)"
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --group dev
	@touch $@

$(VENV)/.judges: pyproject.toml | $(VENV)/.developer
	@echo "utracefs: installing pandas, polars, duckdb and other judges into $(VENV)"
	@$(BIN)/python -m pip install -qq --group judges
	@touch $@

build: $(VENV)/.built $(VENV)/.installed

# Afterwards any other target builds again what this has built.
debug:
	@test -e $(VENV)/.installed || $(MAKE) build
	@rm -f $(VENV)/.built
	DEBUG=1 $(BIN)/python setup.py -q build_ext --inplace

demo: build
	@rm -f trace.dat
	$(BIN)/utracefs record -e 'user_events:*' -o trace.dat -- $(BIN)/python examples/shop.py
	$(BIN)/utracefs report trace.dat | awk 'NR <= 30; END { print "  ...\n" NR " lines in all" }'
	@echo "trace-cmd:   trace-cmd report trace.dat | less          (Debian package trace-cmd)"
	@echo "KernelShark: kernelshark trace.dat                      (Debian package kernelshark)"

lint: build $(VENV)/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python tests/test_sources.py

# Without long tests, and without those whose judge is missing; the last line names them. ONLY=FILES: these.
ONLY :=
check: build $(VENV)/.developer test-tools
	$(BIN)/python -m pytest -q -n $(WORKERS) $(ONLY)

# The whole suite, which takes twice as long with it.
coverage: build $(VENV)/.judges ci-tools
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q --ci -n $(WORKERS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# Assertions that no run reaches: coverage of the tests' own lines.
assertions: build $(VENV)/.judges ci-tools
	rm -f build/assertions*
	-$(BIN)/coverage run --data-file=build/assertions --include='*/tests/*' -m pytest -q --ci -n $(WORKERS)
	$(BIN)/coverage combine -q --data-file=build/assertions build/assertions.*
	$(BIN)/python -m tests.assertions build/assertions

# What depends on the Python, on the oldest and the newest that this machine has beside .venv's (noxfile.py).
others: build $(VENV)/.developer
	$(BIN)/nox -- -n $(WORKERS)

# Ten minutes, or SECONDS=; SOAK= for options of `python -m tests.soak --help`. What is found prints its seed.
# Then the tests that take minutes, unless it is short.
SECONDS := 600
SOAK :=
soak: build $(VENV)/.developer
	$(BIN)/python -m tests.soak --seconds $(SECONDS) $(SOAK)
	@test $(SECONDS) -lt 600 || $(BIN)/python -m pytest -q -n $(WORKERS) -m soak

# For SECONDS=, from SEED= on: docs/testing.md. A failure is printed as a list of steps to keep.
SEED := 1
simulate: build $(VENV)/.developer
	$(BIN)/python -m tests.simulation.simulate --seconds $(SECONDS) --seed $(SEED)

test: lint check

# A seed of its own, since whether a change passes must not be left to chance. A fresh machine runs the tests that
# may lack something there: those of judges. It takes the wheel that is built here; -O0 compiles in half the time.
ci:
	$(MAKE) -j2 lint $(VENV)/.judges ci-tools
	$(BIN)/python -m pytest -q --ci -n $(WORKERS)
	$(MAKE) others
	$(MAKE) soak SECONDS=60 SOAK='--seed test'
	QUICK=1 $(BIN)/python wheels.py build/wheels $$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	QUICK=1 WHEELS=build/wheels $(MAKE) fresh STEPS='demo check python user'

# Root and debootstrap; else one line says what is missing.
fresh:
	@test "$$(id -u)" != 0 || command -v debootstrap >/dev/null || apt-get install -y -q debootstrap >/dev/null 2>&1 || true
	@tests/fresh-machine $(STEPS)

# Root, debootstrap, and the network for the first time; the transcript of the last run is in docs.
bpftrace-versions: build $(VENV)/.developer
	$(BIN)/python -m tests.integration.bpf.versions $(SUITES)

bench: build $(VENV)/.developer
	$(BIN)/python -m bench $(NAMES)

# The compiled core under AddressSanitizer and UndefinedBehaviorSanitizer, in a tree of its own: what runs in .venv
# stays as it is. Python itself leaks by design at exit, so leaks are not looked for. Left out: what
# systemd-socket-activate starts, because that passes no LD_PRELOAD on, and how much memory is in use, because
# what is freed is kept there for a while.
SANITIZED := build/sanitize
SANITIZE_TESTS ?= tests/protocol tests/daemon tests/client/producer/test_event.py tests/client/producer/test_emit.py \
	tests/client/programs/test_data_ring.py tests/client/recordings tests/client/export \
	tests/client/html/test_columns.py tests/client/mount/processes/test_memory.py
sanitize: build $(VENV)/.judges
	SANITIZE=1 $(BIN)/python setup.py -q build --force --build-lib $(SANITIZED) --build-temp build/sanitize-temp
	env PYTHONPATH=$(CURDIR)/$(SANITIZED) PYTHONMALLOC=malloc LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		$(BIN)/python -m pytest -q -p no:cacheprovider -o timeout=600 $(SANITIZE_TESTS) \
		--deselect tests/daemon/test_main.py::test_socket_activation \
		--deselect tests/client/export/tables/test_parquet.py::test_memory_does_not_grow_with_the_recording \
		--deselect tests/client/recordings/test_recording.py::test_memory_does_not_grow_with_the_file

wheels: build $(VENV)/.developer
	$(BIN)/python -m pip install -qq --group wheels
	$(BIN)/python wheels.py

# The system's Python and compiler, so that no other version of a library is found.
deb: build
	$(call need,dpkg-buildpackage --version,dpkg-dev)
	$(call need,dh --help,debhelper)
	$(call need,test -e /usr/share/dh-python/dhpython/build/plugin_pyproject.py,pybuild-plugin-pyproject)
	$(call need,test -e /usr/share/doc/python3-all-dev,python3-all-dev)
	$(call need,help2man --version,help2man)
	$(call need,lintian --version,lintian)
	$(call need,debootstrap --version,debootstrap)
	$(call need,systemd-nspawn --version,systemd-container)
	$(call need,/usr/bin/python3 -c 'import attr$(comma) click$(comma) msgpack$(comma) prometheus_client$(comma) rich$(comma) trio',python3-attr python3-click python3-msgpack python3-prometheus-client python3-rich python3-trio)
	debian/source-package
	cd build/deb/utracefs-* && env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEB_BUILD_OPTIONS=noautodbgsym \
		dpkg-buildpackage -b -us -uc >../build.log 2>&1 || { tail -n 30 ../build.log; exit 1; }
	env PATH=/usr/sbin:/usr/bin:/sbin:/bin debian/try-packages

$(VENV)/.docs: pyproject.toml | $(VENV)/.developer
	@$(BIN)/python -m pip install -qq --group docs
	@touch $@

# Warnings are errors: also a link or anchor that leads nowhere, and a page that README.md does not list.
docs: build $(VENV)/.docs
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/sphinx . build/docs
	@echo "file://$(CURDIR)/build/docs/index.html"

# docs/command-line.md and docs/python-api.md, which are made of the sources and committed.
reference: build
	$(BIN)/python docs/sphinx/reference.py

# The pictures in docs/images.
screenshots: build $(VENV)/.developer ci-tools
	$(BIN)/python -m tests.screenshots

clean:
	rm -rf $(VENV) .nox build dist *.egg-info trace.dat client/c/build* client/utracefs/c
	find protocol client/utracefs daemon -name '*.so' -delete -o -name '_*.c' -delete -o -name '_*.pyi' -delete
