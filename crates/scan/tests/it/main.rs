//! Tests of scanning, against the public interface: instructions one by one, made-up libraries, and
//! damaged files.

mod balance;
mod callers;
mod classes;
mod damage;
mod elf;
mod functions;
mod hooks;
mod inner;
mod leaf;
mod loader;
mod names;
mod origins;
mod wide;
