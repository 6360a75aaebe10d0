//! Names and code of functions that a program generated, from the files `jit-PID.dump` that virtual
//! machines for Java, .NET, JavaScript and others write on request.
//!
//! Source: Linux, `tools/perf/Documentation/jitdump-specification.txt`. Not read are the records
//! with lines of source code and with unwinding information, and files of other processors.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::bytes::Bytes;

/// `JiTD`, as a little-endian number.
const MAGIC: u32 = 0x4a69_5444;
/// ELF's number of x86-64 (`EM_X86_64`).
const X86_64: u32 = 62;
/// Length of the header, of the header of a record, and of a load before its name (bytes).
const HEADER: usize = 40;
const RECORD_HEADER: usize = 16;
const LOAD: usize = 40;
/// Numbers of records (`enum jit_record_type`).
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_CLOSE: u32 = 3;

/// Why a file is not read, with the place in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {problem}")]
pub struct JitDumpError {
    /// The place in the file (bytes).
    pub at: usize,
    /// What is wrong there, and what is accepted.
    pub problem: String,
}

/// A generated function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated<'data> {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Its name.
    pub name: String,
    /// Its code.
    pub code: &'data [u8],
}

/// The functions of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JitDump<'data> {
    /// By start. Of functions at the same place the last one stays.
    functions: BTreeMap<u64, Generated<'data>>,
}

