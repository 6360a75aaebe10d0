//! Recorded events, and the samples of each.
//!
//! Source: `include/uapi/linux/perf_event.h`, `struct perf_event_attr` and `PERF_RECORD_SAMPLE`.

use crate::bytes::Bytes;

/// Bits of `sample_type`: what a sample has.
pub(super) mod has {
    pub(crate) const IP: u64 = 1;
    pub(crate) const TID: u64 = 1 << 1;
    pub(crate) const TIME: u64 = 1 << 2;
    pub(crate) const ADDR: u64 = 1 << 3;
    pub(crate) const READ: u64 = 1 << 4;
    pub(crate) const CALLCHAIN: u64 = 1 << 5;
    pub(crate) const ID: u64 = 1 << 6;
    pub(crate) const CPU: u64 = 1 << 7;
    pub(crate) const PERIOD: u64 = 1 << 8;
    pub(crate) const STREAM_ID: u64 = 1 << 9;
    pub(crate) const STACK_USER: u64 = 1 << 13;
    pub(crate) const IDENTIFIER: u64 = 1 << 16;
}

/// Bit of an event's flags: other records end with the identity of a sample.
const SAMPLE_ID_ALL: u64 = 1 << 18;

/// An event that was recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Event {
    pub(super) name: Option<String>,
    pub(super) kind: u32,
    pub(super) config: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) ids: Vec<u64>,
}

impl Event {
    /// Reads a `perf_event_attr`.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let (kind, _size, config) = (bytes.u32()?, bytes.u32()?, bytes.u64()?);
        let (_period, sample_type, read_format) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        let flags = bytes.u64()?;
        Some(Self { kind, config, sample_type, read_format, flags, ..Self::default() })
    }

    pub(super) const fn has(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    /// Whether both count the same, on cores of two types: the upper half of a hardware event's
    /// configuration is the type of core.
    pub(super) const fn counts_as(&self, other: &Self) -> bool {
        const EVENT: u64 = 0xffff_ffff;
        self.kind == other.kind && self.config & EVENT == other.config & EVENT
    }

    /// The time of a record that is no sample.
    pub(super) fn time(&self, body: &[u8]) -> Option<u64> {
        if self.flags & SAMPLE_ID_ALL == 0 || !self.has(has::TIME) {
            return None;
        }
        let after = [has::ID, has::STREAM_ID, has::CPU, has::IDENTIFIER];
        let numbers = 1 + after.iter().filter(|bit| self.has(**bit)).count();
        Bytes(body.get(body.len().checked_sub(numbers * 8)?..)?).u64()
    }
}

/// A sample.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) address: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) time: u64,
    pub(super) id: Option<u64>,
    pub(super) period: Option<u64>,
    pub(super) chain: Vec<u64>,
}

impl Sample {
    pub(super) fn read(event: &Event, body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(body);
        let mut sample = Self::default();
        if event.has(has::IDENTIFIER) {
            sample.id = Some(bytes.u64()?);
        }
        if event.has(has::IP) {
            sample.address = bytes.u64()?;
        }
        if event.has(has::TID) {
            (sample.pid, sample.tid) = (bytes.u32()?, bytes.u32()?);
        }
        if event.has(has::TIME) {
            sample.time = bytes.u64()?;
        }
        if event.has(has::ADDR) {
            bytes.skip(1)?;
        }
        if event.has(has::ID) {
            sample.id = Some(bytes.u64()?);
        }
        for bit in [has::STREAM_ID, has::CPU] {
            bytes.skip(u64::from(event.has(bit)))?;
        }
        if event.has(has::PERIOD) {
            sample.period = Some(bytes.u64()?);
        }
        if event.has(has::READ) {
            skip_counts(&mut bytes, event.read_format)?;
        }
        if event.has(has::CALLCHAIN) {
            let length = usize::try_from(bytes.u64()?).ok()?;
            let chain = bytes.take(length.checked_mul(8)?)?;
            let (numbers, _) = chain.as_chunks::<8>();
            sample.chain = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        }
        Some(sample)
    }
}

/// Leaves out the counts of a sample (`struct read_format`).
fn skip_counts(bytes: &mut Bytes<'_>, format: u64) -> Option<()> {
    let bits = |mask: u64| u64::from((format & mask).count_ones());
    // Enabled and running time; identity and number of lost samples; all counters of a group.
    let (times, each, is_group) = (bits(0b11), 1 + bits(0b1_0100), format & 0b1000 != 0);
    let counters = if is_group { bytes.u64()? } else { 1 };
    bytes.skip(times.checked_add(counters.checked_mul(each)?)?)
}
