//! The observer's side. It trusts nothing: a process may write anything into its ledger.

use std::ffi::OsStr;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use dimmer_policy::boost::site::AtSite;

use crate::ledger::VERSION;
use crate::ledger::{BYTES, EVENTS, Head, Kind, MAGIC, MEASURES, Measure, PATH, Site, USER_ONLY};

/// What a ledger has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The process, as it sees itself.
    pub process: u32,
    /// The sites.
    pub sites: Vec<SiteFound>,
    /// Acquisitions at sites that had no room.
    pub unplaced: u64,
    /// Holds whose end was not seen.
    pub unended: u64,
    /// Whether the process has stopped before its end ([`crate::stop`]).
    pub has_stopped: bool,
    /// The counters that its sections are measured by.
    pub counters: CountersFound,
}

/// The counters that sections are measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountersFound {
    /// How long it takes to read them at the start and the end of a section together (ticks); 0 if
    /// no thread has any.
    pub reading: u64,
    /// Which events of the processor a thread counts, in the order of
    /// [`EVENTS`](crate::counters::EVENTS).
    pub counts: [bool; EVENTS],
    /// Whether they are counted in user mode only.
    pub is_user_only: bool,
    /// Why an event is not counted: the number of the error, or
    /// [`NOT_READABLE`](crate::ledger::NOT_READABLE); 0 if it is, or that is not known.
    pub refused: [u8; EVENTS],
}

impl CountersFound {
    /// Adds those of another process.
    pub fn add(&mut self, other: Self) {
        self.reading = self.reading.max(other.reading);
        self.is_user_only |= other.is_user_only;
        for at in 0..EVENTS {
            self.counts[at] |= other.counts[at];
            if self.refused[at] == 0 {
                self.refused[at] = other.refused[at];
            }
        }
    }
}

/// A site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFound {
    /// What it waits for.
    pub kind: Kind,
    /// The file with the code; `None` if it comes from no file, or the name has no room.
    pub file: Option<PathBuf>,
    /// Offset in that file of where the call returns to; without a file, the address of that.
    pub offset: u64,
    /// Which site of its ledger it is.
    pub index: usize,
    /// What threads request there.
    pub strategy: AtSite,
    /// What happened there.
    pub sums: Sums,
}

/// What happened at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How often the lock was taken, or the wait ended.
    pub acquisitions: u64,
    /// How many of them had to wait.
    pub contended: u64,
    /// How long these waited (ticks).
    pub waited: u64,
    /// How many holds that began there have ended.
    pub holds: u64,
    /// How long these lasted (ticks).
    pub held: u64,
    /// The longest of them (ticks).
    pub longest: u64,
    /// How many of the holds ended while another thread waited for the lock, or may have. Only seen
    /// of mutexes, and only of holds whose own acquisition did not wait.
    pub wanted: u64,
    /// Requests of a slow clock for waits, of a fast one for holds, and ends of these requests.
    pub requests: [u64; 3],
    /// How many holds ended with the fast clock requested.
    pub boosted: u64,
    /// For how many of these the request was carried out before their end.
    pub carried: u64,
    /// How long these lasted from then on (ticks).
    pub fast: u64,
    /// How long threads were outside of a section from function to function, from its end to the
    /// next wait for it (ticks).
    pub outside: u64,
    /// What was measured of its sections, by [`Measure`].
    pub measures: [u64; MEASURES],
}

/// Why bytes are no ledger of lock sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoLedger {
    /// They have another length.
    #[error("has {found} bytes; a ledger of lock sites has {BYTES}")]
    Length {
        /// Their length.
        found: usize,
    },
    /// They begin with something else.
    #[error("does not begin as a ledger of lock sites does")]
    Magic,
    /// They are of another version.
    #[error("is of version {found}; expected {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
}

impl Sums {
    /// Adds the sums of the same site in another process.
    pub fn add(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.acquisitions, other.acquisitions),
            (&mut self.contended, other.contended),
            (&mut self.waited, other.waited),
            (&mut self.holds, other.holds),
            (&mut self.held, other.held),
            (&mut self.wanted, other.wanted),
            (&mut self.boosted, other.boosted),
            (&mut self.carried, other.carried),
            (&mut self.fast, other.fast),
            (&mut self.outside, other.outside),
        ] {
            *sum = sum.saturating_add(more);
        }
        let measures = self.measures.iter_mut().zip(other.measures);
        for (sum, more) in self.requests.iter_mut().zip(other.requests).chain(measures) {
            *sum = sum.saturating_add(more);
        }
        self.longest = self.longest.max(other.longest);
    }

    /// What was measured of its sections.
    #[must_use]
    pub const fn measure(&self, measure: Measure) -> u64 {
        self.measures[measure as usize]
    }
}

/// Whether a file of this name is a ledger of lock sites.
#[must_use]
pub fn is_ledger(file: &Path) -> bool {
    file.as_os_str().as_bytes().ends_with(b".locks.ledger")
}

