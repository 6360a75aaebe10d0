//! Files of `perf record`, also those written to a pipe.
//!
//! Source: Linux, `tools/perf/Documentation/perf.data-file-format.txt` and
//! `include/uapi/linux/perf_event.h`. Not read are compressed files (`perf record -z`), files of
//! processors of the other byte order, and hardware traces, which have no samples.
//!
//! Every length and offset of the file is checked before it is used.

mod event;

use std::collections::BTreeMap;

use self::event::{Event, Sample, has};
use crate::bytes::Bytes;
use crate::space::Spaces;
use crate::{Interner, Place, Profile, ProfileError, Stack, Weight};

const MAGIC: &[u8; 8] = b"PERFILE2";
/// The same in the other byte order.
const SWAPPED: &[u8; 8] = b"2ELIFREP";
/// Length of the header of a pipe, of a file, and of a record (bytes).
const PIPE_HEADER: u64 = 16;
const FILE_HEADER: usize = 104;
const RECORD_HEADER: usize = 8;

/// Types of records (`enum perf_event_type`, `enum perf_user_event_type`).
mod record {
    pub(super) const MMAP: u32 = 1;
    pub(super) const LOST: u32 = 2;
    pub(super) const COMM: u32 = 3;
    pub(super) const FORK: u32 = 7;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const MMAP2: u32 = 10;
    pub(super) const LOST_SAMPLES: u32 = 13;
    pub(super) const HEADER_ATTR: u32 = 64;
    pub(super) const TRACING_DATA: u32 = 66;
    pub(super) const BUILD_ID: u32 = 67;
    pub(super) const AUXTRACE: u32 = 71;
    pub(super) const HEADER_FEATURE: u32 = 80;
    pub(super) const COMPRESSED: u32 = 81;
    pub(super) const COMPRESSED2: u32 = 83;
}

/// Numbers of the sections with more about the recording (`enum perf_header_feature`).
const FEATURE_BUILD_ID: u64 = 2;
const FEATURE_EVENT_DESC: u64 = 12;

/// Bits of `misc` in the headers of records.
const MISC_CPU_MODE: u16 = 7;
const MISC_USER: u16 = 2;
const MISC_MMAP_DATA: u16 = 1 << 13;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;

/// Addresses of a call chain from this one on are marks: what follows is of the kernel, of the
/// user, and so on (`enum perf_callchain_context`).
const FIRST_MARK: u64 = 0u64.wrapping_sub(4095);
const MARK_USER: u64 = 0u64.wrapping_sub(512);

/// The permission of a mapping to be executed.
const EXECUTE: u32 = 4;

/// Whether the bytes start as such a file does.
#[must_use]
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) || bytes.starts_with(SWAPPED)
}

/// Reads a file of `perf record`. A recording that was cut off gives the samples before the cut.
///
/// # Errors
/// [`ProfileError`].
pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    if bytes.starts_with(SWAPPED) {
        return Err(ProfileError::Unsupported {
            what: "recorded on a big-endian processor".to_owned(),
            remedy: "only x86-64 code can be scanned",
        });
    }
    let mut header = Bytes(bytes.get(8..).unwrap_or_default());
    let length = header.u64().ok_or_else(|| damaged(8, "the header is incomplete"))?;
    let mut recording = Recording::default();
    if length == PIPE_HEADER {
        recording.records(bytes, PIPE_HEADER, bytes.len() as u64)?;
    } else {
        recording.file(bytes)?;
    }
    recording.profile(bytes)
}

fn damaged(at: usize, problem: &str) -> ProfileError {
    ProfileError::Damaged { at, problem: problem.to_owned() }
}

/// What was read so far.
#[derive(Debug, Default)]
struct Recording {
    events: Vec<Event>,
    build_ids: BTreeMap<String, Vec<u8>>,
    /// Time and place of each record that matters.
    records: Vec<(u64, usize)>,
    cut_off: Option<String>,
}

