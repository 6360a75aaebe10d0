//! The interface of a made-up machine: a text file in the place of the kernel's.
//!
//! A line for each answer, `NAME: VALUE`, where the name is that of a [`Place`], or one of these:
//!
//! ```text
//! version: 2                                1: by a mailbox and registers
//! mailbox: 1                                before TPMI: whether there is one
//! registers: 1                              the same for these
//! cpu 0 mailbox 0x94 0x3: 0x1               before TPMI: the answer to a command
//! cpu 0 register 0x8: 0xff0000              before TPMI: what a register holds
//! cpu 5: 0x808                              the place of a CPU, as the processor numbers it
//! package 0 domain 1 supported: 1
//! package 0 domain 1 state: 0x0
//! writes: error 1                           what the kernel answers to all changes
//! next: error 16                            the answer to the next call alone; any number of lines
//! lag: 3                                    a change of a state shows after this many reads
//! later 2 package 0 domain 1 state: 0x3     what that state holds after two more reads
//! cpu 0 mailbox 0x95 0x3: error 6           the answer to a change; `ignored`: there is none
//! ```
//!
//! A value `error N` makes the call fail with that error of the kernel (`errno.h`), as does a name
//! that is missing, with EINVAL.

use std::cell::RefCell;
use std::io;

use dimmer_processor::units::CpuId;

use super::interface::{Interface, Platform};
use super::{DEVICE, DomainId, Place};
use crate::root::{Root, RootError};

/// The file.
pub(super) struct MadeUp {
    root: Root,
    text: RefCell<String>,
}

impl MadeUp {
    pub(super) fn open(root: &Root, for_writing: bool) -> io::Result<Self> {
        let text = root.text(DEVICE).map_err(|error| match error {
            RootError::Read { source, .. } => source,
            other => io::Error::other(other),
        })?;
        let is_allowed = root.is_readable(DEVICE) && (!for_writing || root.is_writable(DEVICE));
        if !is_allowed {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        Ok(Self { root: root.clone(), text: RefCell::new(text) })
    }

    fn value(&self, name: &str) -> Option<String> {
        let text = self.text.borrow();
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned());
        text.lines().find_map(value)
    }

    /// Changes lines: those for which `change` returns `None` are removed.
    fn change(&self, change: impl FnMut(&str) -> Option<String>) -> io::Result<()> {
        let lines: Vec<String> = self.text.borrow().lines().filter_map(change).collect();
        self.text.replace(lines.join("\n"));
        self.root.write(DEVICE, &self.text.borrow()).map_err(io::Error::other)
    }

    /// Fails if the next call is to fail.
    fn next(&self) -> io::Result<()> {
        let Some(value) = self.value("next") else { return Ok(()) };
        let mut is_first = true;
        self.change(|line| {
            let is_it = line.starts_with("next: ") && std::mem::take(&mut is_first);
            (!is_it).then(|| line.to_owned())
        })?;
        error_of(&value)
    }

    /// A read of this place passes. Afterwards a change of it may show.
    fn pass(&self, place: &str) -> io::Result<()> {
        let later = |line: &str| -> Option<(u32, String)> {
            let (left, what) = line.strip_prefix("later ")?.split_once(' ')?;
            what.starts_with(&format!("{place}: ")).then_some((left.parse().ok()?, what.to_owned()))
        };
        let Some((left, what)) = self.text.borrow().lines().find_map(later) else { return Ok(()) };
        self.change(|line| match later(line) {
            Some(_) if left > 1 => Some(format!("later {} {what}", left - 1)),
            Some(_) => None,
            None if left == 1 && line.starts_with(&format!("{place}: ")) => Some(what.clone()),
            None => Some(line.to_owned()),
        })
    }

