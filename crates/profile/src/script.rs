//! The text of `perf script`, with its default fields.
//!
//! Addresses are found in files by the lines that `--show-mmap-events` adds, by the offsets that
//! `-F +dsoff` adds, by the names of functions, or else taken for offsets, which `perf` prints in
//! call chains.

use std::ops::Range;

use crate::space::Spaces;
use crate::{File, Interner, Place, Profile, ProfileError, Stack, Weight};

/// Reads the text.
///
/// # Errors
/// [`ProfileError`]: a line of another form, with its number.
pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ProfileError::Unknown)?;
    let mut reader = Reader::default();
    for (number, line) in text.lines().enumerate() {
        reader.line(line).map_err(|problem| {
            if !reader.has_begun {
                // Not even the first line is one.
                return ProfileError::Unknown;
            }
            ProfileError::Line { line: number + 1, problem }
        })?;
    }
    reader.end_sample();
    Ok(reader.end())
}

/// A sample whose frames are being read.
#[derive(Debug)]
struct Sample {
    program: u32,
    pid: u32,
    weight: Weight,
    frames: Vec<Place>,
}

#[derive(Debug, Default)]
struct Reader {
    spaces: Spaces,
    programs: Interner<String>,
    symbols: Interner<String>,
    sample: Option<Sample>,
    profile: Profile,
    /// Whether any line was understood.
    has_begun: bool,
}

/// The first line of a sample or another record.
struct Head<'text> {
    program: &'text str,
    pid: u32,
    tid: u32,
    /// What follows the time.
    rest: &'text str,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.trim().is_empty() {
            self.end_sample();
            return Ok(());
        }
        // Comments of `perf script --header`.
        if line.starts_with('#') {
            return Ok(());
        }
        if let Some(sample) = &self.sample
            && let Some(frame) = Frame::read(line)
        {
            let pid = sample.pid;
            let is_caller = !sample.frames.is_empty();
            let place = self.place(pid, &frame, is_caller);
            if let (Some(place), Some(sample)) = (place, &mut self.sample)
                && (place != Place::Kernel || sample.frames.last() != Some(&Place::Kernel))
            {
                sample.frames.push(place);
            }
            return Ok(());
        }
        self.end_sample();
        let head = head(line).ok_or_else(|| {
            format!("expected `PROGRAM PID TIME: PERIOD EVENT:` or a frame, found `{}`", cut(line))
        })?;
        self.has_begun = true;
        match head.rest.strip_prefix("PERF_RECORD_") {
            Some(record) => self.record(&head, record),
            None => self.head(&head),
        }
        Ok(())
    }

    /// A record that is no sample. Those that are not understood say nothing about addresses.
    fn record(&mut self, head: &Head<'_>, record: &str) {
        if record.starts_with("MMAP") {
            if let Some((pid, addresses, offset, path)) = mapping(record) {
                // Without room for it, its code is found by offsets or names, as in a text without
                // mappings.
                let _ = self.spaces.map(pid, addresses, offset, path, None);
            }
        } else if record.starts_with("COMM exec") {
            self.spaces.name(head.pid, head.tid, head.program, true);
        } else if let Some(forked) = record.strip_prefix("FORK(") {
            // `FORK(123:123):(100:100)`.
            let ids: Vec<u32> = forked
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|id| id.parse().ok())
                .collect();
            if let [pid, tid, parent, parent_tid] = ids[..] {
                self.spaces.fork((parent, parent_tid), (pid, tid));
            }
        }
    }

    /// The first line of a sample, which may have its only frame, too.
    fn head(&mut self, head: &Head<'_>) {
        let mut rest = head.rest.trim_start();
        let first = rest.split_whitespace().next().unwrap_or_default();
        let period = first.parse::<u64>().ok();
        if period.is_some() {
            rest = rest[first.len()..].trim_start();
        }
        let name = rest.split_whitespace().next().unwrap_or_default();
        let frame = Frame::read(&rest[name.len()..]);
        let name = name.trim_end_matches(':');
        match &self.profile.event {
            None => self.profile.event = Some(name.to_owned()),
            Some(event) if event != name => {
                self.profile.other_events += 1;
                return;
            }
            Some(_) => {}
        }
        // Of a text without the lines of other records, this is all that names the process.
        let program = self.programs.number(head.program.to_owned());
        let weight = Weight { samples: 1, events: period.unwrap_or(1) };
        let place = frame.and_then(|frame| self.place(head.pid, &frame, false));
        let frames = place.into_iter().collect();
        self.sample = Some(Sample { program, pid: head.pid, weight, frames });
    }

    /// The place of a frame; `None` if it is part of the one before (an inlined function).
    fn place(&mut self, pid: u32, frame: &Frame<'_>, is_caller: bool) -> Option<Place> {
        let back = u64::from(is_caller);
        match frame.file {
            "inlined" => return None,
            "[unknown]" => {
                let address = frame.address.saturating_sub(back);
                // Without lines of mappings, a file with names may know more.
                return Some(self.spaces.place(pid, address).unwrap_or(match frame.address {
                    0 => Place::Unknown,
                    _ => Place::Memory { pid, address },
                }));
            }
            memory if memory.starts_with("//anon") => {
                return Some(Place::Memory { pid, address: frame.address.saturating_sub(back) });
            }
            kernel if kernel.starts_with('[') => return Some(Place::Kernel),
            _ => {}
        }
        let (path, offset) = match frame.file.rsplit_once("+0x") {
            Some((path, offset)) => (path, u64::from_str_radix(offset, 16).ok()),
            None => (frame.file, None),
        };
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let file = self.spaces.files.number(File { path: path.to_owned(), build_id: None });
        let mapped = self.spaces.place(pid, frame.address.saturating_sub(back));
        Some(match (mapped, offset, frame.symbol) {
            (Some(Place::Offset { file: of, offset }), _, _) if of == file => {
                Place::Offset { file, offset }
            }
            (_, Some(offset), _) => Place::Offset { file, offset: offset.saturating_sub(back) },
            (_, None, Some((symbol, distance))) => {
                let distance = distance.map(|distance| distance.saturating_sub(back));
                Place::Symbol { file, symbol: self.symbols.number(symbol.to_owned()), distance }
            }
            // In call chains, `perf` prints offsets in the file instead of addresses.
            (_, None, None) => Place::Offset { file, offset: frame.address.saturating_sub(back) },
        })
    }

    fn end_sample(&mut self) {
        let Some(sample) = self.sample.take() else { return };
        let Sample { program, weight, mut frames, .. } = sample;
        if frames.is_empty() {
            frames.push(Place::Unknown);
        }
        self.profile.stacks.entry(Stack { program, frames }).or_default().add(weight);
    }

    fn end(self) -> Profile {
        Profile {
            programs: self.programs.into_values(),
            files: self.spaces.files.into_values(),
            jitdumps: self.spaces.jitdumps,
            symbols: self.symbols.into_values(),
            ..self.profile
        }
    }
}

