# Short names for the main jobs. What decides lives elsewhere: the checks in xtask/, what a machine
# needs in ci/prerequisites.sh.

CARGO_TARGET_DIR ?= $(CURDIR)/target
PREFIX ?= /usr/local
# Not every shell does it.
override PREFIX := $(patsubst ~/%,$(HOME)/%,$(PREFIX))
# Where the server's configuration goes: what belongs to a user stays with that user.
SYSCONFDIR ?= $(if $(filter / /usr /usr/local,$(abspath $(PREFIX))),/etc,$(abspath $(PREFIX))/etc)
# Where rustup puts cargo; a shell that has not read its profile since does not know it.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
export CARGO_TARGET_DIR

DIMMER := $(CARGO_TARGET_DIR)/release/dimmer
DAEMON := $(CARGO_TARGET_DIR)/release/dimmerd
PRELOAD := $(CARGO_TARGET_DIR)/release/libdimmer_preload.so
BOOST := $(CARGO_TARGET_DIR)/release/libdimmer_boost.so
COMPLETIONS := bash-completion/completions/dimmer zsh/site-functions/_dimmer fish/vendor_completions.d/dimmer.fish
REPORT := $(CURDIR)/out/report.html

# The library for C and C++: where it was built, and what its files say of it.
LIBRARIES ?= $(CARGO_TARGET_DIR)/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SHARED := libdimmer.so.$(VERSION)
# Before 1.0, each minor version may break what the last one had. So says the library itself (build.rs), and what CMake is told.
PARTS := $(subst ., ,$(VERSION))
SERIES := $(firstword $(PARTS))$(if $(filter 0,$(firstword $(PARTS))),.$(word 2,$(PARTS)))
SONAME := libdimmer.so.$(SERIES)
FACE := crates/libdimmer
# The libraries for marks between phases: the packages, and the files. The loader finds libswp.so in
# the folders of the other two.
MARKS := swp swp-migrate swp-dummy ultmigration ultmigration-dummy
MARK_FILES := $(patsubst %,lib%.so,$(subst -,_,$(MARKS)))
MARK_HEADERS := swp.h ultmigration.h
FILLED = sed -e 's|@PREFIX@|$(abspath $(PREFIX))|' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|' -e 's|@VERSION@|$(VERSION)|'
TO = $(DESTDIR)$(abspath $(PREFIX))

.PHONY: help demo evidence test test-kernel torture python build book pictures dist packages install install-dimmer install-daemon install-library uninstall
help:
	@echo "make demo     what can this machine do, and what does wide SIMD code cost on it?"
	@echo "make evidence what all commands measure here, into machines/, in 20 minutes at most"
	@echo "make test     every check of the project (cargo xtask ci)"
	@echo "make test-kernel  core specialisation in a kernel of its own, in QEMU (builds a Linux, once)"
	@echo "make python   the package for Python: builds and tests it (docs/python.md)"
	@echo "make torture  a hundred real programs with and without Dimmer, for an hour or two"
	@echo "make build    $(DIMMER)"
	@echo "make install  installs dimmer, dimmerd, and libdimmer for C and C++, below PREFIX=$(PREFIX)"
	@echo "make book     docs/ as a book, in out/book, by mdBook"
	@echo "make pictures the pictures of README.md, from probes in the repository"
	@echo "make dist     archives of a release, for glibc 2.17 and later, in out/dist"
	@echo "make packages .deb and .rpm of that, in out/packages (needs Go)"
	@echo "make uninstall  removes what that has installed"

# Builds only what it runs: neither the daemon nor the library for C.
demo:
	@./ci/prerequisites.sh
	cargo build --release --locked --package dimmer-cli --package dimmer-preload
	@mkdir -p $(dir $(REPORT))
	$(DIMMER) doctor
	$(DIMMER) probe --quick --report $(REPORT)
	@echo "The report: $(REPORT)"

# LABEL=host2 for another host of one kind, LABEL=run2 for another run on one day.
evidence: build
	@./ci/prerequisites.sh evidence
	$(DIMMER) machines record --database machines $(LABEL:%=--label %)

test:
	@./ci/prerequisites.sh checks
	cargo xtask ci

test-kernel:
	@./ci/prerequisites.sh kernel
	./ci/test-kernel.sh

torture: build
	cargo xtask torture

python:
	@./ci/prerequisites.sh python
	./ci/python.sh

build:
	@./ci/prerequisites.sh
	cargo build --release --locked --package dimmer-cli --package dimmer-preload --package dimmer-boost --package dimmer-c --package dimmer-daemon $(MARKS:%=--package dimmer-%)

# docs/ as a book in out/book.
book:
	@./ci/prerequisites.sh
	cargo build --locked --package dimmer-cli
	cargo xtask book

# A test compares them with what they are made from.
pictures:
	@./ci/prerequisites.sh
	UPDATE_EXPECT=1 cargo test --locked --package dimmer-report picture

# Archives of a release in out/dist.
dist:
	@./ci/prerequisites.sh
	./ci/dist.sh

# Packages of a release in out/packages: .deb and .rpm.
packages:
	@./ci/prerequisites.sh
	./ci/packages.sh

install: build
	@$(MAKE) --no-print-directory install-dimmer install-library install-daemon

