//! Mechanisms against wide SIMD code, compared on workloads and processors in the simulator.
//!
//! [`Plan`](matrix::Plan) runs each [`Mechanism`] on each scenario on each
//! model with several seeds, and keeps the results between studies ([`cache::Cache`]). [`ranking`]
//! has how much each gains, and which are better than others. What a mechanism does is `sim`'s and
//! `policy`'s.
#![forbid(unsafe_code)]

pub mod auto;
pub mod builtin;
pub mod cache;
pub mod fit;
pub mod matrix;
mod mechanism;
pub mod ranking;
mod repeat;
pub mod run;
pub mod sensitivity;
pub mod work;

pub use mechanism::{Mechanism, Way};
pub use repeat::repeat;
