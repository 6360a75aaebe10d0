//! The toolchain of the program that this library was loaded into.

use std::slice;

/// The owner of the note in which the Go linker stores the id of a build.
const GO: &[u8] = b"Go\0\0";

/// Whether the Go toolchain built the program.
pub(crate) fn is_go() -> bool {
    // SAFETY: asks for a number that the kernel passed at the start.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    // SAFETY: asks for a number that the kernel passed at the start.
    let count = unsafe { libc::getauxval(libc::AT_PHNUM) };
    let (Ok(headers), Ok(count)) = (usize::try_from(headers), usize::try_from(count)) else {
        return false;
    };
    if headers == 0 {
        return false;
    }
    let headers = std::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers);
    // SAFETY: the kernel mapped `count` program headers there, and no code writes to them.
    let headers = unsafe { slice::from_raw_parts(headers, count) };
    let own = headers.as_ptr().expose_provenance() as u64;
    // The program's address minus the address in its file.
    let Some(itself) = headers.iter().find(|header| header.p_type == libc::PT_PHDR) else {
        return false;
    };
    let base = own.wrapping_sub(itself.p_vaddr);
    headers.iter().filter(|header| header.p_type == libc::PT_NOTE).any(|header| {
        let start = usize::try_from(base.wrapping_add(header.p_vaddr)).unwrap_or_default();
        let length = usize::try_from(header.p_memsz).unwrap_or_default();
        let notes = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: notes are part of the program as it is mapped.
        let notes = unsafe { slice::from_raw_parts(notes, length) };
        has_owner(notes, GO)
    })
}

/// Whether one of the notes has this owner. A note has the lengths of name and content, a type,
/// name, and content; the last two are padded to four bytes.
fn has_owner(mut notes: &[u8], owner: &[u8]) -> bool {
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let word = |at: usize| {
            head[at..at + 4].iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte))
        };
        let (name, content) = (word(0), word(4));
        if rest.get(..name) == Some(owner) {
            return true;
        }
        let length = name.next_multiple_of(4) + content.next_multiple_of(4);
        let Some(next) = rest.get(length..) else { return false };
        notes = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_notes_are_found() {
        let notes =
            b"\x04\0\0\0\x03\0\0\0\x03\0\0\0GNU\0abc\0\x04\0\0\0\x02\0\0\0\x04\0\0\0Go\0\0ab\0\0";
        assert!(has_owner(notes, GO));
        assert!(has_owner(notes, b"GNU\0"));
        assert!(!has_owner(&notes[..20], GO));
        assert!(!has_owner(b"\xff\xff\xff\xff\xff\xff\xff\xff\x04\0\0\0", GO));
        assert!(!is_go());
    }
}
