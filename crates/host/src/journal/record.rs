//! One line of a journal, with a checksum at its end.

use crate::core_power::{DEVICE, Place};
use crate::msr;

/// One change: its place, and how to undo it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) path: String,
    pub(super) change: Change,
}

/// The kind of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A file was written: the content before, and the content written.
    File { before: String, written: String },
    /// A control group was made; the file that lists its members.
    Group { members: String },
    /// A controller was switched on for a control group's children.
    Controller { name: String },
    /// A register was written: its number, the value before, and the value written.
    Register { register: u32, before: u64, written: u64 },
    /// A place of Intel Speed Select core power was changed: the value before, and that written.
    CorePower { place: Place, before: u64, written: u64 },
    /// Another program, which this process has started, writes the file from now on; the content
    /// that the file gets back whatever it holds then.
    ByOther { rest: String },
}

/// Each name changes with its format, so that a journal of another version is never misread.
const FILE: &str = "v2";
const GROUP: &str = "group2";
const CONTROLLER: &str = "controller2";
const REGISTER: &str = "register1";
const BY_OTHER: &str = "other2";
const CORE_POWER: &str = "corepower1";

impl Record {
    pub(super) fn file(path: &str, before: &str, written: &str) -> Self {
        let (before, written) = (before.to_owned(), written.to_owned());
        Self { path: path.to_owned(), change: Change::File { before, written } }
    }

    pub(super) fn group(path: &str, members: &str) -> Self {
        let members = members.to_owned();
        Self { path: path.to_owned(), change: Change::Group { members } }
    }

    pub(super) fn controller(path: &str, name: &str) -> Self {
        Self { path: path.to_owned(), change: Change::Controller { name: name.to_owned() } }
    }

    pub(super) fn register(path: &str, register: u32, before: u64, written: u64) -> Self {
        Self { path: path.to_owned(), change: Change::Register { register, before, written } }
    }

    pub(super) fn by_other(path: &str, rest: &str) -> Self {
        Self { path: path.to_owned(), change: Change::ByOther { rest: rest.to_owned() } }
    }

    pub(super) fn core_power(place: Place, before: u64, written: u64) -> Self {
        Self { path: DEVICE.to_owned(), change: Change::CorePower { place, before, written } }
    }

    /// The place that was changed: the file, for a register with its number. Two records of one
    /// place are changes of the same thing.
    pub(super) fn place(&self) -> String {
        match self.change {
            Change::Register { register, .. } => msr::place(&self.path, register),
            Change::CorePower { place, .. } => place.name(),
            _ => self.path.clone(),
        }
    }

    /// Whether this earlier record is enough to undo what `later` records: it says that the same
    /// value was written to the same place.
    pub(super) fn covers(&self, later: &Self) -> bool {
        let is_same = match (&self.change, &later.change) {
            (Change::File { written, .. }, Change::File { written: again, .. }) => written == again,
            (Change::Register { written, .. }, Change::Register { written: again, .. })
            | (Change::CorePower { written, .. }, Change::CorePower { written: again, .. }) => {
                written == again
            }
            _ => false,
        };
        is_same && self.place() == later.place()
    }

    /// What was written into the file, if it is the record of one.
    pub(super) fn written(&self) -> Option<&str> {
        match &self.change {
            Change::File { written, .. } => Some(written),
            _ => None,
        }
    }

    /// What a register or a place of core power held before, and what was written.
    pub(super) fn words(&self) -> Option<(u64, u64)> {
        match self.change {
            Change::Register { before, written, .. }
            | Change::CorePower { before, written, .. } => Some((before, written)),
            _ => None,
        }
    }

    /// The line, including its end.
    pub(super) fn line(&self) -> String {
        let fields = match &self.change {
            Change::File { before, written } => vec![FILE, &self.path, before, written],
            Change::Group { members } => vec![GROUP, &self.path, members],
            Change::Controller { name } => vec![CONTROLLER, &self.path, name],
            Change::ByOther { rest } => vec![BY_OTHER, &self.path, rest],
            Change::Register { .. } => vec![REGISTER, &self.path],
            Change::CorePower { .. } => vec![CORE_POWER],
        };
        let mut fields: Vec<String> = fields.into_iter().map(escape).collect();
        if let Change::Register { register, before, written } = self.change {
            fields
                .extend([u64::from(register), before, written].map(|value| format!("{value:#x}")));
        }
        if let Change::CorePower { place, before, written } = self.change {
            fields.extend([place.to_string(), format!("{before:#x}"), format!("{written:#x}")]);
        }
        let text = fields.join("\t");
        format!("{text}\t{:08x}\n", checksum(text.as_bytes()))
    }