impl Recording {
    fn file(&mut self, bytes: &[u8]) -> Result<(), ProfileError> {
        let header = bytes.get(..FILE_HEADER);
        let header = header.ok_or_else(|| damaged(bytes.len(), "the header is incomplete"))?;
        let mut numbers = Bytes(&header[16..]);
        // All of the header is there.
        let mut next = || numbers.u64().unwrap_or_default();
        let (event_length, events_at, events_length) = (next(), next(), next());
        let (data_at, data_length) = (next(), next());
        let (_types_at, _types_length, features) =
            (next(), next(), [next(), next(), next(), next()]);
        self.events(bytes, event_length, events_at, events_length)?;
        let data_end = data_at.saturating_add(data_length);
        if data_length == 0 {
            self.cut_off = Some("the recording was not ended".to_owned());
            return self.records(bytes, data_at, bytes.len() as u64);
        }
        let whole = features.iter().enumerate().flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word as u64 * 64 + bit)
        });
        let mut entries = section(bytes, data_end, u64::MAX).map(Bytes);
        for feature in whole {
            let entry = entries.as_mut().and_then(|entries| Some((entries.u64()?, entries.u64()?)));
            // These sections are written last: a recording that was cut off lacks them.
            let Some(content) = entry.and_then(|(at, length)| section(bytes, at, length)) else {
                break;
            };
            self.feature(feature, content);
        }
        self.records(bytes, data_at, data_end)
    }

    /// Reads the events of a file's header.
    fn events(&mut self, bytes: &[u8], length: u64, at: u64, all: u64) -> Result<(), ProfileError> {
        let place = usize::try_from(at).unwrap_or(usize::MAX);
        let wrong = |problem: &str| damaged(place, problem);
        let entries = section(bytes, at, all).filter(|entries| entries.len() as u64 == all);
        let entries = entries.ok_or_else(|| wrong("the list of events lies outside the file"))?;
        let length = usize::try_from(length).ok().filter(|length| *length >= 64);
        let length =
            length.ok_or_else(|| wrong("the entries of the list of events are too short"))?;
        for entry in entries.chunks_exact(length) {
            let (attributes, ids) = entry.split_at(length - 16);
            let event = Event::read(attributes).ok_or_else(|| wrong("an event is incomplete"))?;
            let mut ids = Bytes(ids);
            let ids = ids.u64().zip(ids.u64()).and_then(|(at, length)| section(bytes, at, length));
            let (ids, _) = ids.unwrap_or_default().as_chunks::<8>();
            let ids = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
            self.events.push(Event { ids, ..event });
        }
        Ok(())
    }

    /// Reads a section with more about the recording. What is damaged there is left out: samples
    /// are as good without.
    fn feature(&mut self, feature: u64, content: &[u8]) {
        match feature {
            FEATURE_BUILD_ID => {
                let mut rest = content;
                while let Some((_, misc, body, after)) = next_record(rest) {
                    self.build_id(misc, body);
                    rest = after;
                }
            }
            FEATURE_EVENT_DESC => {
                let _ = self.names(content);
            }
            _ => {}
        }
    }

    fn names(&mut self, content: &[u8]) -> Option<()> {
        let mut bytes = Bytes(content);
        let (events, length) = (bytes.u32()?, bytes.u32()?);
        for number in 0..usize::try_from(events).ok()? {
            bytes.take(usize::try_from(length).ok()?)?;
            let (ids, text) = (bytes.u32()?, bytes.u32()?);
            let name = Bytes(bytes.take(usize::try_from(text).ok()?)?).text();
            self.events.get_mut(number)?.name = Some(name);
            bytes.skip(u64::from(ids))?;
        }
        Some(())
    }

    fn build_id(&mut self, misc: u16, body: &[u8]) {
        let mut bytes = Bytes(body);
        let (Some(_pid), Some(id)) = (bytes.u32(), bytes.take(24)) else { return };
        let length = match misc & MISC_BUILD_ID_SIZE {
            // Older versions do not write the length: 20 bytes, which end in zeros if it is less.
            0 => id[..20].iter().rposition(|byte| *byte != 0).map_or(0, |last| (last / 4 + 1) * 4),
            _ => usize::from(id[20].min(20)),
        };
        self.build_ids.insert(bytes.text(), id[..length].to_vec());
    }

    /// Notes the records from `start` to `end`, and reads those that say something about others.
    fn records(&mut self, bytes: &[u8], start: u64, end: u64) -> Result<(), ProfileError> {
        let available = end.min(bytes.len() as u64);
        let mut at = usize::try_from(start).unwrap_or(usize::MAX).min(bytes.len());
        let available = usize::try_from(available).unwrap_or(usize::MAX);
        while at < available {
            let Some((kind, misc, body, _)) = next_record(&bytes[at..available]) else {
                self.cut_off = Some(format!("it ends within a record, at byte {at}"));
                break;
            };
            let mut length = RECORD_HEADER + body.len();
            match kind {
                record::COMPRESSED | record::COMPRESSED2 => {
                    return Err(ProfileError::Unsupported {
                        what: "compressed (`perf record -z`)".to_owned(),
                        remedy: "record without -z, or take the text of `perf script \
                                 --show-mmap-events`",
                    });
                }
                // The size in the record is that of what follows it, here and below.
                record::AUXTRACE => {
                    let more = Bytes(body).u64().and_then(|size| usize::try_from(size).ok());
                    length = length.saturating_add(more.unwrap_or(usize::MAX));
                }
                record::TRACING_DATA => {
                    let more = Bytes(body).u32().and_then(|size| usize::try_from(size).ok());
                    length = length.saturating_add(more.unwrap_or(usize::MAX).next_multiple_of(8));
                }
                record::HEADER_ATTR => self.event_of_pipe(at, body)?,
                record::HEADER_FEATURE => {
                    let mut bytes = Bytes(body);
                    if let Some(feature) = bytes.u64() {
                        self.feature(feature, bytes.0);
                    }
                }
                record::BUILD_ID => self.build_id(misc, body),
                record::MMAP
                | record::LOST
                | record::COMM
                | record::FORK
                | record::SAMPLE
                | record::MMAP2
                | record::LOST_SAMPLES => {
                    let time = self.time(kind, body);
                    self.records.push((time.unwrap_or_default(), at));
                }
                _ => {}
            }
            at = at.saturating_add(length);
        }
        if end > bytes.len() as u64 {
            let missing = end - bytes.len() as u64;
            self.cut_off = Some(format!("its last {missing} bytes are missing"));
        }
        Ok(())
    }

    fn event_of_pipe(&mut self, at: usize, body: &[u8]) -> Result<(), ProfileError> {
        let length = Bytes(body.get(4..).unwrap_or_default()).u32().unwrap_or_default();
        let (attributes, ids) = body
            .split_at_checked(usize::try_from(length).unwrap_or(usize::MAX))
            .unwrap_or_default();
        let event = Event::read(attributes).ok_or_else(|| damaged(at, "an event is incomplete"))?;
        let (ids, _) = ids.as_chunks::<8>();
        let ids = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
        self.events.push(Event { ids, ..event });
        Ok(())
    }

    /// The time of a record; all events have it at the same place.
    fn time(&self, kind: u32, body: &[u8]) -> Option<u64> {
        let event = self.events.first()?;
        if kind == record::SAMPLE {
            Sample::read(event, body).map(|sample| sample.time)
        } else {
            event.time(body)
        }
    }

    /// What the records have, in the order of time.
    fn profile(mut self, bytes: &[u8]) -> Result<Profile, ProfileError> {
        let Some(first) = self.events.first() else {
            return Err(damaged(0, "no event is described"));
        };
        let differs = |event: &&Event| {
            event.sample_type != first.sample_type || event.read_format != first.read_format
        };
        if let Some(other) = self.events.iter().find(differs)
            && !self.events.iter().all(|event| event.has(has::IDENTIFIER))
        {
            let name = other.name.clone().unwrap_or_else(|| format!("{:#x}", other.config));
            return Err(ProfileError::Unsupported {
                what: format!("samples of event {name} have another form than those before it"),
                remedy: "record one event",
            });
        }
        // Stable, so that records of the same time stay in the order of the file.
        self.records.sort_by_key(|(time, _)| *time);
        let mut reader = Reader::new(&self);
        for (_, at) in &self.records {
            let Some((kind, misc, body, _)) = next_record(&bytes[*at..]) else { continue };
            if reader.record(kind, misc, body).is_none() {
                return Err(damaged(*at, "a record is shorter than what it has to have"));
            }
        }
        Ok(reader.end())
    }
}

