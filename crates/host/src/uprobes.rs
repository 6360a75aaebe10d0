//! Counts executions of one instruction of a file in other programs' threads, by the kernel's
//! uprobes.
//!
//! The kernel puts a breakpoint there. It emulates some instructions (pushes, branches, `nop`),
//! which takes 0.2 to 0.5 us per execution. It executes the others out of line in single steps,
//! which takes two more exceptions: 15 us per execution in a virtual machine. Needs root, or
//! `CAP_PERFMON`.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use perf_event::events::Software;
use perf_event::{Builder, Counter};

use crate::open_files;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The file with the number of this event type.
const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Counts executions of one instruction in one thread, but not in threads that it starts. For
/// those, the kernel would read the file's name again, in the memory of the starting thread, and
/// refuse to start the thread if the name is not there.
#[derive(Debug)]
pub struct ExecutionCounter(Counter);

impl ExecutionCounter {
    /// Prepares to count executions of the instruction at `offset` in `file` by a thread of any
    /// process.
    ///
    /// # Errors
    /// [`Unavailable`]: no uprobes, no permission, no such thread, or no instruction at `offset`.
    pub fn new(root: &Root, file: &Path, offset: u64, thread: u32) -> Result<Self, Unavailable> {
        let refused = |error: io::Error| {
            Unavailable::new(
                format!("counting calls of {} at {offset:#x}", file.display()),
                format!("perf_event_open: {error}"),
                match open_files::is_reached(&error) {
                    true => open_files::REMEDY,
                    false => "needs root or CAP_PERFMON, and a kernel with CONFIG_UPROBE_EVENTS",
                },
            )
        };
        let thread = i32::try_from(thread).map_err(|_| refused(io::ErrorKind::NotFound.into()))?;
        let path = CString::new(file.as_os_str().as_bytes());
        let path = path.map_err(|_| refused(io::ErrorKind::InvalidInput.into()))?;
        let kind = root.integer(KIND).map_err(|error| refused(io::Error::other(error)))?;
        let kind = u32::try_from(kind).map_err(|_| refused(io::ErrorKind::InvalidData.into()))?;
        // The crate's events lack `UProbe` (0.7.4), so an event that counts nothing is modified.
        let mut builder = Builder::new(Software::DUMMY);
        let attributes = builder.attrs_mut();
        attributes.type_ = kind;
        attributes.config = 0;
        // The kernel copies the path when the counter is built.
        attributes.kprobe_func = path.as_ptr().expose_provenance() as u64;
        attributes.probe_offset = offset;
        builder.observe_pid(thread).any_cpu().inherit(false).enabled(false);
        // Breakpoints are kernel events.
        builder.include_kernel().include_hv();
        builder.build().map(Self).map_err(refused)
    }

    /// Starts counting. Makes one system call, whereas preparing takes milliseconds.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn start(&mut self) -> io::Result<()> {
        self.0.enable()
    }

    /// Executions counted so far. Makes one system call.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&mut self) -> io::Result<u64> {
        self.0.read()
    }
}