/// `PROGRAM PID[/TID] [CPU] TIME: REST`; the program's name may have spaces.
fn head(line: &str) -> Option<Head<'_>> {
    let mut from = 0;
    loop {
        let colon = from + line[from..].find(": ")?;
        let time = line[..colon].rsplit(' ').next()?;
        let is_time = |c: char| c.is_ascii_digit() || c == '.';
        if time.contains('.') && time.chars().all(is_time) {
            let rest = line[colon + 2..].trim_start();
            let mut before = line[..colon - time.len()].trim();
            if before.ends_with(']') {
                before = before[..before.rfind('[')?].trim_end();
            }
            let (program, ids) = before.rsplit_once(' ')?;
            let (pid, tid) = ids.split_once('/').unwrap_or((ids, ids));
            // The kernel's own tasks have the number -1.
            let id = |text: &str| text.parse::<i64>().ok().map(|id| u32::try_from(id).unwrap_or(0));
            return Some(Head { program: program.trim(), pid: id(pid)?, tid: id(tid)?, rest });
        }
        from = colon + 2;
    }
}

/// `MMAP2 1/1: [0x55f2(0x6b000) @ 0x3c000 fe:00 247599 0]: r-xp /usr/bin/openssl`.
fn mapping(record: &str) -> Option<(u32, Range<u64>, u64, &str)> {
    let hexadecimal =
        |text: &str| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    let (head, rest) = record.split_once(": [")?;
    let pid = head.split_once(' ')?.1.split('/').next()?.parse().ok()?;
    let (start, rest) = rest.split_once('(')?;
    let (length, rest) = rest.split_once(')')?;
    let offset = rest.split_once('@')?.1.trim_start();
    let (offset, rest) = offset.split_at(offset.find([' ', ']'])?);
    let (permissions, path) = rest.split_once("]: ")?.1.split_once(' ')?;
    let start = hexadecimal(start)?;
    let end = start.checked_add(hexadecimal(length)?)?;
    permissions.contains('x').then_some((pid, start..end, hexadecimal(offset)?, path))
}

