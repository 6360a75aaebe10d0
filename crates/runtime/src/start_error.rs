//! Why dedicated cores are not available.

use dimmer_host::affinity::AffinityError;
use dimmer_host::cpusets::CpusetError;
use dimmer_host::root::format_cpu_list;
use dimmer_processor::units::CpuId;

/// Why dedicated cores are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No core was named.
    #[error("no core was named to move work to")]
    NoCores,
    /// A core was named twice.
    #[error("cpu {0} is named twice")]
    Twice(CpuId),
    /// The named cores are all that the process may run on.
    #[error(
        "no core would be left for the program itself: this process may run on no others than {}",
        format_cpu_list(.0)
    )]
    NoneLeft(Vec<CpuId>),
    /// A core does not exist, is offline, or is not allowed.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The core belongs to a cpuset, and the worker cannot enter it.
    #[error("no worker gets onto the dedicated core")]
    Entrance(#[from] CpusetError),
}