    fn parse(line: &str) -> Option<Self> {
        let (line, sum) = line.rsplit_once('\t')?;
        if sum != format!("{:08x}", checksum(line.as_bytes())) {
            return None;
        }
        let fields: Vec<String> = line.split('\t').map(unescape).collect::<Option<_>>()?;
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let number = |field: &str| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok();
        match *fields.as_slice() {
            [FILE, path, before, written] => Some(Self::file(path, before, written)),
            [GROUP, path, members] => Some(Self::group(path, members)),
            [CONTROLLER, path, name] => Some(Self::controller(path, name)),
            [BY_OTHER, path, rest] => Some(Self::by_other(path, rest)),
            [REGISTER, path, register, before, written] => {
                let register = u32::try_from(number(register)?).ok()?;
                Some(Self::register(path, register, number(before)?, number(written)?))
            }
            [CORE_POWER, place, before, written] => {
                Some(Self::core_power(Place::parse(place)?, number(before)?, number(written)?))
            }
            _ => None,
        }
    }
}

/// Parses a journal into its records and the numbers (from 1) of invalid lines. A last line without
/// its end was being written when its process ended. Its change had not been made, so the line
/// counts neither as record nor as damage.
pub(super) fn parse(text: &str) -> (Vec<Record>, Vec<usize>) {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut records = Vec::new();
    let mut damaged = Vec::new();
    for (index, line) in whole.split_terminator('\n').enumerate() {
        match Record::parse(line) {
            Some(record) => records.push(record),
            None => damaged.push(index + 1),
        }
    }
    (records, damaged)
}

/// CRC-32 as in Ethernet (IEEE 802.3, reflected, polynomial 0x04c11db7).
fn checksum(bytes: &[u8]) -> u32 {
    let of_byte = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    };
    !bytes.iter().fold(u32::MAX, of_byte)
}

/// Characters that would end a field, and their escapes.
const ESCAPES: [(char, char); 4] = [('\\', '\\'), ('\t', 't'), ('\n', 'n'), ('\r', 'r')];

fn escape(field: &str) -> String {
    let mut escaped = String::with_capacity(field.len());
    for character in field.chars() {
        match ESCAPES.iter().find(|(plain, _)| *plain == character) {
            Some((_, code)) => escaped.extend(['\\', *code]),
            None => escaped.push(character),
        }
    }
    escaped
}

fn unescape(field: &str) -> Option<String> {
    let mut plain = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        if character == '\\' {
            let code = characters.next()?;
            plain.push(ESCAPES.iter().find(|(_, known)| *known == code)?.0);
        } else {
            plain.push(character);
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::{Record, checksum, parse};
    use crate::core_power::{DomainId, Place};

    fn awkward() -> Record {
        Record::file("/sys/a b\tc", "1\n2\\t\r", "")
    }

    #[test]
    fn reads_back_what_it_writes() {
        let group = Record::group("/sys/fs/cgroup/a\tb", "tasks");
        let controller = Record::controller("/sys/fs/cgroup/cgroup.subtree_control", "cpuset");
        let by_other = Record::by_other("/sys/kernel/dimmer_xcr0/narrow", "");
        let register = Record::register("/dev/cpu/0/msr", 0xc001_0064, u64::MAX, 0);
        let domain = DomainId { package: 1, domain: 2 };
        let core_power = Record::core_power(Place::Class(domain, 3), 0xff_0000, 0x8_00f0);
        for record in [awkward(), group, controller, by_other, register, core_power] {
            assert_eq!(parse(&record.line()), (vec![record], vec![]));
        }
    }

    #[test]
    fn takes_a_torn_last_line_for_a_change_not_made() {
        let first = Record::file("/sys/x", "0", "1");
        let text = format!("{}{}", first.line(), awkward().line());
        for end in first.line().len()..text.len() {
            assert_eq!(parse(&text[..end]), (vec![first.clone()], vec![]), "cut at {end}");
        }
    }

    #[test]
    fn names_lines_that_are_no_records() {
        let good = Record::file("/sys/x", "0", "1");
        let text = format!("v3\ta\tb\tc\n{}garbage\nv2\ta\tb\n\nv2\ta\tb\\\tc\n", good.line());
        assert_eq!(parse(&text), (vec![good], vec![1, 3, 4, 5, 6]));
    }

    #[test]
    fn takes_no_changed_line_for_a_record() {
        let first = Record::file("/sys/x", "0", "1");
        let second = Record::group("/sys/fs/cgroup/dimmer.1.0", "tasks");
        let text = format!("{}{}", first.line(), second.line());
        for at in 0..first.line().len() - 1 {
            for bit in 0..7 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let changed = String::from_utf8(bytes).expect("ASCII");
                let (records, damaged) = parse(&changed);
                assert!(!records.contains(&first), "{changed:?}");
                assert!(matches!(records.as_slice(), [one] if *one == second), "{changed:?}");
                assert!(!damaged.is_empty(), "{changed:?}");
            }
        }
    }

    #[test]
    fn sums_up_as_ethernet_does() {
        // The check value of CRC-32 in "A Painless Guide to CRC Error Detection Algorithms".
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }
}
