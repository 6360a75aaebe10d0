# Short names for the main jobs. What decides lives elsewhere: the checks in xtask/, what a machine
# needs in ci/prerequisites.sh.

CARGO_TARGET_DIR ?= $(CURDIR)/target
PREFIX ?= /usr/local
# Where rustup puts cargo; a shell that has not read its profile since does not know it.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
export CARGO_TARGET_DIR

DIMMER := $(CARGO_TARGET_DIR)/release/dimmer
PRELOAD := $(CARGO_TARGET_DIR)/release/libdimmer_preload.so
REPORT := $(CURDIR)/out/report.html

.PHONY: help demo test build install
help:
	@echo "make demo     what can this machine do, and what does wide-vector code cost on it?"
	@echo "make test     every check of the project (cargo xtask ci)"
	@echo "make build    $(DIMMER)"
	@echo "make install  installs dimmer below PREFIX=$(PREFIX)"

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
	cargo build --release --locked --package dimmer-cli --package dimmer-preload

install: build
	install -D --mode=755 $(DIMMER) $(DESTDIR)$(PREFIX)/bin/dimmer
	install -D --mode=644 $(PRELOAD) $(DESTDIR)$(PREFIX)/lib/dimmer/$(notdir $(PRELOAD))
