//! The file that a site's code comes from, by `/proc/self/maps`: read by plain system calls, since
//! the loader's lists are behind a lock that the thread may hold.

use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags, open};

use crate::ledger::{PATH, Site};
use crate::own::{OwnFile, word_of};

/// Longer lines are cut there (bytes): the numbers and a name that has room in a site.
const LONGEST_LINE: usize = 512;

/// Writes into a site which file has the code at `caller`, and where.
#[cold]
pub(crate) fn describe(site: &Site, caller: usize) {
    let found = Lines::open().and_then(|mut lines| {
        let mut line = [0; LONGEST_LINE];
        while let Some(length) = lines.next(&mut line) {
            let found = Mapping::parse(&line[..length]).filter(|found| found.contains(caller));
            if let Some(Mapping { start, offset, path, .. }) = found {
                note(site, (caller as u64 - start).saturating_add(offset), path);
                return Some(());
            }
        }
        None
    });
    if found.is_none() {
        note(site, caller as u64, &[]);
    }
}

pub(crate) fn note(site: &Site, offset: u64, path: &[u8]) {
    site.offset.store(offset, Ordering::Relaxed);
    if path.len() > PATH {
        return;
    }
    for (word, part) in site.path.iter().zip(path.chunks(8)) {
        word.store(word_of(part), Ordering::Relaxed);
    }
    // Release: the name is complete.
    site.path_length.store(u32::try_from(path.len()).unwrap_or(0), Ordering::Release);
}

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    /// Offset of the start in the file.
    offset: u64,
    /// The name of the file; empty without one.
    path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// Parses `START-END ACCESS OFFSET DEVICE INODE      NAME`, proc_pid_maps(5).
    fn parse(line: &'a [u8]) -> Option<Self> {
        let (start, rest) = number(line)?;
        let (end, rest) = number(rest.strip_prefix(b"-")?)?;
        let (_, rest) = word(rest.strip_prefix(b" ")?)?;
        let (offset, rest) = number(rest)?;
        let (_, rest) = word(rest.strip_prefix(b" ")?)?;
        let (_, rest) = word(rest).unwrap_or((rest, &[]));
        let path = rest.trim_ascii_start();
        Some(Self {
            start,
            end,
            offset,
            path: if path.first() == Some(&b'/') { path } else { &[] },
        })
    }

    fn contains(&self, address: usize) -> bool {
        (self.start..self.end).contains(&(address as u64))
    }
}

/// Splits off a hexadecimal number.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = text.split_at(digits);
    let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((number, rest))
}

/// Splits off what comes before the next space.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..end], &text[end + 1..]))
}

/// The lines of `/proc/self/maps`.
struct Lines {
    file: OwnFile,
    buffer: [u8; LONGEST_LINE],
    read: usize,
    next: usize,
}

impl Lines {
    fn open() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = OwnFile::new(open(c"/proc/self/maps", flags, Mode::empty()).ok()?);
        Some(Self { file, buffer: [0; LONGEST_LINE], read: 0, next: 0 })
    }

    /// Reads the next line into `line`, without its end; returns its length there.
    fn next(&mut self, line: &mut [u8; LONGEST_LINE]) -> Option<usize> {
        let mut length = 0;
        loop {
            match self.byte()? {
                b'\n' => return Some(length),
                byte => {
                    if let Some(place) = line.get_mut(length) {
                        *place = byte;
                        length += 1;
                    }
                }
            }
        }
    }

    fn byte(&mut self) -> Option<u8> {
        if self.next == self.read {
            self.next = 0;
            self.read = rustix::io::read(&self.file, &mut self.buffer[..]).ok()?;
        }
        let byte = *self.buffer[..self.read].get(self.next)?;
        self.next += 1;
        Some(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = b"7f00a000-7f00b000 r-xp 00001000 fe:00 1234       /usr/lib/a b.so (deleted)";
        let path = b"/usr/lib/a b.so (deleted)";
        let expected = Mapping { start: 0x7f00_a000, end: 0x7f00_b000, offset: 0x1000, path };
        assert_eq!(Mapping::parse(line), Some(expected));
        let parsed = Mapping::parse(b"10-20 rw-p 00000000 00:00 0 ").unwrap();
        assert!(parsed.path.is_empty() && parsed.contains(0x1f) && !parsed.contains(0x20));
        assert!(Mapping::parse(b"10-20 rw-p 00000000 00:00 0   [stack]").unwrap().path.is_empty());
        for wrong in [&b""[..], b"-", b"10-20", b"zz-20 r", b"10-20 r-xp", b"10 20 r-xp 0 0 0 /a"] {
            assert_eq!(Mapping::parse(wrong), None);
        }
    }

    #[test]
    fn own_code_is_found() {
        let site = Site::default();
        let own = describe as *const ();
        describe(&site, own.addr());
        let length = usize::try_from(site.path_length.load(Ordering::Relaxed)).unwrap();
        let words = site.path.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let path: Vec<u8> = words.take(length).collect();
        let expected = std::env::current_exe().unwrap();
        assert_eq!(path, expected.as_os_str().as_encoded_bytes());
        let unmapped = Site::default();
        describe(&unmapped, 8);
        assert_eq!(unmapped.path_length.load(Ordering::Relaxed), 0);
        assert_eq!(unmapped.offset.load(Ordering::Relaxed), 8);
    }
}
