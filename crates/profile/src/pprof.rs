//! Profiles of pprof: those of Go's `runtime/pprof`, gperftools and others.
//!
//! Source: google/pprof, `proto/profile.proto` and `proto/README.md`. Addresses are looked up in
//! the files that the profile names; where there are none, names of functions.

use std::collections::HashMap;

use prost::Message;

use crate::space::is_file;
use crate::{File, Interner, Place, Profile, ProfileError, Stack, Weight};

/// The messages, as far as they matter here.
#[derive(Clone, PartialEq, Message)]
struct Recorded {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

/// What to do about a profile of something else than time.
const TIME: &str = "expected a profile of CPU time, whose samples are counted or have nanoseconds";

/// Whether the bytes start as such a file does: with one of its fields, in any order, and with
/// bytes that no text has.
#[must_use]
pub fn is_one(bytes: &[u8]) -> bool {
    // The lowest three bits are the wire type: a number (0), or a length (2).
    let is_field = |tag: &u8| (1..=14).contains(&(tag >> 3)) && matches!(tag & 7, 0 | 2);
    let is_text = |byte: &u8| *byte >= b' ' || byte.is_ascii_whitespace();
    bytes.first().is_some_and(is_field) && !bytes.iter().take(64).all(is_text)
}

/// Reads a profile that is not compressed.
///
/// # Errors
/// [`ProfileError`]: damaged, or no profile of time.
pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let recorded = Recorded::decode(bytes);
    let recorded = recorded.map_err(|error| ProfileError::Message(error.to_string()))?;
    Reader::new(&recorded)?.profile()
}

fn damaged(problem: String) -> ProfileError {
    ProfileError::Message(problem)
}

struct Reader<'a> {
    recorded: &'a Recorded,
    mappings: HashMap<u64, &'a Mapping>,
    functions: HashMap<u64, &'a Function>,
    files: Interner<File>,
    symbols: Interner<String>,
    /// Index of the value with the number of samples, if there is one, and of that with what they
    /// stand for.
    values: (Option<usize>, usize),
}

impl<'a> Reader<'a> {
    fn new(recorded: &'a Recorded) -> Result<Self, ProfileError> {
        let text = |number: i64| text(recorded, number, "a sample type");
        let mut types = Vec::new();
        for one in &recorded.sample_type {
            types.push((text(one.kind)?, text(one.unit)?));
        }
        let last = types.len().checked_sub(1);
        let last =
            last.ok_or_else(|| damaged("no sample type, expected one or more".to_owned()))?;
        let wanted = text(recorded.default_sample_type)?;
        let named = types.iter().position(|(kind, _)| !wanted.is_empty() && *kind == wanted);
        let events = named.unwrap_or(last);
        let (kind, unit) = types[events];
        let is_of_time = |kind: &str| !["delay", "goroutine", "threadcreate"].contains(&kind);
        if !["count", "nanoseconds", "microseconds", "milliseconds", "seconds"].contains(&unit)
            || !is_of_time(kind)
            || kind.ends_with("_objects")
        {
            let what = format!("its samples are of `{kind}` in `{unit}`");
            return Err(ProfileError::Unsupported { what, remedy: TIME });
        }
        let samples = types.iter().position(|(kind, unit)| *kind == "samples" && *unit == "count");
        Ok(Self {
            recorded,
            mappings: recorded.mapping.iter().map(|one| (one.id, one)).collect(),
            functions: recorded.function.iter().map(|one| (one.id, one)).collect(),
            files: Interner::default(),
            symbols: Interner::default(),
            values: (samples, events),
        })
    }

    fn profile(mut self) -> Result<Profile, ProfileError> {
        let mut locations = HashMap::new();
        for (number, location) in self.recorded.location.iter().enumerate() {
            locations.insert(location.id, self.place(number, location)?);
        }
        // The first mapping is that of the program.
        let first = match self.recorded.mapping.first() {
            Some(mapping) => text(self.recorded, mapping.filename, "mapping 1")?,
            None => "",
        };
        let program = first.rsplit('/').next().filter(|name| !name.is_empty());
        let (samples, events) = self.values;
        let event = text(self.recorded, self.recorded.sample_type[events].kind, "a sample type")?;
        let mut profile = Profile {
            event: Some(event.to_owned()),
            programs: vec![program.unwrap_or("program").to_owned()],
            ..Profile::default()
        };
        for (number, sample) in self.recorded.sample.iter().enumerate() {
            let number = number + 1;
            let value = |index: usize| {
                let value = sample.value.get(index).copied().unwrap_or_default();
                u64::try_from(value).map_err(|_| {
                    damaged(format!(
                        "sample {number} has {value} of something: a difference of two profiles; \
                         expected 0 or more"
                    ))
                })
            };
            let weight = Weight { samples: samples.map_or(Ok(1), value)?, events: value(events)? };
            let mut frames = Vec::with_capacity(sample.location_id.len());
            for id in &sample.location_id {
                frames.push(*locations.get(id).ok_or_else(|| {
                    damaged(format!("sample {number} is at location {id}, which is missing"))
                })?);
            }
            // Equal places one after the other are a location each in the kernel.
            frames.dedup_by(|a, b| *a == Place::Kernel && *b == Place::Kernel);
            if frames.is_empty() {
                frames.push(Place::Unknown);
            }
            if weight != Weight::default() {
                profile.stacks.entry(Stack { program: 0, frames }).or_default().add(weight);
            }
        }
        profile.files = self.files.into_values();
        profile.symbols = self.symbols.into_values();
        Ok(profile)
    }

