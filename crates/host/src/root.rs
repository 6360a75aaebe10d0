//! The directory under which the whole machine is read: `/`, or a made-up machine's directory.
//!
//! **Invariant:** no other module of this crate touches `std::fs`. Paths are written as the
//! kernel documents them (`/sys/devices/system/cpu/online`) and looked up under the root.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use dimmer_processor::units::CpuId;
use rustix::fs::Access;

/// No file read here is longer: a file that is larger is cut off, in bytes.
const LONGEST: u64 = 1 << 20;

/// No Linux machine has a hardware thread with this number or a higher one: the kernel's
/// `NR_CPUS` is at most 8192 on x86 (`arch/x86/Kconfig`, `NR_CPUS_RANGE_END`).
const HIGHEST_CPU: u32 = 8192;

/// What can go wrong below a root. None of it is fatal for other files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file on disk.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written, created or removed; its content is what it was, or, if the
    /// kernel took a part of it, what the kernel made of that.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file on disk.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{} holds `{found}`, expected {expected}", path.display())]
    Malformed {
        /// The file on disk.
        path: PathBuf,
        /// What it holds, cut off after 60 characters.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
}

impl RootError {
    /// Whether the file is simply not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
    }

    /// What the kernel said, where it was the kernel that said something.
    #[must_use]
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source.kind()),
            Self::Malformed { .. } => None,
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

    /// Whether this is the machine the process runs on, so that system calls speak about it too.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.directory == Path::new("/")
    }

    /// Where `path` lies on disk. A leading `/` is that of the root.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    /// The content of `path`, white space at its end cut off, invalid UTF-8 replaced.
    ///
    /// # Errors
    /// [`RootError::Read`].
    pub fn text(&self, path: &str) -> Result<String, RootError> {
        Ok(self.text_whole(path)?.trim_end().to_owned())
    }

    /// As [`Self::text`], with the white space at its end.
    pub(crate) fn text_whole(&self, path: &str) -> Result<String, RootError> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(self.path(path))?.take(LONGEST).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| self.read_error(path, source))?;
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

    /// The content of `path` as a list of hardware threads as the kernel writes it: `0-3,8`.
    /// Ascending, each once; an empty file is an empty list.
    ///
    /// # Errors
    /// [`RootError::Read`], [`RootError::Malformed`].
    pub fn cpu_list(&self, path: &str) -> Result<Vec<CpuId>, RootError> {
        let text = self.text(path)?;
        self.parse_cpu_list(path, &text)
    }

    /// `text`, found in `path`, as a list of hardware threads.
    pub(crate) fn parse_cpu_list(&self, path: &str, text: &str) -> Result<Vec<CpuId>, RootError> {
        parse_cpu_list(text)
            .ok_or_else(|| self.malformed(path, text, "a list of hardware threads as in `0-3,8`"))
    }

    /// The names in the directory `path`, sorted; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// [`RootError::Read`].
    pub fn list(&self, path: &str) -> Result<Vec<String>, RootError> {
        let entries =
            fs::read_dir(self.path(path)).map_err(|source| self.read_error(path, source))?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Where the symbolic link `path` leads, as it is written there, invalid UTF-8 replaced.
    ///
    /// # Errors
    /// [`RootError::Read`], also if it is no link.
    pub fn link(&self, path: &str) -> Result<String, RootError> {
        let target =
            fs::read_link(self.path(path)).map_err(|source| self.read_error(path, source))?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Whether there is anything at `path`.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether this process may read the file `path`: it opens, and its mode lets anybody read.
    #[must_use]
    pub fn is_readable(&self, path: &str) -> bool {
        self.mode_has(path, 0o444) && File::open(self.path(path)).is_ok()
    }

    /// Whether this process may write the file `path`: it opens for writing, and its mode lets
    /// anybody write. The mode is asked too because root may open what the kernel then refuses.
    #[must_use]
    pub fn is_writable(&self, path: &str) -> bool {
        self.mode_has(path, 0o222) && OpenOptions::new().write(true).open(self.path(path)).is_ok()
    }

    /// Whether this process may create files in the directory `path`.
    #[must_use]
    pub fn is_directory_writable(&self, path: &str) -> bool {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        self.mode_has(path, 0o222) && rustix::fs::access(self.path(path), access).is_ok()
    }

    /// Reads exactly `into.len()` bytes of `path` from `offset` on, as devices are read.
    ///
    /// # Errors
    /// [`RootError::Read`]; a file that ends before is an unexpected end of file.
    pub fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), RootError> {
        let file = File::open(self.path(path)).map_err(|source| self.read_error(path, source))?;
        file.read_exact_at(into, offset).map_err(|source| self.read_error(path, source))
    }

    /// Replaces the content of the existing file `path`, in one write as the kernel wants it.
    /// Use [`crate::journal::Journal::change`] for whatever belongs to the machine.
    ///
    /// # Errors
    /// [`RootError::Write`], also if there is no such file.
    pub fn write(&self, path: &str, content: &str) -> Result<(), RootError> {
        self.write_to(OpenOptions::new().write(true).truncate(true), path, content)
    }

    /// As [`Self::write`], for files that the kernel makes with their directory: on a made-up machine, which has no
    /// kernel to do so, the file is made.
    pub(crate) fn write_control(&self, path: &str, content: &str) -> Result<(), RootError> {
        let options = &mut OpenOptions::new();
        options.write(true).truncate(true).create(!self.is_live());
        self.write_to(options, path, content)
    }

    fn write_to(&self, options: &OpenOptions, path: &str, content: &str) -> Result<(), RootError> {
        // Writing nothing would be no write at all, which leaves what the kernel holds.
        let content = if content.is_empty() { "\n" } else { content };
        let write = || options.open(self.path(path))?.write_all(content.as_bytes());
        write().map_err(|source| self.write_error(path, source))
    }

    /// Opens `path` for appending and reading, creating it (mode 0600) if it is not there.
    pub(crate) fn open_for_append(&self, path: &str) -> Result<File, RootError> {
        let options = &mut OpenOptions::new();
        let file = options.append(true).read(true).create(true).mode(0o600).open(self.path(path));
        file.map_err(|source| self.write_error(path, source))
    }

    /// Creates `path` (mode 0600), which must not be there, for appending.
    pub(crate) fn create_new(&self, path: &str) -> Result<File, RootError> {
        let options = &mut OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600).open(self.path(path));
        file.map_err(|source| self.write_error(path, source))
    }

    /// Creates the directory `path` and those above it.
    pub(crate) fn create_directory(&self, path: &str) -> Result<(), RootError> {
        let created = DirBuilder::new().recursive(true).mode(0o755).create(self.path(path));
        created.map_err(|source| self.write_error(path, source))
    }

    /// Makes the control group `path`, whose files the kernel makes with it.
    pub(crate) fn make_group(&self, path: &str) -> Result<(), RootError> {
        let made = DirBuilder::new().mode(0o755).create(self.path(path));
        made.map_err(|source| self.write_error(path, source))
    }

    /// Removes a control group, whose files go with it; on a made-up machine too.
    pub(crate) fn remove_group(&self, path: &str) -> Result<(), RootError> {
        let directory = self.path(path);
        let removed =
            if self.is_live() { fs::remove_dir(directory) } else { fs::remove_dir_all(directory) };
        removed.map_err(|source| self.write_error(path, source))
    }

    /// Removes the file `path`.
    pub(crate) fn remove(&self, path: &str) -> Result<(), RootError> {
        fs::remove_file(self.path(path)).map_err(|source| self.write_error(path, source))
    }

    pub(crate) fn write_error(&self, path: &str, source: io::Error) -> RootError {
        RootError::Write { path: self.path(path), source }
    }

    fn read_error(&self, path: &str, source: io::Error) -> RootError {
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
        fs::metadata(self.path(path)).is_ok_and(|meta| meta.permissions().mode() & bits != 0)
    }
}

/// Parses `0-3,8`; `None` for anything else.
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

/// Writes hardware threads as the kernel does: `0-3,8`. Expects them ascending.
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
    fn refuses_what_is_no_cpu_list() {
        for garbage in ["3-0", "a", "0-", "-1", "0-4294967295", "99999999999", "0-3:2", "\u{0}"] {
            check(garbage, None);
        }
    }
}
