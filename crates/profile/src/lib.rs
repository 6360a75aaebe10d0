//! The share of a profiler's samples that lies in wide SIMD code.
//!
//! | module | what |
//! |---|---|
//! | [`perf_data`] | files of `perf record` |
//! | [`script`] | the text of `perf script` |
//! | [`pprof`] | profiles of pprof |
//! | [`perf_map`], [`jitdump`] | names, and code, that is generated at run time |
//! | [`code`] | the function of a sampled address, and the instruction classes around it |
//! | [`summary`] | samples by program, file, function and caller; folded stacks |
//!
//! Readers of profiles take bytes and return plain types. Any bytes give a profile or an error, in
//! time and memory that grow with their number.
#![forbid(unsafe_code)]

mod bytes;
pub mod code;
pub mod jitdump;
pub mod perf_data;
pub mod perf_map;
pub mod pprof;
pub mod script;
mod space;
pub mod summary;

use std::collections::BTreeMap;
use std::io::Read as _;

/// A profile: equal stacks are one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The sampled event, as the profiler names it; `None` if the file does not name it.
    pub event: Option<String>,
    /// Names of programs, by which stacks refer to them.
    pub programs: Vec<String>,
    /// Files that code was run from, by which places refer to them.
    pub files: Vec<File>,
    /// Names of functions, by which places refer to them.
    pub symbols: Vec<String>,
    /// The stacks, with the samples in each.
    pub stacks: BTreeMap<Stack, Weight>,
    /// The jitdump that each process has mapped, by process: the path as the program saw it. What
    /// writes one maps it as code, so that the profiler records where it is.
    pub jitdumps: BTreeMap<u32, String>,
    /// Samples of other events, which are left out.
    pub other_events: u64,
    /// Events that the kernel could not record for lack of room.
    pub lost: u64,
    /// Why the file has less than was recorded; `None` if it is complete.
    pub cut_off: Option<String>,
    /// Whether stacks were recorded as copies of memory (`perf record --call-graph dwarf`), which
    /// only `perf` itself unwinds.
    pub has_copied_stacks: bool,
}

/// A file that code was run from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct File {
    /// Its path, as the program saw it.
    pub path: String,
    /// The build id of the file that was run, if the profile has it.
    pub build_id: Option<Vec<u8>>,
}

/// Where a program was: the sampled place first, then its callers, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stack {
    /// Index of the program's name.
    pub program: u32,
    /// Its frames. Never empty.
    pub frames: Vec<Place>,
}

/// A place in code. A caller's place is the last byte of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// At this offset (bytes) of a file.
    Offset {
        /// Index of the file.
        file: u32,
        /// Offset in the file, not an address.
        offset: u64,
    },
    /// In a function of a file that the profiler named.
    Symbol {
        /// Index of the file.
        file: u32,
        /// Index of the function's name.
        symbol: u32,
        /// The distance from its start (bytes), if that is known.
        distance: Option<u64>,
    },
    /// In memory of a process that no file is mapped to, such as generated code.
    Memory {
        /// The process.
        pid: u32,
        /// The address.
        address: u64,
    },
    /// In the kernel or a hypervisor.
    Kernel,
    /// At no known place.
    Unknown,
}

/// How much was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Samples.
    pub samples: u64,
    /// Events that the samples stand for, by their periods; equal to `samples` without periods.
    pub events: u64,
}

impl Weight {
    /// Adds another weight.
    pub const fn add(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.events = self.events.saturating_add(other.events);
    }
}

/// Why a profile cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// None of the formats.
    #[error(
        "no profile: expected a file of `perf record`, the text of `perf script \
         --show-mmap-events`, or a profile of pprof"
    )]
    Unknown,
    /// The file contradicts itself.
    #[error("damaged at byte {at}: {problem}")]
    Damaged {
        /// The place in the file (bytes).
        at: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A profile of pprof contradicts itself; the text has the message and what is accepted there.
    #[error("damaged profile of pprof: {0}")]
    Message(String),
    /// A compressed file cannot be decompressed.
    #[error("damaged: byte {at} of what gzip has packed cannot be unpacked: {problem}")]
    Packed {
        /// The place in the unpacked file (bytes).
        at: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A line of text cannot be read.
    #[error("line {line}: {problem}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A profile of a kind that is not read.
    #[error("{what}; {remedy}")]
    Unsupported {
        /// What the file has.
        what: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// No samples.
    #[error("the profile has no samples{}", .0.as_ref().map_or(String::new(), |why| format!(": {why}")))]
    Empty(
        /// Why not, if the file shows that.
        Option<String>,
    ),
}

/// How files begin that gzip has packed (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Longest unpacked profile (bytes). A guess: profiles of pprof have some 10 MB at most. A small
/// file may unpack to a thousand times its length.
const LONGEST_UNPACKED: u64 = 1 << 28;

/// Reads a profile in any of the formats, also if gzip has packed it.
///
/// # Errors
/// [`ProfileError`].
pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let unpacked = if bytes.starts_with(&GZIP) { Some(unpacked(bytes)?) } else { None };
    let bytes = unpacked.as_deref().unwrap_or(bytes);
    let profile = if perf_data::is_one(bytes) {
        perf_data::read(bytes)?
    } else if pprof::is_one(bytes) {
        pprof::read(bytes)?
    } else {
        script::read(bytes)?
    };
    if profile.stacks.is_empty() {
        return Err(ProfileError::Empty(profile.cut_off));
    }
    Ok(profile)
}

/// What gzip has packed.
fn unpacked(bytes: &[u8]) -> Result<Vec<u8>, ProfileError> {
    let mut unpacked = Vec::new();
    let mut reader = flate2::bufread::MultiGzDecoder::new(bytes).take(LONGEST_UNPACKED + 1);
    let read = reader.read_to_end(&mut unpacked);
    let wrong = |problem: String| ProfileError::Packed { at: unpacked.len(), problem };
    read.map_err(|error| wrong(error.to_string()))?;
    if unpacked.len() as u64 > LONGEST_UNPACKED {
        return Err(wrong(format!(
            "it is longer than {LONGEST_UNPACKED} bytes, the most accepted"
        )));
    }
    Ok(unpacked)
}

/// Whether a path's last part is a process's number between these, as in `perf-7.map`.
fn names_process(path: &str, before: &str, after: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let pid = name.strip_prefix(before).and_then(|name| name.strip_suffix(after));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Numbers for values, in the order of their first use.
#[derive(Debug, Default)]
struct Interner<T> {
    numbers: BTreeMap<T, u32>,
}

impl<T: Ord + Clone + Default> Interner<T> {
    /// The number of this value.
    fn number(&mut self, value: T) -> u32 {
        // The values come from files of at most 4 GB, so there are fewer than 2^32.
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(value).or_insert(next)
    }

    /// All values, by number.
    fn into_values(self) -> Vec<T> {
        let mut values = vec![T::default(); self.numbers.len()];
        for (value, number) in self.numbers {
            if let Some(place) = values.get_mut(number as usize) {
                *place = value;
            }
        }
        values
    }
}
