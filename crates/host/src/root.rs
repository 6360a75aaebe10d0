//! The directory under which the whole machine is read: `/`, or a made-up machine's directory.
//!
//! **Invariant:** no other module of this crate reads or writes files of the machine, except
//! [`crate::perf`], which reads `/proc`. Paths are written as the kernel documents them
//! (`/sys/devices/system/cpu/online`) and looked up under the root: neither `..` nor a symbolic
//! link leads out of a made-up machine's directory.

mod within;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dimmer_processor::units::CpuId;
use rustix::fs::{Access, AtFlags, Mode, OFlags};

/// Maximum length of a text read at once, in bytes; a longer one is an error. `/proc/cpuinfo` has
/// some 1.5 KiB for each of at most [`HIGHEST_CPU`] CPUs.
const LONGEST: u64 = 16 << 20;

/// Maximum length of a file that only Dimmer writes, in bytes; a longer one is an error.
const LONGEST_OWN: u64 = 1 << 20;

/// Limit on CPU numbers: no Linux machine has a CPU with this number or a higher one, because the
/// kernel's `NR_CPUS` is at most 8192 on x86 (`arch/x86/Kconfig`, `NR_CPUS_RANGE_END`).
const HIGHEST_CPU: u32 = 8192;

/// Errors below a root. None is fatal for other files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file on disk.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be written, created or removed. Its content is unchanged, or, if the kernel
    /// accepted a part of the write, what the kernel made of that part.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file on disk.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file's content is not in the expected format.
    #[error("{} holds `{found}`, expected {expected}", path.display())]
    Malformed {
        /// The file on disk.
        path: PathBuf,
        /// The content, cut off after 60 characters.
        found: String,
        /// The expected format.
        expected: &'static str,
    },
    /// A file that only Dimmer writes was not written by Dimmer. It is neither followed nor
    /// changed.
    #[error("{} is not to be trusted: {why}", path.display())]
    Foreign {
        /// The file on disk.
        path: PathBuf,
        /// What the file is instead.
        why: String,
    },
}

impl RootError {
    /// Whether the file simply does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
    }

    /// The kernel's error kind; `None` if the error is not from the kernel.
    #[must_use]
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source.kind()),
            Self::Malformed { .. } | Self::Foreign { .. } => None,
        }
    }
}

/// The directory under which everything is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    directory: PathBuf,
}

impl Default for Root {
    fn default() -> Self {
        Self::live()
    }
}

impl Root {
    /// A made-up machine under `directory`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The machine this process runs on.
    #[must_use]
    pub fn live() -> Self {
        Self::new("/")
    }