install-dimmer:
	install -D --mode=755 $(DIMMER) $(TO)/bin/dimmer
	install -D --mode=644 $(PRELOAD) $(TO)/lib/dimmer/$(notdir $(PRELOAD))
	install -D --mode=644 $(BOOST) $(TO)/lib/dimmer/$(notdir $(BOOST))
	install -d $(TO)/share/man/man1 $(dir $(COMPLETIONS:%=$(TO)/share/%))
	umask 022; $(DIMMER) manual $(TO)/share/man/man1
	umask 022; $(DIMMER) completions bash > $(TO)/share/bash-completion/completions/dimmer
	umask 022; $(DIMMER) completions zsh > $(TO)/share/zsh/site-functions/_dimmer
	umask 022; $(DIMMER) completions fish > $(TO)/share/fish/vendor_completions.d/dimmer.fish

# The server's units and configuration; a configuration that is there already stays.
install-daemon:
	install -D --mode=755 $(DAEMON) $(TO)/bin/dimmerd
	install -D --mode=644 docs/dimmerd.md $(TO)/share/doc/dimmer/dimmerd.md
	install -d $(TO)/lib/systemd/system $(TO)/share/man/man8
	umask 022; $(DAEMON) --manual > $(TO)/share/man/man8/dimmerd.8
	umask 022; $(FILLED) crates/daemon/package/dimmerd.service.in > $(TO)/lib/systemd/system/dimmerd.service
	umask 022; $(FILLED) crates/daemon/package/dimmer-probe.service.in > $(TO)/lib/systemd/system/dimmer-probe.service
	install --mode=644 crates/daemon/package/dimmerd.socket $(TO)/lib/systemd/system/dimmerd.socket
	[ -e $(DESTDIR)$(SYSCONFDIR)/dimmer/dimmerd.toml ] || \
		install -D --mode=644 crates/daemon/package/dimmerd.toml $(DESTDIR)$(SYSCONFDIR)/dimmer/dimmerd.toml

install-library:
	install -D --mode=644 --target-directory=$(TO)/include $(FACE)/include/dimmer.h $(FACE)/include/dimmer.hpp
	install -D --mode=644 $(LIBRARIES)/libdimmer.so $(TO)/lib/$(SHARED)
	ln -sf $(SHARED) $(TO)/lib/$(SONAME)
	ln -sf $(SONAME) $(TO)/lib/libdimmer.so
	install -D --mode=644 $(LIBRARIES)/libdimmer.a $(TO)/lib/libdimmer.a
	install -d $(TO)/lib/pkgconfig
	umask 022; $(FILLED) $(FACE)/package/dimmer.pc.in > $(TO)/lib/pkgconfig/dimmer.pc
	install -D --mode=644 --target-directory=$(TO)/lib/cmake/dimmer $(FACE)/package/dimmer-config.cmake
	install -D --mode=644 --target-directory=$(TO)/include $(MARK_HEADERS:%=crates/marks/include/%)
	install -D --mode=644 --target-directory=$(TO)/lib $(MARK_FILES:%=$(LIBRARIES)/%)
	install -d $(TO)/lib/dimmer/swp-migrate $(TO)/lib/dimmer/swp-dummy
	ln -sf ../../libswp_migrate.so $(TO)/lib/dimmer/swp-migrate/libswp.so
	ln -sf ../../libswp_dummy.so $(TO)/lib/dimmer/swp-dummy/libswp.so
	umask 022; $(FILLED) $(FACE)/package/dimmer-config-version.cmake.in > $(TO)/lib/cmake/dimmer/dimmer-config-version.cmake

# What the above installs, and the directories that are Dimmer's alone; a configuration that somebody has changed stays.
uninstall:
	rm -f $(TO)/bin/dimmer $(TO)/bin/dimmerd $(TO)/lib/dimmer/$(notdir $(PRELOAD)) $(TO)/lib/dimmer/$(notdir $(BOOST))
	rm -f $(TO)/share/man/man1/dimmer.1 $(TO)/share/man/man1/dimmer-*.1 $(COMPLETIONS:%=$(TO)/share/%)
	rm -f $(TO)/include/dimmer.h $(TO)/include/dimmer.hpp
	rm -f $(TO)/lib/$(SHARED) $(TO)/lib/$(SONAME) $(TO)/lib/libdimmer.so $(TO)/lib/libdimmer.a $(TO)/lib/pkgconfig/dimmer.pc
	rm -f $(TO)/lib/cmake/dimmer/dimmer-config.cmake $(TO)/lib/cmake/dimmer/dimmer-config-version.cmake
	rm -f $(MARK_HEADERS:%=$(TO)/include/%) $(MARK_FILES:%=$(TO)/lib/%)
	rm -f $(TO)/lib/dimmer/swp-migrate/libswp.so $(TO)/lib/dimmer/swp-dummy/libswp.so
	rm -f $(TO)/lib/systemd/system/dimmerd.service $(TO)/lib/systemd/system/dimmerd.socket $(TO)/lib/systemd/system/dimmer-probe.service $(TO)/share/doc/dimmer/dimmerd.md $(TO)/share/man/man8/dimmerd.8
	! cmp -s crates/daemon/package/dimmerd.toml $(DESTDIR)$(SYSCONFDIR)/dimmer/dimmerd.toml || \
		rm -f $(DESTDIR)$(SYSCONFDIR)/dimmer/dimmerd.toml
	rmdir $(TO)/lib/dimmer/swp-migrate $(TO)/lib/dimmer/swp-dummy $(TO)/lib/dimmer $(TO)/lib/cmake/dimmer $(TO)/share/doc/dimmer $(DESTDIR)$(SYSCONFDIR)/dimmer 2>/dev/null || true
