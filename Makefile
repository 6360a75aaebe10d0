# Short names for the main jobs. What decides lives elsewhere: the checks in xtask/, what a machine
# needs in ci/prerequisites.sh.

CARGO_TARGET_DIR ?= $(CURDIR)/target
PREFIX ?= /usr/local
# Where rustup puts cargo; a shell that has not read its profile since does not know it.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
export CARGO_TARGET_DIR

DIMMER := $(CARGO_TARGET_DIR)/release/dimmer
DAEMON := $(CARGO_TARGET_DIR)/release/dimmerd
PRELOAD := $(CARGO_TARGET_DIR)/release/libdimmer_preload.so
REPORT := $(CURDIR)/out/report.html

# The library for C and C++: where it was built, and what its files say of it.
LIBRARIES ?= $(CARGO_TARGET_DIR)/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SHARED := libdimmer.so.$(VERSION)
SONAME := libdimmer.so.$(firstword $(subst ., ,$(VERSION)))
FACE := crates/libdimmer
FILLED = sed -e 's|@PREFIX@|$(abspath $(PREFIX))|' -e 's|@VERSION@|$(VERSION)|'

.PHONY: help demo test build install install-dimmer install-daemon install-library
help:
	@echo "make demo     what can this machine do, and what does wide-vector code cost on it?"
	@echo "make test     every check of the project (cargo xtask ci)"
	@echo "make build    $(DIMMER)"
	@echo "make install  installs dimmer, dimmerd, and libdimmer for C and C++, below PREFIX=$(PREFIX)"

demo: build
	@mkdir -p $(dir $(REPORT))
	$(DIMMER) doctor
	$(DIMMER) probe --quick --report $(REPORT)
	@echo "The report: $(REPORT)"

test:
	@./ci/prerequisites.sh checks
	cargo xtask ci

build:
	@./ci/prerequisites.sh
	cargo build --release --locked --package dimmer-cli --package dimmer-preload --package dimmer-c --package dimmer-daemon

install: build
	@$(MAKE) --no-print-directory install-dimmer install-daemon install-library

install-dimmer:
	install -D --mode=755 $(DIMMER) $(DESTDIR)$(PREFIX)/bin/dimmer
	install -D --mode=644 $(PRELOAD) $(DESTDIR)$(PREFIX)/lib/dimmer/$(notdir $(PRELOAD))

# The server's units and configuration; a configuration that is there already stays.
install-daemon:
	install -D --mode=755 $(DAEMON) $(DESTDIR)$(PREFIX)/bin/dimmerd
	install -D --mode=644 docs/dimmerd.md $(DESTDIR)$(PREFIX)/share/doc/dimmer/dimmerd.md
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	$(FILLED) crates/daemon/package/dimmerd.service.in > $(DESTDIR)$(PREFIX)/lib/systemd/system/dimmerd.service
	install --mode=644 crates/daemon/package/dimmerd.socket $(DESTDIR)$(PREFIX)/lib/systemd/system/dimmerd.socket
	[ -e $(DESTDIR)/etc/dimmer/dimmerd.toml ] || install -D --mode=644 crates/daemon/package/dimmerd.toml $(DESTDIR)/etc/dimmer/dimmerd.toml

install-library:
	install -D --mode=644 --target-directory=$(DESTDIR)$(PREFIX)/include $(FACE)/include/dimmer.h $(FACE)/include/dimmer.hpp
	install -D --mode=755 $(LIBRARIES)/libdimmer.so $(DESTDIR)$(PREFIX)/lib/$(SHARED)
	ln -sf $(SHARED) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libdimmer.so
	install -D --mode=644 $(LIBRARIES)/libdimmer.a $(DESTDIR)$(PREFIX)/lib/libdimmer.a
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	$(FILLED) $(FACE)/package/dimmer.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/dimmer.pc
	install -D --mode=644 --target-directory=$(DESTDIR)$(PREFIX)/lib/cmake/dimmer $(FACE)/package/dimmer-config.cmake
	$(FILLED) $(FACE)/package/dimmer-config-version.cmake.in > $(DESTDIR)$(PREFIX)/lib/cmake/dimmer/dimmer-config-version.cmake
