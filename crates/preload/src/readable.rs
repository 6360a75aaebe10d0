//! Strings of the program that may be no strings.
//!
//! The kernel refuses a program to execute whose name or environment it cannot read (`EFAULT`).
//! Code that looks at them before would crash there instead, so it has the kernel read them first,
//! a byte in each page. Nothing here allocates.

use std::ffi::{c_char, c_void};

use rustix::io::Errno;

/// The size of the smallest pages (bytes).
const PAGE: usize = 4096;

/// Checks memory page by page.
#[derive(Debug, Default)]
pub(crate) struct Readable {
    /// The page that was checked last, by its number.
    last: Option<usize>,
}

impl Readable {
    /// Whether a null pointer, or a string up to its end, can be read.
    pub(crate) fn has_string(&mut self, text: *const c_char) -> bool {
        let mut at = text;
        while !at.is_null() {
            if !self.has(at.addr(), 1) {
                return false;
            }
            // SAFETY: a byte of the page that was checked.
            if unsafe { *at } == 0 {
                break;
            }
            at = at.wrapping_add(1);
        }
        true
    }

    /// Whether a null pointer, or an array of such strings up to its null pointer, can be read.
    pub(crate) fn has_strings(&mut self, all: *const *const c_char) -> bool {
        let mut at = all;
        while !at.is_null() {
            if !self.has(at.addr(), size_of_val(&at)) {
                return false;
            }
            // SAFETY: it was checked. Programs need not align it.
            let text = unsafe { at.read_unaligned() };
            if text.is_null() {
                break;
            }
            if !self.has_string(text) {
                return false;
            }
            at = at.wrapping_add(1);
        }
        true
    }

    /// Whether some bytes, fewer than a page has, can be read.
    fn has(&mut self, address: usize, bytes: usize) -> bool {
        [address, address.wrapping_add(bytes - 1)].into_iter().all(|byte| {
            let page = Some(byte / PAGE);
            if page != self.last && is_readable(byte) {
                self.last = page;
            }
            page == self.last
        })
    }
}

/// Whether the kernel can read a byte; true if it does not say. Changes `errno`.
fn is_readable(address: usize) -> bool {
    let mut byte = 0_u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast::<c_void>(), iov_len: 1 };
    let from = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: 1 };
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel writes into `byte`, and refuses what cannot be read.
    let read = unsafe { libc::process_vm_readv(process, &raw const to, 1, &raw const from, 1, 0) };
    read == 1 || Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::FAULT)
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;

    #[test]
    fn what_the_kernel_can_read_is_readable() {
        let readable = |text: *const c_char| Readable::default().has_string(text);
        assert!(readable(null()));
        assert!(readable(c"a".as_ptr()));
        assert!(!readable(std::ptr::without_provenance(1)));
        assert!(!readable(std::ptr::without_provenance(usize::MAX)));
        // Two pages, of which the second cannot be read.
        let (read, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new mappings, which are never removed.
        let pages = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, read, private) };
        let pages = pages.unwrap().cast::<u8>();
        let second = pages.wrapping_add(PAGE).cast();
        // SAFETY: as above.
        unsafe { mprotect(second, PAGE, MprotectFlags::empty()) }.unwrap();
        let last = pages.wrapping_add(PAGE - 1);
        // SAFETY: the last byte of the first page.
        unsafe { last.write(b'a') };
        assert!(!readable(last.cast()));
        // SAFETY: as above.
        unsafe { last.write(0) };
        assert!(readable(last.cast()));
        let strings = |all: &[*const c_char]| Readable::default().has_strings(all.as_ptr());
        assert!(strings(&[c"a".as_ptr(), last.cast(), null()]));
        assert!(!strings(&[c"a".as_ptr(), std::ptr::without_provenance(1), null()]));
        assert!(!Readable::default().has_strings(std::ptr::without_provenance(8)));
    }
}
