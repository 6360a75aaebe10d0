//! Why a program is not launched, or not as it was asked.

use std::io;
use std::path::PathBuf;

use dimmer_host::affinity::AffinityError;
use dimmer_host::bounded_file::BoundedFileError;
use dimmer_host::exclusion::ExclusionError;
use dimmer_host::journal::JournalError;
use dimmer_host::models::ModelFileError;
use dimmer_host::program::ProgramError;
use dimmer_host::root::{RootError, format_cpu_list};
use dimmer_host::unavailable::Unavailable;
use dimmer_narrow::NarrowError;
use dimmer_observe::NoPlace;
use dimmer_policy::break_even::Lacks;
use dimmer_policy::dedicated::CannotDedicate;
use dimmer_processor::model::Missing;
use dimmer_processor::units::CpuId;

use crate::program::NoPreload;
use crate::trips::TripError;

/// Why a program is not launched, or not as it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command is empty.
    #[error("no program to run")]
    NoCommand,
    /// There is no such program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program, or its interpreter, cannot be read.
    #[error("cannot read {}: {why}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The kernel executes no such file.
    #[error("{}: not an ELF file, nor a script", file.display())]
    Unknown {
        /// The file.
        file: PathBuf,
    },
    /// Too many scripts are interpreters of each other.
    #[error(
        "{} is a script whose interpreter is a script, and so on: the kernel gives up there",
        file.display()
    )]
    Scripts {
        /// The first script.
        file: PathBuf,
    },
    /// The kernel does not execute the program.
    #[error("cannot run {}: {why}", file.display())]
    CannotRun {
        /// The program.
        file: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The program takes no library to preload.
    #[error(transparent)]
    NoPreload(#[from] NoPreload),
    /// The library to preload is not installed.
    #[error(
        "{library} is not beside {}, nor in ../lib/dimmer; `make build` makes both",
        beside.display()
    )]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// This process's own file.
        beside: PathBuf,
    },
    /// The loader would take the path of the library to preload for several paths.
    #[error(
        "{} has a space or colon in its path, at which the loader splits LD_PRELOAD: install \
         Dimmer in a directory without them",
        file.display()
    )]
    LibraryPath {
        /// The library.
        file: PathBuf,
    },
    /// The library that lies within this program cannot be written anywhere.
    #[error(
        "cannot unpack {library}: neither $XDG_CACHE_HOME or ~/.cache, nor $XDG_RUNTIME_DIR, nor \
         $TMPDIR takes it, where others must not write, and the path must have no space or colon"
    )]
    Unpack {
        /// The library.
        library: &'static str,
        /// The last place's error.
        #[source]
        error: io::Error,
    },
    /// This process's own file is not known.
    #[error("cannot find this program's own file")]
    OwnFile(#[source] io::Error),
    /// Signals cannot be passed on to the program.
    #[error("cannot prepare for signals")]
    Signals(#[source] io::Error),
    /// An interruption by the user cannot be noticed.
    #[error("cannot prepare for interruption")]
    Interrupt(#[source] io::Error),
    /// The program's end cannot be waited for.
    #[error("cannot wait for the program")]
    Wait(#[source] io::Error),
    /// No function has that name.
    #[error("no function `{name}` in {} or the libraries that it needs; {}", program.display(), hint(nearest))]
    NoFunction {
        /// The name.
        name: String,
        /// The program.
        program: PathBuf,
        /// The names that are most similar, the best first.
        nearest: Vec<String>,
    },
    /// Several functions have that short name.
    #[error("`{name}` is the name of several functions: expected one of {}", first(functions))]
    Ambiguous {
        /// The name.
        name: String,
        /// The symbols of the functions, and their whole names.
        functions: Vec<String>,
    },
    /// A function cannot be hooked.
    #[error("cannot hook {what}: {why}")]
    CannotHook {
        /// The function, and its file.
        what: String,
        /// The reason.
        why: String,
    },
    /// A function's name is no name of a mark.
    #[error("{0}")]
    NoMark(String),
    /// No function can be chosen as a mark.
    #[error(
        "no function of {} or the libraries that it needs can be chosen: they have no name, cannot \
         be hooked, or are in a file with an allocator of its own; --marks NAME,... names functions, \
         as LIBRARY:0xADDRESS without a symbol",
        program.display()
    )]
    NoCandidate {
        /// The program.
        program: PathBuf,
    },
    /// No file has that name.
    #[error(
        "`{library}` is neither a file nor loaded from the start; loaded are {}",
        quoted(loaded)
    )]
    NoFile {
        /// The name.
        library: String,
        /// The names of the files that the program loads.
        loaded: Vec<String>,
    },
    /// No function has an entry there.
    #[error("{address:#x} is no entry of a function in {}; the nearest are {}", file.display(), nearest.join(", "))]
    NoEntry {
        /// The address.
        address: u64,
        /// The file.
        file: PathBuf,
        /// The addresses and names of the nearest functions.
        nearest: Vec<String>,
    },
    /// There is no place for what to hook.
    #[error("cannot make a directory for plans")]
    PlanPlace(#[source] NoPlace),
    /// What to hook cannot be written.
    #[error("cannot write what to hook")]
    Plan(#[source] io::Error),
    /// The functions are named, and a model was to choose them.
    #[error("--model chooses functions: named functions need none")]
    NeedlessModel,
    /// No model chooses functions.
    #[error(
        "no processor model says what wide SIMD code costs here: `dimmer probe` makes one; or \
         name the functions, as in --migrate=FN or --specialise=FN"
    )]
    NoModel,
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelFileError),
    /// The model does not say what calls cost.
    #[error(transparent)]
    Cost(#[from] Missing),
    /// The model does not say what a faster clock costs.
    #[error(transparent)]
    Boosts(#[from] Lacks),
    /// There is no place for what is observed of locks.
    #[error("cannot observe locks")]
    LockPlace(#[source] NoPlace),
    /// Locks are observed under no other mechanism.
    #[error("--boost goes without other mechanisms: expected it without --{other}")]
    BoostsAlone {
        /// The other mechanism.
        other: &'static str,
    },
    /// A section is not written as one.
    #[error(
        "`{section}` is no section: expected FUNCTION, or FIRST..LAST with two functions; \
         LIBRARY:0xADDRESS for one with `..` in its name"
    )]
    NoSection {
        /// The user's words.
        section: String,
    },
    /// There are too many sections.
    #[error("{found} sections: expected at most {most}")]
    TooManySections {
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A function of a section cannot be hooked.
    #[error(
        "--section {section}: {why}; looked at {}. LIBRARY:0xADDRESS names a function by its \
         address, also in a library that is loaded later",
        first(files)
    )]
    Section {
        /// The user's words.
        section: String,
        /// What is wrong with the function.
        why: Box<Self>,
        /// The files that were searched for it.
        files: Vec<String>,
    },
    /// Options that do not go together with threads that migrate at marks.
    #[error("{0}")]
    NotForPhases(&'static str),
    /// Sections are for `--boost`.
    #[error("--section is for --boost")]
    SectionsWithoutBoost,
    /// Only calls that may move are traced.
    #[error("--trace is for --migrate, --delegate and --auto")]
    TracesCalls,
    /// A cached choice is damaged.
    #[error("what was chosen cannot be read back")]
    Choice,
    /// The topology is not known.
    #[error("cannot tell which core to dedicate")]
    Topology(#[source] RootError),
    /// The CPUs of this process are not known.
    #[error(transparent)]
    Affinity(AffinityError),
    /// No core can be dedicated.
    #[error("no core to move calls to: {0}; --cpus names CPUs whatever core they are of")]
    NoCore(CannotDedicate),
    /// A named CPU is for something else.
    #[error("cpu {cpu} {by}: it is reserved for something else")]
    Reserved {
        /// The CPU.
        cpu: CpuId,
        /// What it is for.
        by: Reserved,
    },
    /// A named CPU cannot be used.
    #[error(transparent)]
    Cpu(AffinityError),
    /// Cores of the policy server are for all of its programs.
    #[error(
        "--dedicate keeps everybody else off, and the policy server's cores are for all of its \
         programs: name others with --cpus"
    )]
    ServerCoresShared,
    /// The program may not use the cores of the policy server.
    #[error(
        "this program may not run on the cores that the policy server dedicates; --cpus names others"
    )]
    ServerCoresForbidden,
    /// No call can be moved here.
    #[error(transparent)]
    Trips(TripError),
    /// No call was moved in the trial.
    #[error("no call could be moved")]
    NoTrip,
    /// Threads cannot be moved in two ways.
    #[error(
        "--{name} does not go with --{other}: both decide where the same threads run; choose one \
         of them (--narrow goes with both)"
    )]
    MovesAlone {
        /// A mechanism that moves threads.
        name: &'static str,
        /// The other mechanism.
        other: &'static str,
    },
    /// The wide CPUs are the program's own.
    #[error(
        "--dedicate is not for --specialise: a cpuset that keeps others off the wide CPUs keeps \
         off the threads that are to go there"
    )]
    SpecialisesUndedicated,
    /// No CPU would be narrow.
    #[error(
        "cpu {} would be wide, and no other is left for narrow code, of those that the program may \
         use: {}; --cpus takes some of them",
        format_cpu_list(wide),
        format_cpu_list(allowed)
    )]
    NoNarrowCpu {
        /// The wide CPUs.
        wide: Vec<CpuId>,
        /// Those of the program.
        allowed: Vec<CpuId>,
    },
    /// The profile cannot be read, or is none.
    #[error("{}: {why}", file.display())]
    Profile {
        /// Its file.
        file: PathBuf,
        /// What is wrong, with the line.
        why: String,
    },
    /// A mark of the profile is no function of the program.
    #[error(
        "{}: line {line}: {why}; accepted are functions, named as for `dimmer observe --marks`",
        file.display()
    )]
    ProfileMark {
        /// The profile's file.
        file: PathBuf,
        /// The line of the mark.
        line: usize,
        /// Why it is none.
        why: Box<LaunchError>,
    },
    /// The threshold is none.
    #[error("--threshold: {0}")]
    Threshold(String),
    /// No CPU is known to be slow.
    #[error(
        "no CPU that the program may use is much slower than another, as far as this machine \
         reports: --cpus names the slow ones, as in `--cpus 2-3`"
    )]
    NoSlowCpu,
    /// No CPU would be fast.
    #[error(
        "cpu {} would be slow, and no other is left, of those that the program may use: {}; \
         --cpus takes some of them",
        format_cpu_list(slow),
        format_cpu_list(allowed)
    )]
    NoFastCpu {
        /// The slow CPUs.
        slow: Vec<CpuId>,
        /// Those of the program.
        allowed: Vec<CpuId>,
    },
    /// A switch has another name.
    #[error(transparent)]
    Narrow(#[from] NarrowError),
    /// The journal of changes to the machine cannot be opened.
    #[error("cannot open the journal")]
    Journal(#[source] JournalError),
    /// Others cannot be kept off the cores.
    #[error("--dedicate: {}", chain(.0))]
    Dedicate(ExclusionError),
    /// The dedicated cores cannot be given back.
    #[error("cannot give the dedicated cores back")]
    GiveBack(#[source] ExclusionError),
    /// There is no such process.
    #[error("no process {process} of this user: {why}")]
    NoProcess {
        /// Its id.
        process: u32,
        /// The system's error.
        why: RootError,
    },
    /// Counting needs more counters than there can be.
    #[error(
        "{counters} counters are needed, for {functions} functions in {threads} threads, and at \
         most {} can be had; choose fewer --classes",
        dimmer_observe::MOST_COUNTERS
    )]
    Counters {
        /// The number needed.
        counters: usize,
        /// The number of functions.
        functions: usize,
        /// The number of threads.
        threads: usize,
    },
    /// Calls cannot be counted from outside.
    #[error(transparent)]
    Uprobes(#[from] Unavailable),
}

/// What a CPU is reserved for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reserved {
    /// A control group alone.
    #[error("is for the control group {0} alone")]
    Group(String),
    /// No thread that is not pinned to it.
    #[error("is isolated (isolcpus= on the kernel's command line)")]
    Isolated,
}