    /// Whether this is the machine that the process runs on, so that system calls also refer to it.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.directory == Path::new("/")
    }

    /// The path on disk, not counting symbolic links and `..`. A leading `/` means the root.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    /// The content of `path` without white space at its end. Replaces invalid UTF-8.
    ///
    /// # Errors
    /// [`RootError::Read`], also if the content is longer than 16 MiB.
    pub fn text(&self, path: &str) -> Result<String, RootError> {
        Ok(self.text_whole(path)?.trim_end().to_owned())
    }

    /// The content of `path`, which was just written: as soon as it is one of these, and otherwise
    /// after some 20 ms. The kernel takes limits of clocks over a moment later, in a worker
    /// (cpufreq, seen with Linux 6.12); of other files, and on a made-up machine, nothing is
    /// awaited.
    pub(crate) fn text_after(
        &self,
        path: &str,
        awaited: &[&str],
        patience: Patience,
    ) -> Result<String, RootError> {
        const BETWEEN: Duration = Duration::from_micros(50);
        let mut found = self.text(path)?;
        let tries = if self.is_live() && is_taken_over_later(path) { patience as u32 } else { 0 };
        for _ in 0..tries {
            if awaited.contains(&found.as_str()) {
                break;
            }
            std::thread::sleep(BETWEEN);
            found = self.text(path)?;
        }
        Ok(found)
    }

    /// As [`Self::text`], but keeps the white space at the end.
    fn text_whole(&self, path: &str) -> Result<String, RootError> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            self.open(path, OFlags::RDONLY)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > LONGEST {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 16 MiB"));
            }
            Ok(bytes)
        };
        let bytes = read().map_err(|source| self.read_error(path, source))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The first value that `pick` returns for a line of `path`, which may have any number of
    /// lines. Replaces invalid UTF-8; a line longer than 16 MiB comes in parts.
    ///
    /// # Errors
    /// [`RootError::Read`].
    pub fn find_in_lines<T>(
        &self,
        path: &str,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<Option<T>, RootError> {
        let mut read = || -> io::Result<Option<T>> {
            let mut file = BufReader::new(self.open(path, OFlags::RDONLY)?);
            let mut line = Vec::new();
            while file.by_ref().take(LONGEST).read_until(b'\n', &mut line)? > 0 {
                let text = String::from_utf8_lossy(&line);
                if let Some(found) = pick(text.strip_suffix('\n').unwrap_or(&text)) {
                    return Ok(Some(found));
                }
                line.clear();
            }
            Ok(None)
        };
        read().map_err(|source| self.read_error(path, source))
    }

    /// The whole content of the opened file `path`, or an error if it is longer than the limit.
    pub(crate) fn text_of(&self, path: &str, file: &File) -> Result<String, RootError> {
        let mut bytes = vec![0; 4096];
        let mut length = 0_usize;
        loop {
            let rest = bytes.get_mut(length..).unwrap_or_default();
            let read = file.read_at(rest, length as u64);
            match read.map_err(|source| self.read_error(path, source))? {
                0 => break,
                read => length += read,
            }
            if length as u64 > LONGEST_OWN {
                let start = bytes.get(..60).unwrap_or_default();
                let found = String::from_utf8_lossy(start).into_owned();
                return Err(self.malformed(path, &found, "at most 1 MiB"));
            }
            bytes.resize(2 * bytes.len().max(length), 0);
        }
        bytes.truncate(length);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The content of `path` as one decimal integer.
    ///
    /// # Errors
    /// [`RootError::Read`], [`RootError::Malformed`].
    pub fn integer(&self, path: &str) -> Result<i64, RootError> {
        let text = self.text(path)?;
        let number = text.trim().parse();
        number.map_err(|_| self.malformed(path, &text, "a decimal integer"))
    }

    /// The content of `path` as one decimal number of at least 0.
    pub(crate) fn count(&self, path: &str) -> Result<u64, RootError> {
        let text = self.text(path)?;
        text.parse().map_err(|_| self.malformed(path, &text, "a decimal number, 0 or more"))
    }

    /// The content of `path` as a list of CPUs in the kernel's format: `0-3,8`. The result is
    /// ascending and without duplicates. An empty file is an empty list.
    ///
    /// # Errors
    /// [`RootError::Read`], [`RootError::Malformed`].
    pub fn cpu_list(&self, path: &str) -> Result<Vec<CpuId>, RootError> {
        let text = self.text(path)?;
        self.parse_cpu_list(path, &text)
    }

    /// Parses `text`, found in `path`, as a list of CPUs.
    pub(crate) fn parse_cpu_list(&self, path: &str, text: &str) -> Result<Vec<CpuId>, RootError> {
        parse_cpu_list(text)
            .ok_or_else(|| self.malformed(path, text, "a list of hardware threads as in `0-3,8`"))
    }

    /// The names in the directory `path`, sorted. Omits names that are not UTF-8.
    ///
    /// # Errors
    /// [`RootError::Read`].
    pub fn list(&self, path: &str) -> Result<Vec<String>, RootError> {
        let mut names =
            within::list(&self.directory, path).map_err(|source| self.read_error(path, source))?;
        names.sort_unstable();
        Ok(names)
    }

    /// The target of the symbolic link `path`, as written there. Replaces invalid UTF-8.
    ///
    /// # Errors
    /// [`RootError::Read`], also if `path` is not a link.
    pub fn link(&self, path: &str) -> Result<String, RootError> {
        let read = || -> io::Result<String> {
            let (above, name) = within::parent(&self.directory, path)?;
            let target = rustix::fs::readlinkat(above, name, Vec::new())?;
            Ok(target.to_string_lossy().into_owned())
        };
        read().map_err(|source| self.read_error(path, source))
    }

    /// Whether `path` exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        within::look(&self.directory, path).is_ok()
    }

    /// Whether this process may read the file `path`: it can be opened, and its mode has a read
    /// bit.
    #[must_use]
    pub fn is_readable(&self, path: &str) -> bool {
        self.mode_has(path, 0o444) && self.open(path, OFlags::RDONLY).is_ok()
    }

    /// Whether this process may write the file `path`: it can be opened for writing, and its mode
    /// has a write bit. The mode is checked because root may open files that the kernel then
    /// refuses to write.
    #[must_use]
    pub fn is_writable(&self, path: &str) -> bool {
        self.mode_has(path, 0o222) && self.open(path, OFlags::WRONLY).is_ok()
    }

    /// Whether this process may create files in the directory `path`.
    #[must_use]
    pub fn is_directory_writable(&self, path: &str) -> bool {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        let may = |directory: File| {
            rustix::fs::accessat(directory, ".", access, AtFlags::empty()).is_ok()
        };
        self.mode_has(path, 0o222) && within::look(&self.directory, path).is_ok_and(may)
    }

    /// Reads exactly `into.len()` bytes of `path` from `offset` on, as from a device.
    ///
    /// # Errors
    /// [`RootError::Read`]; if the file ends earlier, an unexpected end of file.
    pub fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), RootError> {
        let file =
            self.open(path, OFlags::RDONLY).map_err(|source| self.read_error(path, source))?;
        file.read_exact_at(into, offset).map_err(|source| self.read_error(path, source))
    }

    /// Writes `bytes` into the existing file `path` from `offset` on, in one write, as a device
    /// requires. For registers, use [`crate::journal::Journal::change_register`].
    ///
    /// # Errors
    /// [`RootError::Write`].
    pub(crate) fn write_at(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), RootError> {
        let file = self.open(path, OFlags::WRONLY);
        let written = file.and_then(|file| file.write_all_at(bytes, offset));
        written.map_err(|source| self.write_error(path, source))
    }

    /// Opens the existing file `path` for writes that are timed. What is written through it must be
    /// on record in a journal.
    pub(crate) fn open_to_write(&self, path: &str) -> Result<File, RootError> {
        self.open(path, OFlags::WRONLY).map_err(|source| self.write_error(path, source))
    }

    /// Replaces the content of the existing file `path` in one write, as the kernel requires.
    /// However this process ends, the file holds either all of the old content or all of the new.
    /// For files that configure the machine, use [`crate::journal::Journal::change`].
    ///
    /// # Errors
    /// [`RootError::Write`], also if the file does not exist.
    pub fn write(&self, path: &str, content: &str) -> Result<(), RootError> {
        self.write_to(OFlags::empty(), path, content)
    }

    /// As [`Self::write`], for files that the kernel makes with their directory. On a made-up
    /// machine, without a kernel to make them, the file is created.
    pub(crate) fn write_control(&self, path: &str, content: &str) -> Result<(), RootError> {
        let flags = if self.is_live() { OFlags::empty() } else { OFlags::CREATE };
        self.write_to(flags, path, content)
    }

    fn write_to(&self, flags: OFlags, path: &str, content: &str) -> Result<(), RootError> {
        let write = || -> io::Result<()> {
            let mut file = self.open(path, flags | OFlags::WRONLY)?;
            // Writing zero bytes would be no write at all, so the kernel would keep its value.
            let content = if content.is_empty() { "\n" } else { content };
            if is_of_the_kernel(&file) {
                return file.write_all(content.as_bytes());
            }
            // Truncating first would lose the old content if this process ended right then. The
            // surplus of a longer content becomes white space at the end, which readers ignore, and
            // is cut off afterwards.
            let before = usize::try_from(file.metadata()?.len().min(LONGEST)).unwrap_or(0);
            let mut padded = content.to_owned();
            padded.extend(std::iter::repeat_n('\n', before.saturating_sub(content.len())));
            file.write_all(padded.as_bytes())?;
            if before > content.len() { file.set_len(content.len() as u64) } else { Ok(()) }
        };
        write().map_err(|source| self.write_error(path, source))
    }

    /// Opens a file that only Dimmer writes, for reading and appending.
    ///
    /// # Errors
    /// [`RootError::Foreign`]: the path is a symbolic link, a FIFO or anything else but a regular
    /// file, or it belongs to a user other than root and this process's. [`RootError::Write`].
    pub(crate) fn open_own(&self, path: &str) -> Result<File, RootError> {
        self.open_owned(path, OFlags::empty())
    }

    /// As [`Self::open_own`], but creates the file (mode 0600) if it does not exist.
    pub(crate) fn open_or_create_own(&self, path: &str) -> Result<File, RootError> {
        self.open_owned(path, OFlags::CREATE)
    }

    /// Creates `path` (mode 0600) for appending. The file must not exist yet.
    pub(crate) fn create_new(&self, path: &str) -> Result<File, RootError> {
        self.open_owned(path, OFlags::CREATE | OFlags::EXCL)
    }

    fn open_owned(&self, path: &str, flags: OFlags) -> Result<File, RootError> {
        let foreign = |why: String| RootError::Foreign { path: self.path(path), why };
        // The type is also checked before opening, because opening some files has a side effect.
        if let Ok((above, name)) = within::parent(&self.directory, path)
            && let Ok(found) = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)
            && !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file()
        {
            return Err(foreign("it is no regular file".to_owned()));
        }
        let flags = flags | OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW;
        let file = self.open(path, flags).map_err(|source| self.write_error(path, source))?;
        let found = file.metadata().map_err(|source| self.read_error(path, source))?;
        let own = rustix::process::geteuid().as_raw();
        if !found.is_file() {
            return Err(foreign("it is no regular file".to_owned()));
        }
        if found.uid() != own && found.uid() != 0 {
            let why =
                format!("it belongs to user {}, neither to root nor to user {own}", found.uid());
            return Err(foreign(why));
        }
        Ok(file)
    }

    /// Creates the directory `path` and its missing parents.
    pub(crate) fn create_directory(&self, path: &str) -> Result<(), RootError> {
        let created = within::make_directories(&self.directory, path);
        created.map_err(|source| self.write_error(path, source))
    }

    /// Makes the control group `path`. The kernel makes its files.
    pub(crate) fn make_group(&self, path: &str) -> Result<(), RootError> {
        let made = within::make_directory(&self.directory, path);
        made.map_err(|source| self.write_error(path, source))
    }

    /// Removes a control group with its files, also on a made-up machine.
    pub(crate) fn remove_group(&self, path: &str) -> Result<(), RootError> {
        if !self.is_live() {
            // An entry that is in use stays, such as a group with groups below it.
            for name in self.list(path).unwrap_or_default() {
                let _ = within::remove(&self.directory, &format!("{path}/{name}"), false);
            }
        }
        let removed = within::remove(&self.directory, path, true);
        removed.map_err(|source| self.write_error(path, source))
    }

    /// Gives the file `path` another name in its directory, which no file there has yet.
    pub(crate) fn rename(&self, path: &str, name: &str) -> Result<(), RootError> {
        let renamed = within::rename(&self.directory, path, name);
        renamed.map_err(|source| self.write_error(path, source))
    }

    /// Removes the file `path`.
    pub(crate) fn remove(&self, path: &str) -> Result<(), RootError> {
        let removed = within::remove(&self.directory, path, false);
        removed.map_err(|source| self.write_error(path, source))
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let is_made = flags.contains(OFlags::CREATE);
        let mode = if is_made { 0o600 } else { 0 };
        within::open(&self.directory, path, flags, Mode::from_raw_mode(mode))
    }

    pub(crate) fn write_error(&self, path: &str, source: io::Error) -> RootError {
        RootError::Write { path: self.path(path), source }
    }

    pub(crate) fn read_error(&self, path: &str, source: io::Error) -> RootError {
        RootError::Read { path: self.path(path), source }
    }

    fn malformed(&self, path: &str, found: &str, expected: &'static str) -> RootError {
        RootError::Malformed {
            path: self.path(path),
            found: found.chars().take(60).collect(),
            expected,
        }
    }

    fn mode_has(&self, path: &str, bits: u32) -> bool {
        let found = within::look(&self.directory, path).and_then(|file| file.metadata());
        found.is_ok_and(|meta| meta.permissions().mode() & bits != 0)
    }
}

