#!/bin/sh
# Models of how threads sleep and are woken (crates/runtime), in every order of their steps with up to three pre-emptions.
set -eu
cd "$(dirname "$0")/.."
RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_TARGET_DIR=target/loom \
    cargo test --locked --quiet --package dimmer-runtime --lib loom_