impl LaunchError {
    /// Whether the user asked for something that does not exist or is impossible here, rather than
    /// that something failed.
    #[must_use]
    pub const fn is_input(&self) -> bool {
        match self {
            Self::NoCommand
            | Self::NoPreload(_)
            | Self::NoFunction { .. }
            | Self::Ambiguous { .. }
            | Self::CannotHook { .. }
            | Self::NoMark(_)
            | Self::NoCandidate { .. }
            | Self::NoFile { .. }
            | Self::NoEntry { .. }
            | Self::NeedlessModel
            | Self::NoModel
            | Self::Cost(_)
            | Self::Boosts(_)
            | Self::BoostsAlone { .. }
            | Self::NoSection { .. }
            | Self::TooManySections { .. }
            | Self::Section { .. }
            | Self::NotForPhases(_)
            | Self::SectionsWithoutBoost
            | Self::TracesCalls
            | Self::NoCore(_)
            | Self::Reserved { .. }
            | Self::Cpu(_)
            | Self::ServerCoresShared
            | Self::ServerCoresForbidden
            | Self::Trips(_)
            | Self::Narrow(_)
            | Self::MovesAlone { .. }
            | Self::SpecialisesUndedicated
            | Self::NoNarrowCpu { .. }
            | Self::Profile { .. }
            | Self::ProfileMark { .. }
            | Self::Threshold(_)
            | Self::NoSlowCpu
            | Self::NoFastCpu { .. }
            | Self::Dedicate(_)
            | Self::NoProcess { .. }
            | Self::Counters { .. } => true,
            Self::Model(error) => {
                !matches!(error, ModelFileError::Read(BoundedFileError::Unreadable { .. }))
            }
            _ => false,
        }
    }

    /// Whether the kernel cannot execute the program that was found.
    #[must_use]
    pub const fn is_not_executable(&self) -> bool {
        matches!(
            self,
            Self::Program(ProgramError::NotExecutable(_))
                | Self::Unreadable { .. }
                | Self::Unknown { .. }
                | Self::Scripts { .. }
                | Self::CannotRun { .. }
        )
    }
}

/// Some of these names, and how many more there are.
fn first(names: &[String]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn hint(nearest: &[String]) -> String {
    if nearest.is_empty() {
        "`dimmer scan --libraries` lists those with wide SIMD code".to_owned()
    } else {
        format!("the nearest are {}", quoted(nearest))
    }
}

/// An error with its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
