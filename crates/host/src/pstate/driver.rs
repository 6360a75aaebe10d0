//! P-states through the kernel's module `dimmer_pstate` (`kernel/`): requests without access to all
//! other registers, which the module undoes when its file is closed, so also after a kill.
//!
//! Layout and numbers are those of `kernel/dimmer_pstate.h`. Uses `unsafe` because no crate used
//! here has the module's calls.

use std::ffi::c_ulong;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;

use dimmer_processor::units::{CpuId, KiloHertz};

use crate::root::Root;
use crate::unavailable::Unavailable;

/// The module's file.
pub const DEVICE: &str = "/dev/dimmer_pstate";

/// The noun in refusals.
const WHAT: &str = "P-states by the module dimmer_pstate";

/// The numbers of P-states that an answer has room for.
const STATES: usize = 256;

/// In place of a P-state: what the CPU requested before.
const BEFORE: u32 = u32::MAX;

/// `struct dimmer_pstate_info`.
#[repr(C)]
struct Info {
    slowest: u32,
    base: u32,
    fastest: u32,
    reserved: u32,
    khz: [u32; STATES],
}

/// `struct dimmer_pstate_request`.
#[repr(C)]
struct Request {
    cpu: u32,
    state: u32,
}

/// `struct dimmer_pstate_batch`.
#[repr(C)]
struct Batch {
    requests: u64,
    count: u32,
    reserved: u32,
}

/// The numbers of the module's calls: `_IOR('d', 0x50, struct dimmer_pstate_info)` and so on
/// (`include/uapi/asm-generic/ioctl.h`).
const INFO: c_ulong = code(2, 0x50, size_of::<Info>());
const REQUEST: c_ulong = code(1, 0x51, size_of::<Batch>());

const fn code(direction: c_ulong, number: c_ulong, size: usize) -> c_ulong {
    direction << 30 | (size as c_ulong) << 16 | (b'd' as c_ulong) << 8 | number
}

/// The module's file, open. What was requested through it is undone when it is closed.
#[derive(Debug)]
pub struct Driver {
    file: File,
    states: Vec<(KiloHertz, u8)>,
    base: Option<KiloHertz>,
}

impl Driver {
    /// Opens the module's file, and asks what may be requested.
    ///
    /// # Errors
    /// [`Unavailable`]: no module, no permission, or no P-state that may be requested.
    pub fn open(root: &Root) -> Result<Self, Unavailable> {
        let missing = |why: String, remedy: &str| Unavailable::new(WHAT, why, remedy);
        let file = OpenOptions::new().read(true).write(true).open(root.path(DEVICE));
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let why = format!("no {DEVICE}: the module is not loaded");
                missing(
                    why,
                    "without a driver for cpufreq, as root: insmod kernel/dimmer_pstate.ko",
                )
            }
            _ => missing(format!("{DEVICE}: {error}"), "give this user's group the file"),
        })?;
        let mut info = Info { slowest: 0, base: 0, fastest: 0, reserved: 0, khz: [0; STATES] };
        call(&file, INFO, &mut info).map_err(|error| {
            missing(format!("{DEVICE} does not answer: {error}"), "load the module of kernel/")
        })?;
        let clock = |khz: u32| (khz > 0).then(|| KiloHertz::from_khz(khz.into()));
        let states = (0..=u8::MAX).zip(info.khz);
        let mut states: Vec<_> =
            states.filter_map(|(state, khz)| Some((clock(khz)?, state))).collect();
        states.sort_unstable();
        if states.is_empty() {
            return Err(missing(
                "it allows no P-state".to_owned(),
                "load it with others in allow=",
            ));
        }
        let base = info.khz.get(info.base as usize).copied().and_then(clock);
        Ok(Self { file, states, base })
    }

    /// The P-states that may be requested, with their clocks, the slowest first. At least one.
    #[must_use]
    pub fn states(&self) -> &[(KiloHertz, u8)] {
        &self.states
    }

    /// The fastest clock without turbo, if it may be requested.
    #[must_use]
    pub fn base(&self) -> Option<KiloHertz> {
        self.base
    }

    /// Requests a P-state for a CPU, or, with `None`, takes this file's request back. A system
    /// call, and an interrupt if it is another CPU than the calling thread's.
    ///
    /// # Errors
    /// The kernel's error: EBUSY if another file has a request for the CPU, EINVAL for a P-state
    /// that is not allowed, ENXIO for a CPU that is not online, ENODEV if a driver for cpufreq has
    /// come.
    pub fn request(&self, cpu: CpuId, state: Option<u8>) -> io::Result<()> {
        let request = Request { cpu: cpu.index(), state: state.map_or(BEFORE, u32::from) };
        let requests = std::ptr::from_ref(&request) as u64;
        call(&self.file, REQUEST, &mut Batch { requests, count: 1, reserved: 0 })
    }
}

/// One of the module's calls, with the type that its number was made for.
fn call<T>(file: &File, code: c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: the code has the size of `T`: the kernel reads and writes that much at `argument`,
    // and reads the requests of a `Batch`, which its caller keeps until the call returns. In a file
    // of another kind the code means nothing, and the call fails.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), code, std::ptr::from_mut(argument))
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn numbers_and_sizes_are_those_of_the_header() {
        let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernel/dimmer_pstate.h");
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("codes.c"), directory.path().join("codes"));
        let text = format!(
            "#include \"{header}\"\n#include <stdio.h>\nint main(void) {{ printf(\"%lu %lu %u\", \
             (unsigned long)DIMMER_PSTATE_INFO, (unsigned long)DIMMER_PSTATE_REQUEST, \
             DIMMER_PSTATE_BEFORE); }}\n"
        );
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
        assert!(built.success());
        let found = Command::new(program).output().unwrap().stdout;
        let expected = format!("{INFO} {REQUEST} {BEFORE}");
        assert_eq!(String::from_utf8(found).unwrap(), expected);
    }

    #[test]
    fn a_missing_module_and_a_file_of_another_kind_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let why = |root: &Root| Driver::open(root).unwrap_err().why;
        assert_eq!(why(&root), "no /dev/dimmer_pstate: the module is not loaded");
        std::fs::create_dir(directory.path().join("dev")).unwrap();
        std::fs::write(root.path(DEVICE), "").unwrap();
        let other = why(&root);
        assert!(other.starts_with("/dev/dimmer_pstate does not answer: "), "{other}");
    }
}