/// Whether the file is on a file system of the kernel, where each write is a separate request.
///
/// Source: Linux `include/uapi/linux/magic.h`.
fn is_of_the_kernel(file: &File) -> bool {
    const KERNEL: [i64; 6] = [
        0x6265_6572, // SYSFS_MAGIC
        0x9fa0,      // PROC_SUPER_MAGIC
        0x0027_e0eb, // CGROUP_SUPER_MAGIC
        0x6367_7270, // CGROUP2_SUPER_MAGIC
        0x6462_6720, // DEBUGFS_MAGIC
        0x7472_6163, // TRACEFS_MAGIC
    ];
    rustix::fs::fstatfs(file).is_ok_and(|found| KERNEL.contains(&found.f_type))
}

/// How long to wait for the kernel to take a write over: this many times 50 us. A guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as it may take.
    Long = 200,
    /// As long as it usually takes.
    Short = 20,
}

/// Whether the kernel takes a write into this file over after the write has returned: into a limit
/// of a clock. It sets a clock (`scaling_setspeed`) and changes the governor during the write.
fn is_taken_over_later(path: &str) -> bool {
    path.ends_with("/scaling_min_freq") || path.ends_with("/scaling_max_freq")
}

/// Parses a list such as `0-3,8`; `None` if it is malformed.
pub fn parse_cpu_list(text: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= HIGHEST_CPU {
            return None;
        }
        cpus.extend((first..=last).map(CpuId::new));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Formats CPUs as the kernel does: `0-3,8`. `cpus` must be ascending.
#[must_use]
pub fn format_cpu_list(cpus: &[CpuId]) -> String {
    let runs = cpus.chunk_by(|left, right| left.index().checked_add(1) == Some(right.index()));
    let written = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    written.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let written = parse_cpu_list(text).map(|cpus| format_cpu_list(&cpus));
        assert_eq!(written.as_deref(), expected, "{text:?}");
    }

    #[test]
    fn reads_and_writes_cpu_lists_as_the_kernel_does() {
        check("0-3,8", Some("0-3,8"));
        check("0", Some("0"));
        check("", Some(""));
        check("8,0-3,2", Some("0-3,8"));
        check(" 1 , 2 ", Some("1-2"));
    }

    #[test]
    fn only_limits_of_clocks_are_taken_over_later() {
        let policy = "/sys/devices/system/cpu/cpufreq/policy0";
        for (name, is_later) in [
            ("scaling_min_freq", true),
            ("scaling_max_freq", true),
            ("scaling_setspeed", false),
            ("scaling_governor", false),
        ] {
            assert_eq!(is_taken_over_later(&format!("{policy}/{name}")), is_later, "{name}");
        }
    }

    #[test]
    fn a_long_file_is_read_line_by_line_and_refused_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let lines = "a line of text\n".repeat(usize::try_from(LONGEST).unwrap() / 15 + 1);
        std::fs::write(root.path("/long"), lines + "the \u{2713} last").unwrap();
        let last = |line: &str| line.ends_with("last").then(|| line.to_owned());
        let found = root.find_in_lines("/long", last).unwrap();
        assert_eq!(found.as_deref(), Some("the \u{2713} last"));
        assert_eq!(root.text("/long").unwrap_err().kind(), Some(io::ErrorKind::FileTooLarge));
        assert!(root.find_in_lines("/none", last).unwrap_err().is_not_found());
    }

    #[test]
    fn refuses_what_is_no_cpu_list() {
        for garbage in ["3-0", "a", "0-", "-1", "0-4294967295", "99999999999", "0-3:2", "\u{0}"] {
            check(garbage, None);
        }
    }
}
