//! The environment of programs that are started: as this process was given it.
//!
//! [`std::process::Command`] sorts the variables, and drops entries that are repeated or that are
//! no variables. A program would see the difference.

use std::ffi::{CString, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::sync::atomic::AtomicPtr;

/// An environment in the form that execve(2) takes.
#[derive(Debug)]
pub(crate) struct Environment {
    /// One for each entry, and a null pointer. They are atomic because raw pointers cannot be moved
    /// to other threads; nothing changes them.
    pointers: Vec<AtomicPtr<c_char>>,
    /// What they point to.
    _entries: Vec<CString>,
}

unsafe extern "C" {
    /// See environ(7).
    static mut environ: *const AtomicPtr<c_char>;
}

impl Environment {
    /// That of this process with the changes of `command`.
    pub(crate) fn changed_by(command: &Command) -> Self {
        let mut entries = given();
        for (name, value) in command.get_envs() {
            change(&mut entries, name, value);
        }
        // None has a zero byte: they were separated by these, and `command` would have refused it.
        let entries: Vec<CString> =
            entries.into_iter().filter_map(|entry| CString::new(entry).ok()).collect();
        let address = |entry: &CString| AtomicPtr::new(entry.as_ptr().cast_mut());
        let mut pointers: Vec<_> = entries.iter().map(address).collect();
        pointers.push(AtomicPtr::default());
        Self { pointers, _entries: entries }
    }

    /// Makes it that of the calling process.
    ///
    /// # Safety
    /// No other thread uses the environment, and this value lives as long as it is used.
    pub(crate) unsafe fn set(&self) {
        // SAFETY: as the caller guarantees.
        unsafe { environ = self.pointers.as_ptr() };
    }
}

/// The entries that this process was started with; without `/proc`, its variables.
fn given() -> Vec<Vec<u8>> {
    let Ok(bytes) = std::fs::read("/proc/self/environ") else {
        let joined = |(name, value): (OsString, OsString)| {
            [name.as_bytes(), b"=", value.as_bytes()].concat()
        };
        return std::env::vars_os().map(joined).collect();
    };
    let mut entries: Vec<_> = bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    // Each ends with a zero byte.
    entries.pop();
    entries
}

/// Sets the variable where it is first, or at the end, or takes it out.
fn change(entries: &mut Vec<Vec<u8>>, name: &OsStr, value: Option<&OsStr>) {
    let is_named = |entry: &Vec<u8>| {
        entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
    };
    let at = entries.iter().position(is_named).unwrap_or(entries.len());
    entries.retain(|entry| !is_named(entry));
    if let Some(value) = value {
        entries.insert(at, [name.as_bytes(), b"=", value.as_bytes()].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_changed_where_it_is_and_all_else_stays() {
        let all = |entries: &[Vec<u8>]| String::from_utf8(entries.join(&b' ')).unwrap();
        let mut entries: Vec<_> =
            ["z=1", "odd", "a=1", "z=2", "a=1"].map(|entry| entry.as_bytes().to_vec()).into();
        change(&mut entries, OsStr::new("z"), Some(OsStr::new("3")));
        assert_eq!(all(&entries), "z=3 odd a=1 a=1");
        change(&mut entries, OsStr::new("o"), Some(OsStr::new("")));
        assert_eq!(all(&entries), "z=3 odd a=1 a=1 o=");
        change(&mut entries, OsStr::new("a"), None);
        change(&mut entries, OsStr::new("od"), None);
        assert_eq!(all(&entries), "z=3 odd o=");
    }
}