    /// The place of a location: by its address in a file, or else by its function's name. Callers'
    /// addresses lie in their calls already.
    fn place(&mut self, number: usize, location: &Location) -> Result<Place, ProfileError> {
        let what = || format!("location {}", number + 1);
        let mapping = match (location.mapping_id, self.mappings.get(&location.mapping_id)) {
            (0, _) => None,
            (_, Some(mapping)) => Some(**mapping),
            (id, None) => return Err(damaged(format!("{}: mapping {id} is missing", what()))),
        };
        let path = match mapping {
            Some(mapping) => text(self.recorded, mapping.filename, &what())?,
            None => "",
        };
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if path.starts_with("[kernel") || path.starts_with("[vdso") || path == "[vsyscall]" {
            return Ok(Place::Kernel);
        }
        let file = match mapping.filter(|_| is_file(path)) {
            Some(mapping) => {
                let id = text(self.recorded, mapping.build_id, &what())?;
                let build_id = bytes_of(id);
                Some(self.files.number(File { path: path.to_owned(), build_id }))
            }
            None => None,
        };
        let addresses = mapping.map_or(0..0, |mapping| mapping.memory_start..mapping.memory_limit);
        if let (Some(file), Some(mapping)) = (file, mapping)
            && addresses.contains(&location.address)
        {
            let offset = location.address - addresses.start;
            return Ok(Place::Offset { file, offset: mapping.file_offset.wrapping_add(offset) });
        }
        let Some(line) = location.line.first() else { return Ok(Place::Unknown) };
        let id = line.function_id;
        let function = self.functions.get(&id);
        let function =
            function.ok_or_else(|| damaged(format!("{}: function {id} is missing", what())))?;
        let system = text(self.recorded, function.system_name, &what())?;
        let name = text(self.recorded, function.name, &what())?;
        let name = if system.is_empty() { name } else { system };
        let symbol = self.symbols.number(name.to_owned());
        let file = file.unwrap_or_else(|| self.files.number(File::default()));
        Ok(Place::Symbol { file, symbol, distance: None })
    }
}

/// A text of the profile.
fn text<'a>(recorded: &'a Recorded, number: i64, of: &str) -> Result<&'a str, ProfileError> {
    let index = usize::try_from(number).ok();
    let all = &recorded.string_table;
    // Without texts, 0 is the empty one, as in all profiles.
    let text = index.and_then(|index| all.get(index)).map(String::as_str);
    text.or((number == 0).then_some("")).ok_or_else(|| {
        damaged(format!("{of}: text {number} is missing, expected one of {}", all.len()))
    })
}