impl<'data> JitDump<'data> {
    /// Reads such a file. What was written of one that was cut off in a record is read.
    ///
    /// # Errors
    /// [`JitDumpError`]: it is none, or contradicts itself.
    pub fn read(bytes: &'data [u8]) -> Result<Self, JitDumpError> {
        let wrong = |at: usize, problem: String| JitDumpError { at, problem };
        let mut header = Bytes(bytes);
        let magic = header.u32();
        if magic != Some(MAGIC) {
            let expected = "expected a jitdump of this byte order, which begins with `DTiJ`";
            return Err(wrong(0, expected.to_owned()));
        }
        let (version, length, machine) = (header.u32(), header.u32(), header.u32());
        if version != Some(1) {
            let found = version.map_or("none".to_owned(), |version| version.to_string());
            return Err(wrong(4, format!("version {found}, expected 1")));
        }
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        if !(HEADER..=bytes.len()).contains(&length) {
            let most = bytes.len();
            let problem = format!("a header of {length} bytes, expected {HEADER} to {most}");
            return Err(wrong(8, problem));
        }
        if machine != Some(X86_64) {
            let found = machine.unwrap_or(0);
            return Err(wrong(12, format!("code of machine {found}, expected {X86_64} (x86-64)")));
        }
        let mut dump = Self::default();
        let mut at = length;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= RECORD_HEADER) {
            let mut record = Bytes(rest);
            let (Some(kind), Some(length)) = (record.u32(), record.u32()) else { break };
            let length = length as usize;
            if length < RECORD_HEADER {
                let problem =
                    format!("a record of {length} bytes, expected {RECORD_HEADER} or more");
                return Err(wrong(at + 4, problem));
            }
            let Some(body) = rest.get(RECORD_HEADER..length) else { break };
            match kind {
                CODE_LOAD => dump.load(body).ok_or_else(|| {
                    let problem = "a load of code that does not fit its record: expected 40 bytes, \
                                   a name that ends with a zero byte, and the code";
                    wrong(at, problem.to_owned())
                })?,
                CODE_MOVE => dump.moves(body).ok_or_else(|| {
                    wrong(at, "a move of code, expected 48 bytes or more".to_owned())
                })?,
                CODE_CLOSE => break,
                _ => {}
            }
            at += length;
        }
        Ok(dump)
    }

    fn load(&mut self, body: &'data [u8]) -> Option<()> {
        let mut numbers = Bytes(body);
        // The process, the thread, and the address at which it was written.
        numbers.skip(2)?;
        let (start, size, _) = (numbers.u64()?, numbers.u64()?, numbers.u64()?);
        let rest = body.get(LOAD..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        let code = rest[end + 1..].get(..usize::try_from(size).ok()?)?;
        let addresses = start..start.checked_add(size)?;
        self.functions.insert(start, Generated { addresses, name, code });
        Some(())
    }

    fn moves(&mut self, body: &[u8]) -> Option<()> {
        let mut numbers = Bytes(body);
        numbers.skip(2)?;
        let (from, to, size) = (numbers.u64()?, numbers.u64()?, numbers.u64()?);
        numbers.skip(1)?;
        let end = to.checked_add(size)?;
        if let Some(function) = self.functions.remove(&from) {
            let end = end.min(to.saturating_add(function.code.len() as u64));
            self.functions.insert(to, Generated { addresses: to..end, ..function });
        }
        Some(())
    }

    /// The function at an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&Generated<'data>> {
        let (_, function) = self.functions.range(..=address).next_back()?;
        function.addresses.contains(&address).then_some(function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let numbers = [MAGIC, 1, 40, X86_64, 0, 7].map(u32::to_le_bytes).concat();
        [numbers, vec![0; 16]].concat()
    }

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(RECORD_HEADER + body.len()).unwrap();
        [&kind.to_le_bytes()[..], &length.to_le_bytes(), &[0; 8], body].concat()
    }

    fn load(start: u64, name: &[u8], code: &[u8]) -> Vec<u8> {
        let numbers = [0, start, start, code.len() as u64, 1].map(u64::to_le_bytes).concat();
        record(CODE_LOAD, &[&numbers[..], name, &[0], code].concat())
    }

    #[test]
    fn functions_are_found_by_address_with_their_code() {
        let moved = [0, 0, 0x2000, 0x9000, 3, 2].map(u64::to_le_bytes).concat();
        let file = [
            header(),
            load(0x1000, b"one", &[0x90, 0xc3]),
            record(2, &[0; 9]),
            load(0x2000, b"two", &[1, 2, 3]),
            record(CODE_MOVE, &moved),
            load(0x1000, b"other", &[0xc3]),
            record(CODE_CLOSE, &[]),
            load(0x3000, b"after the end", &[0xc3]),
        ];
        let file = file.concat();
        let dump = JitDump::read(&file).unwrap();
        let at = |address| dump.at(address).map(|found| (found.name.as_str(), found.code));
        assert_eq!(at(0x1000), Some(("other", &[0xc3][..])));
        assert_eq!(at(0x9002), Some(("two", &[1, 2, 3][..])));
        assert_eq!([at(0x1001), at(0x2000), at(0x9003), at(0x3000)], [None; 4]);
    }

    #[test]
    fn what_was_cut_off_is_read_as_far_as_it_is_there() {
        let file =
            [header(), load(0x1000, b"one", &[0xc3]), load(0x2000, b"two", &[0xc3])].concat();
        let whole = JitDump::read(&file).unwrap();
        for length in HEADER..file.len() {
            let dump = JitDump::read(&file[..length]).unwrap();
            assert!(dump.functions.iter().all(|(at, one)| whole.functions[at] == *one));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_its_place() {
        let check = |file: Vec<u8>, expected: &str| {
            let said = JitDump::read(&file).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        };
        check(b"perf".to_vec(), "byte 0: expected a jitdump");
        check(header()[..20].to_vec(), "byte 8: a header of 40 bytes, expected 40 to 20");
        let with = |at: usize, number: u32| {
            let mut file = [header(), load(0x1000, b"x", &[0xc3])].concat();
            file[at..at + 4].copy_from_slice(&number.to_le_bytes());
            file
        };
        check(with(4, 2), "byte 4: version 2, expected 1");
        check(with(8, u32::MAX), "byte 8: a header of 4294967295 bytes");
        check(with(12, 183), "byte 12: code of machine 183");
        check(with(44, 0), "byte 44: a record of 0 bytes, expected 16");
        check(with(40 + 16 + 24, u32::MAX), "byte 40: a load of code that does not fit");
        let last = [header(), load(u64::MAX, b"x", &[0xc3])].concat();
        check(last, "byte 40: a load of code that does not fit");
        check([header(), record(CODE_MOVE, &[0; 47])].concat(), "byte 40: a move of code");
    }

    #[test]
    fn any_bytes_give_functions_or_an_error() {
        let mut random = fastrand::Rng::with_seed(1);
        let file =
            [header(), load(0x1000, b"one", &[0xc3]), load(0x2000, b"two", &[0xc3])].concat();
        for _ in 0..20_000 {
            let mut mangled = file.clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..mangled.len());
                mangled[at] = random.u8(..);
            }
            let _ = JitDump::read(&mangled[..random.usize(..=mangled.len())]);
        }
    }
}