/// The bytes of a section; `None` if it begins outside the file. What lies outside is left out.
fn section(bytes: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(at).ok()?;
    let end = at.saturating_add(length).min(bytes.len() as u64);
    bytes.get(start..usize::try_from(end).ok()?)
}

/// The type, bits, and body of the first record, and what follows it; `None` if it is incomplete.
fn next_record(bytes: &[u8]) -> Option<(u32, u16, &[u8], &[u8])> {
    let mut header = Bytes(bytes);
    let (kind, misc, length) = (header.u32()?, header.u16()?, usize::from(header.u16()?));
    let body = bytes.get(RECORD_HEADER..length)?;
    Some((kind, misc, body, &bytes[length..]))
}

/// Follows the processes through the records.
struct Reader<'file> {
    recording: &'file Recording,
    by_id: BTreeMap<u64, usize>,
    /// The event whose samples are read: the first that has one.
    event: Option<usize>,
    spaces: Spaces,
    programs: Interner<String>,
    profile: Profile,
}

impl<'file> Reader<'file> {
    fn new(recording: &'file Recording) -> Self {
        let events = recording.events.iter().enumerate();
        let by_id =
            events.flat_map(|(number, event)| event.ids.iter().map(move |id| (*id, number)));
        let has_copied_stacks = recording.events.iter().any(|event| event.has(has::STACK_USER));
        Self {
            recording,
            by_id: by_id.collect(),
            event: None,
            spaces: Spaces::default(),
            programs: Interner::default(),
            profile: Profile {
                has_copied_stacks,
                cut_off: recording.cut_off.clone(),
                ..Profile::default()
            },
        }
    }

