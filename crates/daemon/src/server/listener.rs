//! The server's socket, and the limit on its files.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_host::root::Root;
use dimmer_watch::settings::Settings;
use rustix::fs::{FlockOperation, Gid};

use super::ServerError;

/// A server's own socket: removed when it ends, unless another server's socket is there by then.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// Device and inode of the socket.
    identity: Option<(u64, u64)>,
}

impl Place {
    /// The socket that was bound there just now.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// A socket at the path, with this group and mode; creates its directory if it is missing. Replaces
/// a socket that a server has left behind; any other file there stays.
pub(super) fn listen(
    root: &Root,
    path: &Path,
    access: (Option<&str>, Option<u32>),
) -> Result<OwnedFd, ServerError> {
    let failed = |source| ServerError::Listen { path: path.to_owned(), source };
    make_directory_of(path).map_err(failed)?;
    let group = access.0.map(|group| group_of(root, group)).transpose()?;
    let _alone = alone(path);
    let listener = match dimmer_protocol::listen(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket =
                std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
            match dimmer_protocol::connect(path) {
                _ if !is_socket => return Err(failed(error)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(failed(source)),
                Ok(_) => return Err(ServerError::Taken(path.to_owned())),
            }
            std::fs::remove_file(path).map_err(failed)?;
            dimmer_protocol::listen(path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    // Root's socket is for the programs of all users, which see nothing of each other; a user's
    // socket is for that user's programs.
    let mode = match (access, rustix::process::geteuid().is_root()) {
        ((_, Some(mode)), _) => mode,
        ((Some(_), None), _) => 0o660,
        ((None, None), true) => 0o666,
        ((None, None), false) => 0o600,
    };
    // With the usual umask, others cannot write to it until its mode is set, and so not connect.
    rustix::fs::chown(path, None, group).map_err(|error| failed(error.into()))?;
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))
        .map_err(|error| failed(error.into()))?;
    Ok(listener)
}

/// Checks whether the group of the socket exists, if the settings name one.
///
/// # Errors
/// [`ServerError::NoGroup`].
pub fn check_group(root: &Root, settings: &Settings) -> Result<(), ServerError> {
    let (group, _) = settings.socket_access();
    group.map_or(Ok(()), |group| group_of(root, group).map(drop))
}

/// The id of a group of `/etc/group`, given by name or number.
fn group_of(root: &Root, group: &str) -> Result<Gid, ServerError> {
    let number = match group.parse() {
        Ok(number) => Some(number),
        Err(_) => root.text("/etc/group").ok().and_then(|groups| {
            // `name:password:number:members`.
            let mut lines = groups.lines().map(|line| line.split(':'));
            let mut found =
                lines.find_map(|mut fields| (fields.next() == Some(group)).then_some(fields))?;
            found.nth(1)?.parse().ok()
        }),
    };
    // The highest number means no group.
    let number = number.filter(|number| *number != u32::MAX);
    number.map(Gid::from_raw).ok_or_else(|| ServerError::NoGroup(group.to_owned()))
}

/// Creates the directory of a socket's path if it is missing.
pub(crate) fn make_directory_of(path: &Path) -> io::Result<()> {
    let is_missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
    let Some(directory) = path.parent().filter(is_missing) else { return Ok(()) };
    std::fs::create_dir_all(directory)?;
    if rustix::process::geteuid().is_root() {
        // If root's umask keeps others out, they could not reach the socket.
        std::fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// A lock on the socket's directory. While it is held, no other server examines and replaces a
/// leftover socket there: of two that start at once, one would remove the other's socket. The wait
/// is short, because others may lock the directory for reasons of their own, or for ever.
fn alone(path: &Path) -> Option<File> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new("."))).ok()?;
    let begin = Instant::now();
    while rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begin.elapsed() >= PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(directory)
}

/// Raises the limit on files as far as possible. Returns how many peers that allows, with some
/// files left for other uses.
pub(super) fn allow_many_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// The server's own files, those being passed, and those of the metrics: 64 connections.
    const OTHERS: u64 = 160;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OTHERS);
    usize::try_from(most).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_group_and_mode_that_are_configured() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("etc")).unwrap();
        // Every user may give files to the own group.
        let own = rustix::process::getegid().as_raw();
        let groups = format!("other:x:7:\ndim:x:{own}:me\nbad:x:many:\n");
        std::fs::write(directory.path().join("etc/group"), groups).unwrap();
        let root = &Root::new(directory.path());
        let path = &directory.path().join("socket");
        let check = |access: (Option<&str>, Option<u32>), mode: u32| {
            let _listener = listen(root, path, access).unwrap();
            let found = std::fs::symlink_metadata(path).unwrap();
            assert_eq!((found.gid(), found.mode() & 0o777), (own, mode));
        };
        check((Some("dim"), None), 0o660);
        check((Some(&own.to_string()), Some(0o620)), 0o620);
        check((None, Some(0o600)), 0o600);
        for group in ["none", "bad", "", "4294967295", "-1"] {
            let error = listen(root, path, (Some(group), None)).unwrap_err();
            assert!(error.to_string().contains(&format!("no group `{group}`")), "{error}");
        }
    }

    #[test]
    fn of_servers_that_begin_at_once_one_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = &directory.path().join("socket");
        for _ in 0..100 {
            // A server that has ended has left its socket.
            drop(dimmer_protocol::listen(path).unwrap());
            let all: Vec<_> = std::thread::scope(|scope| {
                let servers: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| listen(&Root::live(), path, (None, None))))
                    .collect();
                servers.into_iter().map(|server| server.join().unwrap()).collect()
            });
            assert_eq!(all.iter().filter(|server| server.is_ok()).count(), 1, "{all:?}");
            assert!(dimmer_protocol::connect(path).is_ok());
            drop(all);
            std::fs::remove_file(path).unwrap();
        }
    }
}
