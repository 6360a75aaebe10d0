#!/bin/sh
# Models of the protocols between threads (crates/runtime): sleeping and waking, delegated work,
# work that is taken back, slots, and phases that one thread at a time carries on; and answers to a
# group of clients (crates/locks). Each model runs in every order of its steps with up to three
# pre-emptions.
set -eu
cd "$(dirname "$0")/.."
RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_TARGET_DIR=target/loom \
    cargo test --locked --quiet --package dimmer-runtime --package dimmer-locks --lib loom_
