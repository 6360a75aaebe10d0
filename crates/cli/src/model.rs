//! placeholder until the processor crate reads models