/// The bytes of a build id in hexadecimal digits; `None` if it is something else, as Go's own are.
fn bytes_of(id: &str) -> Option<Vec<u8>> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_one = id.len() >= 16 && id.len().is_multiple_of(2);
    if is_one { id.as_bytes().chunks(2).map(digits).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [(i64, i64); 2] = [(1, 2), (3, 4)];

    /// A program with a function of a library, one without a file, and a caller.
    fn made_up() -> Recorded {
        let texts = [
            "",
            "samples",
            "count",
            "cpu",
            "nanoseconds",
            "/bin/server",
            "/lib/libx.so",
            "narrow",
            "_Z4widev",
            "wide",
            "0102030405060708",
            "go-build-id/x",
            "inuse_space",
            "bytes",
        ];
        let mapping = |id, start, filename, build_id| Mapping {
            id,
            memory_start: start,
            memory_limit: start + 0x1000,
            file_offset: 0x200,
            filename,
            build_id,
        };
        let location = |id, mapping_id, address, function| Location {
            id,
            mapping_id,
            address,
            line: vec![Line { function_id: function }],
        };
        let sample = |ids: &[u64], value: [i64; 2]| Sample {
            location_id: ids.to_vec(),
            value: value.to_vec(),
        };
        Recorded {
            sample_type: TYPES.map(|(kind, unit)| ValueType { kind, unit }).to_vec(),
            sample: vec![sample(&[7, 8], [3, 30]), sample(&[9], [1, 10]), sample(&[7, 8], [1, 11])],
            mapping: vec![mapping(1, 0x40_0000, 5, 11), mapping(2, 0x7000_0000, 6, 10)],
            location: vec![
                location(7, 2, 0x7000_0010, 2),
                location(8, 1, 0x40_0020, 1),
                location(9, 0, 0x99, 2),
            ],
            function: vec![
                Function { id: 1, name: 7, system_name: 0 },
                Function { id: 2, name: 9, system_name: 8 },
            ],
            string_table: texts.map(str::to_owned).to_vec(),
            default_sample_type: 0,
        }
    }

    #[test]
    fn samples_lie_in_files_or_else_in_functions() {
        let bytes = made_up().encode_to_vec();
        assert!(is_one(&bytes));
        // As Go's start: with the time.
        assert!(is_one(&[0x48, 0x94, 0x82, 0xd9, 0x96, 0x9f, 0x80, 0xf9, 0xf5, 0x18, 0x0a, 4]));
        for other in ["", "\n", "Hash 1 1.0: 1 cycles:\n", "\u{7f}ELF\u{2}"] {
            assert!(!is_one(other.as_bytes()), "{other:?}");
        }
        let profile = read(&bytes).unwrap();
        assert_eq!((profile.event.as_deref(), &profile.programs[0][..]), (Some("cpu"), "server"));
        let path = |file: u32| profile.files[file as usize].path.as_str();
        let stacks: Vec<_> = profile.stacks.iter().collect();
        let [(in_files, first), (by_name, second)] = stacks[..] else {
            panic!("{stacks:?}");
        };
        assert_eq!((first.samples, first.events, second.samples), (4, 41, 1));
        let [Place::Offset { file, offset: 0x210 }, Place::Offset { file: own, offset: 0x220 }] =
            in_files.frames[..]
        else {
            panic!("{in_files:?}");
        };
        assert_eq!((path(file), path(own)), ("/lib/libx.so", "/bin/server"));
        let build_id = |file: u32| profile.files[file as usize].build_id.as_deref();
        assert_eq!((build_id(file), build_id(own)), (Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]), None));
        let Place::Symbol { file, symbol, distance: None } = by_name.frames[0] else {
            panic!("{by_name:?}");
        };
        assert_eq!((path(file), profile.symbols[symbol as usize].as_str()), ("", "_Z4widev"));
    }

    #[test]
    fn what_contradicts_itself_is_named_with_its_place() {
        let check = |change: fn(&mut Recorded), expected: &str| {
            let mut recorded = made_up();
            change(&mut recorded);
            let said = read(&recorded.encode_to_vec()).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        };
        check(|one| one.sample_type.clear(), "no sample type, expected one or more");
        check(|one| one.sample[1].value[1] = -4, "sample 2 has -4 of something: a difference");
        check(
            |one| one.sample[0].location_id[0] = 5,
            "sample 1 is at location 5, which is missing",
        );
        check(|one| one.location[1].mapping_id = 6, "location 2: mapping 6 is missing");
        check(|one| one.location[2].line[0].function_id = 6, "location 3: function 6 is missing");
        check(|one| one.function[1].system_name = 99, "text 99 is missing, expected one of 14");
        check(|one| one.function[1].name = -1, "text -1 is missing");
        check(
            |one| one.sample_type[1] = ValueType { kind: 12, unit: 13 },
            "`inuse_space` in `bytes`",
        );
        let bytes = made_up().encode_to_vec();
        let said = read(&bytes[..bytes.len() - 1]).unwrap_err().to_string();
        assert!(said.starts_with("damaged profile of pprof: "), "{said}");
    }

    #[test]
    fn the_type_that_the_profile_wants_counts() {
        let mut recorded = made_up();
        recorded.default_sample_type = 1;
        let profile = read(&recorded.encode_to_vec()).unwrap();
        assert_eq!(profile.event.as_deref(), Some("samples"));
        assert_eq!(profile.stacks.values().map(|weight| weight.events).sum::<u64>(), 5);
    }

    #[test]
    fn any_bytes_give_a_profile_or_an_error() {
        let mut random = fastrand::Rng::with_seed(1);
        let bytes = made_up().encode_to_vec();
        for _ in 0..20_000 {
            let mut mangled = bytes.clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..mangled.len());
                mangled[at] = random.u8(..);
            }
            let _ = read(&mangled[..random.usize(..=mangled.len())]);
        }
    }
}
