//! Settings of a machine.

use super::phases::Phases;
use super::specialised::Specialise;
use crate::{Costs, Governor, RegionMoves, Scheduling};

/// Settings of a machine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Cores; at least one.
    pub cores: u32,
    /// Hardware threads of a core; at least one.
    pub threads_per_core: u32,
    /// The share of its core's throughput that each of several busy hardware threads gets; from 0
    /// to 1.
    pub smt_share: f64,
    /// Whether idle cores enter the model's idle states, which take time to wake up from. A core
    /// enters the deepest state that pays for the time for which it turns out to be idle; a kernel
    /// can only guess that time.
    pub idle_states: bool,
    /// What decides which thread runs where.
    pub scheduler: Scheduling,
    /// What decides about levels.
    pub governor: Governor,
    /// The costs of the governor.
    pub costs: Costs,
    /// The P-state that all cores request at the start, by its name; `None`: the fastest one.
    pub pstate: Option<String>,
    /// The P-state that each core requests at the start, by its name; empty: all of them `pstate`.
    pub core_pstates: Vec<String>,
    /// Cores that wait by MWAIT while they have nothing to run.
    pub mwait_cores: Vec<usize>,
    /// How marked regions are moved; `None`: they stay.
    pub region_moves: Option<RegionMoves>,
    /// How threads are moved to cores for what they execute; `None`: they are not. Otherwise, the
    /// scheduler is [`Scheduling::MuQss`].
    pub specialise: Option<Specialise>,
    /// Whether threads that have executed code with 512-bit registers share a core with their like
    /// alone. If so, the scheduler is [`Scheduling::MuQss`].
    pub core_scheduling: bool,
    /// How threads migrate at marks; `None`: they do not.
    pub phases: Option<Phases>,
    /// Whether what is in force of all this changes while the machine runs
    /// ([`Machine::change_to`](super::Machine::change_to)). If so, none of it is at the start.
    pub changes_mode: bool,
    /// The seed of the machine's random numbers.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cores: 1,
            threads_per_core: 1,
            smt_share: 1.0,
            idle_states: false,
            scheduler: Scheduling::default(),
            governor: Governor::Hardware,
            costs: Costs::default(),
            pstate: None,
            core_pstates: Vec::new(),
            mwait_cores: Vec::new(),
            region_moves: None,
            specialise: None,
            core_scheduling: false,
            phases: None,
            changes_mode: false,
            seed: 1,
        }
    }
}