    /// Reads a record; `None` if it is too short.
    fn record(&mut self, kind: u32, misc: u16, body: &[u8]) -> Option<()> {
        let mut bytes = Bytes(body);
        match kind {
            record::MMAP | record::MMAP2 => self.map(kind, misc, bytes)?,
            record::COMM => {
                let (pid, tid) = (bytes.u32()?, bytes.u32()?);
                self.spaces.name(pid, tid, &bytes.text(), misc & MISC_COMM_EXEC != 0);
            }
            record::FORK => {
                let (pid, parent) = (bytes.u32()?, bytes.u32()?);
                let (tid, parent_tid) = (bytes.u32()?, bytes.u32()?);
                self.spaces.fork((parent, parent_tid), (pid, tid));
            }
            record::LOST => {
                bytes.skip(1)?;
                self.profile.lost = self.profile.lost.saturating_add(bytes.u64()?);
            }
            record::LOST_SAMPLES => {
                self.profile.lost = self.profile.lost.saturating_add(bytes.u64()?);
            }
            record::SAMPLE => self.sample(misc, body)?,
            _ => {}
        }
        Some(())
    }

    fn map(&mut self, kind: u32, misc: u16, mut bytes: Bytes<'_>) -> Option<()> {
        let (pid, _tid) = (bytes.u32()?, bytes.u32()?);
        let (start, length, offset) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        let mut build_id = None;
        let is_code = if kind == record::MMAP2 {
            let identity = bytes.take(24)?;
            if misc & MISC_MMAP_BUILD_ID != 0 {
                build_id = Some(identity[4..4 + usize::from(identity[0].min(20))].to_vec());
            }
            let (protection, _flags) = (bytes.u32()?, bytes.u32()?);
            protection & EXECUTE != 0
        } else {
            misc & MISC_MMAP_DATA == 0
        };
        // The kernel's own mappings have the process -1.
        if is_code && misc & MISC_CPU_MODE == MISC_USER {
            let path = bytes.text();
            let build_id = build_id.or_else(|| self.recording.build_ids.get(&path).cloned());
            let end = start.saturating_add(length);
            if !self.spaces.map(pid, start..end, offset, &path, build_id) {
                self.profile.cut_off = Some("it has more mappings than can be followed".to_owned());
            }
        }
        Some(())
    }

    fn sample(&mut self, misc: u16, body: &[u8]) -> Option<()> {
        let events = &self.recording.events;
        let sample = match events.as_slice() {
            [event] => Sample::read(event, body)?,
            [first, ..] if first.has(has::IDENTIFIER) => {
                let number = self.by_id.get(&Bytes(body).u64()?).copied().unwrap_or_default();
                Sample::read(events.get(number)?, body)?
            }
            [first, ..] => Sample::read(first, body)?,
            [] => return None,
        };
        let id = sample.id.and_then(|id| self.by_id.get(&id).copied());
        let number = id.unwrap_or_default();
        let chosen = *self.event.get_or_insert(number);
        if !events[chosen].counts_as(&events[number]) {
            self.profile.other_events += 1;
            return Some(());
        }
        let program = self.spaces.program(sample.pid, sample.tid);
        let program = self.programs.number(program);
        let frames = self.frames(misc, &sample);
        let stack = Stack { program, frames };
        let weight = Weight { samples: 1, events: sample.period.unwrap_or(1) };
        self.profile.stacks.entry(stack).or_default().add(weight);
        Some(())
    }

    /// The places of a sample's frames. Frames in the kernel, one after the other, are one.
    fn frames(&self, misc: u16, sample: &Sample) -> Vec<Place> {
        let mut is_user = misc & MISC_CPU_MODE == MISC_USER;
        let unknown = Place::Unknown;
        let user = |address| self.spaces.place(sample.pid, address).unwrap_or(unknown);
        let first = if is_user { user(sample.address) } else { Place::Kernel };
        let mut frames = vec![first];
        let mut is_first = true;
        for address in &sample.chain {
            if *address >= FIRST_MARK {
                is_user = *address == MARK_USER;
                continue;
            }
            // The chain begins with the sampled address, if it has the part of it.
            if std::mem::take(&mut is_first) && *address == sample.address {
                continue;
            }
            let is_entered = is_user && frames.iter().all(|frame| *frame == Place::Kernel);
            let place = match is_user {
                // Where the kernel was entered, the address is that of the next instruction, as
                // it is after a call; but after an interrupt it is that of the interrupted one.
                true if is_entered => user(*address),
                true => user(address.saturating_sub(1)),
                false => Place::Kernel,
            };
            if place != Place::Kernel || frames.last() != Some(&Place::Kernel) {
                frames.push(place);
            }
        }
        frames
    }

    fn end(self) -> Profile {
        let event = self.event.and_then(|event| self.recording.events[event].name.clone());
        Profile {
            event,
            programs: self.programs.into_values(),
            files: self.spaces.files.into_values(),
            jitdumps: self.spaces.jitdumps,
            ..self.profile
        }
    }
}
