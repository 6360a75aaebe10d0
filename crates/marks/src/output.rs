//! Where a measured graph goes.

use std::ffi::{OsStr, c_void};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dimmer_policy::phases::Graph;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The environment variable that names the file for the graph. `%p` in it stands for the number of
/// the process.
pub const FILE: &str = "DIMMER_MARKS";

/// How long a process waits for others that write the same file. Each takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a measured graph goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output, after what the program has printed itself (paper 004 §4.1).
    Stdout,
    /// A file, as [`FILE`] names it.
    File(PathBuf),
    /// Nowhere: what marks cost is measured.
    Nowhere,
}

unsafe extern "C" {
    /// The C library's standard output.
    static mut stdout: *mut libc::FILE;
}

impl Output {
    /// The output that the environment names, if it does. A program with more rights than its user
    /// ignores it.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let name = dimmer_protocol::variable(FILE).filter(|name| !name.is_empty())?;
        Some(Self::File(name.into()))
    }

    /// Writes a graph. A graph without edges writes nothing. A file that has a graph already gets
    /// the sum of both, under a lock: processes that end at the same time lose nothing.
    ///
    /// # Errors
    /// If the file cannot be locked or written, or has something else than a graph.
    pub(crate) fn write(&self, graph: &Graph) -> Result<(), String> {
        if graph.edges().next().is_none() {
            return Ok(());
        }
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => {
                print(&graph.to_text());
                Ok(())
            }
            Self::File(name) => {
                let path = of_this_process(name.as_os_str());
                merge(&path, graph).map_err(|error| format!("{}: {error}", path.display()))
            }
        }
    }
}

/// Prints by the C library, whose buffer may hold what the program has printed.
fn print(text: &str) {
    // SAFETY: the C library sets it before the program starts.
    let file = unsafe { stdout };
    // SAFETY: the text has that number of bytes.
    unsafe { libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), file) };
    // SAFETY: an open file.
    unsafe { libc::fflush(file) };
}

/// The file's name, with the process's number for `%p`.
fn of_this_process(name: &OsStr) -> PathBuf {
    let mut bytes = name.as_bytes();
    let mut path = Vec::new();
    while let Some(at) = bytes.windows(2).position(|pair| pair == b"%p") {
        path.extend_from_slice(&bytes[..at]);
        path.extend_from_slice(std::process::id().to_string().as_bytes());
        bytes = &bytes[at + 2..];
    }
    path.extend_from_slice(bytes);
    OsStr::from_bytes(&path).into()
}

/// Adds a graph to the one in a file.
fn merge(path: &PathBuf, graph: &Graph) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = options.map_err(text)?;
    if !file.metadata().map_err(text)?.is_file() {
        return Err("expected a regular file".to_owned());
    }
    let _locked = lock(&file, PATIENCE).map_err(text)?;
    let mut before = String::new();
    (&file).read_to_string(&mut before).map_err(text)?;
    let mut sum = Graph::from_text(&before).map_err(|error| {
        format!("{error}; the file stays as it is, without this process's graph")
    })?;
    sum.merge(graph);
    let sum = sum.to_text();
    may_write(sum.len()).map_err(text)?;
    (&file).rewind().map_err(text)?;
    file.set_len(0).map_err(text)?;
    (&file).write_all(sum.as_bytes()).map_err(text)
}

/// Fails if the process may not write files of this length: the kernel would send it a signal.
fn may_write(bytes: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it writes to `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    let fits = u64::try_from(bytes).is_ok_and(|bytes| bytes <= limit.rlim_cur);
    if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFBIG)) }
}

/// A file's lock. Closing the file alone would not release it: a child that another thread forks
/// meanwhile has the same open file, and keeps it for life.
struct Locked<'a>(&'a File);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

/// Waits for the file's lock, but not for ever: a process that was stopped, or forked by a thread
/// that never came to release it, may have it.
fn lock(file: &File, patience: Duration) -> io::Result<Locked<'_>> {
    const REST: Duration = Duration::from_millis(1);
    let since = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Locked(file)),
            Err(Errno::WOULDBLOCK) if since.elapsed() < patience => std::thread::sleep(REST),
            Err(Errno::WOULDBLOCK) => {
                let why = format!("other processes have locked it for {} s", patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use dimmer_policy::phases::{Counters, Counts, Mark};
    use dimmer_processor::units::Nanos;

    use super::*;

    fn graph(calls: u64) -> Graph {
        let spent = Counters { time: Some(Nanos::from_ns(calls)), ..Counters::default() };
        let mut graph = Graph::default();
        let mark = |name| Mark::new(name).unwrap();
        graph.add(&mark("a"), &mark("b"), &Counts { calls, spent });
        graph
    }

    #[test]
    fn a_file_gets_the_sum_of_all_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph");
        let output = Output::File(path.clone());
        output.write(&Graph::default()).unwrap();
        assert!(!path.exists());
        output.write(&graph(3)).unwrap();
        output.write(&graph(4)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Graph::from_text(&text).unwrap(), graph(7));
    }

    #[test]
    fn a_file_with_something_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "Dear reader\n").unwrap();
        let error = Output::File(path.clone()).write(&graph(1)).unwrap_err();
        assert!(error.starts_with(&format!("{}: line 1: ", path.display())), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "Dear reader\n");
        let error = Output::File(folder.path().join("no/graph")).write(&graph(1)).unwrap_err();
        assert!(error.contains("no/graph: No such file"), "{error}");
    }

    /// As a child has it that another thread has forked in the middle of a write.
    #[test]
    fn a_copy_of_the_open_file_keeps_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("graph")).unwrap();
        let others = File::open(folder.path().join("graph")).unwrap();
        let copy = file.try_clone().unwrap();
        let locked = lock(&file, Duration::ZERO).unwrap();
        let refused = lock(&others, Duration::ZERO).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(locked);
        drop(file);
        assert!(lock(&others, Duration::ZERO).is_ok());
        drop(copy);
    }

    #[test]
    fn a_process_can_have_a_file_of_its_own() {
        let own = std::process::id();
        assert_eq!(of_this_process(OsStr::new("a-%p.txt")), PathBuf::from(format!("a-{own}.txt")));
        assert_eq!(of_this_process(OsStr::new("100%")), PathBuf::from("100%"));
    }
}
