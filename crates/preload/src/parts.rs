//! Parts of a file that were read. With them, checking a program before it is executed takes some
//! system calls rather than a hundred.
//!
//! Three places in a program's file describe how it is started: the start of the file, its dynamic
//! section, and the names there. They are read some bytes at a time. A `Parts` lies on the stack of
//! the thread that executes: nothing here allocates.

use std::os::fd::BorrowedFd;

/// The number of such places.
const PARTS: usize = 3;

/// More bytes than a program's headers take, with the data that is read there.
const PART_BYTES: usize = 1024;

/// Parts of one file.
#[derive(Default)]
pub(crate) struct Parts {
    parts: [Part; PARTS],
    /// Index of the part to replace next.
    next: usize,
}

struct Part {
    offset: u64,
    bytes: [u8; PART_BYTES],
    length: usize,
}

impl Default for Part {
    fn default() -> Self {
        Self { offset: 0, bytes: [0; PART_BYTES], length: 0 }
    }
}

impl Parts {
    /// Reads as pread(2) does; returns 0 for an error.
    pub(crate) fn read(&mut self, file: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> usize {
        if let Some(found) = self.parts.iter().find_map(|part| part.get(offset, into.len())) {
            into.copy_from_slice(found);
            return into.len();
        }
        let Some(part) = self.parts.get_mut(self.next) else { return 0 };
        self.next = (self.next + 1) % PARTS;
        part.offset = offset;
        part.length = rustix::io::pread(file, &mut part.bytes[..], offset).unwrap_or(0);
        let length = into.len().min(part.length);
        into[..length].copy_from_slice(&part.bytes[..length]);
        length
    }
}

impl Part {
    /// `length` bytes from `offset` on, if they were read.
    fn get(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.bytes[..self.length].get(at..at.checked_add(length)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_is_read_is_what_the_file_has_there() {
        let bytes: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = rustix::fs::memfd_create("parts", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        file.write_all(&bytes).unwrap();
        let mut parts = Parts::default();
        let places = [0, 64, 1000, 30_000, 64, 2778, 1020, 39_990, 30_500, 0, 39_990, 50_000];
        for (turn, place) in places.into_iter().enumerate() {
            let mut read = [0; 40];
            let expected = bytes.get(place..).unwrap_or_default();
            let expected = &expected[..expected.len().min(read.len())];
            let length = parts.read(file.as_fd(), place as u64, &mut read);
            assert_eq!(&read[..length], expected, "{turn}: {place}");
        }
        // Bytes that were read once are not read again.
        let mut read = [0; 4];
        file.set_len(0).unwrap();
        assert_eq!(parts.read(file.as_fd(), 39_992, &mut read), 4);
        assert_eq!(parts.read(file.as_fd(), 20_000, &mut read), 0);
    }
}
