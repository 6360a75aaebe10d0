//! Model-specific registers, through the device files of the kernel's module `msr`: a register is
//! the 8 bytes that are read at the offset of its number. In the regular file of a made-up machine
//! neighbors would overlap, so there a register is at 8 times its number.
//!
//! `msr-safe` is a module of its own (<https://github.com/LLNL/msr-safe>): its files read and write
//! the registers of its allow list, whatever the rights of the process.
//!
//! Source: Linux `arch/x86/kernel/msr.c` and `security/lockdown`. The kernel logs a warning when a
//! register is written from outside, and marks itself as tainted (`allow_writes`).

use std::io::ErrorKind;

use dimmer_processor::units::CpuId;

use crate::root::{Root, RootError};
use crate::unavailable::Unavailable;

/// The modes of the kernel's lockdown, the one in force in brackets.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// Whether the module refuses writes: `on`, `off`, `default`.
const ALLOW_WRITES: &str = "/sys/module/msr/parameters/allow_writes";
/// The noun in refusals.
const WHAT: &str = "model-specific registers (msr)";

/// Remedy where the kernel refuses writes.
const UNLOCK: &str = "switch Secure Boot off in the firmware, start the kernel without `lockdown=`, \
                      and run outside of containers";

/// The device file with a CPU's registers: that of the kernel's module `msr`, unless this process
/// may not use it and may use that of `msr-safe`, which has the same form, and an allow list
/// instead of rights.
#[must_use]
pub fn path(root: &Root, cpu: CpuId) -> String {
    let [msr, safe] = ["msr", "msr_safe"].map(|name| format!("/dev/cpu/{cpu}/{name}"));
    let is_usable = |path: &str| root.is_readable(path) && root.is_writable(path);
    let is_safe =
        !root.is_readable(&msr) && root.is_readable(&safe) || !is_usable(&msr) && is_usable(&safe);
    if is_safe { safe } else { msr }
}

/// What the name of a file of `msr-safe` has more than that of `msr`.
const SAFE: &str = "_safe";

/// A register of a device file as journals name it ([`crate::journal::Pending::paths`]): by the
/// file of `msr`, whichever module it is reached by, since it is one register.
#[must_use]
pub fn place(path: &str, register: u32) -> String {
    format!("{} {register:#x}", path.strip_suffix(SAFE).unwrap_or(path))
}

/// The files by which the register of a device file may be reached: that one, and then the other
/// module's.
pub(crate) fn ways(path: &str) -> [String; 2] {
    let other = path.strip_suffix(SAFE).map_or_else(|| format!("{path}{SAFE}"), str::to_owned);
    [path.to_owned(), other]
}

/// The value of a register.
///
/// # Errors
/// [`RootError::Read`].
pub(crate) fn read(root: &Root, path: &str, register: u32) -> Result<u64, RootError> {
    let mut bytes = [0; 8];
    root.read_at(path, offset(root, register), &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes a register. [`crate::journal::Journal::change_register`] puts it on record first.
///
/// # Errors
/// [`RootError::Write`].
pub(crate) fn write(root: &Root, path: &str, register: u32, value: u64) -> Result<(), RootError> {
    root.write_at(path, offset(root, register), &value.to_le_bytes())
}

fn offset(root: &Root, register: u32) -> u64 {
    let scale = if root.is_live() { 1 } else { 8 };
    scale * u64::from(register)
}

/// Reads a register of a CPU that is online.
///
/// # Errors
/// [`Unavailable`]: no module, no permission, or no such register.
pub fn value(root: &Root, cpu: CpuId, register: u32) -> Result<u64, Unavailable> {
    let path = path(root, cpu);
    if !root.is_readable(&path) {
        let (why, remedy) = if root.exists(&path) {
            let remedy = "run as root, or give read permission on /dev/cpu/*/msr and CAP_SYS_RAWIO";
            (format!("no permission to read {path}"), remedy)
        } else {
            let why = format!("no {path}: the kernel has no msr driver loaded");
            (why, "as root: modprobe msr")
        };
        return Err(Unavailable::new(WHAT, why, remedy));
    }
    read(root, &path, register).map_err(|error| {
        let why = format!("{path} does not answer for register {register:#x}: {}", cause(&error));
        let remedy = "in a virtual machine only the host has it: use bare metal";
        Unavailable::new(WHAT, why, remedy)
    })
}

/// Checks that registers of a CPU can be written, as far as that shows before one is.
///
/// # Errors
/// [`Unavailable`]: no permission, or the kernel refuses all writes.
pub fn check_writable(root: &Root, cpu: CpuId) -> Result<(), Unavailable> {
    let path = path(root, cpu);
    if !root.is_writable(&path) {
        let why = format!("no permission to write {path}");
        return Err(Unavailable::new(WHAT, why, "run as root, with CAP_SYS_RAWIO"));
    }
    // The rest is about the kernel's own module.
    if path.ends_with(SAFE) {
        return Ok(());
    }
    match root.text(LOCKDOWN) {
        Ok(mode) if !mode.contains("[none]") => {
            let why =
                format!("the kernel is locked down, so it refuses writes ({LOCKDOWN}: {mode})");
            return Err(Unavailable::new(WHAT, why, UNLOCK));
        }
        _ => {}
    }
    match root.text(ALLOW_WRITES) {
        Ok(allowed) if allowed == "off" => {
            let why = format!("{ALLOW_WRITES} is off");
            Err(Unavailable::new(WHAT, why, format!("as root: echo on > {ALLOW_WRITES}")))
        }
        _ => Ok(()),
    }
}

/// Why the kernel has refused a write although [`check_writable`] found nothing; `None` if the
/// write failed for another reason.
#[must_use]
pub fn refused(error: &RootError) -> Option<Unavailable> {
    let is_refused = error.kind() == Some(ErrorKind::PermissionDenied);
    let why = || format!("the kernel refuses to write registers: {}", cause(error));
    is_refused.then(|| Unavailable::new(WHAT, why(), UNLOCK))
}

/// The cause of an error in one line, without the file.
pub(crate) fn cause(error: &RootError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