    /// Has this word show later, in place of one that was to show before, if changes lag. Returns
    /// whether they do.
    fn delay(&self, place: &str, word: u64) -> io::Result<bool> {
        let Ok(lag) = self.small::<u32>("lag") else { return Ok(false) };
        let is_later = |line: &str| {
            let rest = line.strip_prefix("later ").and_then(|rest| rest.split_once(' '));
            rest.is_some_and(|(_, what)| what.starts_with(&format!("{place}: ")))
        };
        let is_held = self.number(place)? == word;
        self.change(|line| (!is_later(line)).then(|| line.to_owned()))?;
        if !is_held {
            let lines = format!("\nlater {lag} {place}: {word:#x}");
            self.text.borrow_mut().push_str(&lines);
            self.change(|line| Some(line.to_owned()))?;
        }
        Ok(true)
    }

    fn number(&self, name: &str) -> io::Result<u64> {
        let value = self.value(name).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        error_of(&value)?;
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        number.map_err(|_| io::Error::other(format!("`{name}` is `{value}`, which is no number")))
    }

    /// Writes the line of this name, which must be there.
    fn put(&self, name: &str, word: u64) -> io::Result<()> {
        error_of(&self.value("writes").unwrap_or_default())?;
        self.number(name)?;
        let start = format!("{name}: ");
        self.change(|line| {
            Some(match line.starts_with(&start) {
                true => format!("{start}{word:#x}"),
                false => line.to_owned(),
            })
        })
    }

    fn small<T: TryFrom<u64>>(&self, name: &str) -> io::Result<T> {
        let number = self.number(name)?;
        T::try_from(number).map_err(|_| io::Error::other(format!("`{name}` is too large")))
    }
}

/// The error that a value stands for.
fn error_of(value: &str) -> io::Result<()> {
    let code = value.strip_prefix("error ").and_then(|code| code.parse().ok());
    code.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

impl Interface for MadeUp {
    fn platform(&self) -> io::Result<Platform> {
        self.next()?;
        let has = |name: &str| self.value(name).as_deref() == Some("1");
        let (has_mailbox, has_registers) = (has("mailbox"), has("registers"));
        Ok(Platform { version: self.small("version")?, has_mailbox, has_registers })
    }

    /// A command with a parameter writes what the same without one reads. Features are written by
    /// another command than they are read by, and the bit that the processor has core power stays.
    fn mailbox(&self, cpu: CpuId, command: [u16; 2], parameter: u32, data: u32) -> io::Result<u32> {
        self.next()?;
        let [command, sub] = command;
        let (written, word) = match command {
            0x95 => (Some(0x94), data | 1),
            _ => ((parameter != 0).then_some(command), data),
        };
        let name = |command: u16| format!("cpu {cpu} mailbox {command:#x} {sub:#x}");
        match written {
            Some(written) => {
                let answer = self.value(&name(command)).filter(|_| command != written);
                let answer = answer.unwrap_or_default();
                error_of(&answer)?;
                if answer == "ignored" {
                    return Ok(0);
                }
                self.put(&name(written), word.into()).map(|()| 0)
            }
            None => self.small(&name(command)),
        }
    }

    fn register(&self, cpu: CpuId, register: u32, write: Option<u32>) -> io::Result<u32> {
        self.next()?;
        let name = format!("cpu {cpu} register {register:#x}");
        match write {
            Some(word) => self.put(&name, word.into()).map(|()| word),
            None => self.small(&name),
        }
    }

    fn physical(&self, cpu: CpuId) -> io::Result<u32> {
        self.next()?;
        self.small(&format!("cpu {cpu}"))
    }

    fn is_supported(&self, domain: DomainId) -> io::Result<bool> {
        self.next()?;
        Ok(self.number(&format!("{domain} supported"))? == 1)
    }

    fn read(&self, place: Place) -> io::Result<u64> {
        self.next()?;
        self.pass(&place.to_string())?;
        self.number(&place.to_string())
    }

    fn write(&self, place: Place, word: u64) -> io::Result<()> {
        self.next()?;
        let name = place.to_string();
        error_of(&self.value("writes").unwrap_or_default())?;
        if place.lags() && self.delay(&name, word)? {
            return Ok(());
        }
        self.put(&name, word)
    }
}
