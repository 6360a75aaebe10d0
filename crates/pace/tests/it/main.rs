//! Requests of a program's threads on a made-up machine, and what is left of them when threads and
//! processes end, or are killed.
#![forbid(unsafe_code)]

mod killed;
mod machine;
mod threads;
