//! What kind of machine it is.

use crate::{Costs, Governor, Offload};

/// What kind of machine it is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Cores; at least one.
    pub cores: u32,
    /// Hardware threads of a core; at least one.
    pub threads_per_core: u32,
    /// What each of several busy hardware threads has of its core's throughput; from 0 to 1.
    pub smt_share: f64,
    /// Whether idle cores go to the model's idle states, from which waking up takes its time: to
    /// the deepest that pays for as long as the core turns out to be idle, which a kernel can only
    /// guess.
    pub idle_states: bool,
    /// Who decides about levels.
    pub governor: Governor,
    /// What that costs.
    pub costs: Costs,
    /// The P-state that all cores ask for at the begin, by its name; none: the fastest there is.
    pub pstate: Option<String>,
    /// How marked regions are moved; none: they stay.
    pub offload: Option<Offload>,
    /// Of its chance.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cores: 1,
            threads_per_core: 1,
            smt_share: 1.0,
            idle_states: false,
            governor: Governor::Hardware,
            costs: Costs::default(),
            pstate: None,
            offload: None,
            seed: 1,
        }
    }
}