/// The process that has made a ledger of this name, as it sees itself, and which one of that it is;
/// `None` if the name is no ledger's.
#[must_use]
pub fn number_of(file: &Path) -> Option<(u32, u32)> {
    let name = file.file_name()?.to_str()?.strip_suffix(".locks.ledger")?;
    let (process, attempt) = name.split_once('-')?;
    Some((process.parse().ok()?, attempt.parse().ok()?))
}

/// Reads a ledger. Sites of no known kind are left out.
///
/// # Errors
/// [`NoLedger`].
pub fn read(bytes: &[u8]) -> Result<Found, NoLedger> {
    if bytes.len() != BYTES {
        return Err(NoLedger::Length { found: bytes.len() });
    }
    let (head, sites) = bytes.split_at(size_of::<Head>());
    if !head.starts_with(&MAGIC) {
        return Err(NoLedger::Magic);
    }
    let version = half(head, 8);
    if version != VERSION {
        return Err(NoLedger::Version { found: version });
    }
    Ok(Found {
        process: half(head, 12),
        unplaced: word(head, 16),
        unended: word(head, 24),
        has_stopped: word(head, 32) != 0,
        counters: CountersFound {
            reading: word(head, 40),
            counts: std::array::from_fn(|at| word(head, 48) & 1 << at != 0),
            is_user_only: word(head, 48) & USER_ONLY != 0,
            refused: std::array::from_fn(|at| head[56 + at]),
        },
        sites: sites.chunks_exact(size_of::<Site>()).enumerate().filter_map(site).collect(),
    })
}

fn site((index, bytes): (usize, &[u8])) -> Option<SiteFound> {
    let kind = word(bytes, 0) >> 56;
    let kind = Kind::ALL.into_iter().find(|known| *known as u64 == kind)?;
    let length = usize::try_from(half(bytes, 60)).unwrap_or(usize::MAX).min(PATH);
    let path = &bytes[offset_of!(Site, path)..][..length];
    Some(SiteFound {
        kind,
        file: (path.first() == Some(&b'/')).then(|| PathBuf::from(OsStr::from_bytes(path))),
        offset: word(bytes, offset_of!(Site, offset)),
        index,
        strategy: AtSite::of_number(half(bytes, offset_of!(Site, strategy))),
        sums: Sums {
            acquisitions: word(bytes, 8),
            contended: word(bytes, 16),
            waited: word(bytes, 24),
            holds: word(bytes, 32),
            held: word(bytes, 40),
            longest: word(bytes, 48),
            wanted: word(bytes, 64),
            requests: [72, 80, 88].map(|offset| word(bytes, offset)),
            boosted: word(bytes, 96),
            carried: word(bytes, 104),
            fast: word(bytes, 112),
            outside: word(bytes, offset_of!(Site, outside)),
            measures: std::array::from_fn(|at| {
                word(bytes, offset_of!(Site, measures) + size_of::<u64>() * at)
            }),
        },
    })
}

/// The word at this offset.
fn word(bytes: &[u8], offset: usize) -> u64 {
    crate::own::word_of(&bytes[offset..offset + 8])
}

/// The half word at this offset.
fn half(bytes: &[u8], offset: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_ne_bytes(half)
}

const _: () = {
    assert!(offset_of!(Head, unplaced) == 16 && offset_of!(Head, reading) == 40);
    assert!(offset_of!(Head, events) == 48 && offset_of!(Head, refused) == 56);
    assert!(offset_of!(Site, longest) == 48 && offset_of!(Site, path_length) == 60);
    assert!(offset_of!(Site, wanted) == 64 && offset_of!(Site, requests) == 72);
    assert!(offset_of!(Site, boosted) == 96 && offset_of!(Site, fast) == 112);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes
    }

    #[test]
    fn bytes_that_are_no_ledger_are_refused_with_the_reason() {
        assert_eq!(read(&empty()), Ok(Found::default()));
        let short = read(&empty()[1..]).unwrap_err().to_string();
        assert!(short.contains(&format!("has {} bytes", BYTES - 1)), "{short}");
        assert_eq!(read(&vec![0; BYTES]), Err(NoLedger::Magic));
        let mut other = empty();
        other[8] = 7;
        assert_eq!(read(&other), Err(NoLedger::Version { found: 7 }));
    }

    #[test]
    fn any_bytes_give_a_result() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100 {
            let mut bytes = empty();
            random.fill(&mut bytes[16..]);
            // One in fifty sites has a kind.
            let found = read(&bytes).unwrap();
            assert!(!found.sites.is_empty());
            let mut all = Sums::default();
            found.sites.iter().for_each(|site| all.add(site.sums));
            let is_long = |site: &SiteFound| {
                site.file.as_ref().is_some_and(|file| file.as_os_str().len() > PATH)
            };
            assert!(!found.sites.iter().any(is_long));
        }
    }
}
