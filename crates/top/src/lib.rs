//! What `dimmer top` shows of the policy server: its state as a live screen, or as text.
//!
//! The caller brings the server's states. This crate opens no file, connects to nothing and decides
//! nothing.
//!
//! | module | what |
//! |---|---|
//! | [`view`] | what the screen shows, and what keys change of it |
//! | [`screen`] | draws a view |
//! | [`live`] | draws views on the terminal until a key ends it |
//! | [`rows`] | the state as rows, one for each marked region |
//! | [`plain`] | the state and its rows as text |
#![forbid(unsafe_code)]

mod history;
pub mod live;
pub mod plain;
pub mod rows;
pub mod screen;
#[cfg(test)]
mod tests;
pub mod view;
mod words;
