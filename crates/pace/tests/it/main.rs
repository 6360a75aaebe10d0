//! Requests of a program's threads on a made-up machine, and what is left of them when threads and
//! processes end, or are killed.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]
#![forbid(unsafe_code)]

mod choice;
mod fast_core;
mod follow;
mod killed;
mod machine;
mod neighbour;
mod threads;