/// `ADDRESS SYMBOL+0xDISTANCE (FILE)`.
#[derive(Debug)]
struct Frame<'text> {
    address: u64,
    symbol: Option<(&'text str, Option<u64>)>,
    file: &'text str,
}

impl<'text> Frame<'text> {
    fn read(line: &'text str) -> Option<Self> {
        let (address, rest) = line.trim().split_once(' ')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        let rest = rest.strip_suffix(')')?;
        // Names of C++ have brackets as well, and a file may be called ` (deleted)`.
        let start = rest.strip_suffix(" (deleted)").unwrap_or(rest).rfind(" (")?;
        let (symbol, file) = (rest[..start].trim(), &rest[start + 2..]);
        let symbol = match symbol.rsplit_once("+0x") {
            _ if symbol.is_empty() || symbol == "[unknown]" => None,
            Some((name, distance)) => match u64::from_str_radix(distance, 16) {
                Ok(distance) => Some((name, Some(distance))),
                Err(_) => Some((symbol, None)),
            },
            None => Some((symbol, None)),
        };
        Some(Self { address, symbol, file })
    }
}

/// The start of a line, for a message.
fn cut(line: &str) -> String {
    line.trim().chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# comment
openssl speed 13197 26518.091029: PERF_RECORD_MMAP2 13197/13197: [0x5000(0x1000) @ 0x3c000 fe:00 2 0]: r-xp /bin/a
openssl speed 13197/13198 [001] 26518.091280:     250000 cpu-clock:ppp: 
\tffffffff8169245f charge_memcg+0x2f ([kernel.kallsyms])
\tffffffff816936ac f+0x2c ([kernel.kallsyms])
\t            5010 [unknown] (/bin/a)
\t            6df9 ns::f(int) const+0x829 (/lib/b.so (deleted))
\t            7000 g (/lib/c.so+0x77)
\t               0 [unknown] ([unknown])

java     7     1.5:          1 cpu-clock:ppp:      7f1234 LMain;run+0x4 (/tmp/perf-7.map)
java     7     1.6:          1 cycles:      7f1234 x (/a)
";

    #[test]
    fn frames_have_places_by_mapping_offset_or_name() {
        let profile = read(TEXT.as_bytes()).unwrap();
        assert_eq!(profile.event.as_deref(), Some("cpu-clock:ppp"));
        assert_eq!(profile.programs, ["openssl speed", "java"]);
        assert_eq!(profile.other_events, 1);
        let paths: Vec<&str> = profile.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["/bin/a", "/lib/b.so", "/lib/c.so", "/tmp/perf-7.map"]);
        assert_eq!(profile.symbols, ["ns::f(int) const", "LMain;run"]);
        let stacks: Vec<(&Stack, &Weight)> = profile.stacks.iter().collect();
        let symbol =
            |file, symbol, distance| Place::Symbol { file, symbol, distance: Some(distance) };
        let expected = [
            Place::Kernel,
            Place::Offset { file: 0, offset: 0x3c00f },
            symbol(1, 0, 0x828),
            Place::Offset { file: 2, offset: 0x76 },
            Place::Unknown,
        ];
        assert_eq!(stacks[0].0.frames, expected);
        assert_eq!(*stacks[0].1, Weight { samples: 1, events: 250_000 });
        assert_eq!(stacks[1].0.frames, [symbol(3, 1, 4)]);
    }

    #[test]
    fn other_text_is_no_profile_and_a_wrong_line_is_named() {
        assert_eq!(read(b"hello\n").unwrap_err(), ProfileError::Unknown);
        assert_eq!(read(&[0xff, 0xfe]).unwrap_err(), ProfileError::Unknown);
        let wrong = read(format!("{TEXT}what is this\n").as_bytes()).unwrap_err();
        assert!(wrong.to_string().starts_with("line 13: expected `PROGRAM"), "{wrong}");
    }
}
