//! What a page of memory is mapped from, as the kernel lists it (/proc/self/maps; proc(5)).

use rustix::fs::{Mode, OFlags};

/// Bytes that are read at a time. They lie on the program's stack.
const PIECE: usize = 512;

/// A part of a file that is mapped privately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Addresses.
    start: u64,
    end: u64,
    /// Place in the file of its first byte.
    offset: u64,
    /// Numbers of the device, and of the file on it; 0: no file.
    device: (u64, u64),
    inode: u64,
    is_private: bool,
}

impl Mapping {
    /// The file, and the place in it of a page.
    fn place(&self, page: u64) -> ((u64, u64), u64, u64) {
        (self.device, self.inode, self.offset.wrapping_add(page.wrapping_sub(self.start)))
    }

    /// Whether this page is mapped from the same place of the same file as the same page in
    /// `other`, privately.
    pub(crate) fn is_as(&self, other: &Self, page: u64) -> bool {
        self.is_private && self.inode != 0 && self.place(page) == other.place(page)
    }
}

/// Calls `found` with each of these pages, in ascending order, that is mapped from a file, and with
/// its mapping. Makes system calls, takes no lock and allocates nothing.
pub(crate) fn of_pages(pages: impl Iterator<Item = u64>, mut found: impl FnMut(u64, Mapping)) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/self/maps", flags, Mode::empty()) else { return };
    let mut pages = pages.peekable();
    let mut line = Line::default();
    let mut piece = [0; PIECE];
    while pages.peek().is_some() {
        let bytes = match rustix::io::read(&file, &mut piece) {
            Ok(0) => return,
            Ok(number) => piece.get(..number).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        for byte in bytes {
            let Some(mapping) = line.add(*byte) else { continue };
            while let Some(page) = pages.next_if(|page| *page < mapping.end) {
                if page >= mapping.start && mapping.inode != 0 {
                    found(page, mapping);
                }
            }
        }
    }
}

/// A line that is read byte by byte: `start-end permissions offset device:device inode path`.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    mapping: Mapping,
    /// The field that is being read, and the number in it so far.
    field: Field,
    number: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Start,
    End,
    Permissions,
    Offset,
    Major,
    Minor,
    Inode,
    Path,
}

impl Line {
    /// Adds a byte. Returns the mapping at the end of the line.
    fn add(&mut self, byte: u8) -> Option<Mapping> {
        if byte == b'\n' {
            self.end_field();
            return Some(std::mem::take(self).mapping);
        }
        match (self.field, byte) {
            (Field::Path, _) => {}
            (Field::Permissions, b'p') => self.mapping.is_private = true,
            (_, b' ' | b'-' | b':') if self.field != Field::Permissions || byte == b' ' => {
                self.end_field();
            }
            _ => {
                let base = if self.field == Field::Inode { 10 } else { 16 };
                let digit = char::from(byte).to_digit(base).map_or(0, u64::from);
                self.number = self.number.wrapping_mul(base.into()).wrapping_add(digit);
            }
        }
        None
    }

    fn end_field(&mut self) {
        let number = std::mem::take(&mut self.number);
        self.field = match self.field {
            Field::Start => {
                self.mapping.start = number;
                Field::End
            }
            Field::End => {
                self.mapping.end = number;
                Field::Permissions
            }
            Field::Permissions => Field::Offset,
            Field::Offset => {
                self.mapping.offset = number;
                Field::Major
            }
            Field::Major => {
                self.mapping.device.0 = number;
                Field::Minor
            }
            Field::Minor => {
                self.mapping.device.1 = number;
                Field::Inode
            }
            Field::Inode => {
                self.mapping.inode = number;
                Field::Path
            }
            Field::Path => Field::Path,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Mapping {
        let mut line = Line::default();
        let ends: Vec<Mapping> = text.bytes().filter_map(|byte| line.add(byte)).collect();
        assert_eq!(ends.len(), 1);
        ends[0]
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let code =
            read("7f0c18a00000-7f0c18b50000 r-xp 00028000 fe:01 1048602    /lib/a - b:c 12.so\n");
        let expected = Mapping {
            start: 0x7f0c_18a0_0000,
            end: 0x7f0c_18b5_0000,
            offset: 0x28000,
            device: (0xfe, 1),
            inode: 1_048_602,
            is_private: true,
        };
        assert_eq!(code, expected);
        let shared = read("7f0c18a00000-7f0c18b50000 rw-s 00000000 00:05 7 /dev/shm/x (deleted)\n");
        assert!(!shared.is_private && shared.inode == 7);
        let anonymous = read("7ffd0000-7ffe0000 rw-p 00000000 00:00 0 \n");
        assert!(anonymous.is_private && anonymous.inode == 0 && !anonymous.is_as(&anonymous, 0));
        let vsyscall =
            read("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n");
        assert_eq!(vsyscall.end, 0xffff_ffff_ff60_1000);
    }

    #[test]
    fn a_page_is_the_same_only_from_the_same_place_of_the_same_file() {
        let code = Mapping {
            start: 0x10000,
            end: 0x20000,
            offset: 0x1000,
            device: (8, 1),
            inode: 5,
            is_private: true,
        };
        // Split by a change of access, as the loader or the hooks do it.
        let part = Mapping { start: 0x12000, offset: 0x3000, ..code };
        assert!(part.is_as(&code, 0x12000));
        assert!(!Mapping { offset: 0x2000, ..part }.is_as(&code, 0x12000));
        assert!(!Mapping { inode: 6, ..part }.is_as(&code, 0x12000));
        assert!(!Mapping { device: (0, 5), ..part }.is_as(&code, 0x12000));
        assert!(!Mapping { is_private: false, ..part }.is_as(&code, 0x12000));
    }

    #[test]
    fn pages_of_this_process_are_found() {
        let code = crate::page::page(read as fn(&str) -> Mapping as *const () as u64);
        let stack = crate::page::page(&raw const code as u64);
        let mut all = [1 << 12, code, stack];
        all.sort_unstable();
        let mut found = Vec::new();
        of_pages(all.into_iter(), |page, mapping| found.push((page, mapping)));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0 == code && found[0].1.is_private && found[0].1.inode != 0);
    }
}
